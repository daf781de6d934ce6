"""Fake bundles and schedulers, and a repository of them."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry

from dragoman_service.bundle.files import Bundle
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.model import LoadedModel, ModelRuntime, ModelScheduler
from dragoman_service.models.repository import ModelRepository
from dragoman_service.models.serving import SERVING_NAME, ModelSettings, ServingSettings
from dragoman_service.observability.metrics import Metrics
from tests.fakes import ManualClock
from tests.unit.bundle.bundle_files import FILES, MORE_FILES, manifest_fields, write_manifest
from tests.unit.text.text_fakes import TOKENIZER

SETTLE_S = 10.0


@dataclass(eq=False)
class FakeScheduler:
    """Scheduler without requests that records its calls."""

    drains_in_time: bool = True
    calls: list[str] = field(default_factory=list)
    may_drain: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_drain.set()

    def start(self) -> None:
        self.calls.append("start")

    def drain(self, timeout_s: float) -> bool:
        assert self.may_drain.wait(30)
        self.calls.append(f"drain {timeout_s:g}" if timeout_s < 10 else "drain")
        return self.drains_in_time

    def stop(self) -> None:
        self.calls.append("stop")


def make_runtime(scheduler: object = None) -> ModelRuntime:
    return ModelRuntime(
        tokenizer=TOKENIZER,
        scheduler=cast("ModelScheduler", scheduler or FakeScheduler()),
        precision="int8",
        device="cpu",
        weights_bytes=1000,
        cache_bytes=lambda: 64,
    )


def load_runtime(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
    return make_runtime()


def do_nothing(model: LoadedModel) -> None:
    """Skip the warm-up."""


def write_bundle(root: Path, model: str, *, pair: str = "en de", **fields: Any) -> Path:
    """Write a bundle `name/version` with correct checksums and fake graphs."""
    name, version = model.split("/")
    source_language, target_language = pair.split()
    directory = root / name / version
    directory.mkdir(parents=True)
    for file, content in {**FILES, **MORE_FILES}.items():
        (directory / file).write_bytes(content)
    languages = {"source_language": source_language, "target_language": target_language}
    write_manifest(directory, {**manifest_fields(directory), "name": name, "version": version, **languages, **fields})
    return directory


def write_serving(root: Path, name: str, text: str) -> None:
    """Write the settings file of a model."""
    (root / name).mkdir(exist_ok=True)
    (root / name / SERVING_NAME).write_text(text, encoding="utf-8")


def make_repository(
    root: Path,
    *,
    load: ModelLoader = load_runtime,
    metrics: Metrics | None = None,
    warm_up: Callable[[LoadedModel], None] = do_nothing,
    clock: ManualClock | None = None,
    **settings: Any,
) -> ModelRepository:
    return ModelRepository(
        ModelSettings(directory=root, settle_s=SETTLE_S, **settings),
        load,
        metrics or Metrics(CollectorRegistry()),
        warm_up=warm_up,
        clock=clock or ManualClock(),
    )


def loaded_repository(root: Path, *models: str, **options: Any) -> ModelRepository:
    """Return a repository with loaded bundles, given as `name/version` or `name/version source target`."""
    for model in models:
        name, _, pair = model.partition(" ")
        write_bundle(root, name, pair=pair or "en de")
    repository = make_repository(root, **options)
    repository.load_all()
    return repository


def resolved(repository: ModelRepository, model: str = "", source: str = "en", target: str = "de") -> str:
    return repository.resolve(model, source, target).full_name


def states(repository: ModelRepository) -> dict[str, str]:
    """Return the state of each `name/version`."""
    return {f"{status.name}/{status.version}": status.state.value for status in repository.list_models()}
