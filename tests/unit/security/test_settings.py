import math
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.security.settings import GrpcSettings, is_loopback

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what must be refused
FILE = Path("somewhere")
TLS = {"tls.certificate_file": FILE, "tls.private_key_file": FILE}
MUTUAL_TLS = {**TLS, "tls.client_ca_file": FILE}
KEYS = {"access.callers_file": FILE}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1", "unix:/run/d.sock"]
)
def test_a_host_that_only_this_machine_reaches_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        *(EVERYWHERE, "::", "[::]", "", "0", "*", "127.1", "10.0.0.1", "128.0.0.1", "fe80::1", "::ffff:10.0.0.1"),
        *("example.com", "localhost.example.com", f"127.0.0.1,{EVERYWHERE}"),
    ],
)
def test_any_other_host_is_not(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "unix:/run/d.sock"])
@pytest.mark.parametrize("settings", [{}, KEYS, TLS, MUTUAL_TLS, {"access.allow_unauthenticated": True}])
def test_on_loopback_everything_goes(host: str, settings: dict[str, Any]) -> None:
    load_settings(flags={"grpc.host": host, **settings})


@pytest.mark.parametrize("host", [EVERYWHERE, "::", "10.0.0.1", "example.com", ""])
@pytest.mark.parametrize("settings", [{}, TLS])
def test_unknown_callers_are_served_beyond_this_machine_only_where_the_settings_say_so(
    host: str, settings: dict[str, Any]
) -> None:
    flags = {"grpc.host": host, **settings}

    with pytest.raises(ConfigError, match=r"'grpc.host'.*access.callers_file.*access.allow_unauthenticated = true"):
        load_settings(flags=flags)

    load_settings(flags={**flags, "access.allow_unauthenticated": True})


@pytest.mark.parametrize("settings", [MUTUAL_TLS, {**TLS, **KEYS}, {**MUTUAL_TLS, **KEYS}])
def test_beyond_this_machine_known_callers_are_served_over_tls(settings: dict[str, Any]) -> None:
    load_settings(flags={"grpc.host": EVERYWHERE, **settings})


def test_keys_are_taken_in_plain_text_beyond_this_machine_only_where_the_settings_say_so() -> None:
    flags = {"grpc.host": EVERYWHERE, **KEYS}

    with pytest.raises(ConfigError, match=r"plain text.*tls.certificate_file.*access.allow_plaintext_keys = true"):
        load_settings(flags=flags)

    load_settings(flags={**flags, "access.allow_plaintext_keys": True})


@pytest.mark.parametrize("settings", [KEYS, MUTUAL_TLS])
def test_to_authenticate_callers_and_to_serve_unknown_ones_is_a_contradiction(settings: dict[str, Any]) -> None:
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
def test_half_of_what_tls_needs_is_rejected(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_settings(flags=settings)


def test_the_http_port_may_be_reached_from_anywhere() -> None:
    load_settings(flags={"http.host": EVERYWHERE})


SETTINGS = GrpcSettings(default_timeout_s=10, max_timeout_s=100)


@pytest.mark.parametrize(
    ("remaining_s", "allowed_s"),
    [(None, 10), (0.0, 0.0), (5.0, 5.0), (50.0, 50.0), (1000.0, 100), (math.inf, 100)],
)
def test_a_call_may_take_what_its_caller_leaves_it_within_the_maximum(
    remaining_s: float | None, allowed_s: float
) -> None:
    assert SETTINGS.allowed_s(remaining_s) == allowed_s
