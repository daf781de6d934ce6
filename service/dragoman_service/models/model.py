"""A version of a model: how it is named, what a loader makes of its bundle, what answers requests, status, metrics."""

import enum
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol, Self

from prometheus_client import Gauge

from dragoman_service.bundle.manifest import Confidence, Manifest
from dragoman_service.datatypes import SearchConfig, Segment, SegmentResult
from dragoman_service.errors import InvalidFieldError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestRecord
from dragoman_service.text.planning import Tokenizer

MAX_LABEL_CHARACTERS = 64
"""Longest label."""

MAX_LABELS = 100
"""Most labels of a model."""

_PLAIN = r"[A-Za-z0-9][A-Za-z0-9._-]*"
REFERENCE_PATTERN = rf"({_PLAIN})(?:/({_PLAIN})|@({_PLAIN}))?"
"""The form of `name`, `name/version` and `name@label`."""

LANGUAGE_TAG_PATTERN = r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*"
"""The form of a language tag."""

_REFERENCE = re.compile(REFERENCE_PATTERN)
_LANGUAGE_TAG = re.compile(LANGUAGE_TAG_PATTERN)
_SHOWN_CHARACTERS = 40  # of a malformed value, in messages


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReference:
    """How a caller names a model."""

    name: str
    version: str | None = None
    label: str | None = None
    """At most one of version and label is given."""


def parse_reference(model: str) -> ModelReference:
    """Parse `name`, `name/version` or `name@label`; InvalidFieldError if it is none of them."""
    match = _REFERENCE.fullmatch(model)
    if match is None:
        raise _invalid("model", model, "`name`, `name/version` or `name@label`")
    return ModelReference(name=match[1], version=match[2], label=match[3])


def parse_version(model: str) -> tuple[str, str]:
    """Parse `name/version`; InvalidFieldError if it is anything else."""
    match = _REFERENCE.fullmatch(model)
    if match is None or match[2] is None:
        raise _invalid("model", model, "`name/version`")
    return match[1], match[2]


def is_plain_name(name: str) -> bool:
    """Say whether a name can be that of a model, a version or a label."""
    return re.fullmatch(_PLAIN, name) is not None


def is_label(label: str) -> bool:
    """Say whether this can be a label."""
    return is_plain_name(label) and len(label) <= MAX_LABEL_CHARACTERS


def check_label(label: str) -> None:
    """Raise InvalidFieldError if this cannot be a label."""
    if not is_label(label):
        raise _invalid("label", label, f"1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")


def full_name(name: str, version: str) -> str:
    """Return `name/version`."""
    return f"{name}/{version}"


def version_key(version: str) -> tuple[list[tuple[bool, int, str]], str]:
    """Return a key to sort versions by: numbers as numbers, so 10 follows 9 and 2026.10.1 follows 2026.9.30.

    Letters come before numbers, and 1.0-rc1 follows 1.0: this is not semantic versioning.
    """
    pieces = re.findall(r"\d+|[A-Za-z]+", version)
    return [(piece.isdigit(), int(piece) if piece.isdigit() else 0, piece) for piece in pieces], version


def language_lookup(field: str, tag: str) -> list[str]:
    """Return the tags of models that may serve a BCP-47 tag: itself in lower case, then ever shorter ones."""
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise _invalid(field, tag, "a BCP-47 tag, such as `en` or `pt-BR`")
    subtags = tag.lower().split("-")
    shortened = ["-".join(subtags[:length]) for length in range(len(subtags), 0, -1)]
    return [shorter for shorter in shortened if shorter[-2:-1] != "-"]


def _invalid(field: str, value: str, expected: str) -> InvalidFieldError:
    return InvalidFieldError(field, repr(value[:_SHOWN_CHARACTERS]), expected)


class ModelState(enum.Enum):
    """Whether a version can answer."""

    LOADING = "loading"
    """Its bundle is read, and it is warmed up."""

    READY = "ready"
    """Answers requests."""

    DRAINING = "draining"
    """Finishes its requests and takes no new ones."""

    FAILED = "failed"
    """Could not be loaded."""


Futures = Sequence["Future[SegmentResult]"]
"""One for each segment that was queued."""


class SegmentQueue(Protocol):
    """Where segments wait to be decoded."""

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestRecord) -> None:
        """Reject a request of so many characters if there is no point in looking at its texts; else do nothing."""

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        """Return the expected decode cost of segments."""

    def submit(self, segments: Sequence[Segment], context: RequestRecord, *, num_characters: int = 0) -> Futures:
        """Admit all segments or none; return one future each, in order. A cancelled future frees its place.

        Callers, told apart by name, share the queue fairly. From `num_characters`, of the texts that the segments are
        all of, the queue learns how many tokens a text makes.
        """


