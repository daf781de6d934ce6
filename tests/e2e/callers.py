"""Threads that call the server through the Python client until they are stopped."""

import itertools
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Self

from dragoman.client import (
    ChannelSettings,
    DecodingOptions,
    DragomanError,
    Priority,
    RetrySettings,
    TlsOptions,
    TranslationClient,
)
from loadtests.generator.texts import sample
from tests.unit.proto.scripted_server import EN_DE, text_request

Action = Callable[[random.Random], object]

_JOIN_TIMEOUT_S: Final = 60.0
_DOCUMENT_SENTENCES: Final = 12
_NO_RETRIES: Final = ChannelSettings(retry=RetrySettings(max_attempts=1))
_NUM_OVERLOADING: Final = 12
_REPETITIVE: Final = "xkcd://42/aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"  # the bundled model repeats itself on this text


class Callers:
    """Threads that repeat an action; leaving the context waits for their last responses."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()  # calls by `KIND OUTCOME`, such as `document ok`
        self.failures: list[str] = []
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._clients = ExitStack()

    def connect(self, target: str, **options: Any) -> TranslationClient:
        """Return a client that is closed with the callers."""
        return self._clients.enter_context(TranslationClient(target, **options))

    def begin(self, name: str, action: Action, *, every_s: float = 0.0, until: threading.Event | None = None) -> None:
        """Start a caller; its kind is the part of its name before the first `-`."""
        generator, is_over = random.Random(name), until or self._is_over  # noqa: S311 - chooses texts

        def repeat() -> None:
            while not (is_over.wait(every_s) or self._is_over.is_set()):
                self._perform(name.partition("-")[0], action, generator)

        self._threads.append(threading.Thread(target=repeat, name=f"caller-{name}", daemon=True))
        self._threads[-1].start()

    def _perform(self, kind: str, action: Action, generator: random.Random) -> None:
        outcome = "ok"
        try:
            action(generator)
        except (DragomanError, AssertionError) as error:
            outcome = type(error).__name__
            self.failures.append(f"{kind} {outcome}: {error}")
        with self._lock:
            self.outcomes[f"{kind} {outcome}"] += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join(_JOIN_TIMEOUT_S)
        self._clients.close()


class SteadyCallers(Callers):
    """Callers that repeat valid requests without a pause, each on its own connection."""

    def __init__(self, target: str, api_key: str, *, num_texts: int) -> None:
        """Start `num_texts` callers of Translate."""
        super().__init__()
        self.recent_versions: deque[str] = deque(maxlen=5 * num_texts)  # of the model, in responses of Translate
        self._connect = partial(self.connect, target, api_key=api_key, timeout_s=30.0)
        self._begin("text", self._translate, num_texts)

    def begin_documents(self, num_callers: int) -> None:
        """Start callers of TranslateDocument."""
        self._begin("document", self._translate_document, num_callers)

    def _begin(self, kind: str, call: Callable[[TranslationClient, random.Random], None], num_callers: int) -> None:
        for number in range(len(self._threads), len(self._threads) + num_callers):
            # gRPC shares a connection between channels with equal settings, so each caller gets a different one.
            client = self._connect(channel=ChannelSettings(keepalive_time_s=60.0 + number))
            self.begin(f"{kind}-{number}", partial(call, client))

    def _translate(self, client: TranslationClient, generator: random.Random) -> None:
        texts = sample(generator, generator.randint(1, 3))
        result = client.translate(texts, **EN_DE)
        assert len(result) == len(texts)
        self.recent_versions.append(result.model_version)

    def _translate_document(self, client: TranslationClient, generator: random.Random) -> None:
        text = " ".join(sample(generator, _DOCUMENT_SENTENCES))
        indexes = [sentence.index for sentence in client.translate_document(text, **EN_DE)]
        assert indexes == list(range(_DOCUMENT_SENTENCES))


class MixedCallers(Callers):
    """Callers of every kind, with valid and invalid requests, and on demand an overload."""

    def __init__(self, target: str, tls_target: str, authority: bytes, *, api_key: str, limited_key: str) -> None:
        """Connect and start.

        Args:
            target: of most calls, plain text.
            tls_target: of a few calls.
            authority: certificate to trust at `tls_target`, PEM.
            api_key: of most calls.
            limited_key: of a caller with a low rate limit.
        """
        super().__init__()
        self._is_overload_over = threading.Event()
        self._client = self.connect(target, api_key=api_key)
        self._overloading = self.connect(target, api_key=api_key, channel=_NO_RETRIES)
        limited = self.connect(target, api_key=limited_key, channel=_NO_RETRIES)
        tls = self.connect(tls_target, api_key=api_key, tls=TlsOptions(ca=authority))
        unknown = self.connect(target, api_key="dgm_000000000000_nobody")
        invalid: Iterator[Callable[[], object]] = itertools.cycle(
            (
                lambda: self._client.translate(["Hello."], source_language="en", target_language="xx"),
                lambda: self._client.translate(["Hello."], options=DecodingOptions(beam_size=99), **EN_DE),
                lambda: unknown.translate(["Hello."], **EN_DE),
            )
        )
        for name, action, every_s in (
            ("steady", self._translate, 0.15),
            ("tls", lambda generator: tls.translate(sample(generator, 1), **EN_DE), 0.7),
            ("document", lambda generator: list(self._document(generator, 8)), 3.0),
            ("cancelled", self._cancel_document, 3.0),
            ("stream", self._stream, 3.0),
            ("invalid", lambda _: next(invalid)(), 0.5),
            ("limited", lambda generator: limited.translate(sample(generator, 1), **EN_DE), 0.4),
            ("deadline", self._set_short_deadline, 0.7),
            ("truncated", self._provoke_warnings, 1.0),
        ):
            self.begin(name, action, every_s=every_s)

    def begin_overload(self) -> None:
        """Send many more sentences than the server can translate, until `end_overload`."""
        for number in range(_NUM_OVERLOADING):
            self.begin(f"overload-{number}", self._overload, every_s=0.05, until=self._is_overload_over)

    def end_overload(self) -> None:
        """Stop the callers of `begin_overload`."""
        self._is_overload_over.set()

    def _overload(self, generator: random.Random) -> None:
        self._overloading.translate(sample(generator, 40), timeout_s=20.0, **EN_DE)

    def _translate(self, generator: random.Random) -> None:
        priority = generator.choice([Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BULK])
        self._client.translate(sample(generator, generator.randint(1, 3)), priority=priority, **EN_DE)

    def _document(self, generator: random.Random, num_sentences: int) -> Any:
        return self._client.translate_document(" ".join(sample(generator, num_sentences)), **EN_DE)

    def _cancel_document(self, generator: random.Random) -> None:
        sentences = self._document(generator, 40)
        next(sentences)
        sentences.close()

    def _stream(self, generator: random.Random) -> None:
        requests = [text_request("", text) for text in sample(generator, 3)]
        list(self._client.translate_stream(requests))

    def _set_short_deadline(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 12), timeout_s=generator.choice([0.03, 0.1]), **EN_DE)

    def _provoke_warnings(self, generator: random.Random) -> None:
        self._client.translate(sample(generator, 1), options=DecodingOptions(max_target_tokens=3), **EN_DE)
        self._client.translate([_REPETITIVE], **EN_DE)
