"""The native decoder: steps compared with NumPy and with each segment alone, searches with the ranking in NumPy."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final, cast

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import EncodedSource, ModelLimits, Placeholder, StepBatch, VocabularySpec
from dragoman_service.runtimes.native.library import Library, NativeNetwork
from dragoman_service.runtimes.native.step_model import NativeStepBatch
from tests.fuzz.target import Check, in_process
from tests.reference_step import (
    MAX_POSITIONS,
    Decoder,
    LibraryBatch,
    ReferenceBatch,
    check_candidates,
    native_library,
)

_MAX_SEGMENTS: Final = 4
_MAX_STEPS: Final = 24


@dataclass(slots=True)
class _Choices:
    """Bytes as choices; 0 after the last."""

    content: bytes
    position: int = 0

    @property
    def is_over(self) -> bool:
        return self.position >= len(self.content)

    def among(self, *values: Any) -> Any:
        byte = 0 if self.is_over else self.content[self.position]
        self.position += 1
        return values[byte % len(values)]


def _decoder(choices: _Choices, generator: np.random.Generator) -> Decoder:
    return Decoder.drawn(
        generator,
        head_size=choices.among(8, 16, 24, 32, 40, 64, 72, 128),
        num_heads=choices.among(1, 2, 3),
        ffn_size=choices.among(1, 7, 63, 64, 65, 129),
        num_layers=choices.among(1, 2),
        vocabulary_size=choices.among(1, 2, 63, 64, 65, 127, 1024, 1025, 2500),
        is_pre_norm=choices.among(True, False),
        **choices.among({"levels": 255}, {"has_fixed_scales": False}, {"levels": 127}),
    )


def check_steps(library: Library, content: bytes) -> None:
    """Run the steps that bytes choose; candidates equal the reference, and are bit-identical to each segment alone."""
    choices = _Choices(content)
    generator = np.random.default_rng(choices.among(*range(256)))
    decoder = _decoder(choices, generator)
    packed, best = decoder.packed(library, choices.among(*library.instruction_sets)), decoder.packed(library)
    with ExitStack() as opened:
        company = opened.enter_context(LibraryBatch(packed, num_threads=choices.among(1, 2, 3)))
        expected = ReferenceBatch(decoder)
        alone: list[LibraryBatch] = []
        num_rows = 1
        for _ in range(_MAX_STEPS):
            while len(alone) < _MAX_SEGMENTS and (not alone or choices.among(False, True)):
                cross = decoder.cross(generator, choices.among(1, 2, 15, 16, 17, 40))
                alone.append(opened.enter_context(LibraryBatch(best)))
                for batch in (company, expected, alone[-1]):
                    batch.add(cross)
            num_before, num_rows = num_rows, choices.among(1, 2, 3, 4, 5, 9)
            size = (len(alone), num_rows)
            token_ids = generator.integers(decoder.architecture.vocabulary_size, size=size)
            parents = generator.integers(num_before, size=size)
            num_candidates = min(choices.among(1, 4, 33, 5000), decoder.architecture.vocabulary_size)
            log_probs, ids = company.step(token_ids, parents, num_candidates)
            check_candidates((log_probs, ids), *expected.step(token_ids, parents))
            for number, batch in enumerate(alone):
                own = batch.step(token_ids[[number]], parents[[number]], num_candidates)
                assert own[0].tobytes() == log_probs[number].tobytes()
                assert own[1].tobytes() == ids[number].tobytes()
            if choices.is_over:
                return
            order = generator.permutation(len(alone))[: choices.among(4, 4, 4, 3, 2, 1, 0)].tolist()
            company.keep(order)
            expected.keep(order)
            alone = [alone[index] for index in order]


def check_searches(library: Library, content: bytes) -> None:
    """Run the searches that bytes choose; the library ranks and masks as NumPy does, bit for bit."""
    choices = _Choices(content)
    generator = np.random.default_rng(choices.among(*range(256)))
    decoder = _decoder(choices, generator)
    size = decoder.architecture.vocabulary_size
    packed = decoder.packed(library, choices.among(*library.instruction_sets))
    taken = generator.permutation(size)[: choices.among(0, 1, 5, 40, 256)].tolist()
    placeholders = tuple(Placeholder(token, token) for token in taken)
    shortlist = generator.permutation(size)[: choices.among(size, size // 2 + 1)]
    model = _RandomModel(decoder, packed, placeholders=placeholders, shortlist=np.sort(shortlist).astype(np.int32))
    segments: list[Segment] = []
    while len(segments) < _MAX_SEGMENTS and not choices.is_over:
        beam_size = choices.among(4, 1, 2, 5, 9)
        search = SearchConfig(
            beam_size=beam_size,
            num_hypotheses=choices.among(1, beam_size),
            min_target_tokens=choices.among(0, 4),
            max_target_tokens=choices.among(12, 1, 24),
            early_stopping=choices.among(False, True),
        )
        length = choices.among(2, 1, 15, 16, 17, 40)
        segments.append(Segment(source_ids=tuple(generator.integers(size, size=length).tolist()), search=search))

    actual, expected = (_decoded(RunningBatch(each), segments) for each in (model, _RankedByNumpy(model)))

    assert actual == expected
    for segment, hypotheses in zip(segments, actual, strict=True):
        assert {token for each in hypotheses for token in each.token_ids}.intersection(taken) <= {*segment.source_ids}


class _RandomModel:
    """Random networks of the library with random encodings."""

    def __init__(
        self,
        decoder: Decoder,
        packed: NativeNetwork,
        *,
        placeholders: tuple[Placeholder, ...],
        shortlist: NDArray[np.int32],
    ) -> None:
        size = decoder.architecture.vocabulary_size
        vocabulary = VocabularySpec(
            size=size, pad_id=0, bos_id=0, eos_id=min(1, size - 1), unk_id=0, placeholders=placeholders
        )
        self.limits = ModelLimits(vocabulary=vocabulary, max_source_tokens=MAX_POSITIONS, max_target_tokens=64)
        self._decoder, self._packed = decoder, packed
        self._shortlist: Any = SimpleNamespace(of=lambda _: shortlist) if len(shortlist) < size else None

    def encode(self, source_ids: Sequence[Sequence[int]]) -> list[EncodedSource]:
        """Return random encodings."""
        return [
            EncodedSource(source_ids=tuple(ids), cross=self._decoder.cross(np.random.default_rng([*ids]), len(ids)))
            for ids in source_ids
        ]

    def new_batch(self) -> NativeStepBatch:
        """Return an empty running batch."""
        sessions: Any = None  # compute only attention
        return NativeStepBatch(self._packed, sessions, num_threads=lambda: 2, shortlist=self._shortlist)


class _RankedByNumpy:
    """The same networks without the ranking of the library."""

    def __init__(self, model: _RandomModel) -> None:
        self.limits, self.encode, self._new_batch = model.limits, model.encode, model.new_batch

    def new_batch(self) -> StepBatch:
        """Return an empty running batch."""
        batch: Any = self._new_batch()
        names = ("start", "step", "drop", "cross_attention")
        return cast("StepBatch", SimpleNamespace(**{name: getattr(batch, name) for name in names}))


def _decoded(batch: RunningBatch, segments: list[Segment]) -> list[tuple[Hypothesis, ...]]:
    """Return the hypotheses of segments; one joins before each step."""
    finished: dict[int, tuple[Hypothesis, ...]] = {}
    waiting = list(segments)
    while waiting or batch.num_segments:
        if waiting:
            batch.start([waiting.pop(0)])
        finished.update({ended.segment_id: ended.hypotheses for ended in batch.step(max_seconds=1.0).ended})
    return [finished[index] for index in range(len(segments))]


def _with_library(check: Callable[[Library, bytes], None]) -> Check:
    """Return a check that does nothing where the library is not available."""

    def checked(content: bytes) -> None:
        library = native_library()
        if not isinstance(library, str):
            check(library, content)

    return checked


NATIVE: Final = tuple(
    in_process(name, st.binary(max_size=120), _with_library(check))
    for name, check in (("native-step", check_steps), ("native-search", check_searches))
)
