"""What callers ask for: which texts, of which method, how decoded, how urgent, how patient. Pure, given a seed."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from dragoman.v1 import translation_pb2 as pb
from google.protobuf import json_format

from loadtests.generator.texts import Profile, Texts, read_texts
from loadtests.generator.calls import Method

_REQUESTS_OF_A_STREAM: Final = 3
MAX_TEXTS: Final = 128
_LABEL: Final = "loadtest"  # what `SetModelLabel` sets; a label of its own, so that no other requests are affected

_PRIORITIES: Final = {"interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Mix(Generic[_T]):
    """Values and how often each is drawn; empty: nothing is drawn. Only the proportion of the shares counts."""

    shares: tuple[tuple[_T, float], ...] = ()

    def draw(self, generator: random.Random) -> _T | None:
        """Return one of the values; None if there are none."""
        if not self.shares:
            return None
        values, weights = zip(*self.shares, strict=True)
        value: _T = generator.choices(values, weights)[0]
        return value


def parse_mix(text: str, parse: Callable[[str], _T]) -> Mix[_T]:
    """Return a mix from `value=share,...`; a share of 1 need not be written.

    Raises ValueError if a part is no value, as `parse` says, or a share is not above 0.
    """
    shares = []
    for part in text.split(","):
        name, _, share = part.partition("=")
        shares.append((parse(name), float(share or 1)))
        if not 0 < shares[-1][1] < 1e9:
            raise ValueError(f"{part}: expected a share above 0")
    return Mix(tuple(shares))


def format_mix(mix: Mix[Any]) -> str:
    """Return the text of a mix."""
    return ",".join(f"{value.value if isinstance(value, Method) else value}={share!r}" for value, share in mix.shares)


def parse_priority(text: str) -> str:
    """Return the name of a priority; ValueError if it is none."""
    if text not in _PRIORITIES:
        raise ValueError(f"{text}: expected {' or '.join(_PRIORITIES)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Calls, by what is drawn for each; `python -m loadtests load --help` says what each field means."""

    profile: Profile = Profile.SENTENCE
    data: Path | None = None
    lines: Path | None = None
    texts_per_call: int = 1  # of each request of a stream, too
    methods: Mix[Method] = field(default_factory=Mix)
    beams: Mix[int] = field(default_factory=Mix)
    priorities: Mix[str] = field(default_factory=Mix)
    deadline_s: float = 10.0
    leaving: float = 0.0
    leave_within_s: float = 0.5
    source_language: str = "en"
    target_language: str = "de"
    model: str = ""
    admin_model: str = ""
    options: str = ""

    def __post_init__(self) -> None:
        """Check what a type cannot say; ValueError names the field and what it must be."""
        methods, leave_s = {method for method, _ in self.methods.shares}, self.leave_within_s
        lacks_admin = not self.admin_model and any(method.needs_admin for method in methods)
        checks = {
            f"texts_per_call {self.texts_per_call}: expected 1 to {MAX_TEXTS}": 1 <= self.texts_per_call <= MAX_TEXTS,
            f"deadline {self.deadline_s:g}: expected seconds above 0, up to 86400": 0 < self.deadline_s <= 86_400,
            f"leaving {self.leaving:g}: expected a share from 0 to 1": 0 <= self.leaving <= 1,
            f"leave_within {leave_s:g}: expected seconds from 0 to 86400": 0 <= leave_s <= 86_400,
            "profile lines and a file of texts need each other": bool(self.lines) is (self.profile is Profile.LINES),
            "methods of ModelAdminService need the name/version of a model (admin model)": not lacks_admin,
            "GetModel needs the name of a model": bool(self.model) or Method.GET_MODEL not in methods,
        }
        for sentence, holds in checks.items():
            if not holds:
                raise ValueError(sentence)
        self.decoding_options()

    def decoding_options(self) -> pb.DecodingOptions:
        """Return the options that all requests share; ValueError if `options` are none."""
        try:
            return json_format.Parse(self.options or "{}", pb.DecodingOptions())
        except json_format.ParseError as error:
            raise ValueError(f"options {self.options!r}: no DecodingOptions as JSON: {error}") from error

    def calls(self, seed: int) -> "Calls":
        """Return the calls, endless, the same for the same seed; raises what `read_texts` does."""
        return Calls(self, read_texts(self.data, lines=self.lines), seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """One call, ready to be sent; its times count from when it should be sent."""

    method: Method
    messages: tuple[bytes, ...]  # one request, but for a stream of them
    timeout_s: float
    leave_after_s: float | None  # when its caller leaves; None: the caller waits for the answer
    profile: str  # of the texts; empty if there are none
    num_texts: int


class Calls:
    """The calls of a workload. Each depends on the seed and its own number alone, so that any process can make any."""

    def __init__(self, workload: Workload, texts: Texts, seed: int) -> None:
        self._workload = workload
        self._texts = texts
        self._seed = seed
        self._options = workload.decoding_options()
        self.origin = texts.origin
        """Where the texts are from, for people."""

    def __iter__(self) -> Iterator[PlannedCall]:
        """Yield all, without end."""
        return map(self.call, itertools.count())

    def call(self, number: int, *, method: str | None = None) -> PlannedCall:
        """Return one call, of the method that is named, whatever the workload would draw; ValueError if it is none."""
        generator = random.Random(f"{self._seed}/{number}")
        workload = self._workload
        profile, text = self._texts.draw(workload.profile, generator)
        usual = Method.TRANSLATE_DOCUMENT if profile is Profile.DOCUMENT else Method.TRANSLATE
        chosen = Method(method) if method else workload.methods.draw(generator) or usual
        leaves = generator.random() < workload.leaving
        leave_after_s = generator.uniform(0.0, workload.leave_within_s)
        messages, num_texts = self._messages(chosen, profile, text, generator)
        return PlannedCall(
            method=chosen,
            messages=tuple(message.SerializeToString() for message in messages),
            timeout_s=workload.deadline_s,
            leave_after_s=leave_after_s if leaves else None,
            profile=profile.value if chosen.translates else "",
            num_texts=num_texts,
        )

    def _messages(self, method: Method, profile: Profile, text: str, generator: random.Random) -> tuple[list[Any], int]:
        """Return what is sent, and how many texts that has in all."""
        admin_model, size = self._workload.admin_model, self._workload.texts_per_call
        if method is Method.TRANSLATE_DOCUMENT:
            return [pb.TranslateDocumentRequest(text=text, **self._common(generator))], 1
        if method.translates:
            ids = [f"r-{index}" for index in range(_REQUESTS_OF_A_STREAM)]
            ids = ids if method is Method.TRANSLATE_STREAM else [""]
            texts = [text, *(self._texts.draw(profile, generator)[1] for _ in range(len(ids) * size - 1))]
            parts = [texts[first : first + size] for first in range(0, len(texts), size)]
            requests = [
                pb.TranslateRequest(texts=part, request_id=request_id, **self._common(generator))
                for part, request_id in zip(parts, ids, strict=True)
            ]
            return requests, len(texts)
        questions = {
            Method.GET_MODEL: pb.GetModelRequest(model=self._workload.model),
            Method.LOAD_MODEL: pb.LoadModelRequest(model=admin_model),
            Method.UNLOAD_MODEL: pb.UnloadModelRequest(model=admin_model),
            Method.SET_MODEL_LABEL: pb.SetModelLabelRequest(model=admin_model, label=_LABEL),
        }
        return [questions.get(method, pb.ListModelsRequest())], 0  # those of ListModels and Check are empty

    def _common(self, generator: random.Random) -> dict[str, Any]:
        """Return the fields that a request and a document share."""
        options = pb.DecodingOptions()
        options.CopyFrom(self._options)
        if (beam := self._workload.beams.draw(generator)) is not None:
            options.beam_size = beam
        priority = self._workload.priorities.draw(generator)
        return {
            **{name: getattr(self._workload, name) for name in ("source_language", "target_language", "model")},
            "options": options if options.ByteSize() else None,
            "priority": _PRIORITIES[priority] if priority else pb.PRIORITY_UNSPECIFIED,
        }
