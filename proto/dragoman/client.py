"""The clients, sync and async. One per process and target is enough: threads and tasks share it.

with TranslationClient("localhost:50051") as client:
    for translation in client.translate(["Hello, world."], source_language="en", target_language="de"):
        print(translation.text, translation.score)
"""

from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Sequence
from typing import Unpack

from dragoman.answers import answer, answers, awaited_answer, awaited_answers
from dragoman.calls import CallSettings
from dragoman.connection import AsyncConnection, SyncConnection
from dragoman.credentials import Metadata
from dragoman.feed import AsyncRequestFeed, RequestFeed
from dragoman.models import Glossary, Model
from dragoman.requests import RequestSettings, TranslationRequest
from dragoman.results import DetectedLanguage, StreamAnswer, TranslatedSentence, TranslationResult


class TranslationClient(SyncConnection):
    """Calls a server and waits for it.

    Every method takes `timeout_s`, the deadline of the call in seconds, retries included (None: that of the client,
    30 s if it has none), and `metadata` to send beside those of the client, such as a `traceparent`; where
    OpenTelemetry is installed, the trace that runs goes along without. Every method raises a
    `dragoman.errors.DragomanError` if the call does not end with OK.
    """

    def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        pivot_languages: Sequence[str] = (),
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> TranslationResult:
        """Translate 1 to 128 texts; all of them are translated or the call fails.

        Args:
            texts: each up to a limit of the server, by default 10,000 characters; longer ones: `translate_document`.
            target_prefixes: what each translation starts with; empty, or one for each text.
            pivot_languages: what may be translated through, in this order, if no model translates directly.
            timeout_s: see the class.
            metadata: see the class.
            **settings: see `RequestSettings`; `target_language` is required.

        Raises:
            DragomanError: if the call does not end with OK.
            TypeError: if `texts` is one string or holds something else, or a setting has the wrong type.
            ValueError: if `timeout_s` is out of range, a setting is unknown or does not fit its wire type, or the
                client is closed.
        """
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return answer(self._calls.translate(texts, target_prefixes, pivot_languages, settings, how))

    def translate_document(
        self,
        text: str,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> Generator[TranslatedSentence, None, None]:
        """Translate one long text and yield its sentences in order, each as soon as it is finished.

        The joined `text` of all of them is the translation. The call starts with the first sentence asked for;
        closing the generator cancels it. A sentence that has arrived stays valid if a later one fails.
        """
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return answers(self._calls.translate_document(text, settings, how))

    def translate_stream(
        self, requests: Iterable[TranslationRequest], *, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> Generator[StreamAnswer, None, None]:
        """Translate requests as they come and yield each answer as soon as it is finished, in any order.

        A request that the server refuses is answered alone: `StreamAnswer.outcome` is then an error. If `requests`
        raises, or yields what cannot be sent, nothing more is sent; the error is raised after the answers to what was.
        `requests` is consumed by a thread of gRPC; the deadline is that of the whole stream. The call starts with the
        first answer asked for; closing the generator cancels it.
        """
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return answers(self._calls.translate_stream(RequestFeed(requests), how))

    def detect_languages(
        self,
        texts: Sequence[str],
        *,
        target_language: str = "",
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> tuple[tuple[DetectedLanguage, ...], ...]:
        """Return the languages that each of 1 to 128 texts may be in, the likeliest first; none without letters.

        With `target_language`, languages that are translated into it count as served.
        """
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return answer(self._calls.detect_languages(texts, target_language, how))

    def list_models(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> tuple[Model, ...]:
        """Return every model the server knows, sorted by name."""
        return answer(self._calls.list_models(CallSettings(timeout_s=timeout_s, metadata=metadata)))

    def list_glossaries(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> tuple[Glossary, ...]:
        """Return the glossaries that `DecodingOptions.glossary` may name, sorted by name."""
        return answer(self._calls.list_glossaries(CallSettings(timeout_s=timeout_s, metadata=metadata)))

    def get_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Model:
        """Return one model by `name`, or with one version only by `name/version` or `name@label`."""
        return answer(self._calls.get_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))


class AsyncTranslationClient(AsyncConnection):
    """Calls a server from asyncio; see `TranslationClient`. It belongs to the event loop in which it is made.

    A call ends when the task that waits for it is cancelled, as `asyncio.timeout` does. Generators that are left
    before their end are closed with `aclose()`, or by `contextlib.aclosing`; else their calls go on until the
    deadline or until Python comes round to them.
    """

    async def translate(
        self,
        texts: Sequence[str],
        *,
        target_prefixes: Sequence[str] = (),
        pivot_languages: Sequence[str] = (),
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> TranslationResult:
        """See `TranslationClient.translate`."""
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return await awaited_answer(self._calls.translate(texts, target_prefixes, pivot_languages, settings, how))

    def translate_document(
        self,
        text: str,
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
        **settings: Unpack[RequestSettings],
    ) -> AsyncGenerator[TranslatedSentence, None]:
        """See `TranslationClient.translate_document`."""
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return awaited_answers(self._calls.translate_document(text, settings, how))

    def translate_stream(
        self,
        requests: Iterable[TranslationRequest] | AsyncIterable[TranslationRequest],
        *,
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[StreamAnswer, None]:
        """See `TranslationClient.translate_stream`; `requests` is consumed by a task."""
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return awaited_answers(self._calls.translate_stream(AsyncRequestFeed(requests), how))

    async def detect_languages(
        self,
        texts: Sequence[str],
        *,
        target_language: str = "",
        timeout_s: float | None = None,
        metadata: Metadata = (),
    ) -> tuple[tuple[DetectedLanguage, ...], ...]:
        """See `TranslationClient.detect_languages`."""
        how = CallSettings(timeout_s=timeout_s, metadata=metadata)
        return await awaited_answer(self._calls.detect_languages(texts, target_language, how))

    async def list_models(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> tuple[Model, ...]:
        """See `TranslationClient.list_models`."""
        return await awaited_answer(self._calls.list_models(CallSettings(timeout_s=timeout_s, metadata=metadata)))

    async def list_glossaries(self, *, timeout_s: float | None = None, metadata: Metadata = ()) -> tuple[Glossary, ...]:
        """See `TranslationClient.list_glossaries`."""
        return await awaited_answer(self._calls.list_glossaries(CallSettings(timeout_s=timeout_s, metadata=metadata)))

    async def get_model(self, model: str, *, timeout_s: float | None = None, metadata: Metadata = ()) -> Model:
        """See `TranslationClient.get_model`."""
        return await awaited_answer(self._calls.get_model(model, CallSettings(timeout_s=timeout_s, metadata=metadata)))
