"""A request over HTTP with the interface of a call of gRPC, for the request pipeline."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from email.message import Message as Headers
from functools import cached_property
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import DrainingError, InvalidFieldError, RequestError
from dragoman_service.translation.settings import MAX_FORM_FIELDS

TIMEOUT_HEADER = "x-request-timeout"
"""Seconds until the deadline of the caller, as a decimal number."""

SECONDS_PATTERN = r"[0-9]{1,9}(\.[0-9]{1,9})?"

JSON_MEDIA_TYPE = "application/json"

_EVENT_STREAM_HEADERS = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]


class HttpContext:
    """One request; its body is read when the pipeline asks for it, up to the size limit."""

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        settings: GrpcSettings,
        media_types: tuple[str, ...] = (JSON_MEDIA_TYPE,),
    ) -> None:
        """Accept bodies of these media types, in UTF-8."""
        self._scope = scope
        self._receive = receive
        self._send = send
        self._settings = settings
        self._media_types = media_types
        self._headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"])
        self._deadline_s: float | None = None
        self._is_answered = False
        self.sent_status: int | None = None
        self.path: str = scope["path"]
        self.path_parameters: Mapping[str, str] = scope.get("path_params", {})
        has_body = scope["method"] == "POST" or self.header("content-length") or self.header("transfer-encoding")
        self.is_read = not has_body  # whether the whole request has arrived
        self.key_place = "the header `Authorization: Bearer KEY`"  # for error messages
        self.max_body_bytes = settings.max_message_bytes
        self.http_status: HTTPStatus | None = None  # of an error with a more specific status than that of its code
        self.error_headers: dict[str, str] = {}  # of the response to a rejected request
        self.has_begun = False  # whether an event stream has started
        self.is_disconnected = False  # whether the client disconnected before the response
        self.response_headers: list[tuple[bytes, bytes]] = []  # of an event stream; set before it starts

    @property
    def public_url(self) -> str:
        """Address of the server for links: scheme, host and prefix, see `PublicAddress`."""
        url: str = self._scope["state"]["public_url"]
        return url

    @property
    def query(self) -> Mapping[str, str]:
        """Parameters of the query, with the last value of a repeated parameter; raises as `parameters`."""
        return dict(self.parameters)

    @cached_property
    def parameters(self) -> list[tuple[str, str]]:
        """Names and values of the query in order; RequestError if it is not UTF-8 or has too many parameters."""
        try:
            return parse_qsl(
                self._scope["query_string"].decode("latin-1"),
                keep_blank_values=True,
                errors="strict",
                max_num_fields=MAX_FORM_FIELDS,
            )
        except UnicodeDecodeError:
            raise RequestError("query", "not valid UTF-8") from None
        except ValueError:
            raise RequestError("query", f"more than {MAX_FORM_FIELDS} parameters") from None

    @property
    def span_attributes(self) -> Mapping[str, str]:
        """Attributes of the request in traces, without its query."""
        route = getattr(self._scope.get("route"), "path", self.path)
        return {
            "http.request.method": self._scope["method"],
            "http.route": route.replace(":path}", "}"),
            "url.scheme": self._scope["scheme"],
            "url.path": self.path,
        }

    def peer(self) -> str:
        """Return the address of the client, as gRPC writes it."""
        peer: str = self._scope["state"]["peer"]
        return peer

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the headers, with names in lower case."""
        return self._headers

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the names in the certificate of the client, with gRPC's names of properties."""
        certificate = self._scope["state"]["connection"].transport.get_extra_info("peercert") or {}
        common = (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
        alternative = (value for _, value in certificate.get("subjectAltName", ()))
        return {
            "x509_common_name": [name.encode() for name in common],
            # A directory name is a tuple. It counts as an alternative name that belongs to no caller.
            "x509_subject_alternative_name": [name.encode() if isinstance(name, str) else b"" for name in alternative],
        }

    def time_remaining(self) -> float | None:
        """Return the seconds until the caller's deadline; None: no deadline."""
        return None if self._deadline_s is None else self._deadline_s - asyncio.get_running_loop().time()

    def check_headers(self) -> None:
        """Check the size of the headers, and set the deadline.

        Raises:
            DrainingError: if the connection was opened after the beginning of a drain.
            InvalidFieldError: if the headers are too large or the deadline is invalid.
        """
        if self._scope["state"]["connection"].is_late:
            raise DrainingError
        num_bytes = sum(len(name) + len(value) + 32 for name, value in self._headers)
        if num_bytes > self._settings.max_metadata_bytes:
            self.http_status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise InvalidFieldError(
                "headers", f"{num_bytes} bytes", f"at most {self._settings.max_metadata_bytes} bytes"
            )
        timeouts = [value for name, value in self._headers if name == TIMEOUT_HEADER]
        if not timeouts:
            return
        timeout = timeouts[0]
        if len(timeouts) > 1 or not re.fullmatch(SECONDS_PATTERN, timeout) or not float(timeout):
            raise InvalidFieldError(TIMEOUT_HEADER, repr(timeout[:64]), "a number of seconds above 0, such as 2.5")
        self._deadline_s = asyncio.get_running_loop().time() + float(timeout)

    async def read(self) -> bytes:
        """Return the body.

        Raises:
            InvalidFieldError: for its encoding, media type or size; see also `check_headers`.
            asyncio.CancelledError: if the client disconnects.
        """
        self.check_headers()
        self._check_content_encoding()
        self._check_content_type()
        self._check_body_size(int(self.header("content-length") or "0"))
        chunks, num_bytes = [], 0
        async for chunk in self._received_chunks():
            num_bytes += len(chunk)
            self._check_body_size(num_bytes)
            chunks.append(chunk)
        return b"".join(chunks)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives, without a size limit.

        Raises:
            InvalidFieldError: if its encoding is not accepted; see also `check_headers`.
            asyncio.CancelledError: if the client disconnects.
        """
        self.check_headers()
        self._check_content_encoding()
        async for chunk in self._received_chunks():
            yield chunk

    def _check_body_size(self, num_bytes: int) -> None:
        limit = self.max_body_bytes
        if num_bytes > limit:
            self.http_status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            raise InvalidFieldError("request", f"more than {limit} bytes", f"at most {limit} bytes")

    async def _received_chunks(self) -> AsyncIterator[bytes]:
        has_more = True
        while has_more:
            event = await self._receive()
            if event["type"] != "http.request":
                self.is_disconnected = True
                raise asyncio.CancelledError
            has_more = event.get("more_body", False)
            if not has_more:
                self.is_read = True
            yield event.get("body", b"")

    async def cancel_on_disconnect(self, task: "asyncio.Task[None] | None") -> None:
        """Cancel a task when the client disconnects."""
        await self._scope["state"]["connection"].disconnected.wait()
        if not self._is_answered:
            self.is_disconnected = True
            if task:
                task.cancel()

    async def send_initial_metadata(self, _metadata: tuple[()], /) -> None:
        """Start an event stream; the client can read it as slowly as a stream of gRPC."""
        self.has_begun = True
        self._scope["state"]["connection"].write_timeout_s = self._settings.stream_idle_timeout_s
        self.sent_status = HTTPStatus.OK
        headers = [*_EVENT_STREAM_HEADERS, *self.response_headers]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})

    async def write(self, raw_response: bytes, /) -> None:
        """Send an event; return when the connection has accepted it."""
        await self._send({"type": "http.response.body", "body": raw_response, "more_body": True})

    async def end(self, last: bytes) -> None:
        """Send the last event."""
        self._is_answered = True
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def respond(self, response: Response) -> None:
        """Send a complete response; uvicorn discards the unread rest of the request."""
        response.headers["cache-control"] = "no-store"
        self._is_answered = True
        self.sent_status = response.status_code
        await response(self._scope, self._receive, self._send)

    @property
    def media_type(self) -> str:
        """Media type of the body, without parameters."""
        return self._content_type.get_content_type()

    def authorize(self, key: str) -> None:
        """Use a key from the body or another header, unless the header `authorization` is present."""
        if not self.header("authorization"):
            self._headers += (("authorization", f"Bearer {key}"),)

    def accept_scheme(self, scheme: str) -> None:
        """Accept another scheme than `Bearer` in the header `authorization`."""
        prefix = f"{scheme.lower()} "
        self._headers = tuple(
            (name, f"Bearer {value[len(prefix) :].strip()}")
            if name == "authorization" and value.lower().startswith(prefix)
            else (name, value)
            for name, value in self._headers
        )

    def header(self, name: str) -> str:
        """Return the first header with a name in lower case; empty if absent."""
        return next((value for header, value in self._headers if header == name), "")

    @cached_property
    def _content_type(self) -> Headers:
        parsed = Headers()
        parsed["content-type"] = self.header("content-type")
        return parsed

    def _check_content_encoding(self) -> None:
        encoding = self.header("content-encoding")
        if encoding.lower() not in ("", "identity"):
            self.http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            self.error_headers["accept-encoding"] = "identity"  # RFC 9110, section 12.5.3
            raise InvalidFieldError("content-encoding", repr(encoding[:64]), "absent or identity")

    def _check_content_type(self) -> None:
        if self.media_type not in self._media_types or self._content_type.get_content_charset("utf-8") != "utf-8":
            self.http_status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            content_type = repr(self._content_type["content-type"][:64])
            raise InvalidFieldError("content-type", content_type, f"{' or '.join(self._media_types)} in UTF-8")


class Endpoint:
    """The ASGI application of one route, which is cancelled when the client disconnects."""

    def __init__(
        self,
        answer: Callable[[HttpContext], Awaitable[None]],
        settings: GrpcSettings,
        media_types: tuple[str, ...] = (JSON_MEDIA_TYPE,),
    ) -> None:
        """Bodies have these media types; `settings` limits headers and body."""
        self._answer = answer
        self._settings = settings
        self._media_types = media_types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        context = HttpContext(scope, receive, send, self._settings, self._media_types)
        watching = asyncio.create_task(context.cancel_on_disconnect(asyncio.current_task()))
        try:
            await self._answer(context)
        except asyncio.CancelledError:
            if not context.is_disconnected:
                raise
        finally:
            watching.cancel()
