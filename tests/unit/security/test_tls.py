import datetime as dt
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from dragoman_service.errors import ConfigError
from dragoman_service.security.settings import TlsSettings
from dragoman_service.security.tls import TlsIdentity, WatchedFiles, read_identity
from tests.captured_logs import capture_logs
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


def test_earliest_expiry_is_reported(files: ServerFiles, authority: Authority, tmp_path: Path) -> None:
    identity = read(files, client_ca=authority.write(tmp_path / "ca.crt"))

    assert identity.expiries_s["server"] == EXPIRES.timestamp()
    assert identity.expiries_s["client_ca"] > EXPIRES.timestamp()


def test_expired_certificate_is_rejected(files: ServerFiles) -> None:
    with pytest.raises(ConfigError, match=r"'tls.certificate_file'.*has not expired"):
        read(files, now_s=EXPIRES.timestamp())


def key_with_password(authority: Authority) -> bytes:
    key = serialization.load_pem_private_key(key_pem(authority.sign(NAME)), password=None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize(
    ("make_key", "expected"),
    [
        (lambda authority: key_pem(authority.sign(NAME)), r"the key of .*server\.crt"),
        (key_with_password, "without a password"),
    ],
    ids=["of another certificate", "with a password"],
)
def test_unusable_key_is_rejected(
    files: ServerFiles, authority: Authority, make_key: Callable[[Authority], bytes], expected: str
) -> None:
    files.key.write_bytes(make_key(authority))

    with pytest.raises(ConfigError, match=rf"'tls.private_key_file'.*{expected}"):
        read(files)


@pytest.mark.parametrize("content", [b"", b"x", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_files_without_pem_are_named_and_not_shown(files: ServerFiles, tmp_path: Path, content: bytes) -> None:
    ca = tmp_path / "ca.crt"
    ca.write_bytes(content)

    with pytest.raises(ConfigError, match=r"'tls.client_ca_file'.*expected PEM certificates"):
        read(files, client_ca=ca)

    files.key.write_bytes(content)
    with pytest.raises(ConfigError, match=r"'tls.private_key_file'.*expected a PEM private key"):
        read(files)


SETTING = "section.file"


class Number:
    """The number in a file."""

    def __init__(self, path: Path) -> None:
        self.num_failures = 0
        self.num_made = 0
        self.files = WatchedFiles({SETTING: path}, self._make, fail=self._fail)

    def _make(self, contents: Mapping[str, bytes]) -> int:
        self.num_made += 1
        if not contents[SETTING].isdigit():
            raise ConfigError(SETTING, "file", "a number")
        if contents[SETTING] == b"0":
            raise ZeroDivisionError
        return int(contents[SETTING])

    def _fail(self) -> None:
        self.num_failures += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_bytes(b"1")
    return path


@pytest.mark.parametrize("content", [b"x", b"0", None])
def test_invalid_change_keeps_the_value_and_is_tried_once(path: Path, content: bytes | None) -> None:
    number = Number(path)

    path.unlink() if content is None else path.write_bytes(content)
    with capture_logs() as records:
        number.files.refresh()
        number.files.refresh()

    assert (number.files.value, number.num_failures) == (1, 1)
    assert [record["event"] for record in records][-1].startswith("changed files are invalid")


def test_only_changed_files_are_reloaded_also_after_an_invalid_change(path: Path) -> None:
    number = Number(path)
    seen = []

    for content in (b"1", b"2", b"x", b"2", b"2"):
        path.write_bytes(content)
        number.files.refresh()
        seen.append((number.files.value, number.num_made, number.num_failures))

    assert seen == [(1, 1, 0), (2, 2, 0), (2, 3, 1), (2, 4, 1), (2, 4, 1)]


def test_replaced_directory_of_a_secret_is_read_also_with_files_of_equal_size_and_time(tmp_path: Path) -> None:
    """Kubernetes mounts a Secret as links through `..data`, a link that it replaces."""
    data, path = tmp_path / "..data", tmp_path / "number"
    for version in ("1", "2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "number").write_text(version)
        os.utime(tmp_path / f"..{version}" / "number", (0, 0))
    data.symlink_to("..1")
    path.symlink_to("..data/number")
    number = Number(path)

    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(data)
    number.files.refresh()

    assert number.files.value == 2


def test_invalid_file_at_startup_is_an_error(path: Path) -> None:
    path.write_bytes(b"x")

    with pytest.raises(ConfigError, match="expected a number"):
        Number(path)


def test_missing_file_at_startup_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'section.file' is '.*missing': expected a readable file \(No such file"):
        Number(tmp_path / "missing")
