"""Life cycle of a client: a channel to one target, its credentials, and closing it."""

import asyncio
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from dragoman.client.calls import Calls
from dragoman.client.channel import Balancing, ChannelSettings, open_channel
from dragoman.client.credentials import Metadata, TlsOptions, api_key_metadata, check_secrecy, checked_metadata

DEFAULT_CHANNEL = ChannelSettings()


class Connection:
    """A channel and its calls. It has no printable fields because it holds the credential."""

    _is_async: ClassVar[bool]
    _balancing: ClassVar[Balancing] = Balancing.ROUND_ROBIN
    _default_timeout_s: ClassVar[float] = 30.0

    def __init__(
        self,
        target: str,
        *,
        timeout_s: float | None = None,
        api_key: str | None = None,
        tls: TlsOptions | None = None,
        metadata: Metadata = (),
        is_plaintext_trusted: bool = False,
        channel: ChannelSettings = DEFAULT_CHANNEL,
    ) -> None:
        """Prepare a connection. The first call connects.

        Args:
            target: `host:port` or another gRPC target, such as `dns:///dragoman.default.svc:50051`.
            timeout_s: default deadline of calls in seconds, finite and above 0; None: the default of the class, and
                none for documents and streams, whose time the server limits.
            api_key: API key of each call.
            tls: encrypts the connection; None: no encryption.
            metadata: metadata of each call.
            is_plaintext_trusted: allow credentials without `tls` to another machine, because something else encrypts
                the connection, such as the proxy of a service mesh.
            channel: how to connect.

        Raises:
            OSError: if a file of `tls` cannot be read.
            ValueError: if an argument is out of range, if a credential would be sent unencrypted, or if an
                asynchronous client is created outside an event loop.
        """
        sent = checked_metadata((*api_key_metadata(api_key), *metadata))
        if sum(name == "authorization" for name, _ in sent) > 1:
            raise ValueError("authorization is given twice: as api_key and in metadata, or twice in metadata")
        check = partial(check_secrecy, target, is_encrypted=tls is not None or is_plaintext_trusted)
        check(sent)
        self._is_closed = False
        self._loop = _running_loop(type(self).__name__) if self._is_async else None
        self._channel = self._open_channel(target, channel, tls)
        self._calls = Calls(
            self._channel,
            target=target,
            timeout_s=self._default_timeout_s if timeout_s is None else timeout_s,
            stream_timeout_s=timeout_s,
            metadata=sent,
            check_metadata=check,
            check_usable=self._check_usable,
        )

    def _open_channel(self, target: str, settings: ChannelSettings, tls: TlsOptions | None) -> Any:
        return open_channel(target, settings, is_async=self._is_async, tls=tls, balancing=self._balancing)

    def _check_usable(self) -> None:
        """Raise a ValueError if no call can start."""
        if self._is_closed:
            raise ValueError(f"this {type(self).__name__} is closed: create a new one")
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ValueError(f"this {type(self).__name__} belongs to another event loop: create one in each")


class SyncConnection(Connection):
    """A connection for threads."""

    _is_async = False

    def close(self) -> None:
        """Cancel running calls and disconnect. A closed client accepts no calls."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncConnection(Connection):
    """A connection for asyncio tasks. It belongs to the event loop in which it is created."""

    _is_async = True

    async def close(self) -> None:
        """Cancel running calls and disconnect. A closed client accepts no calls."""
        self._is_closed = True
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _running_loop(client: str) -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise ValueError(
            f"{client} is created outside an event loop: create it in a coroutine, such as that of asyncio.run"
        ) from None
