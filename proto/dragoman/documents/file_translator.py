"""Translates files with a server: sends missing segments in concurrent batches and records each translation."""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from dragoman.client.clients import TranslationClient
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
_NUM_CALLS = 4  # concurrent calls; with batches of 16, at most 64 segments of a run wait in the server
_TIMEOUT_S = 120.0
_MAX_WAITS = 30  # for an overloaded server, per batch, in addition to the retries of the client
_WAIT_S = 5.0  # if the server sends no delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One file to translate."""

    source: Path
    output: Path
    content: FileContent = field(repr=False)

    @property
    def journal_path(self) -> Path:
        """Path of the journal, which exists until the output is complete."""
        return self.output.with_name(f".{self.output.name}.journal")

    @property
    def num_characters(self) -> int:
        """Characters of all segments."""
        return sum(len(segment.text) for segment in self.content.segments)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result of the translation of a file."""

    failures: list[tuple[FileSegment, str]] = field(default_factory=list)  # untranslated segments and reasons
    warnings: list[tuple[FileSegment, str]] = field(default_factory=list)


def plan_files(inputs: Sequence[Path], output: Path, options: ReadOptions) -> list[Plan]:
    """Read all files and choose their outputs.

    Args:
        inputs: at least one.
        output: a file for one input, or a directory.
        options: see `ReadOptions`.

    Raises:
        FileFormatError: if a file cannot be translated, or an output is a source or the output of another file.
        ModuleNotFoundError: if a format requires the extra `files`, which is not installed.
        OSError: if a file cannot be read.
    """
    is_directory = output.is_dir() or len(inputs) > 1
    outputs = [output / source.name if is_directory else output for source in inputs]
    sources = {source.resolve() for source in inputs}
    for index, target in enumerate(outputs):
        if target.resolve() in sources:
            raise FileFormatError(f"{target} is a source file; choose another output")
        if target in outputs[:index]:
            raise FileFormatError(f"two source files have the name {target.name}; choose different directories")
    return [
        Plan(source=source, output=target, content=read_file(source, options))
        for source, target in zip(inputs, outputs, strict=True)
    ]


def translate_file(
    client: TranslationClient,
    plan: Plan,
    settings: RequestSettings,
    *,
    progress: Callable[[int], object],
    timeout_s: float | None = None,
    pause: Callable[[float], object] = time.sleep,
) -> Outcome:
    """Translate the segments that the journal lacks, and write the output atomically.

    A segment that the server rejects, or whose translation does not fit into the file, keeps its source and is
    reported. The journal is then preserved, so that the next run sends only these segments.

    Args:
        client: called from several threads.
        plan: one file.
        settings: as for `TranslationClient.translate`, except the format of the texts.
        progress: receives the number of translated characters of each segment.
        timeout_s: deadline of each call; default: 120.
        pause: waits for an overloaded server; takes seconds.

    Raises:
        DragomanError: if no call succeeds; finished translations are in the journal.
        OSError: if a file cannot be written.
    """
    outcome = Outcome()
    plan.output.parent.mkdir(parents=True, exist_ok=True)
    sender = _BatchSender(client, settings, timeout_s or _TIMEOUT_S, pause)
    reasons: dict[FileSegment, str] = {}
    with Journal(plan.journal_path, {key: value for key, value in settings.items() if key != "request_id"}) as journal:
        firsts: dict[tuple[object, str], FileSegment] = {}
        for segment in plan.content.segments:
            if journal.get(segment) is None:
                firsts.setdefault((segment.format, segment.text), segment)
        missing = sum(len(segment.text) for segment in firsts.values())
        progress(plan.num_characters - missing)
        for segment, answer, warnings in sender.answers(firsts.values()):
            progress(len(segment.text))
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
        outcome.failures.append((segment, reason))
    _write(plan.output, plan.content.written(translations))
    if not outcome.failures:
        journal.remove()
    return outcome


Answer = tuple[FileSegment, str | DragomanError, Sequence[str]]
"""A segment, its translation or error, and the warnings of the server."""


class _BatchSender:
    """Sends segments in concurrent batches."""

    def __init__(
        self, client: TranslationClient, settings: RequestSettings, timeout_s: float, pause: Callable[[float], object]
    ) -> None:
        self._client = client
        self._settings = settings
        self._timeout_s = timeout_s
        self._pause = pause

    def answers(self, segments: Iterable[FileSegment]) -> Iterator[Answer]:
        """Yield each segment with its answer, in any order; DragomanError if a call fails that no text has caused."""
        remaining = batches(segments)
        with ThreadPoolExecutor(_NUM_CALLS) as pool:
            running = {pool.submit(self._translated, batch) for batch in islice(remaining, _NUM_CALLS)}
            failure: DragomanError | None = None
            while running:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    try:
                        yield from each.result()
                    except DragomanError as error:
                        failure = failure or error
                if failure is None:
                    running |= {pool.submit(self._translated, batch) for batch in islice(remaining, len(done))}
            if failure is not None:
                raise failure

    def _translated(self, batch: Sequence[FileSegment]) -> list[Answer]:
        """Translate a batch; segment by segment if one of them may have caused the error."""
        try:
            result = self._result(batch)
        except (InvalidFieldError, ServerError, DeadlineExceededError, ExhaustedError) as error:
            if not _may_concern_one_text(error):
                raise
            if len(batch) == 1:
                return [(batch[0], error, ())]
            return [answer for segment in batch for answer in self._translated([segment])]
        return [
            (segment, translation.text, [f"{warning.kind.name}: {warning.message}" for warning in translation.warnings])
            for segment, translation in zip(batch, result, strict=True)
        ]

    def _result(self, batch: Sequence[FileSegment]) -> TranslationResult:
        options = replace(self._settings.get("options", DecodingOptions()), format=batch[0].format)
        settings: RequestSettings = {"priority": Priority.BULK, **self._settings, "options": options}
        texts = [segment.text for segment in batch]
        for is_last in (*(False,) * _MAX_WAITS, True):
            try:
                return self._client.translate(texts, timeout_s=self._timeout_s, **settings)
            except ExhaustedError as error:
                if is_last or not error.reason:  # without a reason, a message exceeds a size limit
                    raise
                self._pause(error.retry_after_s or _WAIT_S)
        raise AssertionError


def _may_concern_one_text(error: DragomanError) -> bool:
    """Return whether other texts may be translated despite this error."""
    if isinstance(error, InvalidFieldError):
        return all(field.startswith("texts") for field in error.fields)
    if isinstance(error, DeadlineExceededError):
        return error.stage is not None  # without a stage, the server did not respond
    return not (isinstance(error, ExhaustedError) and error.reason)


def batches(segments: Iterable[FileSegment]) -> Iterator[list[FileSegment]]:
    """Yield lists of segments of the same format that fit into one request."""
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
    """Replace a file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
