"""Input of callers: messages of the contract as bytes, texts, tokens."""

import base64
import contextlib
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.bundle.files import open_bundle
from dragoman_service.calls import conversion, error_mapping
from dragoman_service.datatypes import Span
from dragoman_service.errors import RequestError, UnauthenticatedError
from dragoman_service.request import TranslationRequest
from dragoman_service.security.jwt_auth import KeySet
from dragoman_service.text.documents import PlannedSentence
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.segmentation import iterate_sentences, join, split_overlong
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.translation.options import RequestBudget, check_request, fit_to_model
from dragoman_service.translation.settings import TranslationDefaults, TranslationLimits
from loadtests.hostile.mutations import mutated, mutated_json
from tests.fuzz.target import in_process
from tests.property.test_text_segmentation import LANGUAGES, TEXTS

_BUNDLE: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "dragoman_models" / "en-de" / "1"


@functools.cache
def _model() -> Any:
    """Return the text model of a bundled model."""
    bundle = open_bundle(_BUNDLE)
    return SimpleNamespace(
        tokenizer=open_tokenizer(bundle),
        max_source_tokens=16,  # splits ordinary sentences
        max_target_tokens=bundle.manifest.limits.max_target_tokens,
        confidence=bundle.manifest.confidence,
    )


def check_text(content: bytes) -> None:
    """Split a text that follows a language and a line break; the text is preserved, and every part fits."""
    language, _, text = content.decode("utf-8", "surrogatepass").partition("\n")
    spans = list(iterate_sentences(text, language=language))
    assert join(text, spans, [text[span.start : span.end] for span in spans]).text == text
    for span in spans:
        _check_parts(text, span)


def _check_parts(text: str, span: Span) -> None:
    def fits(part: str) -> bool:
        return bool(len(_model().tokenizer.encode(part)) < _model().max_source_tokens)

    try:
        parts = split_overlong(text, span, fits=fits)
    except ValueError:  # a single character exceeds the limit, or a lone surrogate
        return
    ends = [end for part in parts for end in (part.start, part.end)]
    assert ends == sorted(ends)
    assert all(span.start <= part.start < part.end <= span.end and fits(text[part.start : part.end]) for part in parts)


def check_message(content: bytes) -> None:
    """Parse, validate and plan a message as the server does; the first byte selects the method."""
    kind = _KINDS[content[0] % len(_KINDS)] if content else _KINDS[0]
    try:
        message: Any = kind.FromString(content[1:])
    except DecodeError:
        return
    try:
        if kind is pb.TranslateRequest:
            conversion.from_priority(message.priority)
            _plan(conversion.from_translate_request(message), is_document=False)
        elif kind is pb.TranslateDocumentRequest:
            conversion.from_priority(message.priority)
            _plan(conversion.from_translate_document_request(message), is_document=True)
        else:
            conversion.from_model_name(message.model)
    except RequestError as error:
        sent = error_mapping.to_rpc_error(error)
        assert sent.code.name in {"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"}
        assert sum(len(value) for _, value in sent.trailing_metadata) < _MAX_TRAILING_BYTES


_MAX_TRAILING_BYTES: Final = 8192  # default limit of gRPC clients
_KINDS: Final[tuple[type[Message], ...]] = (
    *(pb.TranslateRequest, pb.TranslateDocumentRequest),
    *(pb.GetModelRequest, pb.LoadModelRequest, pb.UnloadModelRequest, pb.SetModelLabelRequest),
)


def _plan(request: TranslationRequest, *, is_document: bool) -> None:
    limits, model = TranslationLimits(), _model()
    checked = check_request(request, limits, TranslationDefaults(), draw_seed=lambda: 1, is_document=is_document)
    search = fit_to_model(checked.search, request.options, model, name="tiny/1", has_attention=True)
    budget = RequestBudget(request.options, limits, is_document=is_document)
    pipeline = TextPipeline(request, model=model, search=search, budget=budget)
    if is_document:
        sentences: list[PlannedSentence] = list(pipeline.document_sentences())
        source = "".join(each.before + (each.plan.text if each.plan else "") + each.after for each in sentences)
        assert source.replace(" ", "") == request.texts[0].replace(" ", "")  # but for separators
    else:
        assert [plan.text for plan in pipeline.plan()] == list(request.texts)


