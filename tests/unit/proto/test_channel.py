import itertools
import json
import socket
from collections.abc import Iterator

import pytest
from dragoman.channel import ChannelSettings, RetrySettings, TlsSettings, channel_options, service_config
from dragoman.client import TranslationClient
from dragoman.errors import DeadlineExceededError, UnavailableError
from dragoman.v1 import translation_pb2 as pb

from tests.unit.proto.scripted_server import ScriptedService, answers, running

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


def test_one_attempt_means_no_retry_policy() -> None:
    config = service_config(ChannelSettings(retry=RetrySettings(max_attempts=1)))

    assert "retryPolicy" not in config["methodConfig"][0]


def test_the_settings_reach_grpc_in_its_units() -> None:
    settings = ChannelSettings(keepalive_time_s=1.5, max_message_bytes=4096)

    options = dict(channel_options(settings))

    assert options["grpc.keepalive_time_ms"] == 1500
    assert options["grpc.max_receive_message_length"] == 4096
    assert json.loads(str(options["grpc.service_config"])) == service_config(settings)


@pytest.mark.parametrize("max_attempts", [0, 6])
def test_a_number_of_attempts_that_grpc_would_clamp_is_refused(max_attempts: int) -> None:
    with pytest.raises(ValueError, match=f"max_attempts is {max_attempts}, must be 1 to 5"):
        RetrySettings(max_attempts=max_attempts)


@pytest.mark.parametrize("name", ["initial_backoff_s", "max_backoff_s", "backoff_multiplier"])
def test_a_backoff_that_grpc_would_refuse_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is 0, must be above 0"):
        RetrySettings(**{name: 0})


def test_a_call_without_a_server_fails_at_once_by_default(closed_port: str) -> None:
    settings = ChannelSettings(retry=RetrySettings(max_attempts=1))

    with TranslationClient(closed_port, channel=settings) as client, pytest.raises(UnavailableError):
        client.list_models()


def test_a_call_without_a_server_waits_for_its_deadline_if_told_to(closed_port: str) -> None:
    settings = ChannelSettings(is_waiting_for_ready=True)

    with TranslationClient(closed_port, channel=settings) as client, pytest.raises(DeadlineExceededError):
        client.list_models(timeout_s=0.2)


def test_tls_does_not_fall_back_to_plain_text(target: str) -> None:
    settings = ChannelSettings(tls=TlsSettings(), retry=RetrySettings(max_attempts=1))

    with TranslationClient(target, channel=settings) as client, pytest.raises(UnavailableError):
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
