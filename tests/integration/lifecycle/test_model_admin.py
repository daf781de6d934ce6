"""ModelService and ModelAdminService over the wire: load, label, unload, and rejections."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.__main__ import main
from dragoman_service.models.serving import SERVING_NAME
from tests.integration.running_server import RunningServer, listening_server, rejection, running_server
from tests.tiny_bundle import build_tiny_bundle


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with tiny/1, tiny/2, of which the first is served, and back/1 from German to English."""
    directory = tmp_path_factory.mktemp("models")
    for name in ("tiny", "back"):
        (directory / name).mkdir()
    for version in ("1", "2"):
        build_tiny_bundle(directory / "tiny" / version, version=version)
    build_tiny_bundle(
        directory / "back" / "1", name="back", source_language="de", target_language="en", precisions=("fp32",)
    )
    serving = 'versions = ["1"]\n[labels]\nstable = "1"\n[runtime]\nprecision = "fp32"\n'
    (directory / "tiny" / SERVING_NAME).write_text(serving, encoding="utf-8")
    return directory


@pytest.fixture
async def server(models: Path) -> AsyncIterator[RunningServer]:
    """A server that does not watch its model directory."""
    async with running_server(models, models__poll_interval_s=0) as server:
        yield server


async def answered(server: RunningServer, model: str) -> str:
    response = await server.translate("A man.", model=model)
    return f"{response.model_name}/{response.model_version}"


async def test_list_of_models_has_languages_state_precision_and_labels(server: RunningServer) -> None:
    listed = (await server.model_service.ListModels(pb.ListModelsRequest())).models

    assert [model.name for model in listed] == ["back", "tiny"]
    (version,) = listed[1].versions
    assert (version.state, version.precision) == (pb.MODEL_STATE_READY, pb.PRECISION_FLOAT32)
    assert (version.labels, version.is_default) == (["stable"], True)
    (pair,) = version.language_pairs
    assert (pair.source_language, pair.target_language, pair.is_default) == ("en", "de", True)
    limits = version.limits
    assert (limits.max_source_tokens, limits.max_texts, limits.max_text_characters) == (64, 128, 10_000)
    assert not version.unsupported_fields


async def test_version_is_loaded_labelled_and_unloaded_while_serving(server: RunningServer) -> None:
    loaded = await server.admin.LoadModel(pb.LoadModelRequest(model="tiny/2"))
    assert [version.version for version in loaded.model.versions] == ["2"]
    assert loaded.model.versions[0].state == pb.MODEL_STATE_READY
    assert await answered(server, "tiny") == "tiny/2"
    assert await answered(server, "tiny@stable") == "tiny/1"

    labelled = await server.admin.SetModelLabel(pb.SetModelLabelRequest(model="tiny/2", label="stable"))
    assert {version.version: version.labels for version in labelled.model.versions} == {"2": ["stable"], "1": []}
    assert await answered(server, "tiny@stable") == "tiny/2"

    await server.admin.UnloadModel(pb.UnloadModelRequest(model="tiny/2"))
    error = await rejection(server.translate("A man.", model="tiny/2"))
    assert (error.code, error.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")


async def test_model_is_described_by_label(server: RunningServer) -> None:
    response = await server.model_service.GetModel(pb.GetModelRequest(model="tiny@stable"))
    error = await rejection(server.model_service.GetModel(pb.GetModelRequest(model="x")))

    assert [version.version for version in response.model.versions] == ["1"]
    assert (error.code, error.fields) == ("NOT_FOUND", ["model"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "tiny@canary"}, "model: tiny@canary is not served here; available: tiny@stable"),
        ({"model": "back@canary"}, "back@canary is not served here, as back has no labels; available: back/1, tiny/1"),
        ({"model": "tiny/2"}, "model: tiny/2 is not served here; available: back/1, tiny/1"),
        ({"source_language": "fr"}, "fr to de is not served here; available: de to en, en to de"),
    ],
)
async def test_unknown_model_is_not_found_and_served_models_are_listed(
    server: RunningServer, fields: dict[str, Any], message: str
) -> None:
    error = await rejection(server.translate("A man.", **fields))

    assert (error.code, error.reason) == ("NOT_FOUND", "MODEL_NOT_FOUND")
    assert message in error.message


