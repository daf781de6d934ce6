from collections.abc import Iterator
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman_service import errors
from dragoman_service.calls.error_mapping import DOMAIN, NEUTRAL_MESSAGE, TABLE, RpcError, to_rpc_error

Detail = TypeVar("Detail", bound=Message)

OVERLOADED = errors.OverloadedError(queued=9, limit=9, unit="segments", retry_after_s=1.2345)


def classes_below(root: type[errors.DragomanError]) -> Iterator[type[errors.DragomanError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes_below(child)


def status_of(rpc_error: RpcError) -> status_pb2.Status:
    serialized = dict(rpc_error.trailing_metadata)["grpc-status-details-bin"]
    assert isinstance(serialized, bytes)
    return status_pb2.Status.FromString(serialized)


def detail(rpc_error: RpcError, kind: type[Detail]) -> Detail:
    found = kind()
    assert any(packed.Unpack(found) for packed in status_of(rpc_error).details), f"no {kind.__name__}"
    return found


def test_table_contains_every_error_class() -> None:
    ours = {kind for kind in classes_below(errors.DragomanError) if kind.__module__ == errors.__name__}

    assert ours == set(TABLE)


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (errors.InvalidFieldError("options.beam_size", 0, "1 to 16"), "INVALID_ARGUMENT", "INVALID_FIELD"),
        (errors.UnsupportedFieldError("options.sampling"), "UNIMPLEMENTED", "UNSUPPORTED_FIELD"),
        (errors.ModelNotFoundError("model", "x", ("en-de",)), "NOT_FOUND", "MODEL_NOT_FOUND"),
        (OVERLOADED, "RESOURCE_EXHAUSTED", "OVERLOADED"),
        (errors.StartingError(), "UNAVAILABLE", "STARTING"),
        (errors.DrainingError(), "UNAVAILABLE", "DRAINING"),
        (errors.DeadlineExceededError("queue"), "DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED"),
        (errors.EngineError("weights are broken"), "INTERNAL", "ENGINE_FAILED"),
        (ZeroDivisionError("secret"), "INTERNAL", "ENGINE_FAILED"),
    ],
)
def test_errors_have_code_and_reason(error: Exception, code: str, reason: str) -> None:
    rpc_error = to_rpc_error(error)

    info, status = detail(rpc_error, error_details_pb2.ErrorInfo), status_of(rpc_error)
    assert (rpc_error.code.name, info.reason, info.domain) == (code, reason, DOMAIN)
    assert (status.code, status.message) == (rpc_error.code.value[0], rpc_error.message)
    assert (rpc_error.message == NEUTRAL_MESSAGE) == (code == "INTERNAL")


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestError("texts", "are too many"),
        errors.InvalidFieldError("texts[3]", 11, "10 characters"),
        errors.UnsupportedFieldError("options.sampling"),
        errors.ModelNotFoundError("target_language", "xx", ("de",)),
    ],
)
def test_request_errors_name_the_field(error: errors.RequestError) -> None:
    (violation,) = detail(to_rpc_error(error), error_details_pb2.BadRequest).field_violations

    assert (violation.field, violation.description) == (error.field, error.description)


@pytest.mark.parametrize(
    ("error", "delay_ms"),
    [
        (OVERLOADED, 1235),
        (errors.RateLimitedError(caller="shop", limit=1, unit="requests/s", retry_after_s=0.0), 1),
    ],
)
def test_retryable_error_has_retry_info_and_pushback(error: errors.RetryableError, delay_ms: int) -> None:
    rpc_error = to_rpc_error(error)

    assert detail(rpc_error, error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() == delay_ms
    assert dict(rpc_error.trailing_metadata)["grpc-retry-pushback-ms"] == str(delay_ms)


@pytest.mark.parametrize(
    ("times", "metadata", "message"),
    [
        ({}, {}, "deadline exceeded in stage queue"),
        (
            {"needed_s": 12.5, "allowed_s": 3},
            {"needed_s": "12.500", "allowed_s": "3.000"},
            "deadline exceeded in stage queue: the answer would take 12.500 s, 3.000 s are allowed",
        ),
    ],
)
def test_deadline_error_has_the_stage_and_known_times(
    times: dict[str, float], metadata: dict[str, str], message: str
) -> None:
    rpc_error = to_rpc_error(errors.DeadlineExceededError("queue", **times))

    info = detail(rpc_error, error_details_pb2.ErrorInfo)
    assert (dict(info.metadata), rpc_error.message) == ({"stage": "queue", **metadata}, message)


def test_subclass_has_the_status_of_its_parent() -> None:
    kind = type("NewError", (errors.DrainingError,), {})

    assert to_rpc_error(kind()).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    "value", ["x" * 100_000, "😀" * 100_000, "\ud800" * 100_000], ids=["ascii", "emoji", "surrogate"]
)
def test_status_of_any_value_fits_into_metadata(value: str) -> None:
    rpc_error = to_rpc_error(errors.InvalidFieldError("source_language", value, "a tag"))

    percent_encoded_bytes = 3 * len(rpc_error.message.encode())
    assert percent_encoded_bytes + 4 / 3 * status_of(rpc_error).ByteSize() < 8000
