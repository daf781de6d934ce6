"""Files translated by a server: what is missing is asked for in batches, several at a time, and kept as it comes."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Protocol

from dragoman.client.enums import Priority
from dragoman.client.errors import (
    DeadlineExceededError,
    DragomanError,
    ExhaustedError,
    InvalidFieldError,
    ServerError,
)
from dragoman.client.request import DecodingOptions, RequestSettings
from dragoman.client.results import TranslationResult
from dragoman.documents.content import FileContent, FileFormatError, FileSegment, MarkupLostError
from dragoman.documents.formats import ReadOptions, read_file
from dragoman.documents.journal import Journal

_BATCH_TEXTS = 16
_BATCH_CHARACTERS = 8_000
_NUM_CALLS = 4
"""Calls at a time: with batches of 16 no more than 64 segments of a job wait in a server."""

_TIMEOUT_S = 120.0
_MAX_WAITS = 30
"""Times a batch waits for a server that is overloaded, beyond the retries of the client."""

_WAIT_S = 5.0
"""How long it waits then, if the server does not say."""


class Translating(Protocol):
    """What a job asks of `TranslationClient`."""

    @property
    def translate(self) -> Callable[..., TranslationResult]:
        """See `TranslationClient.translate`; called by several threads."""


class Progress(Protocol):
    """Is told how far a job is; a bar of `tqdm` is one."""

    def update(self, n: float | None = 1) -> object:
        """Count characters that were translated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One file to translate."""

    source: Path
    output: Path
    content: FileContent = field(repr=False)

    @property
    def journal_path(self) -> Path:
        """Where the translations are kept until the output is written."""
        return self.output.with_name(f".{self.output.name}.journal")

    @property
    def num_characters(self) -> int:
        """Of all segments."""
        return sum(len(segment.text) for segment in self.content.segments)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedSegment:
    """A segment that kept its source."""

    source: Path
    segment: FileSegment
    reason: str


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a file."""

    num_asked: int = 0
    """Different texts that a server was asked for; the rest was in the journal."""

    failures: list[FailedSegment] = field(default_factory=list)
    warnings: list[tuple[FileSegment, str]] = field(default_factory=list)
    """What the server noticed, for people."""


def planned(inputs: Sequence[Path], output: Path, options: ReadOptions) -> list[Plan]:
    """Read all files and say where each translation goes.

    Args:
        inputs: at least one.
        output: a file, for one input; or a directory, which exists or whose name ends in a slash.
        options: see `ReadOptions`.

    Raises:
        FileFormatError: if a file cannot be translated, or an output would be a source or the output of another.
        ModuleNotFoundError: if a format needs the extra `files`, which is not installed.
        OSError: if a file cannot be read.
    """
    is_directory = output.is_dir() or len(inputs) > 1
    outputs = [output / source.name if is_directory else output for source in inputs]
    sources = {source.resolve() for source in inputs}
    for index, target in enumerate(outputs):
        if target.resolve() in sources:
            raise FileFormatError(f"{target} is a source; name another place for the translation")
        if target in outputs[:index]:
            raise FileFormatError(f"two sources are named {target.name}; translate one of them into another directory")
    return [
        Plan(source=source, output=target, content=read_file(source, options))
        for source, target in zip(inputs, outputs, strict=True)
    ]


