"""Whether an answer is whole and belongs to its request: a sentence for each fault. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
from dragoman.v1 import translation_pb2 as pb

_DEFAULT_NUM_HYPOTHESES = 1


def unary_faults(request: pb.TranslateRequest, response: pb.TranslateResponse, *, request_id: str) -> list[str]:
    """Return what is wrong with the answer to a request that is well-formed."""
    if response.request_id != request_id:
        return [f"{request_id} got the answer to {response.request_id!r}"]
    if len(response.translations) != len(request.texts):
        return [f"{request_id} asked for {len(request.texts)} translations and got {len(response.translations)}"]
    at_most = request.options.num_hypotheses or _DEFAULT_NUM_HYPOTHESES
    faults = []
    for index, (text, translation) in enumerate(zip(request.texts, response.translations, strict=True)):
        if not 1 <= len(translation.hypotheses) <= at_most:
            faults.append(
                f"{request_id} got {len(translation.hypotheses)} hypotheses of text {index}, not 1 to {at_most}"
            )
        elif not text.strip() and translation.hypotheses[0].text != text:
            faults.append(f"{request_id} sent nothing to translate as text {index} and did not get it back")
    return faults


def document_faults(
    request: pb.TranslateDocumentRequest, messages: Sequence[pb.TranslatedSentence], *, request_id: str, is_whole: bool
) -> list[str]:
    """Return what is wrong with the sentences of a document: each must have come once, in order, and be nobody else's.

    Args:
        request: that was answered.
        messages: that came, in this order.
        request_id: of the call.
        is_whole: whether the call ended with OK, so that all of the document must be there.
    """
    if foreign := {message.request_id for message in messages} - {request_id}:
        return [f"{request_id} got sentences of {', '.join(sorted(foreign))}"]
    if [message.index for message in messages] != list(range(len(messages))):
        return [f"{request_id} got its sentences as {[message.index for message in messages]}"]
    if len({(message.model_name, message.model_version) for message in messages}) > 1:
        return [f"{request_id} was answered by more than one version"]
    sentences = [message.sentence for message in messages if message.HasField("sentence")]
    faults = []
    if lost := _not_covered(request.text, [sentence.source for sentence in sentences], is_whole=is_whole):
        faults.append(f"{request_id}: {lost}")
    translated = "".join(message.text for message in messages)
    for message in messages:
        span = message.sentence.target
        if message.HasField("sentence") and translated[span.start : span.end] != message.hypotheses[0].text:
            faults.append(f"{request_id}: sentence {message.index} is not where it says in the translation")
    if is_whole and not messages:
        faults.append(f"{request_id} got no sentence at all")
    return faults


def _not_covered(text: str, spans: Iterable[pb.Span], *, is_whole: bool) -> str:
    """Return what of a text is in no span, or in two; white space need not be in any."""
    end = 0
    for span in spans:
        if span.start < end:
            return f"characters {span.start} to {end} were translated twice"
        if text[end : span.start].strip():
            return f"characters {end} to {span.start} were left out"
        end = span.end
    if is_whole and text[end:].strip():
        return f"characters {end} to {len(text)} were left out"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAnswers:
    """What came back over a stream."""

    statuses: Mapping[str, str]
    """Of each request that was answered, by its id."""

    twice: Sequence[str] = field(default=())
    """A sentence for each request that was answered more than once."""

    faults: Sequence[str] = field(default=())
    """A sentence for each answer that is foreign or not whole."""


def stream_answers(requests: Sequence[pb.TranslateRequest], responses: Sequence[pb.TranslateResponse]) -> StreamAnswers:
    """Pair the answers of a stream with its requests."""
    sent = {request.request_id: request for request in requests}
    num_answers = Counter(response.request_id for response in responses)
    faults = [f"{name!r} was answered over a stream that never asked it" for name in num_answers.keys() - sent.keys()]
    statuses = {}
    for response in responses:
        request = sent.get(response.request_id)
        if request is None:
            continue
        statuses[response.request_id] = _status(response)
        if not response.HasField("error"):
            faults += unary_faults(request, response, request_id=response.request_id)
    twice = [f"{name} was answered {count} times" for name, count in num_answers.items() if count > 1]
    return StreamAnswers(statuses=statuses, twice=twice, faults=faults)


def meaning(raw: bytes) -> bytes:
    """Return what must be the same whenever a probe is answered: the answer without version, id and times."""
    response = pb.TranslateResponse.FromString(raw)
    for name in ("model_version", "timings", "request_id"):
        response.ClearField(name)
    return response.SerializeToString(deterministic=True)


def _status(response: pb.TranslateResponse) -> str:
    if not response.HasField("error"):
        return "OK"
    number = response.error.code
    return next((code.name for code in grpc.StatusCode if code.value[0] == number), f"status {number}")
