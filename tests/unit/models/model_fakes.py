"""Bundles without a network, schedulers that only remember, and a repository of both."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, file_entry
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.model import LoadedModel, ModelRuntime, ModelScheduler
from dragoman_service.models.repository import ModelRepository
from dragoman_service.models.serving import SERVING_NAME, ModelSettings, ServingSettings
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestRecord
from tests.fakes import ManualClock
from tests.unit.text.text_fakes import TOKENIZER

SETTLE_S = 10.0
_FILES = ("encoder.onnx", "decoder.onnx", "tokenizer.model")


@dataclass(eq=False)
class FakeScheduler:
    """Remembers what was asked of it."""

    drains_in_time: bool = True
    calls: list[str] = field(default_factory=list)
    may_drain: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_drain.set()

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestRecord) -> None:
        raise NotImplementedError

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        raise NotImplementedError

    def submit(
        self,
        segments: Sequence[Segment],
        context: RequestRecord,
        *,
        num_characters: int = 0,
    ) -> "list[Future[SegmentResult]]":
        raise NotImplementedError

    def warm_up(self, segments: Sequence[Segment]) -> list[SegmentResult]:
        raise NotImplementedError

    def start(self) -> None:
        self.calls.append("start")

    def drain(self, timeout_s: float) -> bool:
        assert self.may_drain.wait(30)
        self.calls.append(f"drain {timeout_s:g}" if timeout_s < 10 else "drain")
        return self.drains_in_time

    def stop(self) -> None:
        self.calls.append("stop")


def make_parts(scheduler: ModelScheduler | None = None) -> ModelRuntime:
    return ModelRuntime(
        tokenizer=TOKENIZER,
        scheduler=scheduler or FakeScheduler(),
        precision="int8",
        device="cpu",
        weights_bytes=1000,
        cache_bytes=lambda: 64,
    )


def load_parts(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:
    return make_parts()


def do_nothing(model: LoadedModel) -> None:
    """Warm up nothing."""


def write_bundle(root: Path, model: str, *, pair: str = "en de", **fields: Any) -> Path:
    """Write a bundle `name/version` whose files are what its manifest says, but no graphs."""
    name, version = model.split("/")
    source_language, target_language = pair.split()
    directory = root / name / version
    directory.mkdir(parents=True)
    for file in _FILES:
        (directory / file).write_text(f"{file} of {model}", encoding="utf-8")
    manifest = {
        "schema_version": 1,
        "name": name,
        "version": version,
        "source_language": source_language,
        "target_language": target_language,
        "architecture": {
            "vocabulary_size": 8,
            "d_model": 4,
            "num_heads": 2,
            "ffn_size": 8,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "norm": "pre",
        },
        "special_ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3},
        "limits": {"max_source_tokens": 64, "max_target_tokens": 100},
        "precisions": {"float32": {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}},
        "default_precision": "float32",
        "tokenizer": "tokenizer.model",
        "tensors": graph_tensors(1, "float32").model_dump(),
        "files": {file: file_entry(directory / file).model_dump() for file in _FILES},
        "provenance": {"exporter_version": "1", "checkpoint": "c.pt", "checkpoint_sha256": "0" * 64},
        "licence": "CC0-1.0",
        "attribution": "nobody",
        **fields,
    }
    text = Manifest.model_construct(**manifest).model_dump_json(warnings=False)
    (directory / MANIFEST_NAME).write_text(text, encoding="utf-8")
    return directory


def write_serving(root: Path, name: str, text: str) -> None:
    """Write the settings of a name."""
    (root / name).mkdir(exist_ok=True)
    (root / name / SERVING_NAME).write_text(text, encoding="utf-8")


def make_repository(
    root: Path,
    *,
    load: ModelLoader = load_parts,
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


def loaded_repository(root: Path, *models: str, **pairs: str) -> ModelRepository:
    """Return a repository of `name/version` bundles; `pairs` gives the languages of a name."""
    for model in models:
        write_bundle(root, model, pair=pairs.get(model.split("/", maxsplit=1)[0], "en de"))
    repository = make_repository(root)
    repository.load_all()
    return repository


def resolved(repository: ModelRepository, model: str = "", source: str = "en", target: str = "de") -> str:
    return repository.resolve(model, source, target).full_name


def states(repository: ModelRepository) -> dict[str, str]:
    """Return the state of each `name/version`."""
    return {f"{status.name}/{status.version}": status.state.value for status in repository.list_models()}


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another thread brings about."""
    ends_s = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < ends_s, "it never came about"
        time.sleep(0.001)
