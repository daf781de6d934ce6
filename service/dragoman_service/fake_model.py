"""The fake model of `dragoman serve --fake`: its bundle, its tokenizer and its scheduler.

The fake has no network. It answers each segment at once with the segment itself after the target language, as in
`[de] Hello.`, and fails for sentences such as `fake:overloaded 0.5 x2` (see `dragoman.testing.failures`). Transports,
checks of requests, quotas and the text pipeline are those of every model.
"""

import logging
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from babel import Locale

from dragoman.testing.failures import MODEL_NAME, Failure, SentenceFailures, fake_translation
from dragoman_service.bundle.architecture import Architecture, Limits, graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, file_entry
from dragoman_service.bundle.manifest import (
    SCHEMA_VERSION,
    GraphFiles,
    Languages,
    Manifest,
    Provenance,
    SpecialIds,
    TargetTokens,
    Tokenization,
)
from dragoman_service.config import Settings
from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment, SegmentResult, StageTimings
from dragoman_service.decoding.step_model import FloatArray
from dragoman_service.errors import (
    ConfigError,
    DeadlineExceededError,
    DragomanError,
    DrainingError,
    EngineError,
    InvalidFieldError,
    OverloadedError,
    RateLimitedError,
)
from dragoman_service.models.lifecycle import ModelLoader
from dragoman_service.models.model import ModelRuntime
from dragoman_service.models.serving import ServingSettings
from dragoman_service.request import ProtectedKind, RequestContext
from dragoman_service.scheduling.admission import max_decode_cost
from dragoman_service.scheduling.scheduler import Futures
from dragoman_service.text.tokenizer import SentencePieceTokenizer

log = logging.getLogger(__name__)

_PRECISION: Final = "fake"
_GRAPH: Final = "fake.onnx"  # an empty file
_LOG_PROB: Final = -0.125  # of each token
_LIMITS: Final = Limits(max_source_tokens=512, max_target_tokens=1024)

# A token is a piece of text, and its id is the number that the UTF-8 bytes of the piece are, after the byte 1. All ids
# are above those of the special tokens.
_SPECIAL: Final = SpecialIds(pad=0, bos=1, eos=2, unk=3)
_PIECE: Final = re.compile(r"\s*\S{1,6}|\s+")


