"""Retries, load balancing and limits as gRPC applies them. Waits that must not happen would take ten minutes."""

import itertools
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.client.channel import ChannelSettings, RetrySettings, channel_options, service_config
from dragoman.client.credentials import TlsOptions
from dragoman.client.errors import (
    DragomanError,
    OverloadedError,
    RateLimitedError,
    UnavailableError,
)
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.samples import RESPONSE, RESULT
from tests.unit.proto.scripted_server import EN_DE, Connect, ScriptedService, answers, rejects, running

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
FAST = ChannelSettings(retry=RetrySettings(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01))
SLOW = ChannelSettings(retry=RetrySettings(max_attempts=4, initial_backoff_s=600.0, max_backoff_s=600.0))
MAX_CALLS = 1000  # within this number, a working balancer has used every server

retryable = pytest.mark.parametrize(
    "code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED]
)


def test_client_that_was_used_before_a_fork_works_in_both_processes(service: ScriptedService, target: str) -> None:
    """Gunicorn and multiprocessing fork."""
    code = f"""
import os, sys
from dragoman.client import TranslationClient
client = TranslationClient({target!r})
client.list_models()
child = os.fork()
client.list_models()
if not child:
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    service.script.extend([answers(pb.ListModelsResponse())] * 3)

    subprocess.run([sys.executable, "-c", code], check=True, timeout=20, stderr=subprocess.DEVNULL)

    assert len(service.calls) == 3


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound_but_not_listening.getsockname()[1]}"


def test_settings_become_channel_options() -> None:
    settings = ChannelSettings(
        keepalive_time_s=10.5, keepalive_timeout_s=1.5, max_request_bytes=4096, max_response_bytes=8192
    )

    options = dict(channel_options(settings))

    config = json.loads(str(options.pop("grpc.service_config")))
    assert config == service_config(settings)
    assert config["loadBalancingConfig"] == [{"round_robin": {}}]
    assert config["retryThrottling"]
    assert not config["methodConfig"][0]["waitForReady"]
    assert options == {
        "grpc.keepalive_time_ms": 10_500,
        "grpc.keepalive_timeout_ms": 1500,
        "grpc.max_send_message_length": 4096,
        "grpc.max_receive_message_length": 8192,
        "grpc.per_rpc_retry_buffer_size": 4096,
    }


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        (RetrySettings, "max_attempts", 0),
        (RetrySettings, "max_attempts", 6),
        (RetrySettings, "initial_backoff_s", 0.001),
        (RetrySettings, "max_backoff_s", float("nan")),
        (RetrySettings, "max_backoff_s", float("inf")),
        (RetrySettings, "backoff_multiplier", 0.5),
        (ChannelSettings, "keepalive_time_s", 9.0),
        (ChannelSettings, "keepalive_timeout_s", 0.0),
        (ChannelSettings, "max_request_bytes", 0),
        (ChannelSettings, "max_response_bytes", 2**31),
    ],
)
def test_setting_out_of_range_is_rejected(settings: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        settings(**{name: value})


@retryable
def test_pushback_of_the_server_replaces_the_backoff(
    target: str, service: ScriptedService, connect: Connect, code: grpc.StatusCode
) -> None:
    service.script += [*[rejects(code, pushback_ms=1)] * 3, answers(RESPONSE)]

    with connect(target, channel=SLOW) as client:
        assert client.translate(["One."], **EN_DE) == RESULT

    assert len({call.request.request_id for call in service.calls}) == 1
    assert len(service.calls) == 4


@retryable
@pytest.mark.parametrize(("settings", "num_attempts"), [(FAST, 4), (ONE_ATTEMPT, 1)])
def test_call_fails_after_the_last_attempt(
    target: str,
    service: ScriptedService,
    connect: Connect,
    code: grpc.StatusCode,
    settings: ChannelSettings,
    num_attempts: int,
) -> None:
    service.script += [rejects(code)] * 10

    with connect(target, channel=settings) as client, pytest.raises(DragomanError) as caught:
        client.list_models()

    assert (caught.value.code, len(service.calls)) == (code, num_attempts)


@pytest.mark.parametrize(("reason", "error"), [("OVERLOADED", OverloadedError), ("RATE_LIMITED", RateLimitedError)])
def test_server_can_forbid_retries_and_still_send_a_delay(
    target: str, service: ScriptedService, connect: Connect, reason: str, error: type[DragomanError]
) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=600))
    service.script.append(rejects(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, delay, pushback_ms=-1))

    with connect(target, channel=FAST) as client, pytest.raises(error) as caught:
        client.translate(["One."], **EN_DE)

    assert (caught.value.retry_after_s, len(service.calls)) == (600.0, 1)


def test_document_is_retried_before_its_first_sentence(target: str, service: ScriptedService, connect: Connect) -> None:
    service.script += [rejects(grpc.StatusCode.UNAVAILABLE), answers([])]

    with connect(target, channel=FAST) as client:
        assert list(client.translate_document("One.", **EN_DE)) == []

    assert len(service.calls) == 2


def test_call_without_a_server_fails_immediately_by_default(closed_port: str, connect: Connect) -> None:
    with connect(closed_port, channel=ONE_ATTEMPT) as client:
        for call in (
            client.list_models,
            lambda: next(client.translate_stream([])),
            lambda: next(client.translate_document("One.", **EN_DE)),
        ):
            with pytest.raises(UnavailableError) as caught:
                call()
            assert caught.value.message.startswith(f"cannot reach {closed_port}: ")


def test_tls_does_not_fall_back_to_plain_text(target: str, connect: Connect) -> None:
    with connect(target, tls=TlsOptions(), channel=ONE_ATTEMPT) as client, pytest.raises(UnavailableError):
        client.list_models()


def test_calls_are_balanced_and_continue_after_a_server_has_died(connect: Connect) -> None:
    services = _endless(), _endless()

    with ExitStack() as stack, running(services[1]) as other:
        one = stack.enter_context(running(services[0]))
        with connect(f"ipv4:{one},{other}", channel=FAST) as client:
            _call_until(client, lambda: all(service.calls for service in services))
            stack.close()
            for _ in range(20):
                client.list_models()

    assert len(services[1].calls) > 20


def _endless() -> ScriptedService:
    service = ScriptedService()
    service.script.extend(itertools.repeat(answers(pb.ListModelsResponse()), MAX_CALLS))
    return service


def _call_until(client: Any, is_done: Callable[[], bool]) -> None:
    for _ in range(MAX_CALLS):
        client.list_models()
        if is_done():
            return
    pytest.fail("a server received no calls")
