import pickle
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dragoman.client import errors
from tests.unit.proto.scripted_server import status_of

CLASSES = {
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.DragomanError)
}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_error_keeps_the_status(code: grpc.StatusCode) -> None:
    error = errors.error_from_status(status_of(code), "r-1")

    assert type(error) is errors.CODE_CLASSES.get(code, errors.ServerError)
    assert (error.code, error.message, error.request_id) == (code, "rejected", "r-1")
    assert str(error) == f"{code.name}: rejected (request r-1)"
    assert (error.reason, error.metadata, error.field_violations, error.retry_after_s) == ("", {}, (), None)


def test_every_class_has_a_status_or_a_reason() -> None:
    mapped = {*errors.CODE_CLASSES.values(), *errors.REASON_CLASSES.values(), errors.ServerError}

    assert mapped == CLASSES - {errors.DragomanError, errors.AccessError}


def test_every_reason_of_the_server_has_a_class() -> None:
    error_mapping = pytest.importorskip("dragoman_service.calls.error_mapping")

    assert {row.reason for row in error_mapping.TABLE.values()} == set(errors.REASON_CLASSES)
    for row in error_mapping.TABLE.values():
        error = errors.error_from_status(status_of(row.code, row.reason), "r-1")
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
    error = errors.error_from_status(status_of(code, reason, domain=domain), "r-1")

    assert (type(error), error.reason) == (expected, expected_reason)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"stage": "admission", "needed_s": "12.500", "allowed_s": "3.000"}, ("admission", 12.5, 3.0)),
        ({"stage": "admission", "needed_s": "long", "allowed_s": ""}, ("admission", None, None)),
        ({}, (None, None, None)),
    ],
)
def test_deadline_error_has_stage_and_times(metadata: dict[str, str], expected: Any) -> None:
    status = status_of(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", metadata=metadata)

    error = errors.error_from_status(status, "r-1")

    assert isinstance(error, errors.DeadlineExceededError)
    assert (error.stage, error.needed_s, error.allowed_s) == expected


def test_unknown_status_code_is_a_server_error() -> None:
    error = errors.error_from_status(status_pb2.Status(code=999), "r-1")

    assert (type(error), error.code) == (errors.ServerError, grpc.StatusCode.UNKNOWN)


def test_details_become_attributes_and_survive_pickling() -> None:
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    request = error_details_pb2.BadRequest()
    request.field_violations.add(field="texts", description="is 129, must be 1 to 128")
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    error = errors.error_from_status(status_of(code, "OVERLOADED", retry, request, metadata={"queued": "9"}), "r-1")

    for each in (error, pickle.loads(pickle.dumps(error))):  # noqa: S301 - pickled by this test
        assert (type(each), str(each)) == (errors.OverloadedError, str(error))
        assert (each.reason, each.metadata, each.retry_after_s) == ("OVERLOADED", {"queued": "9"}, 1.5)
        assert each.field_violations == (errors.FieldViolation(field="texts", description="is 129, must be 1 to 128"),)
        assert each.fields == ("texts",)
