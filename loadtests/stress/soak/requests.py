"""What callers of the soak ask: every way to decode, requests that must be refused, and probes. Pure."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.texts import SENTENCES
from loadtests.wire import Method

_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_PREFIXES: Final = ("Das", "Wir haben", "Es ist")
_MAX_SEED: Final = 2**63 - 1


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


def _alignment(generator: random.Random) -> pb.DecodingOptions:
    detail = generator.choice((pb.ATTENTION_DETAIL_NONE, pb.ATTENTION_DETAIL_AVERAGED))
    return pb.DecodingOptions(return_alignment=True, return_attention=detail, return_scores=True, return_tokens=True)


def _lengths(generator: random.Random) -> pb.DecodingOptions:
    return pb.DecodingOptions(
        min_target_tokens=generator.choice((0, 4)),
        max_target_tokens=generator.choice((5, 20, 50)),
        early_stopping=generator.choice((False, True)),
    )


_DEFAULTS: Final = "defaults"

OPTIONS: Final[dict[str, Callable[[random.Random], pb.DecodingOptions]]] = {
    _DEFAULTS: lambda _: pb.DecodingOptions(),
    "greedy": lambda _: pb.DecodingOptions(beam_size=1),
    "wide": _wide,
    "penalties": _penalties,
    "sampling": _sampling,
    "prefix": lambda generator: pb.DecodingOptions(target_prefix=generator.choice(_PREFIXES), return_tokens=True),
    "alignment": _alignment,
    "unguarded": lambda _: pb.DecodingOptions(repetition_guard=False),
    "lengths": _lengths,
}
"""Every way to decode that a caller can ask for."""

_WEIGHTS: Final = [8 if name == _DEFAULTS else 1 for name in OPTIONS]  # most callers ask for nothing in particular


def draw_options(generator: random.Random) -> tuple[str, pb.DecodingOptions]:
    """Return the name of a way to decode, and the options."""
    (name,) = generator.choices(list(OPTIONS), _WEIGHTS)
    return name, OPTIONS[name](generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that the server must refuse, and the status that it must give."""

    name: str
    method: Method
    raw: bytes
    status: str
    path: str
    """Where it is sent."""

    is_counted: bool = True
    """False: gRPC refuses it itself, before any code of the server sees it."""

    weight: int = 4
    """How often it is sent, next to others."""


_TEXT: Final = "The weather is nice today."
_TOO_MANY_TEXTS: Final = 129
_TOO_MANY_CHARACTERS: Final = 10_001
_TOO_MANY_BYTES: Final = 4 * 1024 * 1024 + 1


def _refused(
    name: str, raw: Message | bytes, status: str, *, method: Method = Method.TRANSLATE, path: str = "", **more: Any
) -> Refusal:
    serialized = raw if isinstance(raw, bytes) else raw.SerializeToString()
    return Refusal(name=name, method=method, raw=serialized, status=status, path=path or method.path, **more)


def _bad(name: str, status: str = "INVALID_ARGUMENT", **fields: Any) -> Refusal:
    return _refused(name, pb.TranslateRequest(**{"texts": [_TEXT], **_LANGUAGES, **fields}), status)


def _bad_options(name: str, status: str = "INVALID_ARGUMENT", **options: Any) -> Refusal:
    return _bad(name, status, options=pb.DecodingOptions(**options))


def _bad_document(name: str, status: str = "INVALID_ARGUMENT", **fields: Any) -> Refusal:
    message = pb.TranslateDocumentRequest(**{"text": _TEXT, **_LANGUAGES, **fields})
    return _refused(name, message, status, method=Method.TRANSLATE_DOCUMENT)


_UNARY: Final = (
    _bad_options("beam of nothing", beam_size=0),
    _bad_options("beam too wide", beam_size=17),
    _bad_options("more hypotheses than beams", beam_size=2, num_hypotheses=3),
    _bad_options("beam and sampling", beam_size=2, sampling=pb.SamplingOptions()),
    _bad_options("no temperature", sampling=pb.SamplingOptions(temperature=0.0)),
    _bad_options("not a number", length_penalty=float("nan")),
    _bad_options("markup", "UNIMPLEMENTED", format=pb.TEXT_FORMAT_HTML),
    _bad("no texts", texts=[]),
    _bad("too many texts", texts=[_TEXT] * _TOO_MANY_TEXTS),
    _bad("text too long", texts=["x" * _TOO_MANY_CHARACTERS]),
    _bad("too many sentences", texts=["No! " * 2400]),
    _bad("no language", target_language=""),
    _bad("unknown pair", "NOT_FOUND", target_language="tlh"),
    _bad("unknown model", "NOT_FOUND", model="unknown"),
    _bad("unknown label", "NOT_FOUND", model="unknown@stable"),
)
"""Each may be sent over a stream, too, which answers it with an error and goes on."""

REFUSALS: Final = (
    *_UNARY,
    _bad_document("empty document", text=""),
    _bad_document("unknown model of a document", "NOT_FOUND", model="unknown"),
    _bad_document("document as one sentence", options=pb.DecodingOptions(split_sentences=False)),
    _refused("no message", b"\xff\xff\xff\xff", "INVALID_ARGUMENT"),
    _refused("no method", b"", "UNIMPLEMENTED", path="/dragoman.v1.TranslationService/Divine", is_counted=False),
    _refused("message too large", bytes(_TOO_MANY_BYTES), "RESOURCE_EXHAUSTED", is_counted=False, weight=1),
)
"""All of them."""


def draw_refusal(generator: random.Random, refusals: Sequence[Refusal] = REFUSALS) -> Refusal:
    """Return one of all."""
    (refusal,) = generator.choices(refusals, [refusal.weight for refusal in refusals])
    return refusal


def draw_refusal_in_stream(generator: random.Random) -> Refusal:
    """Return one that a stream answers with an error, and goes on."""
    return draw_refusal(generator, _UNARY)


_PROBE_OPTIONS: Final = (
    pb.DecodingOptions(beam_size=1),
    pb.DecodingOptions(),
    pb.DecodingOptions(beam_size=5, num_hypotheses=5),
    pb.DecodingOptions(target_prefix="Das", no_repeat_ngram_size=3, length_penalty=1.0),
    pb.DecodingOptions(sampling=pb.SamplingOptions(seed=7, temperature=0.7, top_k=20), num_hypotheses=2),
)
_TEXTS_OF_A_PROBE: Final = 2


def probe_requests() -> list[bytes]:
    """Return requests of Translate whose answers never change, whatever else the server does.

    They ask for greedy search, the defaults, n-best lists, a prefix with penalties, and a seeded draw.
    """
    return [
        pb.TranslateRequest(
            texts=SENTENCES[_TEXTS_OF_A_PROBE * index :][:_TEXTS_OF_A_PROBE], options=options, **_LANGUAGES
        ).SerializeToString()
        for index, options in enumerate(_PROBE_OPTIONS)
    ]
