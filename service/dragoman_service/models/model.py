"""A version of a model: references, runtime, loaded model, status, metrics."""

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

from prometheus_client import Gauge

from dragoman_service.bundle.manifest import Confidence, Manifest
from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.errors import InvalidFieldError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.scheduler import Futures
from dragoman_service.text.tokenizer import SentencePieceTokenizer

MAX_LABEL_CHARACTERS = 64

MAX_LABELS = 100  # maximum number of labels of a model

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
REFERENCE_PATTERN = rf"({_PLAIN})(?:/({_PLAIN})|@({_PLAIN}))?"
"""Regular expression of `name`, `name/version` and `name@label`."""

_REFERENCE = re.compile(REFERENCE_PATTERN)
_SHOWN_CHARACTERS = 40  # error messages show at most this much of a malformed value


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """Reference to a model in a request: a name with at most one of version and label."""

    name: str
    version: str | None = None
    label: str | None = None


def parse_reference(model: str) -> ModelReference:
    """Parse `name`, `name/version` or `name@label`; raises InvalidFieldError for any other form."""
    match = _REFERENCE.fullmatch(model)
    if match is None:
        raise _invalid("model", model, "`name`, `name/version` or `name@label`")
    return ModelReference(name=match[1], version=match[2], label=match[3])


def parse_version(model: str) -> tuple[str, str]:
    """Parse `name/version`; raises InvalidFieldError for any other form."""
    match = _REFERENCE.fullmatch(model)
    if match is None or match[2] is None:
        raise _invalid("model", model, "`name/version`")
    return match[1], match[2]


def is_plain_name(name: str) -> bool:
    """Return whether a string is a valid name of a model, a version or a label."""
    return re.fullmatch(_PLAIN, name) is not None


def is_label(label: str) -> bool:
    """Return whether a string is a valid label."""
    return is_plain_name(label) and len(label) <= MAX_LABEL_CHARACTERS


def check_label(label: str) -> None:
    """Raise InvalidFieldError if a string is not a valid label."""
    if not is_label(label):
        raise _invalid("label", label, f"1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")


def full_name(name: str, version: str) -> str:
    """Return `name/version`."""
    return f"{name}/{version}"


