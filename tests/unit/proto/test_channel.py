"""Retries, load balancing and limits as gRPC applies them. Waits that must not happen would take ten minutes."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.client.channel import ChannelSettings, RetrySettings, channel_options, service_config
from dragoman.client.errors import (
    DragomanError,
    OverloadedError,
    RateLimitedError,
    UnavailableError,
)
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import EN_DE, Connect, ScriptedService, answers, rejects

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
FAST = ChannelSettings(retry=RetrySettings(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01))


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
        "grpc.http2.ping_timeout_ms": 1500,
        "grpc.http2.max_pings_without_data": 0,
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


@pytest.mark.parametrize(("reason", "error"), [("OVERLOADED", OverloadedError), ("RATE_LIMITED", RateLimitedError)])
def test_server_can_forbid_retries_and_still_send_a_delay(
    target: str, service: ScriptedService, connect: Connect, reason: str, error: type[DragomanError]
) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=600))
    service.script.append(rejects(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, delay, pushback_ms=-1))

    with connect(target, channel=FAST) as client, pytest.raises(error) as caught:
        client.translate(["One."], **EN_DE)

    assert (caught.value.retry_after_s, len(service.calls)) == (600.0, 1)


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
