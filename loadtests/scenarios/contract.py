"""Checks of responses against the contract: pure functions from a request and its response to a list of faults."""

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
_MAX_PIECE_CHARACTERS: Final = 32  # upper bound for a piece of a vocabulary
_MAX_WARNING_CHARACTERS: Final = 1000
_ROUNDING: Final = 1e-4
_SURE_WORD: Final = re.compile(r"(?:^|\s)man(?:[\s.,!?]|$)")  # a text with this word must be translated
# Protected text contains one of these and is copied.
_MAY_BE_PROTECTED: Final = re.compile(r"[^\x00-\x7f]|[<>\[\]{}%$`@/\\|#&*_~^=+\d]|www\.|mailto:|\w\.\w")


def translate_faults(
    request: pb.TranslateRequest, response: pb.TranslateResponse, *, request_id: str = ""
) -> Iterator[str]:
    """Yield the faults of a successful response.

    `request_id` is the id in the metadata of the call; without it, the id of the request counts.
    """
    if len(response.translations) != len(request.texts):
        yield f"{len(request.texts)} texts have {len(response.translations)} translations"
        return
    if not (response.model_name and response.model_version and response.request_id):
        yield "the response lacks model name, version or request id"
    elif response.request_id != (request_id or request.request_id or response.request_id):
        yield f"the response has another request id: {response.request_id!r}"
    sentences = [sentence for translation in response.translations for sentence in translation.sentences]
    for side in ("source", "target"):
        name = f"num_{side}_tokens"
        if getattr(response, name) != sum(getattr(sentence, name) for sentence in sentences):
            yield f"the {side} tokens of the sentences do not add up"
    for index, (text, translation) in enumerate(zip(request.texts, response.translations, strict=True)):
        prefix = request.target_prefixes[index] if request.target_prefixes else request.options.target_prefix
        faults = ["no hypothesis"]
        if translation.hypotheses:
            faults = [
                *_text_faults(text, translation.hypotheses[0].text, translation.sentences, request.options, prefix),
                *_decoding_faults(text, translation, translation.sentences, request.options, has_index=True),
            ]
        yield from (f"texts[{index}]: {fault}" for fault in faults)


def document_faults(
    request: pb.TranslateDocumentRequest,
    messages: Sequence[pb.TranslatedSentence],
    *,
    is_complete: bool,
    request_id: str = "",
) -> Iterator[str]:
    """Yield the faults of the response stream of a document.

    Args:
        request: the document.
        messages: received so far.
        is_complete: whether the call ended with OK, so that the whole document must have been received.
        request_id: in the metadata of the call, if any.
    """
    if not messages:
        yield from ["no message was received"] if is_complete else []
        return
    indices, ids = [message.index for message in messages], {message.request_id for message in messages}
    if foreign := ids - {request_id or messages[0].request_id}:
        yield f"messages have another request id: {', '.join(sorted(foreign))}"
    if indices != list(range(len(messages))):
        yield f"the messages are out of order: {indices}"
    if len({(message.model_name, message.model_version, message.request_id) for message in messages}) != 1:
        yield "model or request id changes between messages"
    target = "".join(message.text for message in messages)
    sentences = [message.sentence for message in messages if message.HasField("sentence")]
    prefix = request.options.target_prefix
    yield from _text_faults(request.text, target, sentences, request.options, prefix, is_complete=is_complete)
    for message in messages:
        if message.HasField("sentence"):
            yield from _decoding_faults(request.text, message, [message.sentence], request.options, has_index=False)
            span = message.sentence.target
            if message.hypotheses and message.hypotheses[0].text != target[span.start : span.end]:
                yield f"sentence {message.index} differs from its span of the target"
        elif message.hypotheses or any(each.kind != pb.WARNING_KIND_UNTRANSLATED for each in message.warnings):
            yield "a message without a sentence has hypotheses, or warnings about more than unknown letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswers:
    """The responses of a stream."""

    statuses: Mapping[str, str]  # of each answered request, by its id
    duplicates: Sequence[str]  # a sentence for each request that was answered more than once
    faults: Sequence[str]  # of unexpected or faulty responses


def stream_answers(requests: Sequence[pb.TranslateRequest], responses: Sequence[pb.TranslateResponse]) -> StreamAnswers:
    """Pair the responses of a stream with its requests, which all have ids."""
    names = {code.value[0]: code.name for code in grpc.StatusCode}
    sent = {request.request_id: request for request in requests}
    num_answers = Counter(response.request_id for response in responses)
    faults = [f"{name!r} was answered, but not requested" for name in num_answers.keys() - sent.keys()]
    own = [response for response in responses if response.request_id in sent]
    for response in own:
        if not response.HasField("error"):
            name = response.request_id
            faults += [f"{name}: {fault}" for fault in translate_faults(sent[name], response)]
    return StreamAnswers(
        statuses={one.request_id: names.get(one.error.code, f"status {one.error.code}") for one in own},
        duplicates=[f"{name} was answered {count} times" for name, count in num_answers.items() if count > 1],
        faults=faults,
    )


def normalized_response(raw_response: bytes) -> bytes:
    """Return the part of a Translate response that is deterministic: without version, request id and timings."""
    response = pb.TranslateResponse.FromString(raw_response)
    for name in ("model_version", "timings", "request_id"):
        response.ClearField(name)
    return response.SerializeToString(deterministic=True)