def version_key(version: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a sort key for versions. Digits compare as numbers: 9 < 10 and 2026.9.30 < 2026.10.1.

    Letters sort before digits. Unlike in semantic versioning, 1.0 < 1.0-rc1.
    """
    pieces = re.findall(r"\d+|[A-Za-z]+", version)
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in pieces], version


def _invalid(field: str, value: str, expected: str) -> InvalidFieldError:
    return InvalidFieldError(field, repr(value[:_SHOWN_CHARACTERS]), expected)


class ModelState(enum.Enum):
    """State of a model version."""

    LOADING = "loading"  # reads the bundle and warms up
    READY = "ready"  # takes requests
    DRAINING = "draining"  # finishes current requests, rejects new ones
    FAILED = "failed"  # could not be loaded


class ModelScheduler(Protocol):
    """Queue and decoding threads of one version."""

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Reject a request before its text is processed if `num_characters` already exceed what can be admitted."""

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        """Return the expected decode cost of segments."""

    def submit(self, segments: Sequence[Segment], context: RequestContext, *, num_characters: int = 0) -> Futures:
        """Admit all segments or none, see `Scheduler.submit`. Cancelling a future frees its place."""

    def warm_up(self, segments: Sequence[Segment]) -> Sequence[SegmentResult]:
        """Decode segments on each decoding thread, before `start`; return the results of one thread."""

    def start(self) -> None:
        """Start decoding."""

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until all admitted segments have ended; return False on timeout."""

    def stop(self) -> None:
        """Fail the remaining segments with an error and end the threads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRuntime:
    """Tokenizer and scheduler of a bundle, as a model loader returns them."""

    tokenizer: SentencePieceTokenizer
    scheduler: ModelScheduler  # not started; the repository warms it up, starts it and stops it
    precision: str  # of the graphs in use, such as `int8`
    device: str  # `cpu` or `cuda`
    weights_bytes: int  # size of the files with graphs and weights of the precision
    cache_bytes: Callable[[], int]  # returns the current size of the KV caches of all decoding threads. Thread-safe.
    process_bytes: Sequence[Callable[[], int]] = ()
    """One function for each replica: returns the resident memory of its worker process. Empty without isolation."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LoadedModel:
    """A ready version for one language pair. Its scheduler runs while references to this object exist."""

    name: str
    version: str
    tokenizer: SentencePieceTokenizer
    scheduler: ModelScheduler
    source_language: str  # spelled as in the manifest
    target_language: str
    max_source_tokens: int  # including EOS
    max_target_tokens: int  # including EOS
    has_attention: bool  # True if the bundle has an attention graph of the precision
    confidence: Confidence | None  # None: not measured
    whole: "LoadedModel | None" = None
    """The object for the main pair of the manifest, which this object keeps alive; None: this is that object."""

    @classmethod
    def of(cls, manifest: Manifest, runtime: ModelRuntime) -> Self:
        """Return the model of a bundle, for the main pair of its manifest."""
        return cls(
            name=manifest.name,
            version=manifest.version,
            tokenizer=runtime.tokenizer,
            scheduler=runtime.scheduler,
            source_language=manifest.source_language,
            target_language=manifest.target_language,
            max_source_tokens=manifest.limits.max_source_tokens,
            max_target_tokens=manifest.limits.max_target_tokens,
            has_attention=manifest.has_attention(runtime.precision),
            confidence=manifest.confidence,
        )

    def for_pair(self, source_language: str, target_language: str) -> "LoadedModel":
        """Return the model for another of its pairs; tags are spelled as in the manifest."""
        if (source_language, target_language) == (self.source_language, self.target_language):
            return self
        return replace(
            self,
            tokenizer=self.tokenizer.for_pair(source_language, target_language),
            source_language=source_language,
            target_language=target_language,
            whole=self,
        )

    @property
    def full_name(self) -> str:
        """`name/version`."""
        return full_name(self.name, self.version)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageGroup:
    """Language pairs of a version: every source into every target.

    A language is paired with itself only if it is the only source and the only target.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    is_default: bool  # True if requests for these pairs without a model use this version

    @property
    def num_pairs(self) -> int:
        """Number of language pairs."""
        num_same = 0 if len(self.sources) == len(self.targets) == 1 else len({*self.sources} & {*self.targets})
        return len(self.sources) * len(self.targets) - num_same

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of each pair."""
        is_one = len(self.sources) == len(self.targets) == 1
        return ((s, t) for s in self.sources for t in self.targets if is_one or s != t)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """Public status of one version of a model."""

    name: str
    version: str
    state: ModelState
    manifest: Manifest | None  # None in state FAILED if the manifest could not be read
    precision: str  # precision in use; while loading, the default of the manifest; empty without a manifest
    is_default: bool  # True if requests for the model without a version use this version
    language_groups: tuple[LanguageGroup, ...]  # empty without a manifest
    message: str = ""  # error message in state FAILED, else empty
    labels: tuple[str, ...] = ()  # sorted


class ModelMetrics:
    """Gauges of model versions. Not thread-safe."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        # (name, version) -> gauges that refer to the runtime: they are removed before its memory can be freed.
        self._runtime_gauges: dict[tuple[str, str], list[tuple[Gauge, tuple[str, ...]]]] = {}

    def show_state(self, name: str, version: str, state: ModelState) -> None:
        """Set the state gauges of a version."""
        for other in ModelState:
            self._metrics.model_state.labels(name, version, other.value).set(other is state)

    def show_runtime(self, name: str, version: str, runtime: ModelRuntime) -> None:
        """Add the gauges of the runtime of a ready version."""
        metrics, key = self._metrics, (name, version)
        info = (*key, runtime.precision, runtime.device)
        metrics.model_info.labels(*info).set(1)
        metrics.model_weights_bytes.labels(*key).set(runtime.weights_bytes)
        metrics.kv_cache_bytes.labels(*key).set_function(runtime.cache_bytes)
        gauges: list[tuple[Gauge, tuple[str, ...]]] = [
            (metrics.model_info, info),
            (metrics.model_weights_bytes, key),
            (metrics.kv_cache_bytes, key),
        ]
        for replica, process_bytes in enumerate(runtime.process_bytes):
            metrics.worker_memory_bytes.labels(*key, str(replica)).set_function(process_bytes)
            gauges.append((metrics.worker_memory_bytes, (*key, str(replica))))
        self._runtime_gauges[key] = gauges

    def hide_runtime(self, name: str, version: str) -> None:
        """Remove the gauges of the runtime of a version."""
        for gauge, labels in self._runtime_gauges.pop((name, version), ()):
            gauge.remove(*labels)

    def hide(self, name: str, version: str) -> None:
        """Remove all gauges of a version."""
        self.hide_runtime(name, version)
        for state in ModelState:
            self._metrics.model_state.remove(name, version, state.value)
