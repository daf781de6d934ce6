"""The repository of bundles: which models there are, and which of them answers a request.

A directory holds them as `NAME/VERSION/`. How a bundle becomes a running model is the business of the loader that
`service.app` injects; here are only names, versions, languages and states.
"""

import enum
import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from service.bundle import MANIFEST_NAME, Manifest, load_manifest
from service.errors import (
    BundleError,
    ConfigError,
    DrainingError,
    InvalidFieldError,
    ModelNotFoundError,
    StartingError,
)
from service.telemetry.metrics import Metrics
from service.text.pipeline import Tokenizer
from service.translator import SegmentQueue

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MODEL = re.compile(rf"({_PLAIN_NAME.pattern})(?:/({_PLAIN_NAME.pattern}))?")
_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_SHOWN_CHARACTERS = 40  # of a value that is not even well-formed


class ModelSettings(BaseModel):
    """Where the models are."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: Path = Field(default=Path("deploy/models"))
    """Holds the bundles as NAME/VERSION/; all of them are loaded."""


class ModelState(enum.Enum):
    """Whether a model can answer."""

    LOADING = "loading"
    """Being read and warmed up."""

    READY = "ready"
    """Answers requests."""

    DRAINING = "draining"
    """Finishes what it has and takes nothing new."""


class ModelScheduler(SegmentQueue, Protocol):
    """The queue of one model and the threads behind it."""

    def start(self) -> None:
        """Begin to decode."""

    def drain(self, timeout_s: float) -> bool:
        """Refuse new segments and wait for the answers to admitted ones; False if time ran out first."""

    def stop(self) -> None:
        """Answer what is left with an error and end the threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What a loader makes of a bundle."""

    tokenizer: Tokenizer
    scheduler: ModelScheduler
    """Warmed up, not started: the repository starts and stops it."""

    precision: str
    """Which of the bundle's graphs it runs, such as `int8`."""

    device: str
    """What runs them: `cpu` or `cuda`."""

    weights_bytes: int
    """Size of the files that hold graphs and weights of the precision."""

    cache_bytes: Callable[[], int]
    """Tells how many bytes the caches of its decoding threads take now; asked by any thread."""


