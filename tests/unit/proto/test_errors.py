import grpc
import pytest
from dragoman import errors
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

NOT_OK = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DragomanError)]


@pytest.mark.parametrize("code", NOT_OK)
def test_every_status_becomes_an_error_that_keeps_its_code(code: grpc.StatusCode) -> None:
    error = errors.error_from_status(status_pb2.Status(code=code.value[0], message="no"), "r-1")

    assert error.code is code
    assert error.message == "no"
    assert error.request_id == "r-1"
    assert str(error) == f"{code.name}: no (request r-1)"


def test_every_class_of_the_tree_has_a_status() -> None:
    raised = {type(errors.error_from_status(status_pb2.Status(code=code.value[0]), "")) for code in NOT_OK}

    assert raised == set(TREE) - {errors.DragomanError}


def test_a_code_newer_than_the_client_is_a_server_error() -> None:
    error = errors.error_from_status(status_pb2.Status(code=999), "r-1")

    assert isinstance(error, errors.ServerError)
    assert error.code is grpc.StatusCode.UNKNOWN


def test_details_become_attributes() -> None:
    status = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    info = error_details_pb2.ErrorInfo(reason="OVERLOADED", domain="dragoman", metadata={"queued": "9"})
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    request = error_details_pb2.BadRequest()
    request.field_violations.add(field="texts", description="is 129, must be 1 to 128")
    for detail in (info, retry, request):
        status.details.add().Pack(detail)

    error = errors.error_from_status(status, "r-1")

    assert (error.reason, error.metadata, error.retry_after_s) == ("OVERLOADED", {"queued": "9"}, 1.5)
    assert error.field_violations == (errors.FieldViolation(field="texts", description="is 129, must be 1 to 128"),)


def test_a_status_without_details_leaves_their_attributes_empty() -> None:
    error = errors.error_from_status(status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0]), "r-1")

    assert (error.reason, error.metadata, error.field_violations, error.retry_after_s) == ("", {}, (), None)
