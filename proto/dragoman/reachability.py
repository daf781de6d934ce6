"""Why a server cannot be reached: a short look at the connection after a call has failed for good.

gRPC tells the last address it tried and the error of that, which reads `Connection refused` for most faults. Here each
address of the target is connected to once, outside gRPC, and asked what it speaks.
"""

import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from os import environ
from typing import TypeVar

import grpc

from dragoman.credentials import Pem, TlsOptions, is_local, pem_content
from dragoman.errors import DragomanError

_Result = TypeVar("_Result")

_TIMEOUT_S = 0.7
"""To find an address that listens, and of each of at most three questions to it."""

_SHORTEST_S = 0.05
"""For an address, if those before took all the time."""

_VALID_S = 1.0
"""Many calls fail at once; they share one look."""

_DEFAULT_PORT = 443
"""Of gRPC, for a target without one."""

_HTTP2_FRAME_BYTES = 9
_HTTP2_SETTINGS = 4
_HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _HTTP2_SETTINGS, 0, 0, 0, 0, 0])
"""What a client of HTTP/2 sends first, with empty settings; a server answers with its own settings."""

_HTTP1_REQUEST = b"GET / HTTP/1.0\r\n\r\n"

_PROXY_VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")

_WRONG_NAMES = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""


class Reachability:
    """Explains failures to connect to one target. Threads share it; a cause that was just found is told again."""

    def __init__(self, target: str, *, tls: TlsOptions | None = None, max_attempts: int = 1) -> None:
        """Take how the client connects, and how many attempts a call of it has."""
        self._target = target
        self._tls = tls
        self._max_attempts = max_attempts
        self._lock = threading.Lock()
        self._cause: str | None = None
        self._valid_until_s = -math.inf

    def explained(self, error: DragomanError) -> DragomanError:
        """Return the error with the target, the attempts and the likely cause, or as it is if there is none to tell.

        Takes up to about three seconds, so asyncio calls it in a thread.
        """
        if not self.can_explain(error):
            return error
        with self._lock:
            if time.monotonic() > self._valid_until_s:
                self._cause = likely_cause(self._target, self._tls)
                self._valid_until_s = time.monotonic() + _VALID_S
            cause = self._cause
        if cause is None:
            return error
        attempts = f"up to {self._max_attempts} attempts" if self._max_attempts > 1 else "1 attempt"
        return type(error)(
            error.code, f"cannot reach {self._target} ({attempts}): {cause}", request_id=error.request_id
        )

    @staticmethod
    def can_explain(error: DragomanError) -> bool:
        """Whether gRPC itself said that there is no server; one that answers gives a reason."""
        return error.code is grpc.StatusCode.UNAVAILABLE and not error.reason


def likely_cause(target: str, tls: TlsOptions | None = None, *, timeout_s: float = _TIMEOUT_S) -> str | None:
    """Return why a target does not answer in the way it is called; None if that cannot be said."""
    if _is_behind_proxy(target, environ):
        return None
    ends_s = time.monotonic() + timeout_s
    try:
        context = None if tls is None else _context(tls)
        addresses = _in_time(lambda: _addresses(target), timeout_s)
    except TimeoutError:
        return f"the name is not resolved within {timeout_s:g} s"
    except socket.gaierror as error:
        return f"the name cannot be resolved ({error.strerror})"
    except (OSError, ValueError):  # of a file that has changed since the client was made, or of the target
        return None
    refused = []
    for address in addresses:
        try:
            return _asked(address, tls, context, max(_SHORTEST_S, ends_s - time.monotonic()))
        except _NotConnectedError as error:
            refused.append(f"{address.told}: {error}")
    return f"nothing listens there ({', '.join(refused)})" if refused else None


def _asked(address: "_Address", tls: TlsOptions | None, context: ssl.SSLContext | None, timeout_s: float) -> str | None:
    """Return what is wrong with what listens at an address; _NotConnectedError if nothing does."""
    if tls is None or context is None:
        return _cause_without_tls(address, timeout_s)
    return _cause_with_tls(address, tls, context, timeout_s)


def _in_time(work: Callable[[], _Result], timeout_s: float) -> _Result:
    """Return what `work` returns or raise what it raises; TimeoutError if that takes too long, as DNS may."""
    future = Future[_Result]()

    def run() -> None:
        try:
            future.set_result(work())
        except (OSError, ValueError) as error:
            future.set_exception(error)

    threading.Thread(target=run, name="resolve-target", daemon=True).start()
    return future.result(timeout_s)