def translate_file(
    client: Translating,
    plan: Plan,
    settings: RequestSettings,
    *,
    progress: Progress,
    timeout_s: float | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Translate what the journal does not have, and write the output in one step.

    A segment that the server refuses, or whose translation cannot be put into the file, keeps its source and is told;
    the journal stays then, so that the same job asks only for these.

    Args:
        client: whom to ask, by several threads.
        plan: one file.
        settings: as for `TranslationClient.translate`, but for the format of the texts.
        progress: counts characters.
        timeout_s: deadline of each call; default: 120.
        pause: waits that many seconds, when the server is overloaded.

    Raises:
        DragomanError: if the server cannot be asked at all; what was translated is in the journal.
        OSError: if a file cannot be written.
    """
    outcome = Outcome()
    plan.output.parent.mkdir(parents=True, exist_ok=True)
    caller = _Caller(client, settings, timeout_s or _TIMEOUT_S, pause)
    reasons: dict[FileSegment, str] = {}
    with Journal(plan.journal_path, {key: value for key, value in settings.items() if key != "request_id"}) as journal:
        firsts: dict[tuple[object, str], FileSegment] = {}
        for segment in plan.content.segments:
            if journal.get(segment) is None:
                firsts.setdefault((segment.format, segment.text), segment)
        outcome.num_asked = len(firsts)
        missing = sum(len(segment.text) for segment in firsts.values())
        progress.update(plan.num_characters - missing)
        for segment, answer, warnings in caller.answers(firsts.values()):
            progress.update(len(segment.text))
            outcome.warnings += [(segment, warning) for warning in warnings]
            if isinstance(answer, DragomanError):
                reasons[replace(segment, place="")] = str(answer)
            else:
                journal.add(segment, answer)
        translations = [journal.get(segment) for segment in plan.content.segments]
    for index, (segment, translation) in enumerate(zip(plan.content.segments, translations, strict=True)):
        try:
            if translation is not None:
                plan.content.check(index, translation)
                continue
            reason = reasons[replace(segment, place="")]
        except MarkupLostError as error:
            reason = str(error)
        translations[index] = None
        outcome.failures.append(FailedSegment(source=plan.source, segment=segment, reason=reason))
    _write(plan.output, plan.content.written(translations))
    if not outcome.failures:
        journal.remove()
    return outcome


Answered = tuple[FileSegment, str | DragomanError, Sequence[str]]
"""A segment, its translation or why it has none, and what the server noticed."""


class _Caller:
    """Asks for segments, several batches at a time."""

    def __init__(
        self, client: Translating, settings: RequestSettings, timeout_s: float, pause: Callable[[float], object]
    ) -> None:
        self._client = client
        self._settings = settings
        self._timeout_s = timeout_s
        self._pause = pause

    def answers(self, segments: Iterable[FileSegment]) -> Iterator[Answered]:
        """Yield each segment with its answer, in any order; DragomanError if the server cannot be asked at all."""
        remaining = batches(segments)
        with ThreadPoolExecutor(_NUM_CALLS) as pool:
            running = {pool.submit(self._answered, batch) for batch in islice(remaining, _NUM_CALLS)}
            failure: DragomanError | None = None
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    try:
                        yield from each.result()
                    except DragomanError as error:
                        failure = failure or error
                if failure is None:
                    running |= {pool.submit(self._answered, batch) for batch in islice(remaining, len(done))}
            if failure is not None:
                raise failure

    def _answered(self, batch: Sequence[FileSegment]) -> list[Answered]:
        """Ask for a batch; one by one where a segment of it may be to blame."""
        try:
            result = self._asked(batch)
        except (InvalidFieldError, ServerError, DeadlineExceededError, ExhaustedError) as error:
            if not _may_be_of_one(error):
                raise
            if len(batch) == 1:
                return [(batch[0], error, ())]
            return [answer for segment in batch for answer in self._answered([segment])]
        return [
            (segment, translation.text, [f"{warning.kind.name}: {warning.message}" for warning in translation.warnings])
            for segment, translation in zip(batch, result, strict=True)
        ]

    def _asked(self, batch: Sequence[FileSegment]) -> TranslationResult:
        options = replace(self._settings.get("options", DecodingOptions()), format=batch[0].format)
        settings: RequestSettings = {"priority": Priority.BULK, **self._settings, "options": options}
        texts = [segment.text for segment in batch]
        for is_last in (*(False,) * _MAX_WAITS, True):
            try:
                return self._client.translate(texts, timeout_s=self._timeout_s, **settings)
            except ExhaustedError as error:
                if is_last or not error.reason:  # without a reason a message is over a limit of size
                    raise
                self._pause(error.retry_after_s or _WAIT_S)
        raise AssertionError


def _may_be_of_one(error: DragomanError) -> bool:
    """Whether another text might be answered."""
    if isinstance(error, InvalidFieldError):
        return all(field.startswith("texts") for field in error.fields)
    if isinstance(error, DeadlineExceededError):
        return error.stage is not None  # else the server did not answer at all
    return not (isinstance(error, ExhaustedError) and error.reason)


def batches(segments: Iterable[FileSegment]) -> Iterator[list[FileSegment]]:
    """Yield lists of segments of one format each, small enough for one request."""
    batch: list[FileSegment] = []
    num_characters = 0
    for segment in segments:
        is_full = len(batch) == _BATCH_TEXTS or num_characters + len(segment.text) > _BATCH_CHARACTERS
        if batch and (is_full or segment.format is not batch[0].format):
            yield batch
            batch, num_characters = [], 0
        batch.append(segment)
        num_characters += len(segment.text)
    if batch:
        yield batch


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
