import datetime as dt
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from service.api.settings import TlsSettings
from service.api.tls import TlsIdentity, read_identity
from service.errors import ConfigError
from tests.certificates import NAME, Authority, ServerFiles, key_pem

EXPIRES = dt.datetime(2031, 1, 1, tzinfo=dt.UTC)
BEFORE_S = EXPIRES.timestamp() - 1


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> ServerFiles:
    return ServerFiles(tmp_path, authority.sign(NAME, not_after=EXPIRES))


def read(files: ServerFiles, *, client_ca: Path | None = None, now_s: float = BEFORE_S) -> TlsIdentity:
    settings = TlsSettings(certificate_file=files.certificate, private_key_file=files.key, client_ca_file=client_ca)
    contents = {"tls.certificate_file": files.certificate.read_bytes(), "tls.private_key_file": files.key.read_bytes()}
    if client_ca:
        contents["tls.client_ca_file"] = client_ca.read_bytes()
    return read_identity(contents, settings, now_s=now_s)


def test_the_first_certificate_that_expires_counts(files: ServerFiles, authority: Authority, tmp_path: Path) -> None:
    identity = read(files, client_ca=authority.write(tmp_path / "ca.crt"))

    assert identity.expiries_s["server"] == EXPIRES.timestamp()
    assert identity.expiries_s["client_ca"] > EXPIRES.timestamp()


def test_a_certificate_that_has_expired_is_refused(files: ServerFiles) -> None:
    with pytest.raises(ConfigError, match=r"'tls.certificate_file'.*has not expired"):
        read(files, now_s=EXPIRES.timestamp())


def test_a_key_of_another_certificate_is_refused(files: ServerFiles, authority: Authority) -> None:
    files.key.write_bytes(key_pem(authority.sign(NAME)))

    with pytest.raises(ConfigError, match=r"'tls.private_key_file'.*the key of .*server\.crt"):
        read(files)


def test_a_key_with_a_password_is_refused(files: ServerFiles) -> None:
    key = serialization.load_pem_private_key(files.key.read_bytes(), password=None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )

    with pytest.raises(ConfigError, match=r"'tls.private_key_file'.*without a password"):
        read(files)


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_files_that_hold_no_pem_are_named_and_not_shown(files: ServerFiles, tmp_path: Path, content: bytes) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(content)

    with pytest.raises(ConfigError, match=r"'tls.client_ca_file'.*expected PEM certificates"):
        read(files, client_ca=ca)

    files.key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"'tls.private_key_file'.*expected a PEM private key"):
        read(files)
