from collections.abc import Iterator
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman_service import errors
from dragoman_service.middleware.error_mapping import DOMAIN, NEUTRAL_MESSAGE, TABLE, RpcError, to_rpc_error

Detail = TypeVar("Detail", bound=Message)

OVERLOADED = errors.OverloadedError(queued=9, limit=9, unit="segments", retry_after_s=1.2345)


def classes_below(root: type[errors.DragomanError]) -> Iterator[type[errors.DragomanError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes_below(child)


def status_of(given: RpcError) -> status_pb2.Status:
    serialized = dict(given.trailing_metadata)["grpc-status-details-bin"]
    assert isinstance(serialized, bytes)
    return status_pb2.Status.FromString(serialized)


def detail(given: RpcError, kind: type[Detail]) -> Detail:
    found = kind()
    assert any(packed.Unpack(found) for packed in status_of(given).details), f"no {kind.__name__}"
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
    given = to_rpc_error(error)

    info = detail(given, error_details_pb2.ErrorInfo)
    assert (given.code.name, info.reason, info.domain) == (code, reason, DOMAIN)


def test_details_repeat_code_and_message_of_the_status() -> None:
    given = to_rpc_error(OVERLOADED)

    status = status_of(given)
    assert (status.code, status.message) == (grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], given.message)


@pytest.mark.parametrize(
    "error",
    [
        errors.RequestError("texts", "are too many"),
        errors.InvalidFieldError("texts[3]", 11, "10 characters"),
        errors.UnsupportedFieldError("options.sampling"),
        errors.ModelNotFoundError("target_language", "xx", ("de",)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_request_errors_name_the_field(error: errors.RequestError) -> None:
    (violation,) = detail(to_rpc_error(error), error_details_pb2.BadRequest).field_violations

    assert (violation.field, violation.description) == (error.field, error.description)


def test_unknown_model_lists_available_models() -> None:
    given = to_rpc_error(errors.ModelNotFoundError("model", "x", ("en-de/1", "en-de/2")))

    assert given.message == "model: x is not served here; available: en-de/1, en-de/2"


def test_overload_has_retry_info_and_pushback() -> None:
    given = to_rpc_error(OVERLOADED)

    delay = detail(given, error_details_pb2.RetryInfo).retry_delay
    assert delay.ToMilliseconds() == 1235
    assert dict(given.trailing_metadata)["grpc-retry-pushback-ms"] == "1235"


def test_pushback_is_at_least_one_millisecond() -> None:
    given = to_rpc_error(errors.RateLimitedError(caller="shop", limit=1, unit="requests/s", retry_after_s=0.0))

    assert dict(given.trailing_metadata)["grpc-retry-pushback-ms"] == "1"


def test_deadline_error_has_the_stage() -> None:
    info = detail(to_rpc_error(errors.DeadlineExceededError("queue")), error_details_pb2.ErrorInfo)

    assert dict(info.metadata) == {"stage": "queue"}


def test_unreachable_deadline_has_needed_and_allowed_time() -> None:
    given = to_rpc_error(errors.DeadlineExceededError("admission", needed_s=12.5, allowed_s=3))

    expected = "deadline exceeded in stage admission: the answer would take 12.500 s, 3.000 s are allowed"
    assert given.message == expected
    assert dict(detail(given, error_details_pb2.ErrorInfo).metadata) == {
        "stage": "admission",
        "needed_s": "12.500",
        "allowed_s": "3.000",
    }


@pytest.mark.parametrize("error", [errors.EngineError("weights at /srv/x are broken"), RuntimeError("/srv/x")])
def test_internal_error_has_neutral_message(error: Exception) -> None:
    assert to_rpc_error(error).message == NEUTRAL_MESSAGE


def test_subclass_has_the_status_of_its_parent() -> None:
    kind = type("NewError", (errors.DrainingError,), {})

    assert to_rpc_error(kind()).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    "value", ["x" * 100_000, "😀" * 100_000, "\ud800" * 100_000], ids=["ascii", "emoji", "surrogate"]
)
def test_status_of_any_value_fits_into_metadata(value: str) -> None:
    given = to_rpc_error(errors.InvalidFieldError("source_language", value, "a tag"))

    percent_encoded_bytes = 3 * len(given.message.encode())
    assert percent_encoded_bytes + 4 / 3 * status_of(given).ByteSize() < 8000
