import pickle
from collections.abc import Mapping

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from dragoman import errors
from dragoman_service.middleware import error_mapping

NOT_OK = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DragomanError)]


@pytest.mark.parametrize("code", NOT_OK)
def test_every_status_becomes_an_error_that_keeps_its_code(code: grpc.StatusCode) -> None:
    error = errors.error_from_status(status_pb2.Status(code=code.value[0], message="no"), "r-1")

    assert error.code is code
    assert error.message == "no"
    assert error.request_id == "r-1"
    assert str(error) == f"{code.name}: no (request r-1)"


def test_every_class_of_the_tree_has_a_status_or_a_reason() -> None:
    classes = {*errors.CODE_CLASSES.values(), *errors.REASON_CLASSES.values(), errors.ServerError}

    assert classes == set(TREE) - {errors.DragomanError, errors.AccessError}


def test_the_client_knows_every_reason_of_the_server() -> None:
    reasons = {row.reason for row in error_mapping.TABLE.values()}

    assert reasons == set(errors.REASON_CLASSES)


@pytest.mark.parametrize("row", error_mapping.TABLE.values(), ids=lambda row: row.reason)
def test_a_reason_of_the_server_has_a_class_of_its_own(row: error_mapping.Row) -> None:
    error = errors.error_from_status(status_for(row.code, row.reason), "r-1")

    assert type(error) is errors.REASON_CLASSES[row.reason]
    assert (error.code, error.reason) == (row.code, row.reason)


def test_a_reason_newer_than_the_client_becomes_the_class_of_the_status() -> None:
    error = errors.error_from_status(status_for(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUOTA_OF_TOMORROW"), "r-1")

    assert type(error) is errors.ExhaustedError
    assert error.reason == "QUOTA_OF_TOMORROW"


def test_a_reason_that_contradicts_the_status_does_not_decide() -> None:
    error = errors.error_from_status(status_for(grpc.StatusCode.UNAVAILABLE, "OVERLOADED"), "r-1")

    assert type(error) is errors.UnavailableError


def test_the_reason_of_a_proxy_is_not_taken_for_ours() -> None:
    error = errors.error_from_status(
        status_for(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", domain="proxy.example"), "r-1"
    )

    assert type(error) is errors.ExhaustedError
    assert error.reason == ""


@pytest.mark.parametrize("stage", ["admission", "queue", "decode", None])
def test_a_passed_deadline_says_in_which_stage_if_the_server_did(stage: str | None) -> None:
    metadata = {"stage": stage} if stage else {}
    reason = "DEADLINE_EXCEEDED" if stage else ""
    error = errors.error_from_status(status_for(grpc.StatusCode.DEADLINE_EXCEEDED, reason, metadata=metadata), "r-1")

    assert isinstance(error, errors.DeadlineExceededError)
    assert error.stage == stage


@pytest.mark.parametrize(
    ("metadata", "times"),
    [
        ({"stage": "admission", "needed_s": "12.500", "allowed_s": "3.000"}, (12.5, 3.0)),
        ({"stage": "queue"}, (None, None)),
        ({"stage": "admission", "needed_s": "long", "allowed_s": ""}, (None, None)),
    ],
)
def test_a_deadline_that_cannot_be_kept_says_what_is_needed_and_allowed(
    metadata: dict[str, str], times: tuple[float | None, float | None]
) -> None:
    error_mapping = status_for(grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", metadata=metadata)

    error = errors.error_from_status(error_mapping, "r-1")

    assert isinstance(error, errors.DeadlineExceededError)
    assert (error.needed_s, error.allowed_s) == times


def test_an_error_survives_the_way_to_another_process() -> None:
    told = status_for(grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    told.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=3)))

    error = pickle.loads(pickle.dumps(errors.error_from_status(told, "r-1")))  # noqa: S301 - our own

    assert type(error) is errors.RateLimitedError
    assert (str(error), error.reason, error.retry_after_s) == (
        "RESOURCE_EXHAUSTED: no (request r-1)",
        "RATE_LIMITED",
        3,
    )


def test_a_code_newer_than_the_client_is_a_server_error() -> None:
    error = errors.error_from_status(status_pb2.Status(code=999), "r-1")

    assert isinstance(error, errors.ServerError)
    assert error.code is grpc.StatusCode.UNKNOWN


def test_details_become_attributes() -> None:
    error_mapping = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0])
    info = error_details_pb2.ErrorInfo(reason="OVERLOADED", domain="dragoman", metadata={"queued": "9"})
    retry = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1, nanos=500_000_000))
    request = error_details_pb2.BadRequest()
    request.field_violations.add(field="texts", description="is 129, must be 1 to 128")
    for detail in (info, retry, request):
        error_mapping.details.add().Pack(detail)

    error = errors.error_from_status(error_mapping, "r-1")

    assert (error.reason, error.metadata, error.retry_after_s) == ("OVERLOADED", {"queued": "9"}, 1.5)
    assert error.field_violations == (errors.FieldViolation(field="texts", description="is 129, must be 1 to 128"),)
    assert error.fields == ("texts",)


def test_a_status_without_details_leaves_their_attributes_empty() -> None:
    error = errors.error_from_status(status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0]), "r-1")

    assert (error.reason, error.metadata, error.field_violations, error.retry_after_s) == ("", {}, (), None)


def status_for(
    code: grpc.StatusCode, reason: str, *, domain: str = "dragoman", metadata: Mapping[str, str] | None = None
) -> status_pb2.Status:
    told = status_pb2.Status(code=code.value[0], message="no")
    if reason:
        told.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain=domain, metadata=metadata))
    return told
