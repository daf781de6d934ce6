"""Translation of the texts of a block: by the engine in the same process, or by a running server."""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from dragoman.client import TranslationClient
from dragoman.client.credentials import TlsOptions
from dragoman.client.enums import Priority
from dragoman.client.errors import ExhaustedError
from dragoman.client.errors import InvalidFieldError as RejectedCallError
from dragoman.client.request import DecodingOptions
from dragoman.client.results import Translation as ServedTranslation
from dragoman.client.results import TranslationResult
from dragoman_service.bundle.files import MANIFEST_NAME
from dragoman_service.bundle.manifest import Confidence
from dragoman_service.config import Settings, settings_of_model
from dragoman_service.dataset_translation.output import TranslatedRow
from dragoman_service.datatypes import Translation
from dragoman_service.decoding.offline import decode_segments
from dragoman_service.errors import RequestError
from dragoman_service.models.model import ModelState, full_name
from dragoman_service.models.registry import ModelRegistry, ModelVersionEntry, VersionPolicy
from dragoman_service.models.serving import (
    SERVING_NAME,
    check_on_disk,
    named_manifest,
    names_on_disk,
    open_version,
    read_serving,
)
from dragoman_service.request import TranslationOptions, TranslationRequest
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.pipeline import RULES_VERSION, TextPipeline, translate_offline, translation_steps
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from dragoman_service.translation.options import search_config, with_default_protection
from dragoman_service.translation.settings import TranslationDefaults

