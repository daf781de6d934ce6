"""A model: what a loader makes of a bundle, what answers requests, and what is told of it."""

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from service.bundle import Manifest
from service.datatypes import Segment, SegmentResult
from service.models.names import full_name
from service.models.serving import ServingSettings
from service.text.pipeline import Tokenizer
from service.translate.service import SegmentQueue


class ModelState(enum.Enum):
    """Whether a version can answer."""

    LOADING = "loading"
    """Being read and warmed up."""

    READY = "ready"
    """Answers requests."""

    DRAINING = "draining"
    """Finishes what it has and takes nothing new."""

    FAILED = "failed"
    """Could not be loaded."""


class ModelScheduler(SegmentQueue, Protocol):
    """The queue of one model and the threads behind it."""

    def warm_up(self, segments: Sequence[Segment]) -> Sequence[SegmentResult]:
        """Decode segments with what each decoding thread will use, before `start`; return the results of one."""

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
    """Neither warm nor started: the repository sees to both, and stops it."""

    precision: str
    """Which of the bundle's graphs it runs, such as `int8`."""

    device: str
    """What runs them: `cpu` or `cuda`."""

    weights_bytes: int
    """Size of the files that hold graphs and weights of the precision."""

    cache_bytes: Callable[[], int]
    """Tells how many bytes the caches of its decoding threads take now; asked by any thread."""

    process_bytes: Callable[[], int] | None = None
    """Likewise, of the memory of the process that decodes; None if that is the server's own."""


ModelLoader = Callable[[Path, ServingSettings], ModelParts]
"""Makes a bundle directory into a model, with the settings of its name; raises BundleError or ConfigError."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class LoadedModel:
    """A model that answers requests. Whoever holds it may submit to its scheduler: it is not stopped before that."""

    name: str
    version: str
    manifest: Manifest
    tokenizer: Tokenizer
    scheduler: ModelScheduler
    precision: str

    @property
    def full_name(self) -> str:
        """Name and version."""
        return full_name(self.name, self.version)

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
    manifest: Manifest | None
    """None if it could not be read, in state FAILED only."""

    precision: str
    """Which graphs it runs; the manifest's default while it is loading; empty without a manifest."""

    is_default: bool
    """True if a request that names the model without a version gets this one."""

    is_pair_default: bool
    """True if a request of its language pair that names no model gets this one."""

    message: str = ""
    """Why it failed, if it did."""

    labels: tuple[str, ...] = ()
    """Labels that point to it, sorted."""
