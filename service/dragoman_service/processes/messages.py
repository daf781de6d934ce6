"""Messages between the owner and a front end.

Each call of a front end has a number, which the messages about the call repeat.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman_service.config import Settings
from dragoman_service.datatypes import Priority, Segment, SegmentResult, StageTimings
from dragoman_service.errors import DragomanError
from dragoman_service.models.registry import ModelVersionEntry, VersionPolicy
from dragoman_service.processes.merged_metrics import Families
from dragoman_service.worker.messages import format_digest, pickle_as_tuple


@dataclass(frozen=True, slots=True, kw_only=True)
class StartCommand:
    """First message to a front end."""

    settings: Settings  # with the port to listen on
    index: int  # of the front end, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsChanged:
    """The registry of the owner, to a front end, which answers with `ModelsPublished`."""

    revision: int
    entries: tuple[ModelVersionEntry, ...]  # without models
    policies: Mapping[str, VersionPolicy]
    model_numbers: Mapping[str, int]  # of the ready versions, by `name/version`
    new_models: Mapping[int, bytes]  # pickled `LoadedModel` without its scheduler, by number


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsPublished:
    """A front end uses a revision of the registry for new requests."""

    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReleased:
    """A front end has no more requests to a model that it does not use for new ones."""

    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitCommand:
    """Charge and queue the segments of a request; the answers are `Submitted` and `SegmentResults`."""

    call: int
    model_number: int
    segments: tuple[Segment, ...]
    caller: str
    priority: Priority
    deadline_s: float  # on the monotonic clock, which all processes of a machine share
    exemplar: Mapping[str, str] | None
    num_characters: int  # 0: unknown
    is_whole: bool  # the results are sent together, without `Submitted`; else each is sent as soon as it is there


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """The segments of a call are admitted."""

    call: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentResults:
    """Results or errors of segments of a call, with their positions."""

    call: int
    results: tuple[tuple[int, SegmentResult | DragomanError], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Calls a method of the owner; the answer is `Answer`."""

    call: int
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result or error of a question, or the rejection of segments."""

    call: int
    value: Any = None
    error: DragomanError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelCommand:
    """Ends a call; its segments are cancelled, and its charge, if it is a charge, can no longer be refunded."""

    call: int
    refunds: bool = False  # refund the charge of the call first


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReport:
    """The metrics of a front end."""

    families: Families


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """The front end accepts calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The front end cannot start."""

    error: DragomanError


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainCommand:
    """Reject new calls and answer the admitted ones; the answer is `Drained`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """The front end has no more calls, or its drain timed out."""

    is_complete: bool = field(default=True)


_KINDS: tuple[type[Any], ...] = (
    *(StartCommand, ModelsChanged, ModelsPublished, ModelReleased, ModelVersionEntry, VersionPolicy),
    *(SubmitCommand, Submitted, SegmentResults, Question, Answer, CancelCommand),
    *(Segment, SegmentResult, StageTimings, MetricsReport, Listening, Failed, DrainCommand, Drained),
)
for _kind in (SubmitCommand, SegmentResults, CancelCommand, SegmentResult, StageTimings):
    pickle_as_tuple(_kind)


def messages_digest() -> str:
    """Return a digest of the fields of all messages, to detect a front end of another version of the service."""
    return format_digest(Settings, _KINDS)
