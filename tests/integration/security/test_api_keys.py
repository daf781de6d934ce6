"""API keys over a real socket: authentication, permissions, quotas and confidentiality."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.cli.demo import ServerProcess
from dragoman_service.errors import ConfigError
from dragoman_service.security.api_keys import new_key, store
from tests.captured_logs import capture_logs
from tests.certificates import NAME, Authority, ServerFiles
from tests.integration.running_server import (
    PATIENCE_S,
    RunningServer,
    listening_server,
    refusal,
    request,
    running_server,
    until,
)

SHOP, OPS, SLOW, SMALL, STRANGER = (new_key() for _ in range(5))
REFUSED = ("UNAUTHENTICATED", "UNAUTHENTICATED")
EVERYWHERE = "0.0.0.0"  # noqa: S104 - reached on loopback here
CONFIDENTIAL = "The admiral meets the ambassador."


def entry(name: str, key: str, *permissions: str, **limits: float) -> str:
    lines = [f'name = "{name}"', f'keys = ["{store(key)}"]', f"permissions = {list(permissions)}"]
    return "\n".join(["[[caller]]", *lines, *(f"{limit} = {value}" for limit, value in limits.items()), ""])


CALLERS = "".join(
    [
        entry("shop", SHOP, "translate"),
        entry("ops", OPS, "admin"),
        entry("slow", SLOW, "translate", requests_per_s=0.5),
        entry("small", SMALL, "translate", tokens_per_min=60),
    ]
)


@pytest.fixture
def callers_file(tmp_path: Path) -> Path:
    path = tmp_path / "callers.toml"
    path.write_text(CALLERS, encoding="utf-8")
    return path


@pytest.fixture
async def guarded(tiny_model: Path, callers_file: Path) -> AsyncIterator[RunningServer]:
    """A server that requires API keys."""
    async with running_server(tiny_model, access__callers_file=callers_file, access__reload_interval_s=0.01) as server:
        yield server


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


def translate(server: RunningServer, key: str | None, *texts: str) -> Any:
    metadata = bearer(key) if key else ()
    return server.translation.Translate(request(*(texts or ("A man.",))), metadata=metadata, timeout=PATIENCE_S)


def list_models(server: RunningServer, key: str | None) -> Any:
    return server.model_service.ListModels(pb.ListModelsRequest(), metadata=bearer(key) if key else ())


def unload(server: RunningServer, key: str | None) -> Any:
    stub = pb_grpc.ModelAdminServiceStub(server.channel)
    return stub.UnloadModel(pb.UnloadModelRequest(model="missing/1"), metadata=bearer(key) if key else ())


def reflect(server: RunningServer, version: str) -> Any:
    return server.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )


async def services(server: RunningServer, key: str | None, version: str = "v1") -> list[str]:
    requests = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    call = reflect(server, version)(requests, metadata=bearer(key) if key else ())
    return [service.name async for answer in call for service in answer.list_services_response.service]


async def test_known_key_identifies_the_caller(guarded: RunningServer) -> None:
    with capture_logs() as records:
        response = await translate(guarded, SHOP)

    assert len(response.translations) == 1
    (record,) = [record for record in records if record["event"] == "request"]
    assert record["caller"] == "shop"


async def test_rejected_call_is_logged_with_its_caller(guarded: RunningServer) -> None:
    await translate(guarded, SLOW)

    with capture_logs() as records:
        await refusal(translate(guarded, SLOW))
        await refusal(unload(guarded, SHOP))
        await refusal(translate(guarded, None))

    logged = [(record["status"], record["caller"]) for record in records if record["event"] == "request"]
    *known, unknown = logged
    assert known == [("RESOURCE_EXHAUSTED", "slow"), ("PERMISSION_DENIED", "shop")]
    assert unknown[0] == "UNAUTHENTICATED"
    assert unknown[1].startswith("ipv")


async def test_missing_key_is_unauthenticated(guarded: RunningServer) -> None:
    error = await refusal(translate(guarded, None))

    assert (error.code, error.reason) == REFUSED
    assert "authorization: Bearer KEY" in error.message
    assert guarded.sample("dragoman_rejected_requests_total", reason="unauthenticated") == 1


@pytest.mark.parametrize(
    "key",
    [STRANGER, SHOP[:-1], SHOP + "x", SHOP.upper(), "x", "dgm_", "a b"],
    ids=["unknown", "too short", "too long", "upper case", "a letter", "prefix only", "with a space"],
)
async def test_wrong_key_is_rejected_and_not_quoted(guarded: RunningServer, key: str) -> None:
    error = await refusal(translate(guarded, key))

    assert (error.code, error.reason) == REFUSED
    assert error.message == "authentication failed: unknown API key"


@pytest.mark.parametrize(
    "metadata",
    [
        (("authorization", SHOP),),
        (("authorization", f"Basic {SHOP}"),),
        (("authorization", "Bearer"),),
        (("authorization", "Bearer "),),
        (("authorization", ""),),
        (*bearer(STRANGER), *bearer(SHOP)),
        (*bearer(SHOP), *bearer(SHOP)),
    ],
)
async def test_malformed_authorization_is_rejected(
    guarded: RunningServer, metadata: tuple[tuple[str, str], ...]
) -> None:
    error = await refusal(guarded.translation.Translate(request("A man."), metadata=metadata))

    assert (error.code, error.reason) == REFUSED
    assert "send exactly one key, in the metadata `authorization: Bearer KEY`" in error.message
    assert SHOP not in str(error.trailing)


async def test_scheme_bearer_is_case_insensitive(guarded: RunningServer) -> None:
    metadata = (("authorization", f"bearer  {SHOP} "),)

    assert len((await guarded.translation.Translate(request("A man."), metadata=metadata)).translations) == 1


async def test_call_without_key_is_rejected_before_parsing(guarded: RunningServer) -> None:
    call = guarded.channel.unary_unary("/dragoman.v1.TranslationService/Translate")

    assert (await refusal(call(b"\xff"))).code == "UNAUTHENTICATED"


@pytest.mark.parametrize("key", [None, STRANGER], ids=["no key", "unknown"])
async def test_streams_without_key_are_rejected(guarded: RunningServer, key: str | None) -> None:
    metadata = bearer(key) if key else ()
    document = guarded.translation.TranslateDocument(pb.TranslateDocumentRequest(text="a"), metadata=metadata)
    stream = guarded.translation.TranslateStream(iter([request("a")]), metadata=metadata)

    errors = [await refusal(anext(aiter(call))) for call in (document, stream)]

    assert [(error.code, error.reason) for error in errors] == [REFUSED, REFUSED]


async def test_silent_stream_without_key_is_rejected(guarded: RunningServer) -> None:
    for method in (guarded.translation.TranslateStream, reflect(guarded, "v1"), reflect(guarded, "v1alpha")):
        assert (await refusal(method().read())).code == "UNAUTHENTICATED"


async def test_model_management_requires_admin(guarded: RunningServer) -> None:
    error = await refusal(unload(guarded, SHOP))
    assert (error.code, error.reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert error.message == "caller 'shop' has no permission 'admin'"

    assert (await refusal(unload(guarded, OPS))).code not in {"PERMISSION_DENIED", "UNAUTHENTICATED"}
    assert (await refusal(translate(guarded, OPS))).code == "PERMISSION_DENIED"
    assert (await refusal(unload(guarded, None))).code == "UNAUTHENTICATED"


async def test_any_known_key_can_list_models(guarded: RunningServer) -> None:
    for key in (SHOP, OPS):
        assert (await list_models(guarded, key)).models

    assert (await refusal(list_models(guarded, None))).code == "UNAUTHENTICATED"


async def test_probes_need_no_key(guarded: RunningServer) -> None:
    answer = await health_pb2_grpc.HealthStub(guarded.channel).Check(health_pb2.HealthCheckRequest())

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_needs_any_key(guarded: RunningServer, version: str) -> None:
    assert "dragoman.v1.TranslationService" in await services(guarded, OPS, version)

    assert (await refusal(services(guarded, None, version))).code == "UNAUTHENTICATED"
    assert (await refusal(services(guarded, STRANGER, version))).code == "UNAUTHENTICATED"


async def test_loopback_without_callers_file_needs_no_key(server: RunningServer) -> None:
    await translate(server, None)
    await translate(server, STRANGER)

    assert (await refusal(unload(server, None))).code not in {"PERMISSION_DENIED", "UNAUTHENTICATED"}
    assert await services(server, None)


async def test_remote_unknown_caller_cannot_manage_models(tiny_model: Path) -> None:
    async with running_server(tiny_model, grpc__host=EVERYWHERE, access__allow_unauthenticated=True) as server:
        await translate(server, None)

        assert (await refusal(unload(server, None))).code == "PERMISSION_DENIED"


async def test_requests_above_the_quota_get_a_retry_delay(guarded: RunningServer) -> None:
    await translate(guarded, SLOW)

    error = await refusal(translate(guarded, SLOW))

    assert (error.code, error.reason, error.retry_delay_ms) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED", 2000)
    assert error.message == "caller 'slow' is limited to 0.5 requests/s; retry in 2.0 s"
    assert error.trailing["grpc-retry-pushback-ms"] == "2000"
    assert guarded.sample("dragoman_rejected_requests_total", reason="rate_limited") == 1

    guarded.clock.advance(2.0)
    await translate(guarded, SLOW)


async def test_quotas_of_callers_are_independent(guarded: RunningServer) -> None:
    await translate(guarded, SLOW)
    assert (await refusal(translate(guarded, SLOW))).reason == "RATE_LIMITED"

    assert len((await translate(guarded, SHOP)).translations) == 1
    assert (await refusal(translate(guarded, SLOW))).reason == "RATE_LIMITED"


async def test_tokens_above_the_quota_are_rejected_before_queueing(guarded: RunningServer) -> None:
    first = await translate(guarded, SMALL, *["A man."] * 30)
    num_segments = guarded.sample("dragoman_segments_total", outcome="ok")
    assert first.num_source_tokens > 60

    error = await refusal(translate(guarded, SMALL))

    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
    assert "caller 'small' is limited to 60 source tokens/min" in error.message
    assert guarded.sample("dragoman_segments_total", outcome="ok") == num_segments
    assert guarded.sample("dragoman_rejected_requests_total", reason="rate_limited") == 1

    guarded.clock.advance(error.retry_delay_ms / 1000)
    await translate(guarded, SMALL)


async def test_requests_rejected_by_the_queue_are_refunded(tiny_model: Path, callers_file: Path) -> None:
    small_queue = {
        "limits__max_request_sentences": 30,
        "scheduling__max_queue_segments": 60,
        "scheduling__max_batch_segments": 1,  # so that the others wait
    }
    async with running_server(tiny_model, access__callers_file=callers_file, **small_queue) as server:
        server.model.halt()
        decoded = asyncio.ensure_future(translate(server, SHOP))
        await server.model.halted_step()
        server.clock.advance(1.0)  # in a step that takes so long, a batch gets no new segments
        waiting = asyncio.ensure_future(translate(server, SHOP, *["A man."] * 30))
        await server.until_sample(30, "dragoman_queue_segments")

        assert (await refusal(translate(server, SMALL, *["A man."] * 30))).reason == "OVERLOADED"  # a share of the rest

        server.model.resume()
        await asyncio.gather(decoded, waiting)
        await translate(server, SMALL, *["A man."] * 30)


async def test_changed_keys_apply_without_restart(guarded: RunningServer, callers_file: Path) -> None:
    callers_file.write_text(entry("shop", STRANGER, "translate"), encoding="utf-8")

    await until_translated(guarded, STRANGER)

    assert (await refusal(translate(guarded, SHOP))).code == "UNAUTHENTICATED"


async def until_translated(server: RunningServer, key: str) -> None:
    """Retry until the server has reloaded its callers file."""
    for _ in range(1000):
        with contextlib.suppress(grpc.aio.AioRpcError):
            await translate(server, key)
            return
    raise AssertionError("never let in")


@pytest.mark.parametrize("broken", ["", "[[caller", CALLERS.replace("translate", "fly"), "\x00"])
async def test_invalid_callers_file_keeps_the_old_keys(guarded: RunningServer, callers_file: Path, broken: str) -> None:
    with capture_logs() as records:
        callers_file.write_text(broken, encoding="utf-8")
        await guarded.until_sample(1, "dragoman_callers_reload_failures_total")
        await until(lambda: any("invalid" in record["event"] for record in records))

    await translate(guarded, SHOP)


async def test_reload_keeps_used_quotas(guarded: RunningServer, callers_file: Path) -> None:
    await translate(guarded, SLOW)

    callers_file.write_text(CALLERS + entry("new", STRANGER, "translate"), encoding="utf-8")
    await until_translated(guarded, STRANGER)

    assert (await refusal(translate(guarded, SLOW))).reason == "RATE_LIMITED"


async def test_invalid_callers_file_prevents_startup(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access.callers_file.*No such file"):
        async with listening_server(tiny_model, access__callers_file=tmp_path / "missing"):
            pass


async def test_listed_certificate_replaces_a_key(tiny_model: Path, tmp_path: Path) -> None:
    authority = Authority()
    files = ServerFiles(tmp_path, authority.sign(NAME))
    callers = tmp_path / "callers.toml"
    listed = '[[caller]]\nname = "ops"\ncertificates = ["ops.example.com"]\npermissions = ["admin", "translate"]\n'
    callers.write_text(CALLERS.replace("ops", "o") + listed, encoding="utf-8")
    settings = {**files.settings, "tls__client_ca_file": authority.write(tmp_path / "ca.crt")}

    async with running_server(tiny_model, **settings, access__callers_file=callers) as server:
        async with authority.channel(server.port, authority.sign("ops.example.com", common_name="x")) as channel:
            await pb_grpc.TranslationServiceStub(channel).Translate(request("A man."))
            admin = pb_grpc.ModelAdminServiceStub(channel)
            error = await refusal(admin.UnloadModel(pb.UnloadModelRequest(model="missing/1")))
            assert error.code not in {"PERMISSION_DENIED", "UNAUTHENTICATED"}
        async with authority.channel(server.port, authority.sign("other.example.com")) as channel:
            stub = pb_grpc.TranslationServiceStub(channel)
            error = await refusal(stub.Translate(request("A man.")))
            assert (error.code, error.reason) == REFUSED
            await stub.Translate(request("A man."), metadata=bearer(SHOP))


async def test_neither_keys_nor_texts_are_logged(callers_file: Path, tiny_model: Path) -> None:
    flags = ("--models", str(tiny_model))
    environment = {"DRAGOMAN_ACCESS__CALLERS_FILE": str(callers_file), "DRAGOMAN_LOGS__LEVEL": "debug"}
    with ServerProcess(*flags, environment=environment) as process:
        ports = await asyncio.to_thread(process.wait_until_ready, timeout_s=PATIENCE_S * 4)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports.grpc_port}") as channel:
            stub = pb_grpc.TranslationServiceStub(channel)
            for metadata in (bearer(SHOP), bearer(STRANGER), bearer(OPS), (("authorization", SHOP),)):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await stub.Translate(request(CONFIDENTIAL), metadata=metadata)
            with contextlib.suppress(grpc.aio.AioRpcError):
                await stub.Translate(request(CONFIDENTIAL, model=CONFIDENTIAL), metadata=bearer(SHOP))
        callers_file.write_text(SHOP, encoding="utf-8")
        process.send(signal.SIGTERM)  # the last lines follow their answers
        await asyncio.to_thread(process.wait, timeout_s=PATIENCE_S * 4)

    assert process.log.count('"event": "request"') == 5
    assert '"caller": "shop"' in process.log
    leaked = [secret for secret in (SHOP, STRANGER, OPS, CONFIDENTIAL, "admiral") if secret in process.log]
    assert not leaked
    assert not [secret for secret in (SHOP, STRANGER, OPS) if secret.split("_", 2)[2] in process.log]
