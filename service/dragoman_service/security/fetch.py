"""Download of a URL from the settings, such as the keys of an identity provider, with limits on time and size."""

import io
import socket
import time
import urllib.request
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any

MAX_TIME_S = 10.0  # to connect to one address, and again for the whole response
MAX_BYTES = 1024 * 1024


def fetched(url: str) -> bytes:
    """Return the content of a URL. Redirects are not followed, because they could lead from https to plain text.

    Raises:
        OSError, http.client.HTTPException: if it cannot be read, or not within `MAX_TIME_S`.
        ValueError: if it is larger than `MAX_BYTES`.
    """
    with _OPENER.open(url, timeout=MAX_TIME_S) as response:
        content: bytes = response.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return content


class _Reader(io.RawIOBase):
    """Reads from a socket until a deadline; the timeout of a socket applies to each read separately."""

    def __init__(self, connected: socket.socket, deadline_s: float) -> None:
        self._socket, self._deadline_s = connected, deadline_s
        self._raw = connected.makefile("rb", buffering=0)  # keeps the socket open

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(remaining_s)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(HTTPResponse):
    """A response that must be complete within the time limit."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Reader(sock, time.monotonic() + MAX_TIME_S))


class _TimedHttpConnection(HTTPConnection):
    response_class = _TimedResponse


class _TimedHttpsConnection(HTTPSConnection):
    response_class = _TimedResponse


class _HttpHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_TimedHttpConnection, req)


class _HttpsHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> HTTPResponse:
        return self.do_open(_TimedHttpsConnection, req)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect, _HttpHandler, _HttpsHandler)