ModelLoader = Callable[[Path], ModelParts]
"""Makes a bundle directory into a model; raises BundleError or ConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that answers requests."""

    name: str
    version: str
    manifest: Manifest
    tokenizer: Tokenizer
    scheduler: ModelScheduler
    precision: str

    @property
    def pair(self) -> tuple[str, str]:
        """Source and target language in lower case."""
        return _pair(self.manifest)

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""
        return self.manifest.limits.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target it gives, EOS counted."""
        return self.manifest.limits.max_target_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """What the repository knows of one version of a model."""

    name: str
    version: str
    state: ModelState
    manifest: Manifest
    precision: str
    """Which graphs it runs; the manifest's default while it is loading."""

    is_default: bool
    """True if a request that names the model without a version gets this one."""

    is_pair_default: bool
    """True if a request of its language pair that names no model gets this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """One version; replaced as a whole when its state changes."""

    directory: Path
    manifest: Manifest
    state: ModelState = ModelState.LOADING
    model: LoadedModel | None = None

    @property
    def name(self) -> str:
        return f"{self.manifest.name}/{self.manifest.version}"

    @property
    def pair(self) -> tuple[str, str]:
        return _pair(self.manifest)


class ModelRepository:
    """All models of one server.

    The default version of a name is the latest (see `version_key`) that is ready. The default model of a language
    pair is the default version of the name that comes first in the alphabet among those that serve the pair.
    """

    def __init__(self, settings: ModelSettings, load: ModelLoader, metrics: Metrics) -> None:
        self._directory = settings.directory
        self._load = load
        self._metrics = metrics
        self._lock = threading.Lock()  # of changes; readers see each entry before or after
        self._entries: dict[str, _Entry] = {}

    def load_all(self) -> None:
        """Load every bundle of the directory, in the order of their names; blocks until all are ready.

        One that cannot be loaded fails the whole start: a server that quietly lacks a model answers its requests with
        errors until somebody looks. `stop` ends those that were loaded before it.

        Raises:
            ConfigError: if the directory is missing or has no bundle.
            BundleError: if a bundle is damaged or not the one its directory says; names file, property and values.
        """
        found = [
            _Entry(directory=directory, manifest=_named_manifest(directory))
            for directory in _bundle_directories(self._directory)
        ]
        with self._lock:
            self._entries = {entry.name: entry for entry in found}
        for entry in found:
            self._take(entry, self._load(entry.directory))

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model that answers a request.

        Language tags are compared without regard to case. As in the lookup of RFC 4647, section 3.4, a tag that no
        model has is shortened from its end, so `en-GB` gets a model for `en`; a model for `en-GB` never answers `en`.

        Args:
            model: `name`, `name/version`, or empty for the default of the pair.
            source_language: BCP-47 tag.
            target_language: BCP-47 tag.

        Raises:
            InvalidFieldError: if one of them is malformed.
            ModelNotFoundError: if no model has this name, version or pair; says what there is.
            StartingError: if what would answer is still being loaded.
            DrainingError: if it takes nothing new any more.
        """
        sources = language_lookup("source_language", source_language)
        targets = language_lookup("target_language", target_language)
        named = self._named(model) if model else list(self._entries.values())
        serving = _serving(named, sources, targets)
        if ready := _ready(serving):
            return _default(ready)
        raise DrainingError if any(entry.state is ModelState.DRAINING for entry in serving) else StartingError

    def list_models(self) -> tuple[ModelStatus, ...]:
        """Return all models: by name, the latest version of each first."""
        return tuple(self._statuses(self._entries.values()))

    def get_model(self, model: str) -> tuple[ModelStatus, ...]:
        """Return all versions of `name`, the latest first, or the one of `name/version`.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if there is none.
        """
        name, version = _parsed(model)
        return tuple(self._statuses(self._versions(name, version)))

    def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what is under way; return False if time ran out first."""
        return all(self._end_all(lambda scheduler: scheduler.drain(timeout_s)))

    def stop(self) -> None:
        """End all models; what is unanswered is answered with an error.

        May be called at any time, more than once, and from another thread while `load_all` runs.
        """
        self._end_all(lambda scheduler: scheduler.stop())
        self._hide_all()

    def _take(self, entry: _Entry, parts: ModelParts) -> None:
        """Start what was loaded and let it answer, unless it was stopped meanwhile."""
        model = LoadedModel(
            name=entry.manifest.name,
            version=entry.manifest.version,
            manifest=entry.manifest,
            tokenizer=parts.tokenizer,
            scheduler=parts.scheduler,
            precision=parts.precision,
        )
        with self._lock:
            if self._entries[entry.name].state is not ModelState.LOADING:
                return
            model.scheduler.start()
            self._entries[entry.name] = replace(entry, model=model, state=ModelState.READY)
            self._show(model, parts)
        log.info("model ready", extra={"model": entry.name, "precision": model.precision, "device": parts.device})

    def _show(self, model: LoadedModel, parts: ModelParts) -> None:
        """Put a model into the metrics."""
        self._metrics.model_info.labels(model.name, model.version, parts.precision, parts.device).set(1)
        self._metrics.model_weights_bytes.labels(model.name, model.version).set(parts.weights_bytes)
        self._metrics.kv_cache_bytes.labels(model.name, model.version).set_function(parts.cache_bytes)

    def _hide_all(self) -> None:
        """Take what depends on a model's memory out of the metrics, which would keep the model from being freed."""
        for entry in self._entries.values():
            for gauge in (self._metrics.model_weights_bytes, self._metrics.kv_cache_bytes):
                gauge.remove(entry.manifest.name, entry.manifest.version)

    def _end_all(self, end: Callable[[ModelScheduler], _Result]) -> list[_Result]:
        """Let no model take anything new, and end all at once: each may take its time."""
        with self._lock:
            entries = [replace(entry, state=ModelState.DRAINING) for entry in self._entries.values()]
            self._entries = {entry.name: entry for entry in entries}
        schedulers = [entry.model.scheduler for entry in entries if entry.model]
        with ThreadPoolExecutor(max_workers=max(1, len(schedulers))) as pool:
            return list(pool.map(end, schedulers))

    def _named(self, model: str) -> list[_Entry]:
        """Return what a request names: a version, or the default one of a name (all of them if none is ready)."""
        entries = self._versions(*_parsed(model))
        ready = _ready(entries)
        return [entry for entry in entries if entry.model is _default(ready)] if ready else entries

    def _versions(self, name: str, version: str | None) -> list[_Entry]:
        entries = [
            entry
            for entry in self._entries.values()
            if entry.manifest.name == name and version in {None, entry.manifest.version}
        ]
        if not entries:
            wanted = name if version is None else f"{name}/{version}"
            raise ModelNotFoundError("model", wanted, tuple(sorted(self._entries)))
        return entries

    def _statuses(self, entries: Iterable[_Entry]) -> Iterator[ModelStatus]:
        ready = _ready(self._entries.values())
        latest_first = sorted(entries, key=lambda entry: version_key(entry.manifest.version), reverse=True)
        for entry in sorted(latest_first, key=lambda entry: entry.manifest.name):
            of_name = [model for model in ready if model.name == entry.manifest.name]
            of_pair = [model for model in ready if model.pair == entry.pair]
            yield ModelStatus(
                name=entry.manifest.name,
                version=entry.manifest.version,
                state=entry.state,
                manifest=entry.manifest,
                precision=entry.model.precision if entry.model else entry.manifest.default_precision,
                is_default=bool(of_name) and entry.model is _default(of_name),
                is_pair_default=bool(of_pair) and entry.model is _default(of_pair),
            )


