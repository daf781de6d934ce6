"""Workloads: texts, methods, options, priorities and deadlines of calls, reproducible from a seed."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from google.protobuf import json_format

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method, PlannedCall
from loadtests.generator.texts import Profile, Texts, read_texts

MAX_TEXTS: Final = 128
_REQUESTS_OF_A_STREAM: Final = 3
_LABEL: Final = "loadtest"  # set by `SetModelLabel`; not used by other requests
_PRIORITIES: Final = {"interactive": pb.PRIORITY_INTERACTIVE, "bulk": pb.PRIORITY_BULK}

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Mix(Generic[_T]):
    """Values and their relative weights; an empty mix draws None."""

    weights: Mapping[_T, float] = field(default_factory=dict)

    def draw(self, generator: random.Random) -> Any:
        """Return one of the values, or None for an empty mix."""
        return generator.choices(list(self.weights), list(self.weights.values()))[0] if self.weights else None


def parse_mix(text: str, parse: Callable[[str], _T]) -> Mix[_T]:
    """Parse `value=weight,...`; the weight defaults to 1. Raises ValueError."""
    weights = dict[_T, float]()
    for part in text.split(","):
        name, _, weight = part.partition("=")
        value = parse(name)
        weights[value] = float(weight or 1)
        if not 0 < weights[value] < 1e9:
            raise ValueError(f"{part}: the weight must be above 0")
    return Mix(weights)


def format_mix(mix: Mix[Any]) -> str:
    """Return the text of a mix."""
    return ",".join(f"{getattr(value, 'value', value)}={weight!r}" for value, weight in mix.weights.items())


def parse_priority(text: str) -> str:
    """Check the name of a priority; raises ValueError."""
    if text not in _PRIORITIES:
        raise ValueError(f"{text}: expected {' or '.join(_PRIORITIES)}")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Contents of calls; `python -m loadtests load --help` explains each field."""

    profile: Profile = Profile.SENTENCE
    data: Path | None = None
    lines: Path | None = None
    texts_per_call: int = 1  # also of each request of a stream
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
        """Validate the fields; raises ValueError."""
        lacks_admin = not self.admin_model and any(method.needs_admin for method in self.methods.weights)
        checks = {
            f"texts_per_call {self.texts_per_call}: expected 1 to {MAX_TEXTS}": 1 <= self.texts_per_call <= MAX_TEXTS,
            f"deadline {self.deadline_s:g}: expected more than 0, at most 86400 s": 0 < self.deadline_s <= 86_400,
            f"leaving {self.leaving:g}: expected a share from 0 to 1": 0 <= self.leaving <= 1,
            f"leave_within {self.leave_within_s:g}: expected 0 to 86400 s": 0 <= self.leave_within_s <= 86_400,
            "the profile lines requires a file of texts and vice versa": bool(self.lines)
            is (self.profile is Profile.LINES),
            "methods of ModelAdminService require --admin-model name/version": not lacks_admin,
            "GetModel requires --model": bool(self.model) or Method.GET_MODEL not in self.methods.weights,
        }
        for sentence, holds in checks.items():
            if not holds:
                raise ValueError(sentence)
        self.decoding_options()

    def decoding_options(self) -> pb.DecodingOptions:
        """Return the options of all requests; raises ValueError if `options` is invalid."""
        try:
            return json_format.Parse(self.options or "{}", pb.DecodingOptions())
        except json_format.ParseError as error:
            raise ValueError(f"options {self.options!r}: not DecodingOptions as JSON: {error}") from error

    def calls(self, seed: int) -> "Calls":
        """Return the endless sequence of calls for a seed; raises as `read_texts` does."""
        return Calls(self, read_texts(self.data, lines=self.lines), seed)


class Calls:
    """The calls of a workload. Each depends only on the seed and its number, so any process can make any call."""

    def __init__(self, workload: Workload, texts: Texts, seed: int) -> None:
        self._workload = workload
        self._texts = texts
        self._seed = seed
        self._options = workload.decoding_options()
        self.origin = texts.origin

    def __iter__(self) -> Iterator[PlannedCall]:
        return map(self.call, itertools.count())

    def call(self, number: int, *, method: str | None = None) -> PlannedCall:
        """Return one call, with the given method instead of a drawn one; raises ValueError for an unknown method."""
        generator = random.Random(f"{self._seed}/{number}")
        workload = self._workload
        profile, text = self._texts.draw(workload.profile, generator)
        usual = Method.TRANSLATE_DOCUMENT if profile is Profile.DOCUMENT else Method.TRANSLATE
        chosen: Method = Method(method) if method else workload.methods.draw(generator) or usual
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
        """Return the requests and the number of their texts."""
        admin_model, size = self._workload.admin_model, self._workload.texts_per_call
        if method is Method.TRANSLATE_DOCUMENT:
            return [pb.TranslateDocumentRequest(text=text, **self._fields(generator))], 1
        if method.translates:
            ids = [f"r-{index}" for index in range(_REQUESTS_OF_A_STREAM)]
            ids = ids if method is Method.TRANSLATE_STREAM else [""]
            texts = [text, *(self._texts.draw(profile, generator)[1] for _ in range(len(ids) * size - 1))]
            parts = [texts[first : first + size] for first in range(0, len(texts), size)]
            requests = [
                pb.TranslateRequest(texts=part, request_id=request_id, **self._fields(generator))
                for part, request_id in zip(parts, ids, strict=True)
            ]
            return requests, len(texts)
        others = {
            Method.GET_MODEL: pb.GetModelRequest(model=self._workload.model),
            Method.LOAD_MODEL: pb.LoadModelRequest(model=admin_model),
            Method.UNLOAD_MODEL: pb.UnloadModelRequest(model=admin_model),
            Method.SET_MODEL_LABEL: pb.SetModelLabelRequest(model=admin_model, label=_LABEL),
        }
        return [others.get(method, pb.ListModelsRequest())], 0  # requests of ListModels and Check are empty

    def _fields(self, generator: random.Random) -> dict[str, Any]:
        """Return the fields that requests and documents share."""
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
