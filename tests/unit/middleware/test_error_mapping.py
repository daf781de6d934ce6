from collections.abc import Iterator
from typing import TypeVar

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from dragoman_service import errors
from dragoman_service.middleware.error_mapping import DOMAIN, NEUTRAL_MESSAGE, TABLE, Answer, answer

Detail = TypeVar("Detail", bound=Message)

OVERLOADED = errors.OverloadedError(queued=9, limit=9, unit="segments", retry_after_s=1.2345)


def classes_below(root: type[errors.DragomanError]) -> Iterator[type[errors.DragomanError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes_below(child)


def status_of(given: Answer) -> status_pb2.Status:
    serialized = dict(given.trailing_metadata)["grpc-status-details-bin"]
    assert isinstance(serialized, bytes)
    return status_pb2.Status.FromString(serialized)


def detail(given: Answer, kind: type[Detail]) -> Detail:
    found = kind()
    assert any(packed.Unpack(found) for packed in status_of(given).details), f"no {kind.__name__}"
    return found


def test_every_class_of_the_error_tree_is_in_the_table() -> None:
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
def test_an_error_has_its_code_and_reason(error: Exception, code: str, reason: str) -> None:
    given = answer(error)

    info = detail(given, error_details_pb2.ErrorInfo)
    assert (given.code.name, info.reason, info.domain) == (code, reason, DOMAIN)


def test_code_and_message_are_the_same_in_status_and_details() -> None:
    given = answer(OVERLOADED)

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
def test_an_error_of_the_caller_names_the_field(error: errors.RequestError) -> None:
    (violation,) = detail(answer(error), error_details_pb2.BadRequest).field_violations

    assert (violation.field, violation.description) == (error.field, error.description)


def test_a_model_that_is_not_there_lists_what_is() -> None:
    given = answer(errors.ModelNotFoundError("model", "x", ("en-de/1", "en-de/2")))

    assert given.message == "model: x is not served here; available: en-de/1, en-de/2"


def test_overload_says_when_to_come_back_in_both_ways() -> None:
    given = answer(OVERLOADED)

    delay = detail(given, error_details_pb2.RetryInfo).retry_delay
    assert delay.ToMilliseconds() == 1235
    assert dict(given.trailing_metadata)["grpc-retry-pushback-ms"] == "1235"


def test_the_pushback_is_never_zero_which_grpc_would_wait_for_in_vain() -> None:
    given = answer(errors.RateLimitedError(caller="shop", limit=1, unit="requests/s", retry_after_s=0.0))

    assert dict(given.trailing_metadata)["grpc-retry-pushback-ms"] == "1"


def test_a_deadline_says_in_which_stage_it_passed() -> None:
    info = detail(answer(errors.DeadlineExceededError("queue")), error_details_pb2.ErrorInfo)

    assert dict(info.metadata) == {"stage": "queue"}


def test_a_deadline_that_cannot_be_kept_says_what_is_needed_and_allowed() -> None:
    given = answer(errors.DeadlineExceededError("admission", needed_s=12.5, allowed_s=3))

    expected = "deadline exceeded in stage admission: the answer would take 12.500 s, 3.000 s are allowed"
    assert given.message == expected
    assert dict(detail(given, error_details_pb2.ErrorInfo).metadata) == {
        "stage": "admission",
        "needed_s": "12.500",
        "allowed_s": "3.000",
    }


@pytest.mark.parametrize("error", [errors.EngineError("weights at /srv/x are broken"), RuntimeError("/srv/x")])
def test_a_fault_of_the_server_keeps_its_details(error: Exception) -> None:
    assert answer(error).message == NEUTRAL_MESSAGE


def test_an_unlisted_subclass_is_answered_like_its_parent() -> None:
    kind = type("NewError", (errors.DrainingError,), {})

    assert answer(kind()).code is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    "value", ["x" * 100_000, "😀" * 100_000, "\ud800" * 100_000], ids=["ascii", "emoji", "surrogate"]
)
def test_whatever_the_caller_sent_the_status_fits_into_metadata(value: str) -> None:
    given = answer(errors.InvalidFieldError("source_language", value, "a tag"))

    percent_encoded_bytes = 3 * len(given.message.encode())
    assert percent_encoded_bytes + 4 / 3 * status_of(given).ByteSize() < 8000
