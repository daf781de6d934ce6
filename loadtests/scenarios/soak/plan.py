"""What callers ask, how each call is to end, and what must come of it, the same for the same seed."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from dragoman.v1 import translation_pb2 as pb

from loadtests.scenarios.callers import Kind, Moment, PlannedCall
from loadtests.generator.texts import SENTENCES, Profile, Texts
from loadtests.generator.calls import Method

_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_NUM_PARTS: Final = 4
_BULK_SHARE: Final = 0.2
_REFUSED_IN_STREAM_SHARE: Final = 0.1
_WITHOUT_ENDS: Final = str.maketrans(dict.fromkeys(".!?:;", ","))
_SHORTEST_DEADLINE: Final = 0.01
_Choice = TypeVar("_Choice")

_SAMPLING: Final = {"temperature": (0.5, 0.7, 1.0, 1.3, 1.5), "top_p": (0.9, 1.0), "top_k": (None, None, 1, 10, 1000)}
OPTIONS: Final[Sequence[Mapping[str, Any]]] = (
    {"beam_size": (1,)},
    {"beam_size": (2, 3, 5, 8, 16), "num_hypotheses": range(1, 17), "return_scores": (True,)},
    {
        "length_penalty": (0.0, 0.6, 1.0, 2.0),
        "repetition_penalty": (1.0, 1.2),
        "coverage_penalty": (0.0, 0.2),
        "no_repeat_ngram_size": (0, 2, 3),
    },
    {"sampling": _SAMPLING, "num_hypotheses": (1, 1, 4)},
    {"sampling": {**_SAMPLING, "seed": range(2**63 - 1)}, "num_hypotheses": (1, 1, 4)},
    {"target_prefix": ("Das", "Wir haben", "Es ist"), "return_tokens": (True,)},
    {
        "return_alignment": (True,),
        "return_attention": (pb.ATTENTION_DETAIL_NONE, pb.ATTENTION_DETAIL_AVERAGED),
        "return_scores": (True,),
        "return_tokens": (True,),
    },
    {"repetition_guard": (False,)},
    {"min_target_tokens": (0, 4), "max_target_tokens": (5, 20, 50), "early_stopping": (False, True)},
)
"""Ways to decode other than the default: each field is one of these, None for unset."""


def _refused(status: str, raw: bytes, *, method: Method = Method.TRANSLATE, **more: Any) -> PlannedCall:
    return PlannedCall(request_id="", kind=Kind.REFUSED, method=method, raw=(raw,), answers=(status,), **more)


def _bad(status: str = "INVALID_ARGUMENT", **fields: Any) -> PlannedCall:
    request = pb.TranslateRequest(**{"texts": SENTENCES[:1], **_LANGUAGES, **fields})
    return _refused(status, request.SerializeToString())


def _bad_document(status: str = "INVALID_ARGUMENT", **fields: Any) -> PlannedCall:
    request = pb.TranslateDocumentRequest(**{"text": SENTENCES[0], **_LANGUAGES, **fields})
    return _refused(status, request.SerializeToString(), method=Method.TRANSLATE_DOCUMENT)


REFUSED_IN_STREAM: Final[Mapping[str, PlannedCall]] = {
    "beam of nothing": _bad(options={"beam_size": 0}),
    "beam too wide": _bad(options={"beam_size": 17}),
    "more hypotheses than beams": _bad(options={"beam_size": 2, "num_hypotheses": 3}),
    "beam and sampling": _bad(options={"beam_size": 2, "sampling": {}}),
    "no temperature": _bad(options={"sampling": {"temperature": 0.0}}),
    "not a number": _bad(options={"length_penalty": float("nan")}),
    "no XML": _bad(texts=["<a"], options={"format": pb.TEXT_FORMAT_XML}),
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
    "document as one sentence": _bad_document(options={"split_sentences": False}),
    "no message": _refused("INVALID_ARGUMENT", b"\xff\xff\xff\xff"),
    "no method": _refused("UNIMPLEMENTED", b"", path="/dragoman.v1.TranslationService/Divine", is_counted=False),
    "message too large": _refused("RESOURCE_EXHAUSTED", bytes(4 * 1024 * 1024 + 1), is_counted=False),
}
_REFUSED_WEIGHTS: Final = [1 if name == "message too large" else 4 for name in REFUSED]


def _probe(index: int, **options: Any) -> PlannedCall:
    texts = SENTENCES[2 * index :][:2]
    raw = pb.TranslateRequest(texts=texts, options=pb.DecodingOptions(**options), **_LANGUAGES).SerializeToString()
    return PlannedCall(request_id=f"first-{index}", kind=Kind.PROBE, method=Method.TRANSLATE, raw=(raw,))


PROBES: Final = (
    _probe(0, beam_size=1),
    _probe(1),
    _probe(2, beam_size=5, num_hypotheses=5),
    _probe(3, target_prefix="Das", no_repeat_ngram_size=3, length_penalty=1.0),
    _probe(4, sampling={"seed": 7, "temperature": 0.7, "top_k": 20}, num_hypotheses=2),
)
"""Calls whose answers never change, whatever else the server does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often what is asked; texts and documents are profiles, or what `Plan` makes of these names."""

    kinds: Mapping[Kind, int]
    methods: Mapping[Method, int]
    texts: Mapping[str, int]
    documents: Mapping[str, int]
    defaults_share: float  # of calls whose options are the defaults


EVERYTHING: Final = Mix(
    kinds={
        Kind.USUAL: 72,
        Kind.PROBE: 4,
        Kind.REFUSED: 6,
        Kind.CANCELS: 16,
        Kind.DISCONNECTS: 4,
        Kind.SHORT_DEADLINE: 8,
    },
    methods={Method.TRANSLATE: 11, Method.TRANSLATE_DOCUMENT: 4, Method.TRANSLATE_STREAM: 5},
    texts={"nothing": 5, "word": 10, "chat": 42, "sentence": 21, "paragraph": 22},
    documents={"blank": 5, "paragraph": 77, "document": 15, "long": 1, "endless": 2},
    defaults_share=0.5,
)


@dataclass(kw_only=True)
class Plan:
    """Draws calls, without end."""

    texts: Texts
    models: Sequence[str]  # names that calls have for the model from English to German, "" among them
    prefix: str  # of the ids of all calls; no other plan on the same server has it
    seed: int
    mix: Mix = EVERYTHING
    _generator: random.Random = field(init=False)

    def __iter__(self) -> Iterator[PlannedCall]:
        self._generator = random.Random(self.seed)
        return (self._call(f"{self.prefix}-{index}") for index in itertools.count())

    def _call(self, request_id: str) -> PlannedCall:
        kind = self._choose(self.mix.kinds)
        if kind is Kind.REFUSED:
            return replace(*self._generator.choices(list(REFUSED.values()), _REFUSED_WEIGHTS), request_id=request_id)
        if kind is Kind.PROBE:
            return replace(self._generator.choice(PROBES), request_id=request_id)
        method = self._choose(self.mix.methods)
        raw, answers = self._messages(method, request_id)
        moment, share = Moment.NEVER, 0.0
        if kind is Kind.SHORT_DEADLINE:
            share = _SHORTEST_DEADLINE ** self._generator.random()
        elif kind is not Kind.USUAL:
            moment = self._choose({moment: moment.value[0] for moment in Moment})
            share = self._generator.uniform(*moment.value[1:])
        return PlannedCall(
            request_id=request_id,
            kind=kind,
            method=method,
            raw=raw,
            answers=answers,
            moment=moment,
            share=share,
            half_closes=moment is Moment.NEVER or self._generator.random() < 0.5,
        )

    def _choose(self, weights: Mapping[_Choice, int]) -> _Choice:
        return self._generator.choices(list(weights), list(weights.values()))[0]

    def _messages(self, method: Method, request_id: str) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
        """Return what is sent, and the status of the answer to each message."""
        if method is Method.TRANSLATE_DOCUMENT:
            message = pb.TranslateDocumentRequest(text=self._text(self.mix.documents), **self._fields())
            return (message.SerializeToString(),), ("OK",)
        if method is Method.TRANSLATE:
            return (self._request().SerializeToString(),), ("OK",)
        raw, answers = [], []
        for index in range(self._generator.choice((1, 2, 5))):
            request, answer = self._request(), "OK"
            if self._generator.random() < _REFUSED_IN_STREAM_SHARE:
                refused = self._generator.choice(list(REFUSED_IN_STREAM.values()))
                request, answer = pb.TranslateRequest.FromString(refused.raw[0]), refused.answers[0]
            request.request_id = f"{request_id}.{index}"
            raw.append(request.SerializeToString())
            answers.append(answer)
        return tuple(raw), tuple(answers)

    def _request(self) -> pb.TranslateRequest:
        fields = self._fields()
        num_texts = 1 if fields["options"].return_alignment else self._generator.choice((1, 1, 1, 2, 4))
        return pb.TranslateRequest(texts=[self._text(self.mix.texts) for _ in range(num_texts)], **fields)

    def _fields(self) -> dict[str, Any]:
        """Return what all requests have."""
        return {
            "options": self._options(),
            "source_language": self._generator.choice(("en", "en-GB")),
            "target_language": "de",
            "model": self._generator.choice(self.models),
            "priority": pb.PRIORITY_BULK if self._generator.random() < _BULK_SHARE else pb.PRIORITY_UNSPECIFIED,
        }

    def _options(self) -> pb.DecodingOptions:
        if self._generator.random() < self.mix.defaults_share:
            return pb.DecodingOptions()
        options = pb.DecodingOptions(**self._drawn(self._generator.choice(OPTIONS)))
        if options.HasField("beam_size"):
            options.num_hypotheses = min(options.num_hypotheses or 1, options.beam_size)
        return options

    def _drawn(self, choices: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: self._drawn(values) if isinstance(values, Mapping) else self._generator.choice(values)
            for name, values in choices.items()
        }

    def _text(self, weights: Mapping[str, int]) -> str:
        match self._choose(weights):
            case "nothing":
                return self._generator.choice(("", " ", "\n\n"))
            case "blank":
                return " "  # which is a document, too
            case "word":
                return self._generator.choice(self._draw(Profile.SENTENCE).split())
            case "long":
                return "\n\n".join(self._draw(Profile.DOCUMENT) for _ in range(_NUM_PARTS))
            case "endless":  # one sentence that is longer than the model takes
                return " and ".join(self._draw(Profile.PARAGRAPH).translate(_WITHOUT_ENDS) for _ in range(_NUM_PARTS))
            case profile:
                return self._draw(Profile(profile))

    def _draw(self, profile: Profile) -> str:
        return self.texts.draw(profile, self._generator)[1]
