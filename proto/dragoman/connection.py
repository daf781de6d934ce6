"""What the clients share: a channel to one target, the credentials for it, and the end of both."""

import asyncio
from functools import partial
from types import TracebackType
from typing import ClassVar, Self

from dragoman.calls import Calls
from dragoman.channel import Balancing, ChannelSettings, open_channel
from dragoman.credentials import Metadata, TlsOptions, api_key_metadata, check_secrecy, checked_metadata
from dragoman.reachability import Reachability

DEFAULT_CHANNEL = ChannelSettings()
"""Retries, and fails if no server can be reached."""


class Connection:
    """A channel and the calls over it. Nothing of it is printed, since it holds the credential."""

    _is_async: ClassVar[bool]
    _balancing: ClassVar[Balancing] = Balancing.ROUND_ROBIN
    _has_retries: ClassVar[bool] = True
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
        """Prepare a connection; it is made with the first call.

        Args:
            target: `host:port` or another gRPC target, such as `dns:///dragoman.default.svc:50051`.
            timeout_s: deadline of a call that names none, in seconds, finite and above 0; None: that of the class.
            api_key: sent with each call, for a server that asks for one.
            tls: encrypts the connection; None: no encryption.
            metadata: sent with each call.
            is_plaintext_trusted: let a credential go over a connection without `tls` to another machine, because
                something else encrypts it, such as the proxy of a service mesh.
            channel: how to connect.

        Raises:
            OSError: if a file of `tls` cannot be read.
            ValueError: if an argument is out of range, or a credential could be read on the way, or if a client for
                asyncio is made where no event loop runs.
        """
        sent = checked_metadata((*api_key_metadata(api_key), *metadata))
        if sum(name == "authorization" for name, _ in sent) > 1:
            raise ValueError("authorization is given twice: as api_key and in metadata, or twice in metadata")
        check = partial(check_secrecy, target, is_encrypted=tls is not None or is_plaintext_trusted)
        check(sent)
        self._is_closed = False
        self._loop = _running_loop(type(self).__name__) if self._is_async else None
        self._channel = open_channel(target, channel, is_async=self._is_async, tls=tls, balancing=self._balancing)
        max_attempts = channel.retry.max_attempts if self._has_retries else 1
        self._calls = Calls(
            self._channel,
            timeout_s=self._default_timeout_s if timeout_s is None else timeout_s,
            metadata=sent,
            check_metadata=check,
            check_usable=self._check_usable,
            reachability=Reachability(target, tls=tls, max_attempts=max_attempts),
        )

    def _check_usable(self) -> None:
        """Do nothing if a call can start; else ValueError."""
        if self._is_closed:
            raise ValueError(f"this {type(self).__name__} is closed: make a new one")
        if self._loop is not None and asyncio.get_running_loop() is not self._loop:
            raise ValueError(f"this {type(self).__name__} belongs to another event loop: make one in each")


class SyncConnection(Connection):
    """For threads."""

    _is_async = False

    def close(self) -> None:
        """Cancel what is running and disconnect; the client takes no further call."""
        self._is_closed = True
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncConnection(Connection):
    """For asyncio tasks. It belongs to the event loop in which it is made."""

    _is_async = True

    async def close(self) -> None:
        """Cancel what is running and disconnect; the client takes no further call."""
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
            f"{client} is made where no event loop runs: make it in a coroutine, such as the one asyncio.run is given"
        ) from None
