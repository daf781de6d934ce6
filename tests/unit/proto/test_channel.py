import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from dragoman.channel import ChannelSettings, RetrySettings, channel_options, service_config
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.credentials import TlsOptions
from dragoman.errors import DeadlineExceededError, UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, answers, refuses_for, running

MANY = 1_000
"""Calls after which a balancer that ignores a server is broken and not just slow to connect."""


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound_but_not_listening.getsockname()[1]}"


def test_the_policy_holds_for_every_service() -> None:
    config = service_config(ChannelSettings())

    assert config["methodConfig"][0]["name"] == [
        {"service": "dragoman.v1.TranslationService"},
        {"service": "dragoman.v1.ModelService"},
    ]
    assert config["methodConfig"][1]["name"] == [{"service": "dragoman.v1.ModelAdminService"}]


def test_requests_to_change_models_are_not_repeated() -> None:
    config = service_config(ChannelSettings())

    assert "retryPolicy" in config["methodConfig"][0]
    assert "retryPolicy" not in config["methodConfig"][1]


def test_one_attempt_means_no_retry_policy() -> None:
    config = service_config(ChannelSettings(retry=RetrySettings(max_attempts=1)))

    assert "retryPolicy" not in config["methodConfig"][0]


def test_the_settings_reach_grpc_in_its_units() -> None:
    settings = ChannelSettings(keepalive_time_s=10.5, max_request_bytes=4096, max_response_bytes=8192)

    options = dict(channel_options(settings))

    assert options["grpc.keepalive_time_ms"] == 10_500
    assert options["grpc.max_send_message_length"] == 4096
    assert options["grpc.max_receive_message_length"] == 8192
    assert json.loads(str(options["grpc.service_config"])) == service_config(settings)


@pytest.mark.parametrize("max_attempts", [0, 6])
def test_a_number_of_attempts_that_grpc_would_clamp_is_refused(max_attempts: int) -> None:
    with pytest.raises(ValueError, match=f"max_attempts is {max_attempts}, must be 1 to 5"):
        RetrySettings(max_attempts=max_attempts)


@pytest.mark.parametrize("name", ["initial_backoff_s", "max_backoff_s"])
@pytest.mark.parametrize("value", [0, 0.001, float("nan"), float("inf")])
def test_a_wait_that_grpc_would_refuse_or_never_end_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, must be 0.01 to 3600"):
        RetrySettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keepalive_time_s", 9.0),
        ("keepalive_timeout_s", 0.0),
        ("max_request_bytes", 0),
        ("max_response_bytes", 2**31),
    ],
)
def test_a_channel_setting_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}, must be"):
        ChannelSettings(**{name: value})


def test_waits_that_shrink_are_refused() -> None:
    with pytest.raises(ValueError, match=r"backoff_multiplier is 0\.5, must be 1 to 100"):
        RetrySettings(backoff_multiplier=0.5)


def test_a_call_without_a_server_fails_at_once_by_default(closed_port: str) -> None:
    settings = ChannelSettings(retry=RetrySettings(max_attempts=1))

    with TranslationClient(closed_port, channel=settings) as client, pytest.raises(UnavailableError):
        client.list_models()


def test_a_call_without_a_server_waits_for_its_deadline_if_told_to(closed_port: str) -> None:
    settings = ChannelSettings(is_waiting_for_ready=True)

    with TranslationClient(closed_port, channel=settings) as client, pytest.raises(DeadlineExceededError):
        client.list_models(timeout_s=0.2)


async def test_a_stream_without_a_server_fails_at_once_by_default(closed_port: str) -> None:
    settings = ChannelSettings(retry=RetrySettings(max_attempts=1))

    async with AsyncTranslationClient(closed_port, channel=settings) as client:
        with pytest.raises(UnavailableError):
            await anext(client.translate_stream([]))
        with pytest.raises(UnavailableError):
            await anext(client.translate_document("One.", source_language="en", target_language="de"))


def test_tls_does_not_fall_back_to_plain_text(target: str) -> None:
    settings = ChannelSettings(retry=RetrySettings(max_attempts=1))

    with TranslationClient(target, tls=TlsOptions(), channel=settings) as client, pytest.raises(UnavailableError):
        client.list_models()


def test_calls_go_to_all_servers() -> None:
    services = ScriptedService(), ScriptedService()
    for service in services:
        service.script.extend(itertools.repeat(answers(pb.ListModelsResponse()), MANY))

    with running(services[0]) as one, running(services[1]) as other, TranslationClient(f"ipv4:{one},{other}") as client:
        for _ in range(MANY):
            client.list_models()
            if all(service.calls for service in services):
                break

    assert all(service.calls for service in services)


async def test_async_calls_go_to_all_servers() -> None:
    services = ScriptedService(), ScriptedService()
    for service in services:
        service.script.extend(itertools.repeat(answers(pb.ListModelsResponse()), MANY))

    with running(services[0]) as one, running(services[1]) as other:
        async with AsyncTranslationClient(f"ipv4:{one},{other}") as client:
            for _ in range(MANY):
                await client.list_models()
                if all(service.calls for service in services):
                    break

    assert all(service.calls for service in services)


def test_calls_go_on_while_a_server_drains() -> None:
    draining, sound = ScriptedService(), ScriptedService()
    draining.script.extend(itertools.repeat(refuses_for(grpc.StatusCode.UNAVAILABLE, "DRAINING"), MANY))
    sound.script.extend(itertools.repeat(answers(pb.ListModelsResponse()), MANY))

    with running(draining) as one, running(sound) as other, _eager_client(one, other) as client:
        for _ in range(MANY):
            client.list_models()
            if len(draining.calls) >= 3:
                break

    assert len(draining.calls) >= 3


def test_calls_go_on_when_a_server_dies() -> None:
    services = ScriptedService(), ScriptedService()
    for service in services:
        service.script.extend(itertools.repeat(answers(pb.ListModelsResponse()), MANY))

    with ExitStack() as dying, running(services[1]) as other:
        one = dying.enter_context(running(services[0]))
        with _eager_client(one, other) as client:
            while not all(service.calls for service in services):
                client.list_models()
            dying.close()
            for _ in range(20):
                client.list_models()

    assert len(services[1].calls) > 20


def _eager_client(*addresses: str) -> TranslationClient:
    """Retries without keeping a test waiting."""
    channel = ChannelSettings(retry=RetrySettings(initial_backoff_s=0.01, max_backoff_s=0.02))
    return TranslationClient(f"ipv4:{','.join(addresses)}", channel=channel)
