"""Encryption and client certificates over real sockets, with generated certificates."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from tests.captured_logs import capture_logs
from tests.certificates import NAME, OWN_CONNECTION, Authority, ServerFiles, chain_pem
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, rejection, request, running_server
from tests.waiting import until

FAST = {"tls__reload_interval_s": 0.01}
FAILURES = "dragoman_certificate_reload_failures_total"
EXPIRY = "dragoman_certificate_expiry_timestamp_seconds"


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def files(tmp_path: Path, authority: Authority) -> ServerFiles:
    return ServerFiles(tmp_path, authority.sign(NAME))


@pytest.fixture
async def encrypted(tiny_model: Path, files: ServerFiles) -> AsyncIterator[RunningServer]:
    """A server with TLS."""
    async with running_server(tiny_model, **files.settings, **FAST) as server:
        yield server


@pytest.fixture
async def mutual(
    tiny_model: Path, files: ServerFiles, authority: Authority, tmp_path: Path
) -> AsyncIterator[RunningServer]:
    """A server with TLS that requires client certificates."""
    ca = authority.write(tmp_path / "clients.crt")
    async with running_server(tiny_model, **files.settings, **FAST, tls__client_ca_file=ca) as server:
        yield server


async def translate(channel: grpc.aio.Channel) -> Any:
    async with channel:
        return await pb_grpc.TranslationServiceStub(channel).Translate(request("A man."), timeout=TEST_TIMEOUT_S)


def shown_certificate(server: RunningServer) -> x509.Certificate:
    """Return the certificate that a new connection receives."""
    pem = ssl.get_server_certificate(("127.0.0.1", server.port), timeout=TEST_TIMEOUT_S)
    return x509.load_pem_x509_certificate(pem.encode())


def leaf(certificate: trustme.LeafCert) -> x509.Certificate:
    return x509.load_pem_x509_certificate(chain_pem(certificate))


async def test_calls_are_encrypted_with_a_certificate(encrypted: RunningServer, authority: Authority) -> None:
    assert len((await translate(authority.channel(encrypted.port))).translations) == 1


async def test_plain_text_and_other_authorities_are_rejected(encrypted: RunningServer) -> None:
    for channel in (
        grpc.aio.insecure_channel(encrypted.target, options=OWN_CONNECTION),
        Authority().channel(encrypted.port),
    ):
        assert (await rejection(translate(channel))).code == "UNAVAILABLE"


async def test_new_connections_use_the_new_certificate(
    encrypted: RunningServer, authority: Authority, files: ServerFiles
) -> None:
    async with authority.channel(encrypted.port) as old:
        stub = pb_grpc.ModelServiceStub(old)
        await stub.ListModels(pb.ListModelsRequest())
        renewed = authority.sign(NAME)

        files.replace(renewed)
        await until(lambda: shown_certificate(encrypted) == leaf(renewed))

        await stub.ListModels(pb.ListModelsRequest())
    await translate(authority.channel(encrypted.port))
    assert encrypted.sample(EXPIRY, certificate="server") == leaf(renewed).not_valid_after_utc.timestamp()


async def test_new_certificate_of_another_key_keeps_the_old_one(
    encrypted: RunningServer, authority: Authority, files: ServerFiles
) -> None:
    before = shown_certificate(encrypted)

    with capture_logs() as records:
        files.certificate.write_bytes(chain_pem(Authority().sign(NAME)))
        await encrypted.until_sample(1, FAILURES)

    assert [record["log_level"] for record in records if "invalid" in record["event"]] == ["error"]
    assert shown_certificate(encrypted) == before
    await translate(authority.channel(encrypted.port))


async def test_expiry_metric_is_absent_without_tls(server: RunningServer) -> None:
    assert server.metrics.registry.get_sample_value(EXPIRY, {"certificate": "server"}) is None


@pytest.mark.parametrize(("names", "caller"), [(("shop.example.com",), "shop.example.com"), ((), "shop")])
async def test_client_certificate_identifies_the_caller(
    mutual: RunningServer, authority: Authority, names: tuple[str, ...], caller: str
) -> None:
    client = authority.sign(*names, common_name="shop")

    with capture_logs() as records:
        await translate(authority.channel(mutual.port, client))
        async with authority.channel(mutual.port, client) as channel:
            unload = pb_grpc.ModelAdminServiceStub(channel).UnloadModel(pb.UnloadModelRequest(model="tiny/1"))
            error = await rejection(unload)

    assert [record["caller"] for record in records if record["event"] == "request"] == [caller] * 2
    assert (error.code, error.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert error.message == f"caller '{caller}' has no permission 'admin'"


async def test_clients_without_a_certificate_or_with_a_foreign_one_are_rejected(
    mutual: RunningServer, authority: Authority
) -> None:
    for client in (None, Authority().sign("shop.example.com", common_name="shop")):
        assert (await rejection(translate(authority.channel(mutual.port, client)))).code == "UNAVAILABLE"


async def test_replaced_client_authority_is_enforced(
    mutual: RunningServer, authority: Authority, tmp_path: Path
) -> None:
    other = Authority()
    assert mutual.sample(EXPIRY, certificate="client_ca") > 0

    other.write(tmp_path / "clients.crt")
    async with asyncio.timeout(TEST_TIMEOUT_S):
        while True:  # until the server has reloaded its files
            with contextlib.suppress(grpc.aio.AioRpcError):
                await translate(authority.channel(mutual.port, other.sign("shop")))
                break

    assert (await rejection(translate(authority.channel(mutual.port, authority.sign("shop"))))).code == "UNAVAILABLE"
