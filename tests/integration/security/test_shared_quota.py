"""Servers that share quotas through a store, and their fallback without the store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from redis import ConnectionError  # noqa: A004 - it is what the client raises

from dragoman_service.config import load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key
from dragoman_service.security.rate_limits import Charge
from dragoman_service.security.redis_quota import RedisBuckets
from dragoman_service.security.shared_quota import RETRY_INTERVAL_S
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles
from tests.integration.real_process import free_ports
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    bearer,
    caller_entry,
    rejection,
    running_server,
)
from tests.redis_server import RedisServer, redis_server
from tests.waiting import until

ONCE, WORDS = new_key(), new_key()
CALLERS = caller_entry("once", ONCE, requests_per_s=0.001) + caller_entry("words", WORDS, tokens_per_min=0.06)
REFILL_S = 1000.0  # of the limits above
PASSWORD = "p@ss/word#1"  # noqa: S105 - of the test's own server
ACL = "~dragoman:* +evalsha +script|load +time +hmget +hset +pexpire +del"
"""Permissions of the server in the guide."""


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def url_file(tmp_path: Path) -> Path:
    return tmp_path / "quota-store.url"


@contextlib.asynccontextmanager
async def replica(tiny_model: Path, url_file: Path, *, timeout_s: float = TEST_TIMEOUT_S / 3) -> AsyncIterator[Any]:
    """A server with a timeout for the store."""
    callers_file = url_file.with_name("callers.toml")
    callers_file.write_text(CALLERS, encoding="utf-8")
    async with running_server(
        tiny_model,
        access__callers_file=callers_file,
        access__quota_store_url_file=url_file,
        access__quota_store_timeout_s=timeout_s,
        access__reload_interval_s=0.01,
    ) as server:
        yield server


def translate(server: RunningServer, key: str = ONCE) -> Any:
    return server.translate("A man.", metadata=bearer(key), timeout_s=TEST_TIMEOUT_S)


def num_checks(server: RunningServer, decided_by: str) -> float:
    return server.sample("dragoman_quota_checks_total", decided_by=decided_by)


async def test_two_servers_share_a_quota(tiny_model: Path, url_file: Path, redis: RedisServer) -> None:
    url_file.write_text(f"{redis.url}\n", encoding="utf-8")
    async with replica(tiny_model, url_file) as one, replica(tiny_model, url_file) as other:
        for key, unit in ((ONCE, "0.001 requests/s"), (WORDS, "0.06 source tokens/min")):
            await translate(one, key)

            error = await rejection(translate(other, key))

            assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
            assert f"is limited to {unit}; retry in " in error.message
            assert error.retry_delay_ms > (REFILL_S - TEST_TIMEOUT_S) * 1000

        assert (num_checks(other, "store"), num_checks(other, "local")) == (2, 0)
    with redis.client() as client:
        names = client.keys()
        assert {client.pttl(name) > 0 for name in names} == {True}
        assert all(name.startswith(b"dragoman:{") for name in names)


async def test_server_starts_without_the_store(tiny_model: Path, url_file: Path, redis: RedisServer) -> None:
    url_file.write_text(redis.url, encoding="utf-8")
    redis.stop()
    async with replica(tiny_model, url_file) as server:
        with capture_logs() as records:
            await translate(server, WORDS)
        assert [record["event"] for record in records if record["log_level"] == "warning"] == [
            "quota store unavailable, falling back to local limits"
        ]

        redis.start()
        server.clock.advance(RETRY_INTERVAL_S)
        await translate(server)

        assert num_checks(server, "store") == 1


async def test_hanging_store_does_not_delay_calls(tiny_model: Path, url_file: Path, redis: RedisServer) -> None:
    url_file.write_text(redis.url, encoding="utf-8")
    async with replica(tiny_model, url_file, timeout_s=0.05) as server:
        with redis.halted():
            await translate(server)
            assert (await rejection(translate(server))).reason == "RATE_LIMITED"
            await translate(server, WORDS)

        assert num_checks(server, "local") == 2


async def test_url_of_the_store_is_reloaded(tiny_model: Path, url_file: Path, redis: RedisServer) -> None:
    url_file.write_text(redis.url, encoding="utf-8")
    with redis_server() as moved:
        async with replica(tiny_model, url_file) as server:
            await translate(server)
            with capture_logs() as records:
                url_file.write_text(moved.url, encoding="utf-8")
                await until(lambda: any(record["event"] == "files reloaded" for record in records))
                url_file.write_text("nonsense", encoding="utf-8")
                await server.until_sample(1, "dragoman_callers_reload_failures_total")

            await translate(server, WORDS)

        with moved.client() as client:
            assert client.keys() == [b"dragoman:{words}:source_tokens/min"]


def buckets_of(url_file: Path) -> RedisBuckets:
    return RedisBuckets(url_file, timeout_s=TEST_TIMEOUT_S / 3, fail=lambda: None)


def charge(number: int, amount: float = 1) -> Charge:
    return Charge(caller=f"caller-{number}", unit="requests/s", limit=1e-6 * (number + 1), amount=amount)


async def test_cancelled_call_does_not_disturb_the_connection(url_file: Path, redis: RedisServer) -> None:
    url_file.write_text(redis.url, encoding="utf-8")
    buckets = RedisBuckets(url_file, timeout_s=0.5, fail=lambda: None)
    assert [await buckets.take([charge(number)]) for number in range(20)] == [None] * 20
    with redis.halted():
        asked = [asyncio.ensure_future(buckets.take([charge(number)])) for number in range(20)]
        await asyncio.sleep(0)
        for task in asked:
            task.cancel()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(outcome, BaseException) for outcome in outcomes)

    answers = [await buckets.take([charge(number)]) for number in range(20)]

    await buckets.close()
    for number, answer in enumerate(answers):
        assert answer is not None
        assert answer.retry_after_s == pytest.approx(1e6 / (number + 1), rel=1e-3)


@pytest.mark.parametrize("password", [PASSWORD, "wr0ng-s3cret"])
async def test_store_user_needs_few_rights_and_wrong_password_is_reported_but_not_logged(
    tiny_model: Path, url_file: Path, redis: RedisServer, password: str
) -> None:
    with redis.client() as client:
        client.execute_command("ACL", "SETUSER", "dragoman", "on", f">{PASSWORD}", *ACL.split())
    url_file.write_text(f"{redis.url}?username=dragoman&password={quote(password, safe='')}", encoding="utf-8")
    async with replica(tiny_model, url_file) as server:
        with capture_logs() as records:
            await translate(server)

    is_right = password == PASSWORD
    assert (num_checks(server, "store"), num_checks(server, "local")) == ((1, 0) if is_right else (0, 1))
    assert any("invalid username-password pair" in str(record.get("reason")) for record in records) is not is_right
    assert password not in str(records)


async def test_tls_connection_verifies_the_store(tmp_path: Path) -> None:
    authority = Authority()
    files, ca = ServerFiles(tmp_path, authority.sign(NAME)), authority.write(tmp_path / "ca.crt")
    (port,) = free_ports()
    tls = ("--tls-port", str(port), "--tls-cert-file", str(files.certificate), "--tls-key-file", str(files.key))
    options = (*tls, "--tls-ca-cert-file", str(ca), "--tls-auth-clients", "no", "--bind", "127.0.0.1")
    url_file = tmp_path / "url"
    with redis_server(*options):
        url_file.write_text(f"rediss://{NAME}:{port}/0?ssl_ca_certs={ca}", encoding="utf-8")
        trusted = buckets_of(url_file)
        assert await trusted.take([charge(0)]) is None
        await trusted.close()

        url_file.write_text(f"rediss://{NAME}:{port}/0", encoding="utf-8")
        untrusted = buckets_of(url_file)
        with pytest.raises(ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            await untrusted.take([charge(0)])
        await untrusted.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://localhost",
        "localhost:6379",
        "redis://:s3cret#1@localhost",
        "redis://:s3cret/1@localhost",
        "redis://localhost?s3cret=1",
        "rediss://localhost?ssl_cert_reqs=s3cret",
        "unix://",
        "redis://\ns3cret",
    ],
)
def test_invalid_store_url_is_rejected_and_not_shown(url_file: Path, url: str) -> None:
    url_file.write_text(url, encoding="utf-8")

    with pytest.raises(ConfigError, match="one URL redis://, rediss:// or unix://") as caught:
        buckets_of(url_file)

    assert "s3cret" not in str(caught.value)


def test_store_without_callers_file_is_rejected(url_file: Path) -> None:
    with pytest.raises(ConfigError, match="quota_store_url_file only with callers_file"):
        load_settings(flags={"access.quota_store_url_file": url_file})