class FakeTokenizer(SentencePieceTokenizer):
    """Tokenizer without a vocabulary: a token is white space and up to six further characters."""

    pad_id, bos_id, eos_id, unk_id = _SPECIAL.pad, _SPECIAL.bos, _SPECIAL.eos, _SPECIAL.unk
    source_prefix: tuple[int, ...] = ()
    source_suffix: tuple[int, ...] = (_SPECIAL.eos,)
    target_prefix: tuple[int, ...] = ()
    placeholders: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    placeholder_ids: tuple[tuple[int, int], ...] = ()
    reserved_ids: tuple[tuple[int, int], ...] = ()
    filler = ""
    byte_ids: frozenset[int] = frozenset()
    is_of_translations = False

    def __init__(self) -> None:
        """Load nothing."""
        self.readable = defaultdict(set)

    def for_pair(self, source_language: str, target_language: str) -> Self:  # noqa: ARG002
        """Return the tokenizer whose sources begin with the target language."""
        of_pair = copy(self)
        of_pair.source_prefix = (_token_id(target_language),)
        return of_pair

    def spells(self, character: str) -> bool:  # noqa: ARG002
        """Return True: a piece has any characters."""
        return True

    def encode(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text."""
        return [_token_id(piece) for piece in _PIECE.findall(text)]

    def encode_target(self, text: str) -> list[int]:
        """Return the ids of the pieces of a text."""
        return self.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special tokens."""
        return "".join(_piece(token_id) for token_id in token_ids if token_id > _SPECIAL.unk)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the begin and end of each piece."""
        return [match.span() for match in _PIECE.finditer(text)]

    def decode_with_offsets(self, token_ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of tokens, and the begin and end of each in it."""
        offsets, end = [], 0
        for token_id in token_ids:
            begin, end = end, end + len(self.decode([token_id]))
            offsets.append((begin, end))
        return self.decode(token_ids), offsets

    def token_id(self, piece: str) -> int | None:
        """Return the id of a piece; None if a text has no such piece."""
        return _token_id(piece) if _PIECE.fullmatch(piece) else None

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the piece of each token."""
        return ["</s>" if token_id == _SPECIAL.eos else _piece(token_id) for token_id in token_ids]

    def source_pieces(self, token_ids: Sequence[int]) -> list[str]:
        """Return the piece of each token."""
        return self.pieces(token_ids)


def _token_id(piece: str) -> int:
    return int.from_bytes(b"\1" + piece.encode())


def _piece(token_id: int) -> str:
    return token_id.to_bytes((token_id.bit_length() + 7) // 8)[1:].decode()


class FakeScheduler:
    """Scheduler that answers each segment at once, or fails as its sentence demands. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tokenizer = FakeTokenizer()
        self._failures = SentenceFailures()
        self._delayed: set[Future[SegmentResult]] = set()
        self._is_draining = False
        self._lock = threading.Lock()

    def warm_up(self, segments: Sequence[Segment]) -> Sequence[SegmentResult]:
        """Return the results of segments."""
        return [self._result(segment) for segment in segments]

    def start(self) -> None:
        """Do nothing."""

    def reject_early(self, num_characters: int, search: SearchConfig, context: RequestContext) -> None:
        """Do nothing: no text is too long to be answered."""

    def expected_decode_cost(self, segments: Sequence[Segment]) -> int:
        """Return the largest decode cost of segments."""
        return max_decode_cost(segments)

    def submit(self, segments: Sequence[Segment], context: RequestContext, *, num_characters: int = 0) -> Futures:  # noqa: ARG002
        """Answer segments; raises the first failure that one of them injects."""
        failures = [self._failure(segment) for segment in segments]
        for failure in failures:
            if failure and failure.kind != "slow":
                raise _error(failure, context)
        with self._lock:
            if self._is_draining:
                raise DrainingError
        return [
            self._answer(segment, context, failure.seconds if failure else 0.0)
            for segment, failure in zip(segments, failures, strict=True)
        ]

    def drain(self, timeout_s: float) -> bool:
        """Reject new segments and wait for delayed answers; return False on timeout."""
        with self._lock:
            self._is_draining = True
            delayed = {*self._delayed}
        return not wait(delayed, timeout_s).not_done

    def stop(self) -> None:
        """Fail segments whose answer is delayed."""
        with self._lock:
            self._is_draining = True
            delayed = {*self._delayed}
        for future in delayed:
            self._resolve(future, DrainingError())

    def _failure(self, segment: Segment) -> Failure | None:
        sentence = self._tokenizer.decode(segment.source_ids[1:])
        try:
            return self._failures.next_failure(sentence)
        except ValueError as error:
            raise InvalidFieldError("texts", repr(sentence[:80]), f"a sentence, or a failure ({error})") from error

    def _answer(self, segment: Segment, context: RequestContext, delay_s: float) -> "Future[SegmentResult]":
        future = Future[SegmentResult]()
        if not delay_s:
            future.set_result(self._result(segment))
            return future
        allowed_s = context.deadline_s - self._clock()
        outcome = self._result(segment) if delay_s < allowed_s else DeadlineExceededError("decode")
        timer = threading.Timer(max(0.0, min(delay_s, allowed_s)), self._resolve, (future, outcome))
        timer.daemon = True
        with self._lock:
            self._delayed.add(future)
        future.add_done_callback(partial(self._end, timer))
        timer.start()
        return future

    def _end(self, timer: threading.Timer, future: "Future[SegmentResult]") -> None:
        timer.cancel()
        if future.cancelled() and self._take(future):
            future.set_running_or_notify_cancel()  # wakes threads that wait for several futures

    def _resolve(self, future: "Future[SegmentResult]", outcome: SegmentResult | DragomanError) -> None:
        if not (self._take(future) and future.set_running_or_notify_cancel()):
            return
        if isinstance(outcome, DragomanError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _take(self, future: "Future[SegmentResult]") -> bool:
        # Returns True to one caller only: timer, `stop` or a cancellation, which may come at the same time.
        with self._lock:
            is_first = future in self._delayed
            self._delayed.discard(future)
            return is_first

    def _result(self, segment: Segment) -> SegmentResult:
        ranks = range(1, segment.search.num_hypotheses + 1)
        hypotheses = tuple(self._hypothesis(segment, rank) for rank in ranks)
        return SegmentResult(hypotheses=hypotheses, num_steps=len(hypotheses[0].token_ids), timings=StageTimings())

    def _hypothesis(self, segment: Segment, rank: int) -> Hypothesis:
        search, sources = segment.search, segment.source_ids[1:-1]
        language, sentence = self._tokenizer.decode(segment.source_ids[:1]), self._tokenizer.decode(sources)
        marker = fake_translation("", language, rank).rstrip()
        marked = fake_translation(sentence, language, rank)
        separator = " " if search.target_prefix else ""
        head = (*search.target_prefix, *self._tokenizer.encode(separator + marker))
        tail = self._tokenizer.encode(marked.removeprefix(marker))
        token_ids = (*head, *tail, _SPECIAL.eos)[: search.max_target_tokens]
        log_probs = (_LOG_PROB * rank,) * len(token_ids)
        return Hypothesis(
            token_ids=token_ids,
            token_log_probs=log_probs,
            log_prob=sum(log_probs),
            score=_LOG_PROB * rank,
            is_finished=token_ids[-1] == _SPECIAL.eos,
            attention=_attention(len(token_ids), len(segment.source_ids), first=len(head))
            if segment.wants_attention
            else None,
        )


def _attention(num_targets: int, num_sources: int, *, first: int) -> FloatArray:
    # [1, 1, T, S]: target `first` and the later ones attend to the sources after the language; the others to the end.
    sources = np.arange(num_targets) - first + 1
    sources[(sources < 1) | (sources >= num_sources)] = num_sources - 1
    return np.eye(num_sources, dtype=np.float32)[sources][np.newaxis, np.newaxis]


def _error(failure: Failure, context: RequestContext) -> DragomanError:
    match failure.kind:
        case "overloaded":
            return OverloadedError(queued=1, limit=1, unit="segments", retry_after_s=failure.seconds)
        case "rate-limited":
            return RateLimitedError(caller=context.caller, limit=1, unit="requests/s", retry_after_s=failure.seconds)
        case "unavailable":
            return DrainingError()
        case "deadline":
            return DeadlineExceededError("decode")
    return EngineError("failure injected by a request")


def fake_loader(*_: Any, **__: Any) -> ModelLoader:
    """Return a loader of the fake model; takes the arguments of `onnx_loader`."""

    def load(bundle: Bundle, serving: ServingSettings) -> ModelRuntime:  # noqa: ARG001
        manifest = bundle.manifest
        tokenizer = FakeTokenizer().for_pair(manifest.source_language, manifest.target_language)
        return ModelRuntime(
            tokenizer=tokenizer,
            scheduler=FakeScheduler(),
            precision=_PRECISION,
            device="cpu",
            weights_bytes=0,
            cache_bytes=lambda: 0,
        )

    return load


def with_fake_model(settings: Settings, directory: Path) -> Settings:
    """Write the bundle of the fake model into a directory; return the settings of a server for it.

    Raises:
        ConfigError: if a model directory is configured, so that a fake never replaces a model.
    """
    if "directory" in settings.models.model_fields_set:
        expected = "unset with --fake, which serves a fake model instead of the models of a directory"
        raise ConfigError("models.directory", str(settings.models.directory), expected)
    write_fake_bundle(directory / MODEL_NAME / "1")
    log.warning("serving a fake model: answers are not translations", extra={"model": f"{MODEL_NAME}/1"})
    models = settings.models.model_copy(update={"directory": directory, "poll_interval_s": 0.0})
    # A failure such as `fake:overloaded 0.5 x2` has numbers that the model must read.
    kinds = {*settings.defaults.unprotected_kinds, ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER}
    defaults = settings.defaults.model_copy(update={"unprotected_kinds": tuple(kinds)})
    return settings.model_copy(update={"models": models, "defaults": defaults})


def write_fake_bundle(directory: Path) -> None:
    """Write a bundle without a network for every pair of two-letter languages and traditional Chinese."""
    directory.mkdir(parents=True)
    graph = directory / _GRAPH
    graph.touch()
    tags = sorted([*(tag for tag in map(str, Locale("en").languages) if len(tag) == 2), "zh-Hant"])
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        name=MODEL_NAME,
        version=directory.name,
        source_language="en",
        target_language="de",
        architecture=Architecture(
            vocabulary_size=_SPECIAL.unk + 1,
            d_model=1,
            num_heads=1,
            ffn_size=1,
            num_encoder_layers=1,
            num_decoder_layers=1,
            norm="pre",
        ),
        special_ids=_SPECIAL,
        limits=_LIMITS,
        precisions={_PRECISION: GraphFiles(encoder=_GRAPH, decoder=_GRAPH, attention=_GRAPH)},
        default_precision=_PRECISION,
        tokenizer=_GRAPH,
        tokenization=Tokenization(
            languages=Languages(sources=dict.fromkeys(tags, ()), targets=dict.fromkeys(tags, TargetTokens()))
        ),
        tensors={_PRECISION: graph_tensors(1, "float32")},
        files={_GRAPH: file_entry(graph)},
        provenance=Provenance(exporter_version="", checkpoint="", checkpoint_sha256=""),
        licence="CC0-1.0",
        attribution="none",
    )
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(), encoding="utf-8")
