"""What callers of the soak ask, how each call is to end, and what must come of it: pure functions of a generator."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.stress.calls import Ending, Moment, PlannedCall, draw_moment
from loadtests.texts import SENTENCES, Profile, Texts
from loadtests.wire import Method

_ENDINGS: Final = {
    "cancels": Ending.CANCELS,
    "short deadline": Ending.SHORT_DEADLINE,
    "disconnects": Ending.DISCONNECTS,
}
_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_NOTHING: Final = ("", " ", "\n\n")
_EMPTY_SHARE: Final = 0.05
_WORD_SHARE: Final = 0.1
_DOCUMENT_SHARE: Final = 0.15
_LONG_DOCUMENT_SHARE: Final = 0.01
_ENDLESS_SHARE: Final = 0.02
"""Of documents: one sentence that is longer than the model takes."""
_NUM_PARTS: Final = 4
_BULK_SHARE: Final = 0.2
_REFUSED_IN_STREAM_SHARE: Final = 0.1
_WITHOUT_ENDS: Final = str.maketrans(dict.fromkeys(".!?:;", ","))
_SHORTEST_DEADLINE: Final = 0.01


_Choice = TypeVar("_Choice")


def _wide(generator: random.Random) -> pb.DecodingOptions:
    beam_size = generator.choice((2, 3, 5, 8, 16))
    return pb.DecodingOptions(beam_size=beam_size, num_hypotheses=generator.randint(1, beam_size), return_scores=True)


def _sampling(generator: random.Random) -> pb.DecodingOptions:
    sampling = pb.SamplingOptions(temperature=generator.uniform(0.5, 1.5), top_p=generator.choice((0.9, 1.0)))
    if generator.random() < 0.5:
        sampling.top_k = generator.choice((1, 10, 1000))
    if generator.random() < 0.5:
        sampling.seed = generator.randint(0, 2**63 - 1)
    return pb.DecodingOptions(sampling=sampling, num_hypotheses=generator.choice((1, 1, 4)))


OPTIONS: Final[Mapping[str, Callable[[random.Random], pb.DecodingOptions]]] = {
    "defaults": lambda _: pb.DecodingOptions(),
    "greedy": lambda _: pb.DecodingOptions(beam_size=1),
    "wide": _wide,
    "penalties": lambda generator: pb.DecodingOptions(
        length_penalty=generator.choice((0.0, 0.6, 1.0, 2.0)),
        repetition_penalty=generator.choice((1.0, 1.2)),
        coverage_penalty=generator.choice((0.0, 0.2)),
        no_repeat_ngram_size=generator.choice((0, 2, 3)),
    ),
    "sampling": _sampling,
    "prefix": lambda generator: pb.DecodingOptions(
        target_prefix=generator.choice(("Das", "Wir haben", "Es ist")), return_tokens=True
    ),
    "alignment": lambda generator: pb.DecodingOptions(
        return_alignment=True,
        return_attention=generator.choice((pb.ATTENTION_DETAIL_NONE, pb.ATTENTION_DETAIL_AVERAGED)),
        return_scores=True,
        return_tokens=True,
    ),
    "unguarded": lambda _: pb.DecodingOptions(repetition_guard=False),
    "lengths": lambda generator: pb.DecodingOptions(
        min_target_tokens=generator.choice((0, 4)),
        max_target_tokens=generator.choice((5, 20, 50)),
        early_stopping=generator.choice((False, True)),
    ),
}
_WEIGHTS: Final = [8 if name == "defaults" else 1 for name in OPTIONS]


def draw_options(generator: random.Random) -> tuple[str, pb.DecodingOptions]:
    """Return the name of a way to decode, and the options."""
    (name,) = generator.choices(list(OPTIONS), _WEIGHTS)
    return name, OPTIONS[name](generator)


def _refused(status: str, raw: Message | bytes, *, method: Method = Method.TRANSLATE, **more: Any) -> PlannedCall:
    serialized = raw if isinstance(raw, bytes) else raw.SerializeToString()
    return PlannedCall(request_id="", kind="refused", method=method, raw=(serialized,), answers=(status,), **more)


def _bad(status: str = "INVALID_ARGUMENT", **fields: Any) -> PlannedCall:
    return _refused(status, pb.TranslateRequest(**{"texts": SENTENCES[:1], **_LANGUAGES, **fields}))


def _bad_options(status: str = "INVALID_ARGUMENT", **options: Any) -> PlannedCall:
    return _bad(status, options=pb.DecodingOptions(**options))


def _bad_document(status: str = "INVALID_ARGUMENT", **fields: Any) -> PlannedCall:
    message = pb.TranslateDocumentRequest(**{"text": SENTENCES[0], **_LANGUAGES, **fields})
    return _refused(status, message, method=Method.TRANSLATE_DOCUMENT)


REFUSED_IN_STREAM: Final[Mapping[str, PlannedCall]] = {
    "beam of nothing": _bad_options(beam_size=0),
    "beam too wide": _bad_options(beam_size=17),
    "more hypotheses than beams": _bad_options(beam_size=2, num_hypotheses=3),
    "beam and sampling": _bad_options(beam_size=2, sampling=pb.SamplingOptions()),
    "no temperature": _bad_options(sampling=pb.SamplingOptions(temperature=0.0)),
    "not a number": _bad_options(length_penalty=float("nan")),
    "markup": _bad_options("UNIMPLEMENTED", format=pb.TEXT_FORMAT_HTML),
    "no texts": _bad(texts=[]),
    "too many texts": _bad(texts=SENTENCES[:1] * 129),
    "text too long": _bad(texts=["x" * 10_001]),
    "too many sentences": _bad(texts=["No! " * 2400]),
    "no language": _bad(target_language=""),
    "unknown pair": _bad("NOT_FOUND", target_language="tlh"),
    "unknown model": _bad("NOT_FOUND", model="unknown"),
    "unknown label": _bad("NOT_FOUND", model="unknown@stable"),
}
"""Calls that the server must refuse, each with its status; a stream answers them with an error and goes on."""

REFUSED: Final[Mapping[str, PlannedCall]] = {
    **REFUSED_IN_STREAM,
    "empty document": _bad_document(text=""),
    "unknown model of a document": _bad_document("NOT_FOUND", model="unknown"),
    "document as one sentence": _bad_document(options=pb.DecodingOptions(split_sentences=False)),
    "no message": _refused("INVALID_ARGUMENT", b"\xff\xff\xff\xff"),
    "no method": _refused("UNIMPLEMENTED", b"", path="/dragoman.v1.TranslationService/Divine", is_counted=False),
    "message too large": _refused("RESOURCE_EXHAUSTED", bytes(4 * 1024 * 1024 + 1), is_counted=False),
}
_REFUSED_WEIGHTS: Final = [1 if name == "message too large" else 4 for name in REFUSED]


def draw_refused(generator: random.Random) -> str:
    """Return the name of one of all."""
    return generator.choices(list(REFUSED), _REFUSED_WEIGHTS)[0]


_PROBE_OPTIONS: Final = (
    pb.DecodingOptions(beam_size=1),
    pb.DecodingOptions(),
    pb.DecodingOptions(beam_size=5, num_hypotheses=5),
    pb.DecodingOptions(target_prefix="Das", no_repeat_ngram_size=3, length_penalty=1.0),
    pb.DecodingOptions(sampling=pb.SamplingOptions(seed=7, temperature=0.7, top_k=20), num_hypotheses=2),
)
"""Greedy search, the defaults, n-best lists, a prefix with penalties, a seeded draw."""


def probe_calls() -> list[PlannedCall]:
    """Return calls whose answers never change, whatever else the server does."""
    requests = [
        pb.TranslateRequest(texts=SENTENCES[2 * index :][:2], options=options, **_LANGUAGES)
        for index, options in enumerate(_PROBE_OPTIONS)
    ]
    return [
        PlannedCall(
            request_id=f"first-{index}",
            kind="probe",
            method=Method.TRANSLATE,
            raw=(request.SerializeToString(),),
            probe=index,
        )
        for index, request in enumerate(requests)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often what is asked."""

    kinds: Mapping[str, int]
    methods: Mapping[Method, int]
    is_light: bool = False
    """Whether texts are a sentence, documents a paragraph, and options the defaults."""