def check_token(content: bytes) -> None:
    """Verify an unsigned token; the lines of the input are its header and claims."""
    parts = (base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in content.split(b"\n", 1))
    with pytest.raises(UnauthenticatedError):
        _KEYS.verified_claims(f"{'.'.join(parts)}.AAAA", issuer="i", audience="a")


def check_key_set(content: bytes) -> None:
    """Parse the keys of an identity provider."""
    with contextlib.suppress(ValueError):
        KeySet(content)


_NUMBERS = st.one_of(
    st.integers(0, 3),
    st.integers(-2, 20),
    st.sampled_from([2**31 - 1, -(2**31), 512]),
    st.integers(-(2**31), 2**31 - 1),
)
_STRINGS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_VALUES: Final[Mapping[int, st.SearchStrategy[Any]]] = {
    FieldDescriptor.CPPTYPE_INT32: _NUMBERS,
    FieldDescriptor.CPPTYPE_INT64: _NUMBERS,
    FieldDescriptor.CPPTYPE_ENUM: _NUMBERS,
    FieldDescriptor.CPPTYPE_DOUBLE: st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 5.0])),
    FieldDescriptor.CPPTYPE_BOOL: st.booleans(),
    FieldDescriptor.CPPTYPE_STRING: _STRINGS,
}


def _messages(kind: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return messages with given fields, and others in and out of their ranges."""
    others = {}
    for field in kind.DESCRIPTOR.fields:
        if field.name not in fields:
            value = _messages(field.message_type._concrete_class) if field.message_type else _VALUES[field.cpp_type]
            others[field.name] = st.lists(value, max_size=3) if field.is_repeated else value
    return st.fixed_dictionaries(fields, optional=others).map(lambda values: kind(**values))


_SENT = TEXTS.map(lambda text: text.encode("utf-8", "replace").decode())
_LANGUAGES = {
    "source_language": st.sampled_from(["en", "de", "", "zh-Hant", "x" * 40]),
    "target_language": st.just("de"),
}
TRANSLATION_MESSAGES: Final = st.one_of(
    _messages(pb.TranslateRequest, texts=st.lists(_SENT, max_size=4), **_LANGUAGES).map(
        lambda message: b"\0" + message.SerializeToString()
    ),
    _messages(pb.TranslateDocumentRequest, text=_SENT, **_LANGUAGES).map(
        lambda message: b"\1" + message.SerializeToString()
    ),
)
"""Requests after the byte of their method."""

_JWKS: Final = {
    "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]
}
_KEYS: Final = KeySet(json.dumps(_JWKS).encode())
_TOKEN: Final = b"""{"alg": "EdDSA", "kid": "a", "typ": "JWT"}
{"iss": "i", "aud": "a", "sub": "s", "exp": 9999999999}"""
_JSON_TOKENS: Final = [
    *(b"[", b"{", b"]", b"}", b'"', b":", b",", b"9", b"\xff", b"\n", b"null", b"none", b'"b64": false, "crit": 1,')
]
_SEEDS: Final = (
    b"\0" + pb.TranslateRequest(texts=["A man. Ⅻ"], source_language="en", target_language="de").SerializeToString(),
    b"\1" + pb.TranslateDocumentRequest(text="A. B.", source_language="en", target_language="de").SerializeToString(),
    b"\5" + pb.SetModelLabelRequest(model="tiny/1", label="stable").SerializeToString(),
)
_LONG = st.builds(
    lambda language, text, times: f"{language}\n{text * times}"[:20_000].encode("utf-8", "surrogatepass"),
    LANGUAGES,
    TEXTS,
    st.sampled_from([1, 1, 1, 2, 30, 500]),
)
_DAMAGED = mutated(_SEEDS, [b"\x0a", b"\x80", b"\xff", b"\0", b"\x12\x02en"])

CALLS: Final = (
    in_process("token", mutated([_TOKEN], _JSON_TOKENS), check_token),
    in_process(
        "key-set", st.one_of(mutated_json(_JWKS), mutated([json.dumps(_JWKS).encode()], _JSON_TOKENS)), check_key_set
    ),
    in_process("text", _LONG, check_text),
    in_process("message", st.one_of(TRANSLATION_MESSAGES, _DAMAGED), check_message),
)