class ModelScheduler(SegmentQueue, Protocol):
    """The queue of one version and the threads that decode."""

    def warm_up(self, segments: Sequence[Segment]) -> Sequence[SegmentResult]:
        """Decode segments in the batch of each decoding thread, before `start`; return the results of one of them."""

    def start(self) -> None:
        """Start to decode."""

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait until admitted ones are answered; False if the time is over before."""

    def stop(self) -> None:
        """Answer what is left with an error and end the threads."""


class ModelTokenizer(Tokenizer, Protocol):
    """The vocabulary of a model, with the prefixes of one of its language pairs."""

    def for_pair(self, source_language: str, target_language: str) -> Self:
        """Return the same with the prefixes of another pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRuntime:
    """What a loader makes of a bundle."""

    tokenizer: ModelTokenizer
    scheduler: ModelScheduler
    """Neither warm nor started; the repository warms it up, starts it and stops it."""

    precision: str
    """Which of the bundle's graphs it runs, such as `int8`."""

    device: str
    """What runs them: `cpu` or `cuda`."""

    weights_bytes: int
    """Size of the files that hold graphs and weights of the precision."""

    cache_bytes: Callable[[], int]
    """Returns the bytes that the KV caches of its decoding threads take now; called by any thread."""

    process_bytes: Sequence[Callable[[], int]] = ()
    """Each returns the resident memory of the worker process of a replica; empty without isolation."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LoadedModel:
    """A version that answers requests; its scheduler is not stopped while there are references to this object."""

    name: str
    version: str
    manifest: Manifest
    tokenizer: ModelTokenizer
    """For its language pair."""

    scheduler: ModelScheduler
    precision: str
    source_language: str
    """Of the pair that it answers, as the manifest spells it."""

    target_language: str
    whole: "LoadedModel | None" = None
    """The one for the pair that the manifest names first, which those for other pairs keep; None: it is that one."""

    def for_pair(self, source_language: str, target_language: str) -> "LoadedModel":
        """Return it for one of its pairs, spelled as the manifest does."""
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
        """Name and version."""
        return full_name(self.name, self.version)

    @property
    def has_attention(self) -> bool:
        """True if it has an attention graph."""
        return self.manifest.has_attention(self.precision)

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""
        return self.manifest.limits.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target it gives, EOS counted."""
        return self.manifest.limits.max_target_tokens

    @property
    def confidence(self) -> Confidence | None:
        """How likely its sentences are translated well; None: it does not say."""
        return self.manifest.confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageGroup:
    """Languages of a version, each of which it translates into each of others.

    None into itself, unless there is one of each.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    is_default: bool
    """True if a request of these pairs that names no model gets this version."""

    @property
    def num_pairs(self) -> int:
        """Number of directions."""
        num_same = 0 if len(self.sources) == len(self.targets) == 1 else len({*self.sources} & {*self.targets})
        return len(self.sources) * len(self.targets) - num_same

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of each direction."""
        is_one = len(self.sources) == len(self.targets) == 1
        return ((s, t) for s in self.sources for t in self.targets if is_one or s != t)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatus:
    """What callers are told about one version of a model."""

    name: str
    version: str
    state: ModelState
    manifest: Manifest | None
    """None in state FAILED if it could not be read."""

    precision: str
    """Which graphs it runs; the manifest's default while it is loading; empty without a manifest."""

    is_default: bool
    """True if a request that names the model without a version gets this one."""

    language_groups: tuple[LanguageGroup, ...]
    """From which languages it translates into which; none without a manifest."""

    message: str = ""
    """Why it failed, if it did."""

    labels: tuple[str, ...] = ()
    """Its labels, sorted."""

    @property
    def is_pair_default(self) -> bool:
        """True if a request of one of its language pairs that names no model gets this one."""
        return any(group.is_default for group in self.language_groups)


class ModelMetrics:
    """Shows versions in the metrics and removes them again; one thread at a time may use it."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._shown: dict[tuple[str, str], list[tuple[Gauge, tuple[str, ...]]]] = {}
        """Name and version to the gauges of its parts, which refer to them: to be removed before they can be freed."""

    def show_state(self, name: str, version: str, state: ModelState) -> None:
        """Show the state of a version."""
        for other in ModelState:
            self._metrics.model_state.labels(name, version, other.value).set(other is state)

    def show_parts(self, name: str, version: str, parts: ModelRuntime) -> None:
        """Show what a version that is ready consists of."""
        metrics, key = self._metrics, (name, version)
        info = (*key, parts.precision, parts.device)
        metrics.model_info.labels(*info).set(1)
        metrics.model_weights_bytes.labels(*key).set(parts.weights_bytes)
        metrics.kv_cache_bytes.labels(*key).set_function(parts.cache_bytes)
        shown: list[tuple[Gauge, tuple[str, ...]]] = [
            (metrics.model_info, info),
            (metrics.model_weights_bytes, key),
            (metrics.kv_cache_bytes, key),
        ]
        for replica, process_bytes in enumerate(parts.process_bytes):
            metrics.worker_memory_bytes.labels(*key, str(replica)).set_function(process_bytes)
            shown.append((metrics.worker_memory_bytes, (*key, str(replica))))
        self._shown[key] = shown

    def hide_parts(self, name: str, version: str) -> None:
        """Remove what was shown of the parts of a version."""
        for gauge, labels in self._shown.pop((name, version), ()):
            gauge.remove(*labels)

    def hide(self, name: str, version: str) -> None:
        """Remove everything that was shown of a version."""
        self.hide_parts(name, version)
        for state in ModelState:
            self._metrics.model_state.remove(name, version, state.value)
