from pathlib import Path
from typing import Any

import pytest

from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.security.settings import is_loopback

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what must be refused
FILE = Path("somewhere")
TLS = {"tls.certificate_file": FILE, "tls.private_key_file": FILE}
MUTUAL_TLS = {**TLS, "tls.client_ca_file": FILE}
KEYS = {"access.callers_file": FILE}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1", "unix:/run/d.sock"]
)
def test_local_hosts_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *(EVERYWHERE, "::", "[::]", "", "0", "*", "127.1", "10.0.0.1", "128.0.0.1", "fe80::1", "::ffff:10.0.0.1"),
        *("example.com", "localhost.example.com", f"127.0.0.1,{EVERYWHERE}"),
    ],
)
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "unix:/run/d.sock"])
@pytest.mark.parametrize("settings", [{}, KEYS, TLS, MUTUAL_TLS, {"access.allow_unauthenticated": True}])
def test_loopback_needs_no_credentials(host: str, settings: dict[str, Any]) -> None:
    load_settings(flags={"grpc.host": host, **settings})


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "10.0.0.1", "example.com", ""])
@pytest.mark.parametrize("settings", [{}, TLS])
def test_remote_host_without_credentials_must_be_allowed(host: str, settings: dict[str, Any]) -> None:
    flags = {"grpc.host": host, **settings}

    with pytest.raises(ConfigError, match=r"'grpc.host'.*access.callers_file.*access.allow_unauthenticated = true"):
        load_settings(flags=flags)

    load_settings(flags={**flags, "access.allow_unauthenticated": True})


@pytest.mark.parametrize("settings", [MUTUAL_TLS, {**TLS, **KEYS}, {**MUTUAL_TLS, **KEYS}])
def test_remote_host_with_credentials_and_tls_is_valid(settings: dict[str, Any]) -> None:
    load_settings(flags={"grpc.host": EVERYWHERE, **settings})


def test_remote_keys_in_plain_text_must_be_allowed() -> None:
    flags = {"grpc.host": EVERYWHERE, **KEYS}

    with pytest.raises(ConfigError, match=r"plain text.*tls.certificate_file.*access.allow_plaintext_keys = true"):
        load_settings(flags=flags)

    load_settings(flags={**flags, "access.allow_plaintext_keys": True})


@pytest.mark.parametrize("settings", [KEYS, MUTUAL_TLS])
def test_credentials_contradict_allow_unauthenticated(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"'access.allow_unauthenticated' is True: expected false"):
        load_settings(flags={"access.allow_unauthenticated": True, **settings})


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tls.certificate_file": FILE}, "certificate_file and private_key_file together"),
        ({"tls.private_key_file": FILE}, "certificate_file and private_key_file together"),
        ({"tls.client_ca_file": FILE}, "client_ca_file only with certificate_file"),
    ],
)
def test_incomplete_tls_files_are_rejected(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_settings(flags=settings)


def test_http_port_without_api_can_be_remote() -> None:
    load_settings(flags={"http.host": EVERYWHERE})
