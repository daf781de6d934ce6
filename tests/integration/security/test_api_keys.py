"""API keys over a real socket: authentication, permissions, quotas and confidentiality."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles
from tests.integration.running_server import (
    TEST_TIMEOUT_S,
    RunningServer,
    bearer,
    caller_entry,
    listening_server,
    rejection,
    request,
    running_server,
)
from tests.waiting import until

SHOP, OPS, SLOW, STRANGER = (new_key() for _ in range(4))
DENIED, UNAUTHENTICATED = "PERMISSION_DENIED", "UNAUTHENTICATED"
EVERYWHERE = "0.0.0.0"  # noqa: S104 - reached on loopback here
CONFIDENTIAL = "The admiral meets the ambassador."
CALLERS = (
    caller_entry("shop", SHOP) + caller_entry("ops", OPS, "admin") + caller_entry("slow", SLOW, requests_per_s=0.5)
)


@pytest.fixture
def callers_file(tmp_path: Path) -> Path:
    path = tmp_path / "callers.toml"
    path.write_text(CALLERS, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
async def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningServer]:
    """A server that requires API keys."""
    path = tmp_path_factory.mktemp("callers") / "callers.toml"
    path.write_text(CALLERS, encoding="utf-8")
    async with running_server(tiny_model, access__callers_file=path) as server:
        yield server


@pytest.fixture
async def reloading(tiny_model: Path, callers_file: Path) -> AsyncIterator[RunningServer]:
    """A server that reads its callers file again after changes."""
    async with running_server(tiny_model, access__callers_file=callers_file, access__reload_interval_s=0.01) as server:
        yield server


def translate(server: RunningServer, key: str | None) -> Any:
    return server.translate("A man.", metadata=bearer(key), timeout_s=TEST_TIMEOUT_S)


async def translated(server: RunningServer, key: str | None) -> bool:
    return len((await translate(server, key)).translations) == 1


def list_models(server: RunningServer, key: str | None) -> Any:
    return server.model_service.ListModels(pb.ListModelsRequest(), metadata=bearer(key))


def unload(server: RunningServer, key: str | None) -> Any:
    """Unload a model that does not exist: NOT_FOUND with permission."""
    return server.admin.UnloadModel(pb.UnloadModelRequest(model="missing/1"), metadata=bearer(key))


async def services(server: RunningServer, key: str | None, version: str = "v1") -> list[str]:
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    call = server.reflect(version)(requests, metadata=bearer(key))
    return [service.name async for answer in call for service in answer.list_services_response.service]


async def until_translated(server: RunningServer, key: str) -> None:
    """Retry until the server has reloaded its callers file."""
    async with asyncio.timeout(TEST_TIMEOUT_S):
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await translate(server, key)
                return


async def test_requests_are_logged_with_their_caller(guarded: RunningServer) -> None:
    guarded.clock.advance(2.0)
    with capture_logs() as records:
        await translate(guarded, SLOW)
        await rejection(translate(guarded, SLOW))
        await rejection(unload(guarded, SHOP))
        await rejection(translate(guarded, None))

    *known, unknown = [(record["status"], record["caller"]) for record in records if record["event"] == "request"]
    assert known == [("OK", "slow"), ("RESOURCE_EXHAUSTED", "slow"), (DENIED, "shop")]
    assert unknown[0] == UNAUTHENTICATED
    assert unknown[1].startswith("ipv")


@pytest.mark.parametrize("key", [STRANGER, SHOP + "x", "a b"], ids=["unknown", "too long", "with a space"])
async def test_wrong_key_is_rejected_and_not_quoted(guarded: RunningServer, key: str) -> None:
    error = await rejection(translate(guarded, key))

    assert (error.code, error.reason) == (UNAUTHENTICATED, UNAUTHENTICATED)
    assert error.message == "authentication failed: unknown API key"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", SHOP),),
        (("authorization", f"Basic {SHOP}"),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", ""),),
        (*bearer(STRANGER), *bearer(SHOP)),
        (*bearer(SHOP), *bearer(SHOP)),
    ],
)
async def test_missing_or_malformed_authorization_is_rejected(
    guarded: RunningServer, metadata: tuple[tuple[str, str], ...]
) -> None:
    error = await rejection(guarded.translate("A man.", metadata=metadata))

    assert (error.code, error.reason) == (UNAUTHENTICATED, UNAUTHENTICATED)
    assert "authorization: Bearer KEY" in error.message
    assert SHOP not in str(error.trailing)


async def test_scheme_bearer_is_case_insensitive(guarded: RunningServer) -> None:
    assert (await guarded.translate("A man.", metadata=(("authorization", f"bearer  {SHOP} "),))).translations


async def test_call_without_key_is_rejected_before_its_message_is_read(guarded: RunningServer) -> None:
    call = guarded.channel.unary_unary("/dragoman.v1.TranslationService/Translate")

    assert (await rejection(call(b"\xff"))).code == UNAUTHENTICATED
    for method in (guarded.translation.TranslateStream, guarded.reflect("v1"), guarded.reflect("v1alpha")):
        assert (await rejection(method().read())).code == UNAUTHENTICATED  # of a stream without a message


async def test_callers_have_only_their_permissions(guarded: RunningServer) -> None:
    error = await rejection(unload(guarded, SHOP))
    assert (error.code, error.reason) == (DENIED, DENIED)
    assert error.message == "caller 'shop' has no permission 'admin'"

    assert (await rejection(unload(guarded, OPS))).code == "NOT_FOUND"
    assert (await rejection(translate(guarded, OPS))).code == DENIED
    assert (await rejection(unload(guarded, None))).code == UNAUTHENTICATED


async def test_any_known_key_can_list_models_and_services(guarded: RunningServer) -> None:
    for key in (SHOP, OPS):
        assert (await list_models(guarded, key)).models
        for version in ("v1", "v1alpha"):
            assert "dragoman.v1.TranslationService" in await services(guarded, key, version)

    for unknown in (None, STRANGER):
        assert (await rejection(list_models(guarded, unknown))).code == UNAUTHENTICATED
        for version in ("v1", "v1alpha"):
            assert (await rejection(services(guarded, unknown, version))).code == UNAUTHENTICATED


async def test_probes_need_no_key(guarded: RunningServer) -> None:
    answer = await health_pb2_grpc.HealthStub(guarded.channel).Check(health_pb2.HealthCheckRequest())

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_remote_unknown_caller_cannot_manage_models(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__host=EVERYWHERE, access__allow_unauthenticated=True) as server:
        assert await translated(server, None)
        assert (await rejection(unload(server, None))).code == DENIED


async def test_requests_above_the_quota_get_a_retry_delay(guarded: RunningServer) -> None:
    guarded.clock.advance(2.0)
    assert await translated(guarded, SLOW)

    error = await rejection(translate(guarded, SLOW))

    assert (error.code, error.reason, error.retry_delay_ms) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED", 2000)
    assert error.message == "caller 'slow' is limited to 0.5 requests/s; retry in 2.0 s"
    assert error.trailing["grpc-retry-pushback-ms"] == "2000"
    guarded.clock.advance(2.0)
    assert await translated(guarded, SLOW)


async def test_changed_keys_apply_without_restart_and_keep_used_quotas(
    reloading: RunningServer, callers_file: Path
) -> None:
    assert await translated(reloading, SLOW)

    entries = caller_entry("shop", STRANGER) + caller_entry("slow", SLOW, requests_per_s=0.5)
    callers_file.write_text(entries, encoding="utf-8")
    await until_translated(reloading, STRANGER)

    assert (await rejection(translate(reloading, SHOP))).code == UNAUTHENTICATED
    assert (await rejection(translate(reloading, SLOW))).reason == "RATE_LIMITED"


async def test_invalid_callers_file_keeps_the_old_keys(reloading: RunningServer, callers_file: Path) -> None:
    with capture_logs() as records:
        callers_file.write_text("[[caller", encoding="utf-8")
        await reloading.until_sample(1, "dragoman_callers_reload_failures_total")
        await until(lambda: any("invalid" in record["event"] for record in records))

    assert await translated(reloading, SHOP)


async def test_invalid_callers_file_prevents_startup(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access.callers_file.*No such file"):
        async with listening_server(tiny_model, access__callers_file=tmp_path / "missing"):
            pass


async def test_listed_certificate_replaces_a_key(tiny_model: Path, tmp_path: Path) -> None:
    authority = Authority()
    files = ServerFiles(tmp_path, authority.sign(NAME))
    callers = tmp_path / "callers.toml"
    listed = '[[caller]]\nname = "ops"\ncertificates = ["ops.example.com"]\npermissions = ["admin", "translate"]\n'
    callers.write_text(caller_entry("shop", SHOP) + listed, encoding="utf-8")
    settings = {**files.settings, "tls__client_ca_file": authority.write(tmp_path / "ca.crt")}

    async with running_server(tiny_model, **settings, access__callers_file=callers) as server:
        async with authority.channel(server.port, authority.sign("ops.example.com", common_name="x")) as channel:
            await pb_grpc.TranslationServiceStub(channel).Translate(request("A man."))
            admin = pb_grpc.ModelAdminServiceStub(channel)
            assert (await rejection(admin.UnloadModel(pb.UnloadModelRequest(model="missing/1")))).code == "NOT_FOUND"
        async with authority.channel(server.port, authority.sign("other.example.com")) as channel:
            stub = pb_grpc.TranslationServiceStub(channel)
            assert (await rejection(stub.Translate(request("A man.")))).reason == UNAUTHENTICATED
            await stub.Translate(request("A man."), metadata=bearer(SHOP))


async def test_neither_keys_nor_texts_are_logged(reloading: RunningServer, callers_file: Path) -> None:
    calls = [(metadata, "") for metadata in (bearer(SHOP), bearer(STRANGER), bearer(OPS))]
    with capture_logs() as records:
        for metadata, model in (*calls, ((("authorization", SHOP),), ""), (bearer(SHOP), CONFIDENTIAL)):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await reloading.translate(CONFIDENTIAL, model=model, metadata=metadata)
        callers_file.write_text(SHOP, encoding="utf-8")
        await reloading.until_sample(1, "dragoman_callers_reload_failures_total")
        await until(lambda: [record["event"] for record in records].count("request") == 5)

    secrets = [SHOP, STRANGER, OPS]
    hidden = [*secrets, *(key.split("_", 2)[2] for key in secrets), "admiral"]
    assert not [secret for secret in hidden if secret in str(records)]
