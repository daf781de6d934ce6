"""Which call comes next, how it is to end, and what must come of it: pure functions of a random generator."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.calls import Ending, Moment, PlannedCall, draw_moment
from loadtests.stress.soak.requests import Refusal, draw_options, draw_refusal, draw_refusal_in_stream
from loadtests.texts import Profile, Texts
from loadtests.wire import Method

LABEL: Final = "stable"
"""Always points to a version that is ready."""

_OK: Final = "OK"
_USUAL: Final = "usual"
_KINDS: Final = {
    _USUAL: (72, Ending.WAITS),
    "probe": (4, Ending.WAITS),
    "refused": (6, Ending.WAITS),
    "cancels": (16, Ending.CANCELS),
    "short deadline": (8, Ending.SHORT_DEADLINE),
    "disconnects": (4, Ending.DISCONNECTS),
}
"""Weight and ending of each kind of call."""

_METHODS: Final = {Method.TRANSLATE: 11, Method.TRANSLATE_DOCUMENT: 4, Method.TRANSLATE_STREAM: 5}
_NOTHING: Final = ("", " ", "\n\n")
_EMPTY_SHARE: Final = 0.05
_WORD_SHARE: Final = 0.1
_DOCUMENT_SHARE: Final = 0.15
_LONG_DOCUMENT_SHARE: Final = 0.01
_ENDLESS_SHARE: Final = 0.02
"""Of documents: one sentence that is longer than the model takes."""
_ENDLESS_PARTS: Final = 4
_LONG_DOCUMENT_PARTS: Final = 4
_BULK_SHARE: Final = 0.2
_REFUSED_IN_STREAM_SHARE: Final = 0.1
_WITHOUT_ENDS: Final = str.maketrans(dict.fromkeys(".!?:;", ","))
_SHORTEST_DEADLINE: Final = 0.01
"""Share of the usual time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakCall(PlannedCall):
    """One call, and what must come of it."""

    kind: str
    """For people: why it is made."""

    answers: tuple[str, ...]
    """Status that each message is answered with if there is time: OK, or that of its refusal."""

    is_counted: bool = True
    """False: gRPC refuses it itself, before any code of the server sees it."""

    probe: int | None = None
    """Which of the probes it is."""


def planned_calls(texts: Texts, probes: Sequence[bytes], *, model: str, prefix: str, seed: int) -> Iterator[SoakCall]:
    """Yield calls without end.

    Args:
        texts: to be translated.
        probes: requests of Translate whose answers never change.
        model: name of the model from English to German, which some calls name.
        prefix: of the request ids, unlike that of any other plan on the same server.
        seed: of everything that is drawn.
    """
    writer = _Writer(texts, model=model, generator=random.Random(seed))
    index = 0
    while True:
        yield writer.call(f"{prefix}-{index}", probes)
        index += 1


def refused_call(request_id: str, refusal: Refusal) -> SoakCall:
    """Return a call that must be refused."""
    return SoakCall(
        request_id=request_id,
        kind="refused",
        method=refusal.method,
        path=refusal.path,
        raw=(refusal.raw,),
        answers=(refusal.status,),
        is_counted=refusal.is_counted,
    )


def probe_call(request_id: str, raw: bytes, number: int) -> SoakCall:
    """Return a call of a probe."""
    method = Method.TRANSLATE
    return SoakCall(
        request_id=request_id,
        kind="probe",
        method=method,
        path=method.path,
        raw=(raw,),
        answers=(_OK,),
        probe=number,
    )


class _Writer:
    """Draws calls."""

    def __init__(self, texts: Texts, *, model: str, generator: random.Random) -> None:
        self._texts = texts
        self._models = ("", model, f"{model}@{LABEL}")
        self._generator = generator

    def call(self, request_id: str, probes: Sequence[bytes]) -> SoakCall:
        (kind,) = self._generator.choices(list(_KINDS), [weight for weight, _ in _KINDS.values()])
        if kind == "refused":
            return refused_call(request_id, draw_refusal(self._generator))
        if kind == "probe":
            number = self._generator.randrange(len(probes))
            return probe_call(request_id, probes[number], number)
        (method,) = self._generator.choices(list(_METHODS), list(_METHODS.values()))
        raw, answers = self._messages(method, request_id)
        _, ending = _KINDS[kind]
        moment, share = Moment.NEVER, 0.0
        if ending in {Ending.CANCELS, Ending.DISCONNECTS}:
            moment, share = draw_moment(self._generator, may_wait=False)
        elif ending is Ending.SHORT_DEADLINE:
            share = _SHORTEST_DEADLINE ** self._generator.random()
        return SoakCall(
            request_id=request_id,
            kind=kind,
            method=method,
            path=method.path,
            raw=raw,
            answers=answers,
            ending=ending,
            moment=moment,
            share=share,
            half_closes=moment is Moment.NEVER or self._generator.random() < 0.5,
        )

    def _messages(self, method: Method, request_id: str) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
        match method:
            case Method.TRANSLATE_DOCUMENT:
                return (self._document().SerializeToString(),), (_OK,)
            case Method.TRANSLATE_STREAM:
                parts = [self._part(f"{request_id}.{index}") for index in range(self._generator.choice((1, 2, 5)))]
                return tuple(raw for raw, _ in parts), tuple(status for _, status in parts)
            case _:
                return (self._request("").SerializeToString(),), (_OK,)

    def _part(self, request_id: str) -> tuple[bytes, str]:
        """Return a request of a stream, and the status of its answer."""
        if self._generator.random() >= _REFUSED_IN_STREAM_SHARE:
            return self._request(request_id).SerializeToString(), _OK
        refusal = draw_refusal_in_stream(self._generator)
        request = pb.TranslateRequest.FromString(refusal.raw)
        request.request_id = request_id
        return request.SerializeToString(), refusal.status

    def _request(self, request_id: str) -> pb.TranslateRequest:
        _, options = draw_options(self._generator)
        num_texts = 1 if options.return_alignment else self._generator.choice((1, 1, 1, 2, 4))
        return pb.TranslateRequest(
            texts=[self._text() for _ in range(num_texts)], options=options, request_id=request_id, **self._fields()
        )

    def _document(self) -> pb.TranslateDocumentRequest:
        _, options = draw_options(self._generator)
        return pb.TranslateDocumentRequest(text=self._document_text(), options=options, **self._fields())

    def _fields(self) -> dict[str, Any]:
        """Return what all requests have."""
        is_bulk = self._generator.random() < _BULK_SHARE
        return {
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
        return self._draw(self._generator.choice((Profile.CHAT, Profile.CHAT, Profile.SENTENCE, Profile.PARAGRAPH)))

    def _document_text(self) -> str:
        """Return a text of TranslateDocument: white space, which is a document too, up to a long one."""
        drawn = self._generator.random()
        if drawn < _EMPTY_SHARE:
            return " "
        if drawn < _EMPTY_SHARE + _LONG_DOCUMENT_SHARE:
            return "\n\n".join(self._draw(Profile.DOCUMENT) for _ in range(_LONG_DOCUMENT_PARTS))
        if drawn < _EMPTY_SHARE + _LONG_DOCUMENT_SHARE + _ENDLESS_SHARE:
            return " and ".join(self._draw(Profile.PARAGRAPH).translate(_WITHOUT_ENDS) for _ in range(_ENDLESS_PARTS))
        return self._draw(Profile.DOCUMENT if drawn > 1 - _DOCUMENT_SHARE else Profile.PARAGRAPH)

    def _draw(self, profile: Profile) -> str:
        _, text = self._texts.draw(profile, self._generator)
        return text