@pytest.mark.parametrize(
    ("method", "fields", "code", "field"),
    [
        ("LoadModel", {"model": "../etc/1"}, "INVALID_ARGUMENT", "model"),
        ("LoadModel", {"model": "tiny"}, "INVALID_ARGUMENT", "model"),
        ("UnloadModel", {"model": "tiny@stable"}, "INVALID_ARGUMENT", "model"),
        ("UnloadModel", {"model": "tiny/2"}, "NOT_FOUND", "model"),
        ("SetModelLabel", {"model": "tiny/1", "label": "x" * 65}, "INVALID_ARGUMENT", "label"),
        ("SetModelLabel", {"model": "tiny/2", "label": "x"}, "NOT_FOUND", "model"),
    ],
)
async def test_invalid_request_is_rejected_with_its_field(
    server: RunningServer, method: str, fields: dict[str, str], code: str, field: str
) -> None:
    message = getattr(pb, f"{method}Request")(**fields)

    error = await rejection(getattr(server.admin, method)(message))

    assert (error.code, error.fields) == (code, [field])


async def test_load_of_a_missing_version_names_the_searched_directory(models: Path, server: RunningServer) -> None:
    error = await rejection(server.admin.LoadModel(pb.LoadModelRequest(model="tiny/3")))

    assert f"tiny/3 cannot be loaded: no bundle at {models / 'tiny' / '3'}; available: " in error.message
    assert "tiny/1, tiny/2" in error.message


@pytest.mark.parametrize(
    ("file", "model", "cause"),
    [
        ("9/empty", "tiny/9", "manifest.json"),
        (SERVING_NAME, "tiny/2", "serving.toml: scheduling.max_batch_segments"),
    ],
)
async def test_failed_load_reports_the_cause(models: Path, tmp_path: Path, file: str, model: str, cause: str) -> None:
    shutil.copytree(models, tmp_path / "models")
    async with running_server(tmp_path / "models", models__poll_interval_s=0) as server:
        broken = tmp_path / "models" / "tiny" / file
        broken.parent.mkdir(exist_ok=True)
        broken.write_text("[scheduling]\nmax_batch_segments = 0\n", encoding="utf-8")

        error = await rejection(server.admin.LoadModel(pb.LoadModelRequest(model=model)))

        assert (error.code, error.reason) == ("FAILED_PRECONDITION", "MODEL_STATE")
        assert cause in error.message
        assert await answered(server, "tiny") == "tiny/1"


async def test_models_can_be_changed_before_the_server_is_ready(models: Path) -> None:
    async with listening_server(models, models__poll_interval_s=0) as server:
        error = await rejection(server.admin.UnloadModel(pb.UnloadModelRequest(model="tiny/1")))

        assert error.code == "NOT_FOUND"


async def test_models_command_loads_labels_and_unloads(
    server: RunningServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(*arguments: str) -> str:
        flags = ("models", "--target", f"localhost:{server.port}")
        assert await asyncio.to_thread(main, [*flags, *arguments]) == 0
        return capsys.readouterr().out

    assert "tiny/2  en-de  float32  ready  default of en-de\n" in await run("load", "tiny/2")
    assert "tiny/1  @blue  @stable" in await run("label", "tiny/1", "blue")
    assert "tiny/1  @blue  @stable  en-de  float32  ready\n" in await run()
    assert "@blue" not in await run("label", "tiny", "blue", "--remove")
    assert (await run("unload", "tiny/2")).endswith("tiny/2  unloaded\n")  # after lines of the server's log