def version_key(version: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return what versions are ordered by: numbers as numbers, so 10 follows 9 and 2026.10.1 follows 2026.9.30.

    Letters come before numbers and what is longer follows what it begins with, so 1.0-rc1 follows 1.0: this is not
    semantic versioning.
    """
    pieces = re.findall(r"\d+|[A-Za-z]+", version)
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in pieces], version


def language_lookup(field: str, tag: str) -> list[str]:
    """Return what a language tag may be served by: itself in lower case, then ever shorter ones.

    Raises:
        InvalidFieldError: if it is no BCP-47 tag.
    """
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise InvalidFieldError(field, repr(tag[:_SHOWN_CHARACTERS]), "a BCP-47 tag, such as `en` or `pt-BR`")
    subtags = tag.lower().split("-")
    shortened = ["-".join(subtags[:length]) for length in range(len(subtags), 0, -1)]
    return [shorter for shorter in shortened if shorter[-2:-1] != "-"]


def _parsed(model: str) -> tuple[str, str | None]:
    match = _MODEL.fullmatch(model)
    if match is None:
        raise InvalidFieldError("model", repr(model[:_SHOWN_CHARACTERS]), "`name` or `name/version`")
    return match[1], match[2]


def _serving(entries: Sequence[_Entry], sources: Sequence[str], targets: Sequence[str]) -> list[_Entry]:
    """Return the entries that serve the closest pair; the source language counts before the target language."""
    for pair in product(sources, targets):
        if serving := [entry for entry in entries if entry.pair == pair]:
            return serving
    available = tuple(sorted({f"{source} to {target}" for source, target in (entry.pair for entry in entries)}))
    has_source = any(entry.pair[0] in sources for entry in entries)
    field = "target_language" if has_source else "source_language"
    raise ModelNotFoundError(field, f"{sources[0]} to {targets[0]}", available)


def _pair(manifest: Manifest) -> tuple[str, str]:
    return manifest.source_language.lower(), manifest.target_language.lower()


def _ready(entries: Iterable[_Entry]) -> list[LoadedModel]:
    return [entry.model for entry in entries if entry.model and entry.state is ModelState.READY]


def _default(models: Sequence[LoadedModel]) -> LoadedModel:
    """Return the latest version of the first name."""
    first = min(model.name for model in models)
    return max((model for model in models if model.name == first), key=lambda model: version_key(model.version))


def _bundle_directories(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise ConfigError("models.directory", str(directory), "a directory that exists")
    found = [version for name in _named_directories(directory) for version in _named_directories(name)]
    if not found:
        raise ConfigError("models.directory", str(directory), "a directory with bundles as NAME/VERSION/")
    return found


def _named_directories(directory: Path) -> list[Path]:
    """Return those that can be a model or a version; mounted volumes hold `lost+found` and hidden ones, too."""
    return sorted(path for path in directory.iterdir() if path.is_dir() and _PLAIN_NAME.fullmatch(path.name))


def _named_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle, which must be the one its path says."""
    manifest = load_manifest(directory)
    found, expected = f"{manifest.name}/{manifest.version}", f"{directory.parent.name}/{directory.name}"
    if found != expected:
        raise BundleError(str(directory / MANIFEST_NAME), found=found, expected=expected, what="name and version")
    return manifest
