import pickle
from collections.abc import Mapping

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import errors

NOT_OK = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
CLASSES = {
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.DragomanError)
}


@pytest.mark.parametrize("code", NOT_OK)
def test_error_keeps_the_status(code: grpc.StatusCode) -> None:
    error = errors.error_from_status(status_pb2.Status(code=code.value[0], message="no"), "r-1")

    assert (error.code, error.message, error.request_id) == (code, "no", "r-1")
    assert str(error) == f"{code.name}: no (request r-1)"
    assert (error.reason, error.metadata, error.field_violations, error.retry_after_s) == ("", {}, (), None)


def test_every_class_has_a_status_or_a_reason() -> None:
    mapped = {*errors.CODE_CLASSES.values(), *errors.REASON_CLASSES.values(), errors.ServerError}

    assert mapped == CLASSES - {errors.DragomanError, errors.AccessError}


def test_every_reason_of_the_server_has_a_class() -> None:
    error_mapping = pytest.importorskip("dragoman_service.middleware.error_mapping")

    assert {row.reason for row in error_mapping.TABLE.values()} == set(errors.REASON_CLASSES)
    for row in error_mapping.TABLE.values():
        error = errors.error_from_status(_status(row.code, row.reason), "r-1")
        assert type(error) is errors.REASON_CLASSES[row.reason]
        assert (error.code, error.reason) == (row.code, row.reason)


@pytest.mark.parametrize(
    ("code", "reason", "domain", "expected", "expected_reason"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "NEW_REASON", "dragoman", errors.ExhaustedError, "NEW_REASON"),
        (grpc.StatusCode.UNAVAILABLE, "OVERLOADED", "dragoman", errors.UnavailableError, "OVERLOADED"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "proxy.example", errors.ExhaustedError, ""),
    ],
    ids=["unknown reason", "reason contradicts status", "reason of a proxy"],
)
def test_status_decides_without_a_matching_reason(
    code: grpc.StatusCode, reason: str, domain: str, expected: type[errors.DragomanError], expected_reason: str
) -> None:
    error = errors.error_from_status(_status(code, reason, domain=domain), "r-1")

    assert (type(error), error.reason) == (expected, expected_reason)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"stage": "admission", "needed_s": "12.500", "allowed_s": "3.000"}, ("admission", 12.5, 3.0)),
        ({"stage": "queue"}, ("queue", None, None)),
        ({"stage": "admission", "needed_s": "long", "allowed_s": ""}, ("admission", None, None)),
        ({}, (None, None, None)),
    ],
)
def test_deadline_error_has_stage_and_times(
    metadata: dict[str, str], expected: tuple[str | None, float | None, float | None]
) -> None:
    status = _status(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", metadata=metadata)

    error = errors.error_from_status(status, "r-1")

    assert isinstance(error, errors.DeadlineExceededError)
    assert (error.stage, error.needed_s, error.allowed_s) == expected


def test_error_can_be_pickled() -> None:
    status = _status(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=3)))
    error = errors.error_from_status(status, "r-1")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled by this test

    assert type(copy) is errors.RateLimitedError
    assert (str(copy), copy.reason, copy.retry_after_s) == (str(error), "RATE_LIMITED", 3)


def test_unknown_status_code_is_a_server_error() -> None:
    error = errors.error_from_status(status_pb2.Status(code=999), "r-1")

    assert isinstance(error, errors.ServerError)
    assert error.code is grpc.StatusCode.UNKNOWN


def test_details_become_attributes() -> None:
    status = _status(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", metadata={"queued": "9"})
    request = error_details_pb2.BadRequest()
    request.field_violations.add(field="texts", description="is 129, must be 1 to 128")
    retry_delay = duration_pb2.Duration(seconds=1, nanos=500_000_000)
    for detail in (error_details_pb2.RetryInfo(retry_delay=retry_delay), request):
        status.details.add().Pack(detail)

    error = errors.error_from_status(status, "r-1")

    assert (error.reason, error.metadata, error.retry_after_s) == ("OVERLOADED", {"queued": "9"}, 1.5)
    assert error.field_violations == (errors.FieldViolation(field="texts", description="is 129, must be 1 to 128"),)
    assert error.fields == ("texts",)


def _status(
    code: grpc.StatusCode, reason: str, *, domain: str = "dragoman", metadata: Mapping[str, str] | None = None
) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message="no")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return status
