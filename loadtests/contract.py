"""The promises of the contract, looked at from outside: what is wrong with an answer to a request.

Pure functions from a request and its answer to sentences, one for each promise that it breaks; none: all is well.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

_WORD_CHARACTER: Final = re.compile(r"[^\W_]")
_MAX_PIECE_CHARACTERS: Final = 32
"""More than any piece of a vocabulary has; a translation is no longer than its tokens."""

_MAX_WARNING_CHARACTERS: Final = 1000
_ROUNDING: Final = 1e-4
_MADE_UP_NUL: Final = "the translation has a NUL that was not sent"
_SURE_WORD: Final = "man"
"""A text with this word has something to translate."""


def translate_faults(
    request: pb.TranslateRequest, response: pb.TranslateResponse, *, request_id: str = ""
) -> Iterator[str]:
    """Yield what is wrong with an answer that is no error.

    Args:
        request: that was sent.
        response: that came.
        request_id: of the call, if its metadata names one; else that of the request counts.
    """
    if len(response.translations) != len(request.texts):
        yield f"{len(request.texts)} texts have {len(response.translations)} translations"
        return
    if not (response.model_name and response.model_version and response.request_id):
        yield "the answer lacks the names of its model or request"
    expected_id = request_id or request.request_id
    if expected_id and response.request_id != expected_id:
        yield f"the answer has another request id: {response.request_id!r}"
    sentences = [sentence for translation in response.translations for sentence in translation.sentences]
    if response.num_source_tokens != sum(sentence.num_source_tokens for sentence in sentences):
        yield "the source tokens of the sentences do not add up"
    if response.num_target_tokens != sum(sentence.num_target_tokens for sentence in sentences):
        yield "the target tokens of the sentences do not add up"
    for index, (text, translation) in enumerate(zip(request.texts, response.translations, strict=True)):
        prefix = request.target_prefixes[index] if request.target_prefixes else request.options.target_prefix
        for fault in _translation_faults(text, translation, request.options, prefix):
            yield f"texts[{index}]: {fault}"


def document_faults(
    request: pb.TranslateDocumentRequest,
    messages: Sequence[pb.TranslatedSentence],
    *,
    is_complete: bool,
    request_id: str = "",
) -> Iterator[str]:
    """Yield what is wrong with the messages of a document: each must have come once, in order, and belong to it.

    Args:
        request: that was sent.
        messages: that came, in this order.
        is_complete: whether the call ended with OK, so that all of the document must be there; else its beginning.
        request_id: of the call, if its metadata names one.
    """
    if not messages:
        if is_complete:
            yield "no message came"
        return
    if foreign := {message.request_id for message in messages} - {request_id or messages[0].request_id}:
        yield f"messages have another request id: {', '.join(sorted(foreign))}"
    if [message.index for message in messages] != list(range(len(messages))):
        yield f"the messages do not come in order: {[message.index for message in messages]}"
    target = "".join(message.text for message in messages)
    sentences = [message.sentence for message in messages if message.HasField("sentence")]
    yield from _copy_faults(request.text, target, sentences, is_complete=is_complete)
    yield from _untranslated_faults(request.text if is_complete else "", target, sentences)
    if "\0" in target and "\0" not in request.text + request.options.target_prefix:
        yield _MADE_UP_NUL
    if len({(message.model_name, message.model_version, message.request_id) for message in messages}) != 1:
        yield "the names of model and request change between messages"
    for message in messages:
        yield from _message_faults(request, message, target)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswers:
    """What came back over a stream."""

    statuses: Mapping[str, str]
    """Of each request that was answered, by its id."""

    twice: Sequence[str]
    """A sentence for each request that was answered more than once."""

    faults: Sequence[str]
    """A sentence for each answer that is foreign or breaks a promise."""


def stream_answers(requests: Sequence[pb.TranslateRequest], responses: Sequence[pb.TranslateResponse]) -> StreamAnswers:
    """Pair the answers of a stream with its requests, which all have ids."""
    sent = {request.request_id: request for request in requests}
    num_answers = Counter(response.request_id for response in responses)
    faults = [f"{name!r} was answered over a stream that never asked it" for name in num_answers.keys() - sent.keys()]
    statuses = {}
    for response in responses:
        request = sent.get(response.request_id)
        if request is None:
            continue
        statuses[response.request_id] = _status_name(response)
        if not response.HasField("error"):
            faults += [f"{request.request_id}: {fault}" for fault in translate_faults(request, response)]
    twice = [f"{name} was answered {count} times" for name, count in num_answers.items() if count > 1]
    return StreamAnswers(statuses=statuses, twice=twice, faults=faults)


def meaning(raw_response: bytes) -> bytes:
    """Return what must be the same whenever Translate is asked the same: the answer without version, id and times."""
    response = pb.TranslateResponse.FromString(raw_response)
    for name in ("model_version", "timings", "request_id"):
        response.ClearField(name)
    return response.SerializeToString(deterministic=True)


def _status_name(response: pb.TranslateResponse) -> str:
    if not response.HasField("error"):
        return "OK"
    number = response.error.code
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), f"status {number}")


def _message_faults(
    request: pb.TranslateDocumentRequest, message: pb.TranslatedSentence, document_target: str
) -> Iterator[str]:
    if not message.HasField("sentence"):
        if message.hypotheses or message.warnings:
            yield "a message without a sentence has hypotheses or warnings"
        return
    target = _piece(document_target, message.sentence.target)
    yield from _sentence_faults(
        _piece(request.text, message.sentence.source), target, message.sentence, request.options
    )
    yield from _hypotheses_faults(len(request.text), message.hypotheses, request.options)
    yield from _warning_faults(message.warnings, [message.sentence], has_index=False)
    if message.hypotheses and message.hypotheses[0].text != target:
        yield f"sentence {message.index} is not where its span of the target says"


def _translation_faults(
    text: str, translation: pb.Translation, options: pb.DecodingOptions, prefix: str
) -> Iterator[str]:
    if not translation.hypotheses:
        yield "no hypothesis"
        return
    target = translation.hypotheses[0].text
    yield from _copy_faults(text, target, translation.sentences, is_complete=True)
    yield from _untranslated_faults(text, target, translation.sentences)
    yield from _hypotheses_faults(len(text), translation.hypotheses, options)
    yield from _warning_faults(translation.warnings, translation.sentences, has_index=True)
    if "\0" in target and "\0" not in text + prefix:
        yield _MADE_UP_NUL
    for sentence in translation.sentences:
        source = _piece(text, sentence.source)
        yield from _sentence_faults(source, _piece(target, sentence.target), sentence, options)


def _copy_faults(source: str, target: str, sentences: Sequence[pb.Sentence], *, is_complete: bool) -> Iterator[str]:
    """Look at the spans, and at the text between them: it is copied, character by character."""
    at_source = at_target = 0
    for sentence in sentences:
        if not (at_source <= sentence.source.start < sentence.source.end <= len(source)):
            yield f"a span of the source is out of order or range: {_shown(sentence.source)} of {len(source)}"
            return
        if not (at_target <= sentence.target.start <= sentence.target.end <= len(target)):
            yield f"a span of the target is out of order or range: {_shown(sentence.target)} of {len(target)}"
            return
        if source[at_source : sentence.source.start] != target[at_target : sentence.target.start]:
            yield f"the text before the sentence at {sentence.source.start} is not copied"
        at_source, at_target = sentence.source.end, sentence.target.end
    if is_complete and source[at_source:] != target[at_target:]:
        yield "the text behind the last sentence is not copied"


def _untranslated_faults(source: str, target: str, sentences: Sequence[pb.Sentence]) -> Iterator[str]:
    if sentences:
        return
    if source and source != target:
        yield "a text without a sentence is not copied"
    if _SURE_WORD in source:
        yield "a text with a word in it was not translated"


def _sentence_faults(source: str, target: str, sentence: pb.Sentence, options: pb.DecodingOptions) -> Iterator[str]:
    if not _WORD_CHARACTER.search(source):
        yield "a sentence without a letter or digit was translated"
    if sentence.num_source_tokens < 1 or sentence.num_target_tokens < 1:
        yield "a sentence has no tokens"
    copied = len(source) if sentence.is_split else 0  # at most: the text between its parts
    if len(target) - copied > _MAX_PIECE_CHARACTERS * sentence.num_target_tokens:
        yield f"{sentence.num_target_tokens} target tokens came to {len(target)} characters"
    limit = options.max_target_tokens if options.HasField("max_target_tokens") else math.inf
    if sentence.num_target_tokens > limit and not sentence.is_split:
        yield f"{sentence.num_target_tokens} target tokens, over the limit of {limit}"


def _hypotheses_faults(
    num_source_characters: int, hypotheses: Sequence[pb.Hypothesis], options: pb.DecodingOptions
) -> Iterator[str]:
    if not 1 <= len(hypotheses) <= max(1, options.num_hypotheses):
        yield f"{len(hypotheses)} hypotheses, {options.num_hypotheses} were asked for"
    for hypothesis in hypotheses:
        if not (math.isfinite(hypothesis.score) and hypothesis.score <= _ROUNDING):
            yield f"the score is {hypothesis.score}"
        if not all(math.isfinite(value) and value <= _ROUNDING for value in hypothesis.token_log_probs):
            yield "a log-probability is no number of 0 or less"
        if (
            hypothesis.tokens
            and hypothesis.token_log_probs
            and len(hypothesis.tokens) != len(hypothesis.token_log_probs)
        ):
            yield "tokens and log-probabilities differ in number"
        yield from _attention_faults(hypothesis)
        yield from _link_faults(num_source_characters, hypothesis)


def _link_faults(num_source_characters: int, hypothesis: pb.Hypothesis) -> Iterator[str]:
    links = hypothesis.alignment
    for link in links:
        is_inside = (
            0 <= link.source.start <= link.source.end <= num_source_characters
            and 0 <= link.target.start < link.target.end <= len(hypothesis.text)
        )
        if not is_inside:
            yield f"a link is out of range: {_shown(link.source)} to {_shown(link.target)}"
        if not 0 <= link.weight <= 1:
            yield f"the weight of a link is {link.weight}"
    if any(before.target.end > after.target.start for before, after in pairwise(links)):
        yield "the links are not in order"


def _attention_faults(hypothesis: pb.Hypothesis) -> Iterator[str]:
    for attention in hypothesis.attention:
        if len(attention.weights) != attention.num_heads * len(attention.target_pieces) * len(attention.source_pieces):
            yield "the attention has not one number for each head, target and source piece"
        if not all(0 <= weight <= 1 + _ROUNDING for weight in attention.weights):
            yield "a share of the attention is none"


def _warning_faults(
    warnings: Sequence[pb.TranslationWarning], sentences: Sequence[pb.Sentence], *, has_index: bool
) -> Iterator[str]:
    for warning in warnings:
        if warning.kind == pb.WARNING_KIND_UNSPECIFIED or warning.kind not in pb.WarningKind.values():
            yield f"a warning of kind {warning.kind}"
        if not 0 < len(warning.message) <= _MAX_WARNING_CHARACTERS:
            yield f"a warning of {len(warning.message)} characters"
        if warning.HasField("sentence_index") and not (has_index and 0 <= warning.sentence_index < len(sentences)):
            yield f"a warning about sentence {warning.sentence_index} of {len(sentences)}"
    for name, kind in (("is_truncated", pb.WARNING_KIND_TRUNCATED), ("is_split", pb.WARNING_KIND_SOURCE_SPLIT)):
        said = {warning.sentence_index if has_index else 0 for warning in warnings if warning.kind == kind}
        if said != {index for index, sentence in enumerate(sentences) if getattr(sentence, name)}:
            yield f"sentences that are {name.removeprefix('is_')} and warnings of it differ"


def _piece(text: str, span: pb.Span) -> str:
    return text[max(0, span.start) : max(0, span.end)]


def _shown(span: pb.Span) -> str:
    return f"{span.start}..{span.end}"
