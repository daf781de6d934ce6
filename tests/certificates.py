"""Certificate files for tests, created at run time."""

import datetime as dt
from pathlib import Path

import grpc
import trustme

NAME = "localhost"


class Authority:
    """A certificate authority; each certificate has its own key."""

    def __init__(self) -> None:
        self._ca = trustme.CA()

    @property
    def certificate(self) -> bytes:
        """Certificate of the authority, as PEM."""
        return self._ca.cert_pem.bytes()

    def write(self, path: Path) -> Path:
        """Write the certificate of the authority; return its path."""
        path.write_bytes(self.certificate)
        return path

    def sign(
        self, *names: str, common_name: str | None = None, not_after: dt.datetime | None = None
    ) -> trustme.LeafCert:
        """Return a certificate for names."""
        return self._ca.issue_cert(*names, common_name=common_name, not_after=not_after)

    def channel(self, port: int, client: trustme.LeafCert | None = None) -> grpc.aio.Channel:
        """Return a connection of its own to a server on this machine that must show a certificate of this authority.

        Args:
            port: of the server.
            client: what the client shows.
        """
        key, chain = (key_pem(client), chain_pem(client)) if client else (None, None)
        return grpc.aio.secure_channel(
            f"{NAME}:{port}", grpc.ssl_channel_credentials(self.certificate, key, chain), options=OWN_CONNECTION
        )


OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
"""Options that give each channel its own connection."""


def key_pem(certificate: trustme.LeafCert) -> bytes:
    """Return the private key."""
    return certificate.private_key_pem.bytes()


def chain_pem(certificate: trustme.LeafCert) -> bytes:
    """Return the certificate chain."""
    return b"".join(blob.bytes() for blob in certificate.cert_chain_pems)


class ServerFiles:
    """Certificate and key files of a server."""

    def __init__(self, directory: Path, certificate: trustme.LeafCert) -> None:
        self.certificate = directory / "server.crt"
        self.key = directory / "server.key"
        self.replace(certificate)

    def replace(self, certificate: trustme.LeafCert) -> None:
        """Replace certificate and key."""
        self.key.write_bytes(key_pem(certificate))
        self.certificate.write_bytes(chain_pem(certificate))

    @property
    def settings(self) -> dict[str, Path]:
        """Settings of `running_server` that select these files."""
        return {"tls__certificate_file": self.certificate, "tls__private_key_file": self.key}
