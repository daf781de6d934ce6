"""Input of callers: messages of the contract as bytes, texts, tokens."""

import base64
import contextlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import Span
from dragoman_service.errors import ConfigError, RequestError, UnauthenticatedError
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.request import TranslationRequest
from dragoman_service.security.jwt_auth import KeySet, key_set
from dragoman_service.text.documents import PlannedSentence
from dragoman_service.text.pipeline import TextPipeline
from dragoman_service.text.segmentation import iterate_sentences, join, split_overlong
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.translation.options import (
    TranslationDefaults,
    TranslationLimits,
    check_request,
    fit_to_model,
)
from dragoman_service.translation.text_work import RequestBudget
from loadtests.hostile.mutations import mutated, mutated_json
from tests.fuzz.target import Check, Target, bounded
from tests.property.test_text_segmentation import LANGUAGES, TEXTS

_MODELS: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "dragoman_models"


_Value = TypeVar("_Value")


class _Model:
    """The text model of the bundled model."""

    def __init__(self) -> None:
        bundle = open_bundle(next(_MODELS.glob("*/*/manifest.json")).parent)
        self.tokenizer = open_tokenizer(bundle)
        self.max_source_tokens = 16  # splits ordinary sentences
        self.max_target_tokens = bundle.manifest.limits.max_target_tokens
        self.confidence = bundle.manifest.confidence


@contextmanager
def _with_model(check: Callable[[_Model, bytes], None]) -> Iterator[Check]:
    model = _Model()
    with bounded(lambda content: check(model, content)) as judged:
        yield judged


def check_text(model: _Model, content: bytes) -> None:
    """Split a text that follows a language and a line break; the text is preserved, and every part fits."""
    language, _, text = content.decode("utf-8", "surrogatepass").partition("\n")
    spans = list(iterate_sentences(text, language=language))
    assert join(text, spans, [text[span.start : span.end] for span in spans]).text == text
    for span in spans:
        _check_parts(text, span, model)


def _check_parts(text: str, span: Span, model: _Model) -> None:
    def fits(part: str) -> bool:
        return len(model.tokenizer.encode(part)) < model.max_source_tokens

    try:
        parts = split_overlong(text, span, fits=fits)
    except ValueError:  # a single character exceeds the limit, or a lone surrogate
        return
    ends = [end for part in parts for end in (part.start, part.end)]
    assert ends == sorted(ends)
    assert all(span.start <= part.start < part.end <= span.end and fits(text[part.start : part.end]) for part in parts)


def check_message(model: _Model, content: bytes) -> None:
    """Parse, validate and plan a message as the server does; the first byte selects the method."""
    kind, read = _READERS[content[0] % len(_READERS)] if content else _READERS[0]
    try:
        message = kind.FromString(content[1:])
    except DecodeError:
        return
    try:
        read(model, message)
    except RequestError as error:
        sent = error_mapping.to_rpc_error(error)
        assert sent.code.name in {"INVALID_ARGUMENT", "UNIMPLEMENTED", "NOT_FOUND"}
        assert sum(len(value) for _, value in sent.trailing_metadata) < _MAX_TRAILING_BYTES


_MAX_TRAILING_BYTES: Final = 8192  # default limit of gRPC clients


def _read_request(model: _Model, message: pb.TranslateRequest) -> None:
    conversion.from_priority(message.priority)
    _plan(model, conversion.from_translate_request(message), is_document=False)


def _read_document(model: _Model, message: pb.TranslateDocumentRequest) -> None:
    conversion.from_priority(message.priority)
    _plan(model, conversion.from_translate_document_request(message), is_document=True)


def _plan(model: _Model, request: TranslationRequest, *, is_document: bool) -> None:
    limits = TranslationLimits()
    search = check_request(request, limits, TranslationDefaults(), draw_seed=lambda: 1, is_document=is_document)
    search = fit_to_model(search, request.options, model, name="tiny/1", has_attention=True)
    budget = RequestBudget(request.options, limits, is_document=is_document)
    pipeline = TextPipeline(request, model=model, search=search, budget=budget)
    if is_document:
        sentences: list[PlannedSentence] = list(pipeline.document_sentences())
        source = "".join(each.before + (each.plan.text if each.plan else "") + each.after for each in sentences)
        assert source.replace(" ", "") == request.texts[0].replace(" ", "")  # but for separators
    else:
        assert [plan.text for plan in pipeline.plan()] == list(request.texts)


def _read_name(_: _Model, message: Any) -> None:
    conversion.from_model_name(message.model)


