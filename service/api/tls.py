"""TLS with certificates that may change while the server runs."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from service.api.settings import TlsSettings
from service.api.watched_files import WatchedFiles
from service.errors import ConfigError
from service.telemetry.metrics import Metrics

_CERTIFICATE = "tls.certificate_file"
_KEY = "tls.private_key_file"
_CLIENT_CA = "tls.client_ca_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsIdentity:
    """What the server shows, and whom it trusts."""

    configuration: grpc.ServerCertificateConfiguration
    """The same as gRPC takes it."""

    expiries_s: Mapping[str, float]
    """Unix time at which the first certificate of a file expires: `server`, and `client_ca` if there is one."""


class TlsIdentityFiles:
    """The certificate files of a server: new connections get what they hold by now."""

    def __init__(self, settings: TlsSettings, metrics: Metrics, now: Callable[[], float] = time.time) -> None:
        """Read the files; ConfigError if they are no good."""
        self._settings = settings
        self._metrics = metrics
        self._now = now
        metrics.certificate_reload_failures.inc(0)
        self._files = WatchedFiles(_paths(settings), self._make, fail=metrics.certificate_reload_failures.inc)
        self._shown = self._files.value.configuration

    def credentials(self) -> grpc.ServerCredentials:
        """Return what opens a port."""
        return grpc.dynamic_ssl_server_credentials(
            self._shown, self._changed, require_client_authentication=self._settings.client_ca_file is not None
        )

    async def watch(self) -> None:
        """Look for changes for ever."""
        await self._files.watch(self._settings.reload_interval_s)

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what new connections get from now on, None for the same as before; called by gRPC's threads."""
        newest = self._files.value.configuration
        if newest is self._shown:
            return None
        self._shown = newest
        return newest

    def _make(self, contents: Mapping[str, bytes]) -> TlsIdentity:
        identity = read_identity(contents, self._settings, now_s=self._now())
        for certificate, expiry_s in identity.expiries_s.items():
            self._metrics.certificate_expiry_seconds.labels(certificate).set(expiry_s)
        return identity


def read_identity(contents: Mapping[str, bytes], settings: TlsSettings, *, now_s: float) -> TlsIdentity:
    """Check that key and certificate are one pair and in force, because gRPC would only tell clients that they are not.

    Args:
        contents: of the files, by setting.
        settings: the paths, for messages.
        now_s: Unix time.

    Raises:
        ConfigError: names the file and what is wrong with it.
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
    return TlsIdentity(configuration=configuration, expiries_s=expiries_s)


def _paths(settings: TlsSettings) -> dict[str, Path]:
    paths = {
        _CERTIFICATE: settings.certificate_file,
        _KEY: settings.private_key_file,
        _CLIENT_CA: settings.client_ca_file,
    }
    return {setting: path for setting, path in paths.items() if path is not None}


def _certificates(setting: str, paths: Mapping[str, Path], contents: Mapping[str, bytes]) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(contents[setting])
    except ValueError as error:
        raise ConfigError(setting, str(paths[setting]), "PEM certificates") from error


def _check_pair(key_pem: bytes, certificate: x509.Certificate, settings: TlsSettings) -> None:
    try:
        key = load_pem_private_key(key_pem, password=None)
        is_pair = key.public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: it is encrypted
        raise ConfigError(_KEY, str(settings.private_key_file), "a PEM private key without a password") from error
    if not is_pair:
        raise ConfigError(_KEY, str(settings.private_key_file), f"the key of {settings.certificate_file}")


def _first_expiry_s(certificates: list[x509.Certificate]) -> float:
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