_CALL_TIMEOUT_S: Final = 300.0  # a server may have a long queue
_NUM_PLANNED: Final = 128  # texts whose segments are in memory at a time, at least
_MAX_WAITS: Final = 60  # for an overloaded server, per call
_WAIT_S: Final = 5.0  # if the server sends no delay


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Opens the bundle of a language pair, as the server would choose it."""

    bundle: Path
    runtime: RuntimeSettings
    defaults: TranslationDefaults
    source_language: str  # spelled as in the manifest
    target_language: str
    beam_size: int
    batch_size: int

    @classmethod
    def of(
        cls, settings: Settings, model: str, source_language: str, target_language: str, **sizes: int
    ) -> "EngineSpec":
        """Choose the model; RequestError if none fits."""
        registry = ModelRegistry()
        for name, on_disk in names_on_disk(settings.models.directory).items():
            serving = read_serving(on_disk.directory)
            check_on_disk(serving, on_disk.directory, on_disk.versions)
            policy = VersionPolicy(serving=serving)
            entries = [
                ModelVersionEntry(
                    name=name,
                    version=version,
                    directory=on_disk.directory / version,
                    state=ModelState.READY,
                    manifest=named_manifest(on_disk.directory / version),
                )
                for version in policy.selected(on_disk.versions.keys())
            ]
            registry = registry.with_policy(name, policy).with_entries(*entries)
        entry, (source, target) = registry.find(model, source_language, target_language)
        directory = entry.directory.parent
        own = settings_of_model(settings, read_serving(directory), origin=directory / SERVING_NAME)
        one_thread = {"device": "cpu", "num_intra_op_threads": 1, "num_low_latency_threads": 1}
        return cls(
            bundle=entry.directory.absolute(),  # not resolved, because name and version must fit
            runtime=own.runtime.model_copy(update=one_thread),
            defaults=own.defaults,
            source_language=source,
            target_language=target,
            **sizes,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the translations."""
        manifest = (self.bundle / MANIFEST_NAME).read_bytes()  # has the checksums of all files
        model = full_name(self.bundle.parent.name, self.bundle.name)
        return {
            **_common_settings(self),
            "model": model,
            "bundle_sha256": hashlib.sha256(manifest).hexdigest(),
            "runtime": self.runtime.model_dump(include={"precision", "shortlist"}),
            "defaults": self.defaults.model_dump(mode="json", exclude={"beam_size"}),
            "text_rules": RULES_VERSION,
        }

    def open(self) -> "_Engine":
        """Load the model."""
        return _Engine(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _EngineModel:
    # The properties that text processing needs.
    tokenizer: SentencePieceTokenizer
    max_source_tokens: int
    max_target_tokens: int
    confidence: Confidence | None


class _Engine:
    def __init__(self, spec: EngineSpec) -> None:
        bundle = open_version(spec.bundle)
        self._spec, manifest = spec, bundle.manifest
        self._graph = open_step_model(bundle, spec.runtime)
        self._has_attention = manifest.has_attention(self._graph.placement.precision)
        self._options = with_default_protection(TranslationOptions(beam_size=spec.beam_size), spec.defaults)
        self._search = search_config(self._options, spec.defaults)
        self._model = _EngineModel(
            tokenizer=open_tokenizer(bundle).for_pair(spec.source_language, spec.target_language),
            max_source_tokens=manifest.limits.max_source_tokens,
            max_target_tokens=manifest.limits.max_target_tokens,
            confidence=manifest.confidence,
        )

    def translate(self, texts: Sequence[str]) -> list[TranslatedRow]:
        size = max(_NUM_PLANNED, 4 * self._spec.batch_size)
        return [row for start in range(0, len(texts), size) for row in self._translate(texts[start : start + size])]

    def _translate(self, texts: Sequence[str]) -> list[TranslatedRow]:
        rows = [TranslatedRow()] * len(texts)
        planned = []
        for index, text in enumerate(texts):
            pipeline = self._pipeline(text)  # one for each text: the server limits some work of a request
            try:
                planned.append((index, translation_steps(pipeline, pipeline.plan())))
            except RequestError as error:
                rows[index] = TranslatedRow(reason=error.description)
        outcomes = translate_offline(
            [steps for _, steps in planned], partial(decode_segments, self._graph, batch_size=self._spec.batch_size)
        )
        for (index, _), outcome in zip(planned, outcomes, strict=True):
            rows[index] = _row(outcome.translations[0])
        return rows

    def _pipeline(self, text: str) -> TextPipeline:
        request = TranslationRequest(
            texts=(text,),
            source_language=self._spec.source_language,
            target_language=self._spec.target_language,
            options=self._options,
        )
        return TextPipeline(request, model=self._model, search=self._search, has_attention=self._has_attention)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """Calls a running server."""

    target: str
    api_key_file: Path | None
    tls: TlsOptions | None
    model: str
    source_language: str
    target_language: str
    beam_size: int
    batch_size: int

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the translations."""
        unknown = dict.fromkeys(("bundle_sha256", "runtime", "defaults", "text_rules"))
        return {**_common_settings(self), "model": self.model, **unknown}

    def with_served_model(self) -> "ServerSpec":
        """Return it with the version that the server uses now; raises the error of the call."""
        result = self.open().call([""])
        return replace(self, model=f"{result.model_name}/{result.model_version}")

    def open(self) -> "_Server":
        """Connect."""
        return _Server(self)


class _Server:
    def __init__(self, spec: ServerSpec, pause: Callable[[float], object] = time.sleep) -> None:
        key = spec.api_key_file.read_text("utf-8-sig").strip() if spec.api_key_file else None
        self._client = TranslationClient(spec.target, timeout_s=_CALL_TIMEOUT_S, api_key=key, tls=spec.tls)
        self._spec, self._pause = spec, pause

    def translate(self, texts: Sequence[str]) -> list[TranslatedRow]:
        size = self._spec.batch_size
        return [row for start in range(0, len(texts), size) for row in self._translate(texts[start : start + size])]

    def _translate(self, texts: Sequence[str]) -> list[TranslatedRow]:
        try:
            result = self.call(list(texts))
        except RejectedCallError as error:
            if not all(field.startswith("texts") for field in error.fields):
                raise
            return _translate_by_bisection(self._translate, texts, error.message)
        return [_row(translation) for translation in result]

    def call(self, texts: list[str]) -> TranslationResult:
        """Translate; wait while the server is overloaded."""
        for is_last in (*(False,) * _MAX_WAITS, True):
            try:
                return self._client.translate(
                    texts,
                    source_language=self._spec.source_language,
                    target_language=self._spec.target_language,
                    model=self._spec.model,
                    options=DecodingOptions(beam_size=self._spec.beam_size),
                    priority=Priority.BULK,
                )
            except ExhaustedError as error:
                if is_last:
                    raise
                self._pause(error.retry_after_s or _WAIT_S)
        raise AssertionError


def _common_settings(spec: EngineSpec | ServerSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ("source_language", "target_language", "beam_size")}


def _row(translation: Translation | ServedTranslation) -> TranslatedRow:
    best = translation.hypotheses[0]
    warnings = tuple(f"{warning.kind.name}: {warning.message}" for warning in translation.warnings)
    return TranslatedRow(text=best.text, score=best.score, warnings=warnings)


def _translate_by_bisection(
    translate: Callable[[Sequence[str]], list[TranslatedRow]], texts: Sequence[str], reason: str
) -> list[TranslatedRow]:
    # Translates texts of which one has caused an error; rejects it with the reason once it is alone.
    if len(texts) == 1:
        return [TranslatedRow(reason=reason)]
    middle = len(texts) // 2
    return translate(texts[:middle]) + translate(texts[middle:])