def _text_faults(
    source: str,
    target: str,
    sentences: Sequence[pb.Sentence],
    options: pb.DecodingOptions,
    prefix: str,
    *,
    is_complete: bool = True,
) -> Iterator[str]:
    """Check sentences, their spans, and the text between them, which must be copied."""
    is_sampled = options.HasField("sampling")  # from all tokens, including byte 0
    if "\0" in target and "\0" not in source + prefix and not is_sampled:
        yield "the translation contains a NUL that was not sent"
    if not sentences and is_complete and not _is_copied(source, target):
        yield "a text without a sentence is not copied"
    if not sentences and is_complete and _SURE_WORD.search(source) and not _MAY_BE_PROTECTED.search(source):
        yield "a text with a word was not translated"
    at_source = at_target = 0
    for sentence in sentences:
        if not at_source <= sentence.source.start < sentence.source.end <= len(source):
            yield f"a source span is out of order or range: {_shown(sentence.source)} of {len(source)}"
            return
        if not at_target <= sentence.target.start <= sentence.target.end <= len(target):
            yield f"a target span is out of order or range: {_shown(sentence.target)} of {len(target)}"
            return
        if not _is_copied(source[at_source : sentence.source.start], target[at_target : sentence.target.start]):
            yield f"the text before the sentence at {sentence.source.start} is not copied"
        at_source, at_target = sentence.source.end, sentence.target.end
        pieces = source[sentence.source.start : at_source], target[sentence.target.start : at_target]
        yield from _sentence_faults(*pieces, sentence, options)
    if sentences and is_complete and not _is_copied(source[at_source:], target[at_target:]):
        yield "the text after the last sentence is not copied"


def _is_copied(source: str, target: str) -> bool:
    # Numbers and abbreviations outside of sentences have fixed translations.
    return source == target or (_MAY_BE_PROTECTED.search(source) and _WORD_CHARACTER.search(source)) is not None


def _sentence_faults(source: str, target: str, sentence: pb.Sentence, options: pb.DecodingOptions) -> Iterator[str]:
    num_tokens = sentence.num_target_tokens
    if not _WORD_CHARACTER.search(source):
        yield "a sentence without a letter or digit was translated"
    if sentence.num_source_tokens < 1 or num_tokens < 1:
        yield "a sentence has no tokens"
    # Text between the parts of a sentence and protected text is copied.
    copied = len(source) if sentence.is_split or _MAY_BE_PROTECTED.search(source) else 0
    if len(target) - copied > _MAX_PIECE_CHARACTERS * num_tokens:
        yield f"{num_tokens} target tokens correspond to {len(target)} characters"
    limit = options.max_target_tokens if options.HasField("max_target_tokens") else math.inf
    if num_tokens > limit and not sentence.is_split:
        yield f"{num_tokens} target tokens exceed the limit of {limit}"


def _decoding_faults(
    source: str,
    answer: pb.Translation | pb.TranslatedSentence,
    sentences: Sequence[pb.Sentence],
    options: pb.DecodingOptions,
    *,
    has_index: bool,
) -> Iterator[str]:
    """Check hypotheses and warnings; `has_index`: whether warnings refer to sentences by index."""
    if not 1 <= len(answer.hypotheses) <= max(1, options.num_hypotheses):
        yield f"{len(answer.hypotheses)} hypotheses instead of {options.num_hypotheses}"
    for hypothesis in answer.hypotheses:
        yield from _hypothesis_faults(source, hypothesis)
    num_sentences = len(sentences) if has_index else 0
    for warning in answer.warnings:
        if warning.kind not in set(pb.WarningKind.values()) - {0}:
            yield f"unknown warning kind {warning.kind}"
        if not 0 < len(warning.message) <= _MAX_WARNING_CHARACTERS:
            yield "a warning message is empty or too long"
        if warning.HasField("sentence_index") and not 0 <= warning.sentence_index < num_sentences:
            yield f"a warning refers to sentence {warning.sentence_index} of {num_sentences}"
    for name, kind in (("truncated", pb.WARNING_KIND_TRUNCATED), ("split", pb.WARNING_KIND_SOURCE_SPLIT)):
        warned = {warning.sentence_index if has_index else 0 for warning in answer.warnings if warning.kind == kind}
        if warned != {index for index, sentence in enumerate(sentences) if getattr(sentence, f"is_{name}")}:
            yield f"sentences with is_{name} and warnings differ"


def _hypothesis_faults(source: str, hypothesis: pb.Hypothesis) -> Iterator[str]:
    tokens, log_probs = hypothesis.tokens, hypothesis.token_log_probs
    if not _is_log_prob(hypothesis.score):
        yield f"the score is {hypothesis.score}"
    if not all(map(_is_log_prob, log_probs)):
        yield "a log-probability is not a finite number of at most 0"
    if tokens and len(log_probs) not in {0, len(tokens)}:
        yield "tokens and log-probabilities differ in number"
    for one in hypothesis.attention:
        if len(one.weights) != one.num_heads * len(one.target_pieces) * len(one.source_pieces):
            yield "the attention does not have one weight for each head, target and source piece"
        if not all(0 <= weight <= 1 + _ROUNDING for weight in one.weights):
            yield "an attention weight is out of range"
    yield from _link_faults(source, hypothesis.text, hypothesis.alignment)


def _link_faults(source: str, target: str, links: Sequence[pb.AlignmentLink]) -> Iterator[str]:
    for link in links:
        has_source = 0 <= link.source.start <= link.source.end <= len(source)
        if not (has_source and 0 <= link.target.start < link.target.end <= len(target)):
            yield f"an alignment link is out of range: {_shown(link.source)} to {_shown(link.target)}"
        if not 0 <= link.weight <= 1:
            yield f"an alignment link has the weight {link.weight}"
    if any(before.target.end > after.target.start for before, after in pairwise(links)):
        yield "the alignment links are out of order"


def _is_log_prob(value: float) -> bool:
    return math.isfinite(value) and value <= _ROUNDING


def _shown(span: pb.Span) -> str:
    return f"{span.start}..{span.end}"