class _NotConnectedError(Exception):
    """There is no TCP connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Address:
    """One place to connect to."""

    family: socket.AddressFamily
    address: tuple[str, int] | str
    name: str
    """What a certificate must hold, unless told otherwise."""

    @property
    def told(self) -> str:
        """The address for people."""
        if isinstance(self.address, str):
            return self.address
        host, port = self.address
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _addresses(target: str) -> Sequence[_Address]:
    """Return where a gRPC target leads to; empty if only gRPC knows."""
    scheme, colon, rest = target.partition(":")
    match scheme.lower():
        case "unix" if colon:
            path = rest.removeprefix("//") if rest.startswith("//") else rest
            return [_Address(family=socket.AF_UNIX, address=path, name="localhost")]
        case "ipv4" | "ipv6" if colon:
            return [found for part in rest.split(",") for found in _resolved(part)]
        case "dns" if colon:
            return [] if rest.startswith("//") and not rest.startswith("///") else _resolved(rest.removeprefix("///"))
        case _:
            return [] if "://" in target else _resolved(target)


def _resolved(address: str) -> list[_Address]:
    host, port = _host_and_port(address)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    places = dict.fromkeys((family, (str(place[0]), int(place[1]))) for family, _, _, _, place in found)
    return [_Address(family=family, address=place, name=host) for family, place in places]


def _host_and_port(address: str) -> tuple[str, int]:
    if address.startswith("["):
        host, _, port = address[1:].partition("]")
        return host, int(port.removeprefix(":") or _DEFAULT_PORT)
    host, _, port = address.partition(":") if address.count(":") == 1 else (address, "", "")
    return host, int(port or _DEFAULT_PORT)


def _is_behind_proxy(target: str, environment: Mapping[str, str]) -> bool:
    """Whether gRPC may have taken a way that a plain connection does not take."""
    return not is_local(target) and any(environment.get(name) for name in _PROXY_VARIABLES)


def _cause_without_tls(address: _Address, timeout_s: float) -> str | None:
    with _connected(address, timeout_s) as connection:
        if _is_http2(_reply(connection, _HTTP2_GREETING)):
            return None
    with _connected(address, timeout_s) as connection:
        is_http1 = _reply(connection, _HTTP1_REQUEST).startswith(b"HTTP/1")
    if is_http1:
        return f"{address.told} answers HTTP/1, not gRPC: is it the port of the metrics?"
    if _speaks_tls(address, timeout_s):
        return f"{address.told} expects TLS, and this client sends plain text: give tls=TlsOptions() (--tls, --ca-file)"
    return f"{address.told} is open, but does not answer as gRPC does"


def _cause_with_tls(address: _Address, tls: TlsOptions, context: ssl.SSLContext, timeout_s: float) -> str | None:
    name = tls.server_name or address.name
    with _connected(address, timeout_s) as connection:
        try:
            encrypted = context.wrap_socket(connection, server_hostname=name)
        except ssl.SSLCertVerificationError as error:
            return _certificate_fault(address, name, error)
        except TimeoutError:
            return f"{address.told} does not answer the TLS handshake: is it another port?"
        except OSError:
            return f"{address.told} does not speak TLS: leave out tls (--tls), or is it another port?"
        with encrypted:
            try:
                reply = _reply(encrypted, _HTTP2_GREETING)
            except ssl.SSLError:
                reply = b""
    if not reply:  # since TLS 1.3 a server looks at the client's certificate when the client thinks all is well
        return _client_certificate_fault(address, tls)
    return None if _is_http2(reply) else f"{address.told} speaks TLS, but not gRPC"


def _certificate_fault(address: _Address, name: str, error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in _WRONG_NAMES:
        return (
            f"the certificate of {address.told} is for another name than {name!r}: "
            "give the one it holds as TlsOptions(server_name=...)"
        )
    return (
        f"the certificate of {address.told} is not trusted ({error.verify_message}): "
        "give the authority that signed it as TlsOptions(ca=...) (--ca-file)"
    )


def _client_certificate_fault(address: _Address, tls: TlsOptions) -> str | None:
    if tls.certificate is None:
        return (
            f"{address.told} ends the connection after TLS was agreed on; if it asks for a client certificate: "
            "give TlsOptions(certificate=..., private_key=...) (--certificate-file, --private-key-file)"
        )
    is_shown = _is_file(tls.certificate) and _is_file(tls.private_key)
    return f"{address.told} does not accept the client certificate, it seems" if is_shown else None


def _context(tls: TlsOptions) -> ssl.SSLContext:
    """Trust what gRPC trusts."""
    roots = pem_content("ca", tls.ca) or files("grpc").joinpath("_cython/_credentials/roots.pem").read_bytes()
    context = ssl.create_default_context(cadata=roots.decode("ascii", "replace"))
    context.set_alpn_protocols(["h2"])
    if _is_file(tls.certificate) and _is_file(tls.private_key):
        context.load_cert_chain(str(tls.certificate), str(tls.private_key))
    return context


def _is_file(pem: Pem | None) -> bool:
    return pem is not None and not isinstance(pem, bytes)


def _speaks_tls(address: _Address, timeout_s: float) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nothing is sent over it; only whether it is TLS is asked
    context.set_alpn_protocols(["h2"])
    try:
        with _connected(address, timeout_s) as connection, context.wrap_socket(connection):
            return True
    except (OSError, _NotConnectedError):
        return False


@contextmanager
def _connected(address: _Address, timeout_s: float) -> Iterator[socket.socket]:
    with socket.socket(address.family, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(address.address)
        except TimeoutError:
            raise _NotConnectedError("no answer") from None
        except OSError as error:
            raise _NotConnectedError((error.strerror or str(error)).lower()) from None
        yield connection


def _reply(connection: socket.socket, greeting: bytes) -> bytes:
    """Send a greeting and return the beginning of the answer; empty if there is none."""
    reply = b""
    try:
        connection.sendall(greeting)
        while len(reply) < _HTTP2_FRAME_BYTES and (received := connection.recv(64)):
            reply += received
    except (ConnectionError, TimeoutError):
        pass
    return reply


def _is_http2(reply: bytes) -> bool:
    return len(reply) >= _HTTP2_FRAME_BYTES and reply[3] == _HTTP2_SETTINGS
