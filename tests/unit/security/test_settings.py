from pathlib import Path
from typing import Any

import pytest

from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.security.settings import is_loopback

EVERYWHERE = "0.0.0.0"  # noqa: S104 - is rejected
FILE = Path("somewhere")
TLS = {"tls.certificate_file": FILE, "tls.private_key_file": FILE}
MUTUAL_TLS = {**TLS, "tls.client_ca_file": FILE}
KEYS = {"access.callers_file": FILE}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        (("127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1", "unix:/run/d"), True),
        (
            (EVERYWHERE, "::", "[::]", "", "0", "*", "127.1", "10.0.0.1", "128.0.0.1", "fe80::1", "::ffff:10.0.0.1"),
            False,
        ),
        (("example.com", "localhost.example.com", f"127.0.0.1,{EVERYWHERE}"), False),
    ],
)
def test_only_local_hosts_are_loopback(hosts: tuple[str, ...], expected: bool) -> None:
    assert {host: is_loopback(host) for host in hosts} == dict.fromkeys(hosts, expected)


@pytest.mark.parametrize("settings", [{}, KEYS, TLS, MUTUAL_TLS, {"access.allow_unauthenticated": True}])
def test_loopback_needs_no_credentials(settings: dict[str, Any]) -> None:
    assert load_settings(flags={"grpc.host": "unix:/run/d.sock", **settings})


@pytest.mark.parametrize("settings", [{}, TLS])
def test_remote_host_without_credentials_must_be_allowed(settings: dict[str, Any]) -> None:
    flags = {"grpc.host": EVERYWHERE, **settings}

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


@pytest.mark.parametrize("setting", ["certificate_file", "private_key_file", "client_ca_file"])
def test_incomplete_tls_files_are_rejected(setting: str) -> None:
    with pytest.raises(ConfigError, match=r"certificate_file and private_key_file"):
        load_settings(flags={f"tls.{setting}": FILE})


def test_http_port_without_api_can_be_remote() -> None:
    load_settings(flags={"http.host": EVERYWHERE})
