"""The C++ decoder step: shapes, weights, joins, leaves, steps, against numpy and against each segment alone."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st

from service.runtime.native_library import Library
from tests.fuzz.target import Check, Target, bounded
from tests.reference_step import Decoder, LibraryBatch, ReferenceBatch, check_candidates, native_library

_MAX_SEGMENTS: Final = 4
_MAX_STEPS: Final = 24


@dataclass(slots=True)
class _Choices:
    """Bytes, each of which is a choice; 0 behind the last."""

    content: bytes
    position: int = 0

    @property
    def is_over(self) -> bool:
        return self.position >= len(self.content)

    def among(self, *values: Any) -> Any:
        byte = 0 if self.is_over else self.content[self.position]
        self.position += 1
        return values[byte % len(values)]


def check_steps(library: Library, content: bytes) -> None:
    """Play what bytes choose; a segment has the candidates of the reference, and the bits it has alone."""
    choices = _Choices(content)
    generator = np.random.default_rng(choices.among(*range(256)))
    decoder = Decoder.drawn(
        generator,
        head_size=choices.among(8, 16, 24, 32, 40, 64, 72, 128),
        num_heads=choices.among(1, 2, 3),
        ffn_size=choices.among(1, 7, 63, 64, 65, 129),
        num_layers=choices.among(1, 2),
        vocabulary_size=choices.among(1, 2, 63, 64, 65, 127, 1024, 1025, 2500),
        is_pre_norm=choices.among(True, False),
        has_fixed_scales=choices.among(True, False),
    )
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


@contextmanager
def _opened() -> Iterator[Check]:
    library = native_library()
    if isinstance(library, str):
        yield lambda _: None  # there is nothing to check
        return
    with bounded(partial(check_steps, library)) as judged:
        yield judged


NATIVE: Final = (Target(name="native-step", inputs=st.binary(max_size=120), opened=_opened),)
