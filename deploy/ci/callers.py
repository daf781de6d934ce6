"""Callers of the shipped client who never stop: each waits for its answer and asks again at once."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from dragoman.channel import ChannelSettings
from dragoman.client import AsyncTranslationClient
from dragoman.errors import DragomanError

from loadtests.texts import sample

LANGUAGES: Final = {"source_language": "en", "target_language": "de"}

_TIMEOUT_S: Final = 30.0
_DOCUMENT_SENTENCES: Final = 12
_KEEPALIVE_S: Final = 60.0


@dataclass(slots=True)
class Tally:
    """What became of the calls."""

    durations_s: list[float] = field(default_factory=list)
    """Of calls of Translate that were answered, retries included."""

    documents: int = 0
    """Calls of TranslateDocument that were answered to the last sentence."""

    failures: list[str] = field(default_factory=list)
    """Errors that came through to a caller."""

    versions: Counter[str] = field(default_factory=Counter)
    """Of the model, by calls of Translate."""

    def p99_ms(self) -> float:
        """Return the 99th percentile of the durations."""
        ordered = sorted(self.durations_s)
        return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)] * 1000 if ordered else 0.0


class Callers:
    """Calls from within `async with`; leaving it waits for the last answers."""

    def __init__(self, target: str, api_key: str, *, num_texts: int, num_documents: int) -> None:
        """Prepare `num_texts` callers of Translate and `num_documents` of TranslateDocument."""
        self._target = target
        self._api_key = api_key
        self._num_texts = num_texts
        self._num_documents = num_documents
        self._is_stopping = False
        self._takes_documents = asyncio.Event()
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self.tally = Tally()

    def begin_documents(self) -> None:
        """Let those of TranslateDocument begin."""
        self._takes_documents.set()

    async def forget_versions(self) -> None:
        """Count versions anew, once every call that is under way now has been answered."""
        under_way = len(self.tally.durations_s) + 2 * self._num_texts
        while len(self.tally.durations_s) < under_way and not self.tally.failures:
            await asyncio.sleep(0.01)
        self.tally.versions.clear()

    async def __aenter__(self) -> Self:
        for number in range(self._num_texts + self._num_documents):
            client = await self._stack.enter_async_context(self._client(number))
            make = self._text if number < self._num_texts else self._document
            self._tasks.append(asyncio.create_task(self._until_stopped(make, client, random.Random(number))))  # noqa: S311
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._is_stopping = True
        self._takes_documents.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            await self._stack.aclose()

    def _client(self, number: int) -> AsyncTranslationClient:
        """One with a connection of its own: gRPC shares one among channels whose settings are alike."""
        settings = ChannelSettings(keepalive_time_s=_KEEPALIVE_S + number)
        return AsyncTranslationClient(self._target, api_key=self._api_key, timeout_s=_TIMEOUT_S, channel=settings)

    async def _until_stopped(
        self,
        make: Callable[[AsyncTranslationClient, random.Random], Awaitable[None]],
        client: AsyncTranslationClient,
        generator: random.Random,
    ) -> None:
        while not self._is_stopping:
            try:
                await make(client, generator)
            except DragomanError as error:
                self.tally.failures.append(f"{type(error).__name__}: {error}")

    async def _text(self, client: AsyncTranslationClient, generator: random.Random) -> None:
        texts = sample(generator, generator.randint(1, 3))
        began_s = time.perf_counter()
        result = await client.translate(texts, source_language="en", target_language="de")
        self.tally.durations_s.append(time.perf_counter() - began_s)
        self.tally.versions[result.model_version] += 1
        if len(result) != len(texts):
            self.tally.failures.append(f"{len(result)} translations of {len(texts)} texts")

    async def _document(self, client: AsyncTranslationClient, generator: random.Random) -> None:
        await self._takes_documents.wait()
        if self._is_stopping:
            return
        text = " ".join(sample(generator, _DOCUMENT_SENTENCES))
        document = client.translate_document(text, source_language="en", target_language="de")
        indexes = [sentence.index async for sentence in document]
        if indexes == list(range(_DOCUMENT_SENTENCES)):
            self.tally.documents += 1
        else:
            self.tally.failures.append(f"a document of {_DOCUMENT_SENTENCES} sentences arrived as {indexes}")
