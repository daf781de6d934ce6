"""A request over HTTP as the pipeline of all requests sees it: the same that gRPC's context tells of a call."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from email.message import Message as Headers
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dragoman_service.errors import InvalidFieldError
from dragoman_service.request import MAX_TEXTS
from dragoman_service.security.settings import GrpcSettings

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds that the caller allows, as a decimal number."""

SECONDS_PATTERN = r"[0-9]{1,9}(\.[0-9]{1,9})?"
"""What the value of that header looks like."""

JSON_MEDIA_TYPE = "application/json"

_MAX_PARAMETERS = MAX_TEXTS + 64  # of a query, which can hold the texts

_EVENT_STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class HttpContext:
    """Of one request; reads its body once the pipeline asks for it, and no more than may be."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: GrpcSettings,
        media_types: tuple[str, ...] = (JSON_MEDIA_TYPE,),
    ) -> None:
        """Take bodies of these media types, in UTF-8."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._settings = settings
        self._media_types = media_types
        self._headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        self._deadline_s: float | None = None
        self._is_answered = False
        has_body = scope["method"] == "POST" or self.header("content-length") or self.header("transfer-encoding")
        self.is_read = not has_body
        """Whether the whole request has come."""
        self.key_place = "the header `Authorization: Bearer KEY`"
        """Where a client of this API sends its key, for errors."""
        self.max_body_bytes = settings.max_message_bytes
        self.http_status: HTTPStatus | None = None
        """Of a refusal that HTTP has its own status for."""
        self.has_begun = False
        """Whether a stream of events has begun."""
        self.is_left = False
        """Whether the client has gone before it had its answer."""
        self.response_headers: list[tuple[bytes, bytes]] = []
        """Of a response that is a stream; to be set before it begins."""

    @property
    def path(self) -> str:
        """Return the path that is asked for."""
        path: str = self._scope["path"]
        return path

    @property
    def origin(self) -> str:
        """Return the scheme and the host of the server, as the client names them."""
        return f"{self._scope['scheme']}://{self.header('host')}"

    @property
    def path_parameters(self) -> Mapping[str, str]:
        """Return the variable parts of the path."""
        parameters: Mapping[str, str] = self._scope["path_params"]
        return parameters

    @property
    def query(self) -> Mapping[str, str]:
        """Return the parameters of the query, of one that is repeated the last; raises as `query_values`."""
        return dict(self._query)

    @property
    def parameters(self) -> list[tuple[str, str]]:
        """Return names and values of the query in order; raises as `query_values`."""
        return self._query

    def query_values(self, name: str) -> list[str]:
        """Return all values of a parameter of the query; InvalidFieldError if it has too many parameters."""
        return [value for given, value in self._query if given == name]

    @cached_property
    def _query(self) -> list[tuple[str, str]]:
        try:
            return parse_qsl(
                self._scope["query_string"].decode("latin-1"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=_MAX_PARAMETERS,
            )
        except UnicodeDecodeError:
            raise InvalidFieldError("query", "not UTF-8", "UTF-8") from None
        except ValueError:
            limit = f"at most {_MAX_PARAMETERS} parameters"
            raise InvalidFieldError("query", "too many parameters", limit) from None

    def peer(self) -> str:
        """Return the address of the client, as gRPC writes it."""
        peer: str = self._scope["state"]["peer"]
        return peer

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the headers, their names in lower case."""
        return self._headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the names in the client's certificate, by gRPC's names."""
        certificate = self._scope["state"]["connection"].transport.get_extra_info("peercert") or {}
        common = (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
        alternative = (value for _, value in certificate.get("subjectAltName", ()))
        return {
            "x509_common_name": [name.encode() for name in common],
            "x509_subject_alternative_name": [name.encode() for name in alternative],
        }

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None if there is none."""
        return None if self._deadline_s is None else self._deadline_s - asyncio.get_running_loop().time()

    def check_headers(self) -> None:
        """Take the deadline.

        Raises:
            InvalidFieldError: if it is none, or the headers are too large.
        """
        num_bytes = sum(len(name) + len(value) + 32 for name, value in self._headers)
        if num_bytes > self._settings.max_metadata_bytes:
            self.http_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise InvalidFieldError(
                "headers", f"{num_bytes} bytes", f"at most {self._settings.max_metadata_bytes} bytes"
            )
        timeouts = [value for name, value in self._headers if name == TIMEOUT_HEADER]
        if timeouts:
            self._deadline_s = asyncio.get_running_loop().time() + _seconds(timeouts)

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            InvalidFieldError: if it is no JSON, or too large; see also `check_headers`.
            asyncio.CancelledError: if the client leaves before its end.
        """
        self.check_headers()
        self._check_content_type()
        limit = self.max_body_bytes
        declared = self.header("content-length") or "0"
        chunks, num_bytes = [], 0
        while True:
            if max(num_bytes, int(declared)) > limit:
                self.http_status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
                raise InvalidFieldError("request", f"more than {limit} bytes", f"at most {limit} bytes")
            event = await self._receive()
            if event["type"] != "http.request":
                self.is_left = True
                raise asyncio.CancelledError
            chunks.append(event.get("body", b""))
            num_bytes += len(chunks[-1])
            if not event.get("more_body", False):
                self.is_read = True
                return b"".join(chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives; the caller limits its size.

        Raises:
            InvalidFieldError: as `check_headers`.
            asyncio.CancelledError: if the client leaves before the end of the body.
        """
        self.check_headers()
        has_more = True
        while has_more:
            event = await self._receive()
            if event["type"] != "http.request":
                self.is_left = True
                raise asyncio.CancelledError
            has_more = event.get("more_body", False)
            if not has_more:
                self.is_read = True
            yield event.get("body", b"")

    async def cancel_when_client_leaves(self, task: "asyncio.Task[None] | None") -> None:
        """Cancel the task that answers a client that has gone."""
        await self._scope["state"]["connection"].client_left.wait()
        if not self._is_answered:
            self.is_left = True
            if task:
                task.cancel()

    async def send_initial_metadata(self, _metadata: tuple[()], /) -> None:
        """Begin a stream of events, which the client may read as slowly as one of gRPC."""
        self.has_begun = True
        self._scope["state"]["connection"].write_timeout_s = self._settings.stream_idle_timeout_s
        headers = [*_EVENT_STREAM_HEADERS, *self.response_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, raw_response: bytes, /) -> None:
        """Send an event; returns once the connection has taken it."""
        await self._send({"type": "http.response.body", "body": raw_response, "more_body": True})

    async def end(self, last: bytes) -> None:
        """Send the last event."""
        self._is_answered = True
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def respond(self, response: Response) -> None:
        """Send a whole response; uvicorn drops what has not been read of the request."""
        response.headers["cache-control"] = "no-store"
        self._is_answered = True
        await response(self._scope, self._receive, self._send)

    @property
    def media_type(self) -> str:
        """Return what the body is said to be, without parameters."""
        return self._content_type.get_content_type()

    def authorize(self, key: str) -> None:
        """Take a key that the body has, or a header of another name; one in `authorization` goes before it."""
        if not self.header("authorization"):
            self._headers += (("authorization", f"Bearer {key}"),)

    def take_scheme(self, scheme: str) -> None:
        """Take keys with another scheme than `Bearer` in the header `authorization`."""
        self._headers = tuple(
            (
                name,
                f"Bearer {value[len(scheme) :].strip()}" if name == "authorization" and _has(value, scheme) else value,
            )
            for name, value in self._headers
        )

    def header(self, name: str) -> str:
        """Return the first header of a name in lower case; empty if there is none."""
        return next((value for header, value in self._headers if header == name), "")

    @cached_property
    def _content_type(self) -> Headers:
        parsed = Headers()
        parsed["content-type"] = self.header("content-type")
        return parsed

    def _check_content_type(self) -> None:
        if self.media_type not in self._media_types or self._content_type.get_content_charset("utf-8") != "utf-8":
            self.http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            given = repr(self._content_type["content-type"][:64])
            raise InvalidFieldError("content-type", given, f"{' or '.join(self._media_types)} in UTF-8")


class Endpoint:
    """The ASGI application of one route, whose work is cancelled when its client leaves."""

    def __init__(
        self,
        answer: Callable[[HttpContext], Awaitable[None]],
        settings: GrpcSettings,
        media_types: tuple[str, ...] = (JSON_MEDIA_TYPE,),
    ) -> None:
        """`settings` has what is allowed to a call; bodies are of these media types."""
        self._answer = answer
        self._settings = settings
        self._media_types = media_types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        context = HttpContext(scope, receive, send, self._settings, self._media_types)
        watching = asyncio.create_task(context.cancel_when_client_leaves(asyncio.current_task()))
        try:
            await self._answer(context)
        except asyncio.CancelledError:
            if not context.is_left:
                raise
        finally:
            watching.cancel()


def _has(authorization: str, scheme: str) -> bool:
    return authorization.lower().startswith(f"{scheme.lower()} ")


def _seconds(values: list[str]) -> float:
    if len(values) > 1 or not re.fullmatch(SECONDS_PATTERN, values[0]) or not float(values[0]):
        raise InvalidFieldError(TIMEOUT_HEADER, repr(values[0][:64]), "one number of seconds above 0, such as 2.5")
    return float(values[0])
