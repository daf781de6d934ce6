"""Reconciling added, changed and removed versions, periodically."""

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import MANIFEST_NAME, Bundle
from dragoman_service.errors import ConfigError, ModelNotFoundError, ModelStateError
from dragoman_service.models.model import ModelRuntime
from dragoman_service.models.repository import ModelRepository
from dragoman_service.models.serving import SERVING_NAME, ServingSettings
from dragoman_service.models.watcher import watch
from dragoman_service.observability.metrics import Metrics
from tests.fakes import ManualClock
from tests.mortal_worker import TIMEOUT_S, begin
from tests.unit.models.model_fakes import (
    SETTLE_S,
    load_runtime,
    loaded_repository,
    make_repository,
    resolved,
    states,
    write_bundle,
    write_serving,
)
from tests.waiting import wait_until


def settled(repository: ModelRepository) -> dict[str, str]:
    """Return the state of each version once nothing is being unloaded."""
    wait_until(lambda: "draining" not in states(repository).values())
    return states(repository)


def test_added_versions_and_models_are_loaded(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    write_bundle(tmp_path, "tiny/2")
    write_bundle(tmp_path, "other/1", pair="fr de")

    repository.refresh()

    assert states(repository) == {"other/1": "ready", "tiny/2": "ready", "tiny/1": "ready"}
    assert resolved(repository, "tiny") == "tiny/2"
    assert resolved(repository, source="fr") == "other/1"


def test_removed_version_is_unloaded_and_previous_one_becomes_default(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    shutil.rmtree(tmp_path / "tiny" / "2")

    repository.refresh()

    assert resolved(repository, "tiny") == "tiny/1"
    assert settled(repository) == {"tiny/1": "ready"}


def test_only_the_newest_versions_stay_loaded_with_latest_n(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'versions = "latest:1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    write_bundle(tmp_path, "tiny/10")

    assert states(repository) == {"tiny/2": "ready"}
    repository.refresh()

    assert settled(repository) == {"tiny/10": "ready"}


def test_damaged_version_fails_with_its_error_and_old_one_stays_ready(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_serving(tmp_path, "tiny", 'versions = "latest:1"')
    clock, registry = ManualClock(), CollectorRegistry()
    repository = loaded_repository(tmp_path, "tiny/1", clock=clock, metrics=Metrics(registry))
    (write_bundle(tmp_path, "tiny/2") / "encoder.onnx").write_text("damaged", encoding="utf-8")

    repository.refresh()
    clock.advance(SETTLE_S)
    repository.refresh()

    (broken, _) = repository.list_models()
    assert states(repository) == {"tiny/2": "failed", "tiny/1": "ready"}
    assert "encoder.onnx: size in bytes is 7" in broken.message
    assert resolved(repository, "tiny") == "tiny/1"
    with pytest.raises(ModelStateError, match=r"tiny/2 could not be loaded: .*encoder\.onnx"):
        resolved(repository, "tiny/2")
    assert registry.get_sample_value("dragoman_model_load_failures_total", {"model": "tiny"}) == 1
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "encoder.onnx" in line.fault  # type: ignore[attr-defined]


def test_incomplete_bundle_is_neither_loaded_nor_failed(tmp_path: Path) -> None:
    source = write_bundle(tmp_path / "elsewhere", "tiny/2")
    write_bundle(tmp_path / "models", "tiny/1")
    clock = ManualClock()
    repository = make_repository(tmp_path / "models", clock=clock)
    repository.load_all()
    target = tmp_path / "models" / "tiny" / "2"
    target.mkdir()

    for file in sorted(source.iterdir(), reverse=True):  # the manifest is not the last
        repository.refresh()
        assert states(repository) == {"tiny/1": "ready"}
        clock.advance(SETTLE_S - 1)
        shutil.copy(file, target)
    repository.refresh()

    assert states(repository) == {"tiny/2": "ready", "tiny/1": "ready"}


@pytest.mark.parametrize("is_repaired", [True, False])
def test_failed_version_is_loaded_once_repaired_and_forgotten_once_removed(tmp_path: Path, is_repaired: bool) -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    repository = loaded_repository(tmp_path, "tiny/1", clock=clock, metrics=Metrics(registry))
    manifest = write_bundle(tmp_path, "tiny/2") / MANIFEST_NAME
    valid = manifest.read_text(encoding="utf-8")
    manifest.write_text("{", encoding="utf-8")
    repository.refresh()
    clock.advance(SETTLE_S)
    repository.refresh()
    assert states(repository) == {"tiny/2": "failed", "tiny/1": "ready"}

    if is_repaired:
        manifest.write_text(valid, encoding="utf-8")
    else:
        shutil.rmtree(manifest.parent)
    repository.refresh()

    assert states(repository) == ({"tiny/2": "ready"} if is_repaired else {}) | {"tiny/1": "ready"}
    labels = {"model": "tiny", "version": "2", "state": "failed"}
    assert registry.get_sample_value("dragoman_model_state", labels) == (0 if is_repaired else None)


def test_failed_load_is_not_repeated_for_unchanged_bundle(tmp_path: Path) -> None:
    tried: list[str] = []

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        tried.append(bundle.directory.name)
        if bundle.directory.name == "2":
            raise MemoryError("no room")
        return load_runtime(bundle, serving)

    repository = loaded_repository(tmp_path, "tiny/1", load=load)
    write_bundle(tmp_path, "tiny/2")

    repository.refresh()
    repository.refresh()

    assert tried == ["1", "2"]
    assert repository.get_model("tiny/2")[0].message == "MemoryError: no room"


@pytest.mark.parametrize(
    "put",
    [lambda path: path.write_bytes(b"[" * 100_000), os.mkfifo, lambda path: path.symlink_to(MANIFEST_NAME)],
    ids=["deep", "fifo", "loop"],
)
def test_hostile_bundle_fails_and_other_models_are_loaded(tmp_path: Path, put: Callable[[Path], object]) -> None:
    clock = ManualClock()
    repository = loaded_repository(tmp_path, "tiny/1", clock=clock)
    manifest = write_bundle(tmp_path, "bad/1") / MANIFEST_NAME
    manifest.unlink()
    put(manifest)
    write_bundle(tmp_path, "good/1", pair="fr de")

    begin(repository.refresh).result(TIMEOUT_S)
    clock.advance(SETTLE_S)
    begin(repository.refresh).result(TIMEOUT_S)

    assert states(repository) == {"bad/1": "failed", "good/1": "ready", "tiny/1": "ready"}


def test_hostile_settings_file_fails_only_its_model(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    write_bundle(tmp_path, "fifo/1", pair="fr de")
    os.mkfifo(tmp_path / "fifo" / SERVING_NAME)
    write_bundle(tmp_path, "deep/1", pair="es de")
    write_serving(tmp_path, "deep", f"labels = {'[' * 100_000}")

    begin(repository.refresh).result(TIMEOUT_S)

    assert states(repository) == {"deep/1": "failed", "fifo/1": "failed", "tiny/1": "ready"}


def test_endless_load_does_not_block_other_models(tmp_path: Path) -> None:
    may_end = threading.Event()

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
        assert bundle.manifest.name != "bad" or may_end.wait(TIMEOUT_S)
        return load_runtime(bundle, serving)

    repository = loaded_repository(tmp_path, "tiny/1", load=load)
    write_bundle(tmp_path, "bad/1", pair="es de")
    write_bundle(tmp_path, "good/1", pair="fr de")

    begin(repository.refresh, waits=False).result(TIMEOUT_S)
    wait_until(lambda: states(repository).get("good/1") == "ready")
    write_bundle(tmp_path, "later/1", pair="it de")
    begin(repository.refresh, waits=False).result(TIMEOUT_S)
    wait_until(lambda: states(repository).get("later/1") == "ready")

    assert states(repository)["bad/1"] == "loading"
    may_end.set()
    repository.refresh()
    assert states(repository)["bad/1"] == "ready"


@pytest.mark.parametrize("loss", ["missing", "empty"])
def test_unavailable_model_directory_unloads_no_version(tmp_path: Path, loss: str) -> None:
    repository = loaded_repository(tmp_path / "models", "tiny/1")
    (tmp_path / "models").rename(tmp_path / "gone")
    if loss == "empty":
        (tmp_path / "models").mkdir()

    repository.refresh()

    assert states(repository) == {"tiny/1": "ready"}


def test_changed_model_settings_are_applied(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2", "tiny/3")

    write_serving(tmp_path, "tiny", 'versions = "latest:1"\ndefault_version = "@stable"\n[labels]\nstable = "1"')
    repository.refresh()

    assert resolved(repository, "tiny") == "tiny/1"
    assert settled(repository) == {"tiny/3": "ready", "tiny/1": "ready"}


def test_invalid_model_settings_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_serving(tmp_path, "tiny", 'default_version = "1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    write_serving(tmp_path, "tiny", 'default = "2"')
    repository.refresh()

    assert resolved(repository, "tiny") == "tiny/1"
    assert any("default" in getattr(record, "fault", "") for record in caplog.records)


def test_unloaded_version_is_loaded_again_only_if_its_directory_changes(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    repository.unload("tiny/2")
    repository.refresh()
    assert states(repository) == {"tiny/1": "ready"}
    shutil.rmtree(tmp_path / "tiny" / "2")
    write_bundle(tmp_path, "tiny/2")
    repository.refresh()

    assert states(repository) == {"tiny/2": "ready", "tiny/1": "ready"}


def test_unloaded_version_is_not_replaced_by_older_one(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'versions = "latest:1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    repository.unload("tiny/2")
    repository.refresh()
    assert states(repository) == {}
    with pytest.raises(ModelNotFoundError):
        resolved(repository, "tiny")
    write_bundle(tmp_path, "tiny/3")
    repository.refresh()

    assert states(repository) == {"tiny/3": "ready"}


def test_bundle_in_directory_of_another_version_fails_immediately(tmp_path: Path) -> None:
    repository = loaded_repository(tmp_path, "tiny/1")
    shutil.copytree(tmp_path / "tiny" / "1", tmp_path / "tiny" / "2")

    repository.refresh()

    (broken, _) = repository.list_models()
    assert states(repository) == {"tiny/2": "failed", "tiny/1": "ready"}
    assert "name and version is tiny/1, expected tiny/2" in broken.message


def test_requested_version_stays_loaded_despite_latest_n(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'versions = "latest:1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")

    repository.load("tiny/1")
    repository.refresh()

    assert settled(repository) == {"tiny/2": "ready", "tiny/1": "ready"}


def test_labelled_version_stays_loaded_until_the_label_is_moved(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'versions = "latest:1"\n[labels]\nstable = "1"')
    repository = loaded_repository(tmp_path, "tiny/1", "tiny/2")
    assert states(repository) == {"tiny/2": "ready", "tiny/1": "ready"}

    repository.set_label("tiny/2", "stable")

    assert settled(repository) == {"tiny/2": "ready"}
    assert resolved(repository, "tiny@stable") == "tiny/2"


@pytest.mark.parametrize(
    ("serving", "key"),
    [
        ('versions = ["1", "7"]', "versions"),
        ('default_version = "7"', "default_version"),
        ('default_version = "@stable"', "default_version"),
        ('[labels]\nstable = "7"', "labels.stable"),
    ],
)
def test_settings_with_missing_versions_are_rejected_at_start(tmp_path: Path, serving: str, key: str) -> None:
    write_bundle(tmp_path, "tiny/1")
    write_serving(tmp_path, "tiny", serving)

    with pytest.raises(ConfigError) as caught:
        make_repository(tmp_path).load_all()

    assert caught.value.setting == f"{tmp_path / 'tiny' / SERVING_NAME}: {key}"


def test_damaged_version_that_is_not_selected_is_ignored(tmp_path: Path) -> None:
    write_serving(tmp_path, "tiny", 'versions = ["1"]')
    (tmp_path / "tiny" / "2").mkdir()

    repository = loaded_repository(tmp_path, "tiny/1")

    with pytest.raises(ModelNotFoundError, match="available: tiny/1"):
        resolved(repository, "tiny/2")


async def test_watching_continues_after_failed_refresh() -> None:
    calls = threading.Semaphore(0)

    def refresh() -> None:
        calls.release()
        raise OSError("gone")

    watching = asyncio.create_task(watch(refresh, interval_s=0.001))

    for _ in range(3):
        assert await asyncio.to_thread(calls.acquire, timeout=30)
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching


async def test_watching_without_interval_never_refreshes() -> None:
    called = threading.Event()

    await watch(called.set, interval_s=0)

    assert not called.is_set()
