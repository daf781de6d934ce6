from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
import pytest_asyncio

from dragoman.admin import AsyncModelAdminClient, ModelAdminClient
from dragoman.errors import ModelNotFoundError, ModelStateError, PermissionDeniedError, UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import MODEL, MODEL_MESSAGE
from tests.unit.proto.scripted_server import ScriptedService, answers, refuses, refuses_for


@pytest.fixture
def admin(target: str) -> Iterator[ModelAdminClient]:
    with ModelAdminClient(target) as admin:
        yield admin


@pytest_asyncio.fixture
async def async_admin(target: str) -> AsyncIterator[AsyncModelAdminClient]:
    async with AsyncModelAdminClient(target) as admin:
        yield admin


def test_a_loaded_model_comes_back_typed(admin: ModelAdminClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.LoadModelResponse(model=MODEL_MESSAGE)))

    assert admin.load_model("tiny/3") == MODEL
    assert service.calls[0].request == pb.LoadModelRequest(model="tiny/3")


def test_a_model_is_unloaded(admin: ModelAdminClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.UnloadModelResponse()))

    admin.unload_model("tiny/3")

    assert service.calls[0].request == pb.UnloadModelRequest(model="tiny/3")


def test_a_label_is_set_and_removed(admin: ModelAdminClient, service: ScriptedService) -> None:
    service.script += [answers(pb.SetModelLabelResponse(model=MODEL_MESSAGE))] * 2

    assert admin.set_model_label("tiny/3", "stable").versions[0].labels == ("canary", "stable")
    admin.remove_model_label("tiny", "stable")

    assert [call.request for call in service.calls] == [
        pb.SetModelLabelRequest(model="tiny/3", label="stable"),
        pb.SetModelLabelRequest(model="tiny", label="stable"),
    ]


async def test_all_of_it_works_from_asyncio(async_admin: AsyncModelAdminClient, service: ScriptedService) -> None:
    labelled = answers(pb.SetModelLabelResponse(model=MODEL_MESSAGE))
    loaded, unloaded = answers(pb.LoadModelResponse(model=MODEL_MESSAGE)), answers(pb.UnloadModelResponse())
    service.script += [loaded, labelled, labelled, unloaded]

    assert await async_admin.load_model("tiny/3") == MODEL
    assert await async_admin.set_model_label("tiny/3", "stable") == MODEL
    assert await async_admin.remove_model_label("tiny", "stable") == MODEL
    await async_admin.unload_model("tiny/3")

    assert isinstance(service.calls[-1].request, pb.UnloadModelRequest)


def test_a_label_is_not_removed_by_a_forgotten_version(admin: ModelAdminClient, service: ScriptedService) -> None:
    with pytest.raises(ValueError, match="model is 'tiny', must be name/version"):
        admin.set_model_label("tiny", "stable")
    with pytest.raises(ValueError, match="name is 'tiny/3'"):
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
def test_a_refusal_has_the_class_of_its_reason(
    admin: ModelAdminClient, service: ScriptedService, code: grpc.StatusCode, reason: str, error: type[Exception]
) -> None:
    service.script.append(refuses_for(code, reason))

    with pytest.raises(error):
        admin.load_model("tiny/3")


def test_a_change_is_not_repeated(admin: ModelAdminClient, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * 2

    with pytest.raises(UnavailableError):
        admin.unload_model("tiny/3")

    assert len(service.calls) == 1


def test_a_change_has_more_time_than_a_translation(admin: ModelAdminClient, service: ScriptedService) -> None:
    service.script.append(answers(pb.UnloadModelResponse()))

    admin.unload_model("tiny/3")

    assert service.calls[0].time_remaining_s == pytest.approx(300.0, rel=0.05)