_READERS: Final[tuple[tuple[Any, Callable[[_Model, Any], None]], ...]] = (
    (pb.TranslateRequest, _read_request),
    (pb.TranslateDocumentRequest, _read_document),
    (pb.GetModelRequest, _read_name),
    (pb.LoadModelRequest, _read_name),
    (pb.UnloadModelRequest, _read_name),
    (pb.SetModelLabelRequest, _read_name),
)


def _numbers() -> st.SearchStrategy[int]:
    return st.one_of(
        st.integers(-2, 20), st.sampled_from([2**31 - 1, -(2**31), 512, 513]), st.integers(-(2**31), 2**31 - 1)
    )


def _floats() -> st.SearchStrategy[float]:
    return st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 5.0]))


_SENT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
_OPTIONS = {
    **dict.fromkeys(("beam_size", "num_hypotheses", "min_target_tokens", "max_target_tokens"), _numbers()),
    **dict.fromkeys(("no_repeat_ngram_size", "long_sentences", "format", "return_attention"), _numbers()),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "coverage_penalty"), _floats()),
    **dict.fromkeys(("early_stopping", "repetition_guard", "split_sentences"), st.booleans()),
    **dict.fromkeys(("return_scores", "return_tokens", "return_alignment"), st.booleans()),
    "target_prefix": _SENT,
    "suppressed_tokens": st.lists(_SENT, max_size=3),
    "sampling": st.builds(pb.SamplingOptions, temperature=_floats(), top_k=_numbers(), top_p=_floats()),
}


def check_token(keys: KeySet, content: bytes) -> None:
    """Verify an unsigned token; the lines of the input are its header and claims."""
    parts = (base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in content.split(b"\n", 1))
    try:
        keys.verified_claims(f"{'.'.join(parts)}.AAAA", issuer="i", audience="a")
    except UnauthenticatedError:
        return
    raise AssertionError("an unsigned token was accepted")


def check_key_set(_: None, content: bytes) -> None:
    """Parse the keys of an identity provider."""
    with contextlib.suppress(ConfigError):
        key_set("access.jwks", "jwks.json", content)


@contextmanager
def _with(value: _Value, check: Callable[[_Value, bytes], None]) -> Iterator[Check]:
    with bounded(lambda content: check(value, content)) as judged:
        yield judged


_JWKS: Final = {
    "keys": [{"kty": "OKP", "crv": "Ed25519", "kid": "a", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]
}
_HEADER: Final = b'{"alg": "EdDSA", "kid": "a", "typ": "JWT"}'
_CLAIMS: Final = b'{"iss": "i", "aud": "a", "sub": "s", "exp": 9999999999}'
_JSON_TOKENS: Final = [
    b"[",
    b"{",
    b"]",
    b"}",
    b'"',
    b":",
    b",",
    b"9",
    b"\xff",
    b"\n",
    b"null",
    b"none",
    b'"b64": false, "crit": 1,',
]


@st.composite
def translation_messages(draw: st.DrawFn) -> bytes:
    """Draw a request with options in and out of their ranges, after the byte of its method."""
    chosen: dict[str, Any] = draw(st.fixed_dictionaries({}, optional=_OPTIONS))
    options = pb.DecodingOptions(**chosen)
    texts = [text.encode("utf-8", "replace").decode() for text in draw(st.lists(TEXTS, max_size=4))]
    fields: dict[str, Any] = {
        "source_language": draw(st.sampled_from(["en", "de", "", "zh-Hant", "x" * 40])),
        "target_language": "de",
        "priority": draw(_numbers()),
    }
    if draw(st.booleans()):
        document = pb.TranslateDocumentRequest(text="".join(texts), options=options, **fields)
        return b"\1" + document.SerializeToString()
    request = pb.TranslateRequest(
        texts=texts,
        options=options,
        target_prefixes=draw(st.lists(_SENT, max_size=2)),
        request_id=draw(_SENT),
        **fields,
    )
    return b"\0" + request.SerializeToString()


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

CALLS: Final = (
    Target(
        name="token",
        inputs=mutated([_HEADER + b"\n" + _CLAIMS], _JSON_TOKENS),
        opened=lambda: _with(KeySet(json.dumps(_JWKS).encode()), check_token),
    ),
    Target(
        name="key-set",
        inputs=st.one_of(mutated_json(_JWKS), mutated([json.dumps(_JWKS).encode()], _JSON_TOKENS)),
        opened=lambda: _with(None, check_key_set),
    ),
    Target(name="text", inputs=_LONG, opened=lambda: _with_model(check_text)),
    Target(
        name="message",
        inputs=st.one_of(translation_messages(), mutated(_SEEDS, [b"\x0a", b"\x80", b"\xff", b"\0", b"\x12\x02en"])),
        opened=lambda: _with_model(check_message),
    ),
)
