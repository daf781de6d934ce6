from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from dragoman.client.errors import ModelNotFoundError, ModelStateError, PermissionDeniedError, UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import MODEL, MODEL_MESSAGE
from tests.unit.proto.scripted_server import ScriptedService, answers, refuses, refuses_for


@pytest.fixture
def admin(target: str, connect_admin: Callable[..., Any]) -> Iterator[Any]:
    with connect_admin(target) as admin:
        yield admin


def test_models_are_loaded_labelled_and_unloaded(admin: Any, service: ScriptedService) -> None:
    labelled = answers(pb.SetModelLabelResponse(model=MODEL_MESSAGE))
    loaded, unloaded = answers(pb.LoadModelResponse(model=MODEL_MESSAGE)), answers(pb.UnloadModelResponse())
    service.script += [loaded, labelled, labelled, unloaded]

    assert admin.load_model("tiny/3") == MODEL
    assert admin.set_model_label("tiny/3", "stable") == MODEL
    assert admin.remove_model_label("tiny", "stable") == MODEL
    assert admin.unload_model("tiny/3") is None

    assert [call.request for call in service.calls] == [
        pb.LoadModelRequest(model="tiny/3"),
        pb.SetModelLabelRequest(model="tiny/3", label="stable"),
        pb.SetModelLabelRequest(model="tiny", label="stable"),
        pb.UnloadModelRequest(model="tiny/3"),
    ]
    assert service.calls[0].time_remaining_s == pytest.approx(300.0, rel=0.05)


def test_label_is_set_for_a_version_and_removed_from_a_name(admin: Any, service: ScriptedService) -> None:
    with pytest.raises(ValueError, match="'tiny'"):
        admin.set_model_label("tiny", "stable")
    with pytest.raises(ValueError, match="'tiny/3'"):
        admin.remove_model_label("tiny/3", "stable")

    assert not service.calls


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND", ModelNotFoundError),
        (grpc.StatusCode.FAILED_PRECONDITION, "MODEL_STATE", ModelStateError),
        (grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED", PermissionDeniedError),
    ],
)
def test_rejection_raises_the_error_of_its_reason(
    admin: Any, service: ScriptedService, code: grpc.StatusCode, reason: str, error: type[Exception]
) -> None:
    service.script.append(refuses_for(code, reason))

    with pytest.raises(error):
        admin.load_model("tiny/3")


def test_changes_are_not_retried(admin: Any, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * 2

    with pytest.raises(UnavailableError):
        admin.unload_model("tiny/3")

    assert len(service.calls) == 1
