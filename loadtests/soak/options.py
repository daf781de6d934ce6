"""Every way to decode that a caller can ask for. Pure, given a generator."""

import random
from collections.abc import Callable, Sequence
from typing import Final

from dragoman.v1 import translation_pb2 as pb

_PREFIXES: Final = ("Das", "Wir haben", "Es ist")
_MAX_SEED: Final = 2**63 - 1

Choose = Callable[[random.Random], pb.DecodingOptions]


def _greedy(_: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(beam_size=1)


def _wide(generator: random.Random) -> pb.DecodingOptions:
    beam_size = generator.choice((2, 3, 5, 8, 16))
    return pb.DecodingOptions(beam_size=beam_size, num_hypotheses=generator.randint(1, beam_size), return_scores=True)


def _penalties(generator: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(
        length_penalty=generator.choice((0.0, 0.6, 1.0, 2.0)),
        repetition_penalty=generator.choice((1.0, 1.2)),
        coverage_penalty=generator.choice((0.0, 0.2)),
        no_repeat_ngram_size=generator.choice((0, 2, 3)),
    )


def _sampling(generator: random.Random) -> pb.DecodingOptions:
    sampling = pb.SamplingOptions(temperature=generator.uniform(0.5, 1.5), top_p=generator.choice((0.9, 1.0)))
    if generator.random() < 0.5:
        sampling.top_k = generator.choice((1, 10, 1000))
    if generator.random() < 0.5:
        sampling.seed = generator.randint(0, _MAX_SEED)
    return pb.DecodingOptions(sampling=sampling, num_hypotheses=generator.choice((1, 1, 4)))


def _prefix(generator: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(target_prefix=generator.choice(_PREFIXES), return_tokens=True)


def _alignment(generator: random.Random) -> pb.DecodingOptions:
    detail = generator.choice((pb.ATTENTION_DETAIL_NONE, pb.ATTENTION_DETAIL_AVERAGED))
    return pb.DecodingOptions(return_alignment=True, return_attention=detail, return_scores=True, return_tokens=True)


def _unguarded(_: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(repetition_guard=False)


def _lengths(generator: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(
        min_target_tokens=generator.choice((0, 4)),
        max_target_tokens=generator.choice((5, 20, 50)),
        early_stopping=generator.choice((False, True)),
    )


DEFAULTS: Final = "defaults"
"""The name of asking for nothing in particular, which is what most callers do."""

KINDS: Final[dict[str, Choose]] = {
    DEFAULTS: lambda _: pb.DecodingOptions(),
    "greedy": _greedy,
    "wide": _wide,
    "penalties": _penalties,
    "sampling": _sampling,
    "prefix": _prefix,
    "alignment": _alignment,
    "unguarded": _unguarded,
    "lengths": _lengths,
}

_WEIGHTS: Final[Sequence[int]] = [8 if name == DEFAULTS else 1 for name in KINDS]


def draw_options(generator: random.Random) -> tuple[str, pb.DecodingOptions]:
    """Return the name of a way to decode, and the options."""
    (name,) = generator.choices(list(KINDS), _WEIGHTS)
    return name, KINDS[name](generator)
