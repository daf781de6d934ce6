"""The calls of a soak, with planned ends and expected results, reproducible from a seed."""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dragoman.option_ranges import option_ranges
from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.generator.texts import SENTENCES, Profile, Texts
from loadtests.generator.workload import Mix
from loadtests.scenarios.soak.calls import ExpectedCall, Kind, Moment

MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024  # a setting of the tested server
_LANGUAGES: Final[dict[str, Any]] = {"source_language": "en", "target_language": "de"}
_NUM_PARTS: Final = 4
_BULK_SHARE: Final = 0.2
_REJECTED_IN_STREAM_SHARE: Final = 0.1
_WITHOUT_ENDS: Final = str.maketrans(dict.fromkeys(".!?:;", ","))
_SHORTEST_DEADLINE: Final = 0.01
_MOMENTS: Final = Mix({moment: moment.value[0] for moment in Moment})

_SAMPLING: Final = {"temperature": (0.5, 0.7, 1.0, 1.3, 1.5), "top_p": (0.9, 1.0), "top_k": (None, None, 1, 10, 1000)}
OPTIONS: Final[Sequence[Mapping[str, Any]]] = (  # choices for each field, None for unset
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


def _rejected(status: str, raw: bytes, *, method: Method = Method.TRANSLATE, **more: Any) -> ExpectedCall:
    return ExpectedCall(request_id="", kind=Kind.REJECTED, method=method, raw=(raw,), answers=(status,), **more)


def _bad(status: str = "INVALID_ARGUMENT", **fields: Any) -> ExpectedCall:
    request = pb.TranslateRequest(**{"texts": SENTENCES[:1], **_LANGUAGES, **fields})
    return _rejected(status, request.SerializeToString())


def _bad_document(status: str = "INVALID_ARGUMENT", **fields: Any) -> ExpectedCall:
    request = pb.TranslateDocumentRequest(**{"text": SENTENCES[0], **_LANGUAGES, **fields})
    return _rejected(status, request.SerializeToString(), method=Method.TRANSLATE_DOCUMENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedCalls:
    """Calls that the server rejects, beyond the limits of its contract and its model."""

    in_stream: Sequence[ExpectedCall]  # a stream answers these with an error and continues
    others: Sequence[ExpectedCall]
    large: ExpectedCall  # exceeds the size of messages; drawn rarely

    def draw(self, generator: random.Random) -> ExpectedCall:
        """Return one of all calls."""
        usual = (*self.in_stream, *self.others)
        return generator.choices((*usual, self.large), [4] * len(usual) + [1])[0]


def rejected_calls(limits: pb.ModelLimits) -> RejectedCalls:
    """Return the rejected calls for the limits of a model."""
    beam_size = option_ranges(pb.DecodingOptions)["beam_size"]
    return RejectedCalls(
        in_stream=(
            _bad(options={"beam_size": int(beam_size.minimum) - 1}),
            _bad(options={"beam_size": int(beam_size.maximum) + 1}),
            _bad(options={"beam_size": 2, "num_hypotheses": 3}),
            _bad(options={"beam_size": 2, "sampling": {}}),
            _bad(options={"sampling": {"temperature": 0.0}}),
            _bad(options={"length_penalty": float("nan")}),
            _bad(texts=["<a"], options={"format": pb.TEXT_FORMAT_XML}),
            _bad(texts=[]),
            _bad(texts=SENTENCES[:1] * (limits.max_texts + 1)),
            _bad(texts=["x" * (limits.max_text_characters + 1)]),
            _bad(texts=["Go. " * (limits.max_text_characters // 4 - 100)]),  # too many sentences
            _bad(target_language=""),
            _bad("NOT_FOUND", target_language="tlh"),
            _bad("NOT_FOUND", model="unknown"),
            _bad("NOT_FOUND", model="unknown@stable"),
        ),
        others=(
            _bad_document(text=""),
            _bad_document("NOT_FOUND", model="unknown"),
            _bad_document(options={"split_sentences": False}),
            _rejected("INVALID_ARGUMENT", b"\xff\xff\xff\xff"),
            _rejected("UNIMPLEMENTED", b"", path="/dragoman.v1.TranslationService/Divine", is_counted=False),
        ),
        large=_rejected("RESOURCE_EXHAUSTED", bytes(MAX_MESSAGE_BYTES + 1), is_counted=False),
    )


def _probe(index: int, **options: Any) -> ExpectedCall:
    texts = SENTENCES[2 * index :][:2]
    raw = pb.TranslateRequest(texts=texts, options=pb.DecodingOptions(**options), **_LANGUAGES).SerializeToString()
    return ExpectedCall(request_id=f"first-{index}", kind=Kind.PROBE, method=Method.TRANSLATE, raw=(raw,))


PROBES: Final = (
    _probe(0, beam_size=1),
    _probe(1),
    _probe(2, beam_size=5, num_hypotheses=5),
    _probe(3, target_prefix="Das", no_repeat_ngram_size=3, length_penalty=1.0),
    _probe(4, sampling={"seed": 7, "temperature": 0.7, "top_k": 20}, num_hypotheses=2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Composition of the calls; texts and documents are profiles or names that `Plan._text` handles."""

    kinds: Mix[Kind]
    texts: Mix[str]
    documents: Mix[str]
    defaults_share: float  # of calls with default options
    ends: Sequence[str]  # statuses that must occur


TRAFFIC: Final = {
    "everything": Traffic(
        kinds=Mix(
            {
                Kind.USUAL: 72,
                Kind.PROBE: 4,
                Kind.REJECTED: 6,
                Kind.CANCELS: 16,
                Kind.DISCONNECTS: 4,
                Kind.SHORT_DEADLINE: 8,
            }
        ),
        texts=Mix({"empty": 5, "word": 10, "chat": 42, "sentence": 21, "paragraph": 22}),
        documents=Mix({"blank": 5, "paragraph": 77, "document": 15, "long": 1, "endless": 2}),
        defaults_share=0.5,
        ends=("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND"),
    ),
    "cancellations": Traffic(
        kinds=Mix({Kind.USUAL: 1, Kind.CANCELS: 19}),
        texts=Mix({"empty": 5, "word": 10, "chat": 42, "sentence": 43}),
        documents=Mix({"blank": 5, "paragraph": 95}),
        defaults_share=1.0,
        ends=("OK", "CANCELLED"),
    ),
}
_METHODS: Final = Mix({Method.TRANSLATE: 11, Method.TRANSLATE_DOCUMENT: 4, Method.TRANSLATE_STREAM: 5})


@dataclass(kw_only=True)
class Plan:
    """An endless sequence of calls."""

    texts: Texts
    models: Sequence[str]  # names of the model from English to German, "" among them
    prefix: str  # of the ids of all calls; unique on a server
    seed: int
    traffic: Traffic
    rejected: RejectedCalls
    _generator: random.Random = field(init=False)

    def __iter__(self) -> Iterator[ExpectedCall]:
        self._generator = random.Random(self.seed)
        return (self._call(f"{self.prefix}-{index}") for index in itertools.count())

    def _call(self, request_id: str) -> ExpectedCall:
        kind = self.traffic.kinds.draw(self._generator)
        if kind is Kind.REJECTED:
            return replace(self.rejected.draw(self._generator), request_id=request_id)
        if kind is Kind.PROBE:
            return replace(self._generator.choice(PROBES), request_id=request_id)
        method = _METHODS.draw(self._generator)
        raw, answers = self._messages(method, request_id)
        moment, share = Moment.NEVER, 0.0
        if kind is Kind.SHORT_DEADLINE:
            share = _SHORTEST_DEADLINE ** self._generator.random()
        elif kind is not Kind.USUAL:
            moment = _MOMENTS.draw(self._generator)
            share = self._generator.uniform(*moment.value[1:])
        return ExpectedCall(
            request_id=request_id,
            kind=kind,
            method=method,
            raw=raw,
            answers=answers,
            moment=moment,
            share=share,
            half_closes=moment is Moment.NEVER or self._generator.random() < 0.5,
        )

    def _messages(self, method: Method, request_id: str) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
        """Return the messages and the status of the response to each."""
        if method is Method.TRANSLATE_DOCUMENT:
            message = pb.TranslateDocumentRequest(text=self._text(self.traffic.documents), **self._fields())
            return (message.SerializeToString(),), ("OK",)
        if method is Method.TRANSLATE:
            return (self._request().SerializeToString(),), ("OK",)
        raw, answers = [], []
        for index in range(self._generator.choice((1, 2, 5))):
            request, answer = self._request(), "OK"
            if self._generator.random() < _REJECTED_IN_STREAM_SHARE:
                rejected = self._generator.choice(self.rejected.in_stream)
                request, answer = pb.TranslateRequest.FromString(rejected.raw[0]), rejected.answers[0]
            request.request_id = f"{request_id}.{index}"
            raw.append(request.SerializeToString())
            answers.append(answer)
        return tuple(raw), tuple(answers)

    def _request(self) -> pb.TranslateRequest:
        fields = self._fields()
        num_texts = 1 if fields["options"].return_alignment else self._generator.choice((1, 1, 1, 2, 4))
        return pb.TranslateRequest(texts=[self._text(self.traffic.texts) for _ in range(num_texts)], **fields)

    def _fields(self) -> dict[str, Any]:
        return {
            "options": self._options(),
            "source_language": self._generator.choice(("en", "en-GB")),
            "target_language": "de",
            "model": self._generator.choice(self.models),
            "priority": pb.PRIORITY_BULK if self._generator.random() < _BULK_SHARE else pb.PRIORITY_UNSPECIFIED,
        }

    def _options(self) -> pb.DecodingOptions:
        if self._generator.random() < self.traffic.defaults_share:
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

    def _text(self, mix: Mix[str]) -> str:
        match mix.draw(self._generator):
            case "empty":
                return self._generator.choice(("", " ", "\n\n"))
            case "blank":
                return " "  # a valid document
            case "word":
                return self._generator.choice(self._draw(Profile.SENTENCE).split())
            case "long":
                return "\n\n".join(self._draw(Profile.DOCUMENT) for _ in range(_NUM_PARTS))
            case "endless":  # one sentence longer than the model accepts
                return " and ".join(self._draw(Profile.PARAGRAPH).translate(_WITHOUT_ENDS) for _ in range(_NUM_PARTS))
            case profile:
                return self._draw(Profile(profile))

    def _draw(self, profile: Profile) -> str:
        return self.texts.draw(profile, self._generator)[1]
