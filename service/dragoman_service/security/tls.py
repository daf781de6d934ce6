"""TLS certificates and other files that are reloaded while the server runs."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Generic, TypeVar
from urllib.error import HTTPError

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from dragoman_service.errors import ConfigError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.fetch import fetched
from dragoman_service.security.settings import TlsSettings

log = logging.getLogger(__name__)

_Value = TypeVar("_Value")

_MAX_FILE_BYTES = 16 * 1024 * 1024


class WatchedFiles(Generic[_Value]):
    """A value made from files, updated when they change; an invalid change keeps the previous value.

    Contents are compared, not modification times: times can be too coarse, and Kubernetes mounts secrets as links into
    a directory that it replaces.
    """

    def __init__(
        self,
        paths: Mapping[str, Path | str],
        make: Callable[[Mapping[str, bytes]], _Value],
        *,
        fail: Callable[[], None],
    ) -> None:
        """Read the files for the first time.

        Args:
            paths: file paths, or URLs (`str`), by setting.
            make: returns the value for contents by setting; ConfigError if they are invalid.
            fail: called for each invalid change.

        Raises:
            ConfigError: if a file cannot be read or is invalid.
        """
        self._paths = paths
        self._make = make
        self._fail = fail
        self._seen: Mapping[str, bytes] | str = self._read()
        self._value = make(self._seen)

    @property
    def value(self) -> _Value:
        """The current value."""
        return self._value

    def refresh(self) -> None:
        """Update the value if the files have changed; one thread at a time."""
        try:
            seen: Mapping[str, bytes] | str = self._read()
        except ConfigError as error:
            seen = str(error)
        if seen == self._seen:
            return
        self._seen = seen  # each change is tried, logged and counted once
        problem = seen if isinstance(seen, str) else self._renew(seen)
        if problem:
            self._fail()
            log.error("changed files are invalid; keeping the previous content", extra={"reason": problem})
        else:
            log.info("files reloaded", extra={"settings": list(self._paths)})

    async def watch(self, interval_s: float) -> None:
        """Refresh at this interval; never returns."""
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.refresh)

    def _renew(self, contents: Mapping[str, bytes]) -> str:
        # Returns the fault, if any.
        try:
            self._value = self._make(contents)
        except ConfigError as error:
            return str(error)
        except Exception:  # a fault in a file must not end the watch
            log.exception("reloading files failed", extra={"settings": list(self._paths)})
            return "internal error"
        return ""

    def _read(self) -> Mapping[str, bytes]:
        return {setting: _content(setting, path) for setting, path in self._paths.items()}


def _content(setting: str, source: Path | str) -> bytes:
    try:
        if isinstance(source, str):
            return fetched(source)
        with source.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, HTTPException, ValueError) as error:
        if isinstance(error, HTTPError):
            error.close()  # the error holds the connection
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            setting, str(source), f"a readable {'file' if isinstance(source, Path) else 'URL'} ({reason})"
        ) from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(setting, str(source), f"a file of at most {_MAX_FILE_BYTES} bytes")
    return content


_CERTIFICATE = "tls.certificate_file"
_KEY = "tls.private_key_file"
_CLIENT_CA = "tls.client_ca_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """Certificate of the server and trusted authorities of clients."""

    configuration: grpc.ServerCertificateConfiguration  # for gRPC
    context: ssl.SSLContext  # for asyncio
    expiries_s: Mapping[str, float]  # earliest expiry (Unix time) of the files `server` and `client_ca`


class TlsIdentityFiles:
    """Certificate files of a server; new connections use the current contents."""

    def __init__(self, settings: TlsSettings, metrics: Metrics) -> None:
        """Read the files; ConfigError if they are invalid."""
        self._settings = settings
        self._metrics = metrics
        metrics.certificate_reload_failures.inc(0)
        self._files = WatchedFiles(_paths(settings), self._make, fail=metrics.certificate_reload_failures.inc)
        self._active = self._files.value.configuration

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials of the gRPC port."""
        return grpc.dynamic_ssl_server_credentials(
            self._active, self._changed, require_client_authentication=self._settings.client_ca_file is not None
        )

    @property
    def expiries_s(self) -> Mapping[str, float]:
        """See `TlsIdentity`."""
        return self._files.value.expiries_s

    def context(self) -> ssl.SSLContext:
        """Return the TLS context of the next HTTP connection."""
        return self._files.value.context

    async def watch(self) -> None:
        """Reload changed files; never returns."""
        await self._files.watch(self._settings.reload_interval_s)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new configuration, or None if it is unchanged; called by threads of gRPC."""
        newest = self._files.value.configuration
        if newest is self._active:
            return None
        self._active = newest
        return newest

    def _make(self, contents: Mapping[str, bytes]) -> TlsIdentity:
        identity = read_identity(contents, self._settings, now_s=time.time())
        for certificate, expiry_s in identity.expiries_s.items():
            self._metrics.certificate_expiry_seconds.labels(certificate).set(expiry_s)
        return identity


def read_identity(contents: Mapping[str, bytes], settings: TlsSettings, *, now_s: float) -> TlsIdentity:
    """Check that key and certificate match and are valid; gRPC would only report faults to clients.

    Raises:
        ConfigError: names the file and the fault.
    """
    paths = _paths(settings)
    chain = _certificates(_CERTIFICATE, paths, contents)
    expiries_s = {"server": _first_expiry_s(chain)}
    _check_pair(contents[_KEY], chain[0], settings)
    if expiries_s["server"] <= now_s:
        raise ConfigError(_CERTIFICATE, str(paths[_CERTIFICATE]), "a certificate that has not expired")
    if _CLIENT_CA in contents:
        expiries_s["client_ca"] = _first_expiry_s(_certificates(_CLIENT_CA, paths, contents))
    configuration = grpc.ssl_server_certificate_configuration(
        [(contents[_KEY], contents[_CERTIFICATE])], root_certificates=contents.get(_CLIENT_CA)
    )
    return TlsIdentity(configuration=configuration, context=_context(contents, settings), expiries_s=expiries_s)


def _context(contents: Mapping[str, bytes], settings: TlsSettings) -> ssl.SSLContext:
    """Read the files again: OpenSSL accepts a private key only from a file."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(str(settings.certificate_file), settings.private_key_file)
        if _CLIENT_CA in contents:
            context.load_verify_locations(cadata=contents[_CLIENT_CA].decode("ascii"))
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ValueError) as error:  # for instance, a file that is being replaced
        raise ConfigError(_CERTIFICATE, str(settings.certificate_file), f"matching files ({error})") from error
    return context


def _paths(settings: TlsSettings) -> dict[str, Path]:
    files = (settings.certificate_file, settings.private_key_file, settings.client_ca_file)
    return {setting: path for setting, path in zip((_CERTIFICATE, _KEY, _CLIENT_CA), files, strict=True) if path}


def _certificates(setting: str, paths: Mapping[str, Path], contents: Mapping[str, bytes]) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(contents[setting])
    except ValueError as error:
        raise ConfigError(setting, str(paths[setting]), "PEM certificates, without a byte order mark") from error


def _check_pair(key_pem: bytes, certificate: x509.Certificate, settings: TlsSettings) -> None:
    try:
        key = load_pem_private_key(key_pem, password=None)
        is_pair = key.public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
        raise ConfigError(
            _KEY, str(settings.private_key_file), "a PEM private key without a password or a byte order mark"
        ) from error
    if not is_pair:
        raise ConfigError(_KEY, str(settings.private_key_file), f"the key of {settings.certificate_file}")


def _first_expiry_s(certificates: list[x509.Certificate]) -> float:
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