EVERYTHING: Final = Mix(
    kinds={"usual": 72, "probe": 4, "refused": 6, "cancels": 16, "short deadline": 8, "disconnects": 4},
    methods={Method.TRANSLATE: 11, Method.TRANSLATE_DOCUMENT: 4, Method.TRANSLATE_STREAM: 5},
)


def planned_calls(
    texts: Texts,
    probes: Sequence[PlannedCall] = (),
    *,
    models: Sequence[str],
    prefix: str,
    seed: int,
    mix: Mix = EVERYTHING,
) -> Iterator[PlannedCall]:
    """Yield calls without end; their ids begin with a prefix that no other plan on the same server has.

    `models` are the names that calls have for the model from English to German, "" among them.
    """
    writer = _Writer(texts, models=models, generator=random.Random(seed), mix=mix)
    index = 0
    while True:
        yield writer.call(f"{prefix}-{index}", probes)
        index += 1


class _Writer:
    """Draws calls."""

    def __init__(self, texts: Texts, *, models: Sequence[str], generator: random.Random, mix: Mix) -> None:
        self._texts = texts
        self._mix = mix
        self._models = models
        self._generator = generator

    def call(self, request_id: str, probes: Sequence[PlannedCall]) -> PlannedCall:
        kind = self._choose(self._mix.kinds)
        if kind == "refused":
            return replace(REFUSED[draw_refused(self._generator)], request_id=request_id)
        if kind == "probe":
            return replace(self._generator.choice(probes), request_id=request_id)
        method = self._choose(self._mix.methods)
        raw, answers = self._messages(method, request_id)
        ending = _ENDINGS.get(kind, Ending.WAITS)
        moment, share = Moment.NEVER, 0.0
        if ending in {Ending.CANCELS, Ending.DISCONNECTS}:
            moment, share = draw_moment(self._generator, may_wait=False)
        elif ending is Ending.SHORT_DEADLINE:
            share = _SHORTEST_DEADLINE ** self._generator.random()
        return PlannedCall(
            request_id=request_id,
            kind=kind,
            method=method,
            raw=raw,
            answers=answers,
            ending=ending,
            moment=moment,
            share=share,
            half_closes=moment is Moment.NEVER or self._generator.random() < 0.5,
        )

    def _choose(self, weights: Mapping[_Choice, int]) -> _Choice:
        return self._generator.choices(list(weights), list(weights.values()))[0]

    def _messages(self, method: Method, request_id: str) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
        """Return what is sent, and the status of the answer to each message."""
        if method is Method.TRANSLATE_DOCUMENT:
            message = pb.TranslateDocumentRequest(text=self._document_text(), **self._fields())
            return (message.SerializeToString(),), ("OK",)
        if method is Method.TRANSLATE:
            return (self._request("").SerializeToString(),), ("OK",)
        parts = [self._part(f"{request_id}.{index}") for index in range(self._generator.choice((1, 2, 5)))]
        return tuple(raw for raw, _ in parts), tuple(status for _, status in parts)

    def _part(self, request_id: str) -> tuple[bytes, str]:
        """Return a request of a stream, and the status of its answer."""
        if self._generator.random() >= _REFUSED_IN_STREAM_SHARE:
            return self._request(request_id).SerializeToString(), "OK"
        refused = self._generator.choice(list(REFUSED_IN_STREAM.values()))
        request = pb.TranslateRequest.FromString(refused.raw[0])
        request.request_id = request_id
        return request.SerializeToString(), refused.answers[0]

    def _request(self, request_id: str) -> pb.TranslateRequest:
        fields = self._fields()
        num_texts = 1 if fields["options"].return_alignment else self._generator.choice((1, 1, 1, 2, 4))
        return pb.TranslateRequest(texts=[self._text() for _ in range(num_texts)], request_id=request_id, **fields)

    def _fields(self) -> dict[str, Any]:
        """Return what all requests have."""
        is_bulk = self._generator.random() < _BULK_SHARE
        options = pb.DecodingOptions() if self._mix.is_light else draw_options(self._generator)[1]
        return {
            "options": options,
            "source_language": self._generator.choice(("en", "en-GB")),
            "target_language": "de",
            "model": self._generator.choice(self._models),
            "priority": pb.PRIORITY_BULK if is_bulk else pb.PRIORITY_UNSPECIFIED,
        }

    def _text(self) -> str:
        """Return a text of Translate: nothing, one word, up to a paragraph."""
        drawn = self._generator.random()
        if drawn < _EMPTY_SHARE:
            return self._generator.choice(_NOTHING)
        if drawn < _EMPTY_SHARE + _WORD_SHARE:
            return self._generator.choice(self._draw(Profile.SENTENCE).split())
        longest = Profile.SENTENCE if self._mix.is_light else Profile.PARAGRAPH
        return self._draw(self._generator.choice((Profile.CHAT, Profile.CHAT, Profile.SENTENCE, longest)))

    def _document_text(self) -> str:
        """Return a text of TranslateDocument: white space, which is a document too, up to a long one."""
        drawn = self._generator.random()
        if drawn < _EMPTY_SHARE:
            return " "
        if self._mix.is_light:
            return self._draw(Profile.PARAGRAPH)
        if drawn < _EMPTY_SHARE + _LONG_DOCUMENT_SHARE:
            return "\n\n".join(self._draw(Profile.DOCUMENT) for _ in range(_NUM_PARTS))
        if drawn < _EMPTY_SHARE + _LONG_DOCUMENT_SHARE + _ENDLESS_SHARE:
            return " and ".join(self._draw(Profile.PARAGRAPH).translate(_WITHOUT_ENDS) for _ in range(_NUM_PARTS))
        return self._draw(Profile.DOCUMENT if drawn > 1 - _DOCUMENT_SHARE else Profile.PARAGRAPH)

    def _draw(self, profile: Profile) -> str:
        return self._texts.draw(profile, self._generator)[1]
