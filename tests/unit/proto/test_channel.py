import itertools
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from dragoman.client.channel import ChannelSettings, RetrySettings, channel_options, service_config
from dragoman.client.credentials import TlsOptions
from dragoman.client.errors import DeadlineExceededError, UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers, refuses_for, running

Connect = Callable[..., Any]

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
FAST = ChannelSettings(retry=RetrySettings(initial_backoff_s=0.01, max_backoff_s=0.02))
MAX_CALLS = 1000  # within this number, a working balancer has used every server


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound_but_not_listening.getsockname()[1]}"


def test_all_services_except_administration_are_retried() -> None:
    methods = service_config(ChannelSettings())["methodConfig"]

    assert {method["name"][0]["service"]: "retryPolicy" in method for method in methods} == {
        "dragoman.v1.TranslationService": True,
        "dragoman.v1.ModelService": True,
        "dragoman.v1.ModelAdminService": False,
    }


def test_one_attempt_disables_the_retry_policy() -> None:
    assert not any("retryPolicy" in method for method in service_config(ONE_ATTEMPT)["methodConfig"])


def test_settings_become_channel_options() -> None:
    settings = ChannelSettings(keepalive_time_s=10.5, max_request_bytes=4096, max_response_bytes=8192)

    options = dict(channel_options(settings))

    assert options["grpc.keepalive_time_ms"] == 10_500
    assert options["grpc.max_send_message_length"] == 4096
    assert options["grpc.max_receive_message_length"] == 8192
    assert json.loads(str(options["grpc.service_config"])) == service_config(settings)


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


def test_call_without_a_server_fails_immediately_by_default(closed_port: str, connect: Connect) -> None:
    with connect(closed_port, channel=ONE_ATTEMPT) as client:
        for call in (
            client.list_models,
            lambda: next(client.translate_stream([])),
            lambda: next(client.translate_document("One.", **EN_DE)),
        ):
            with pytest.raises(UnavailableError):
                call()


def test_call_without_a_server_can_wait_for_its_deadline(closed_port: str, connect: Connect) -> None:
    settings = ChannelSettings(is_waiting_for_ready=True)

    with connect(closed_port, channel=settings) as client, pytest.raises(DeadlineExceededError):
        client.list_models(timeout_s=0.2)


def test_tls_does_not_fall_back_to_plain_text(target: str, connect: Connect) -> None:
    with connect(target, tls=TlsOptions(), channel=ONE_ATTEMPT) as client, pytest.raises(UnavailableError):
        client.list_models()


def test_calls_are_balanced_over_all_servers(connect: Connect) -> None:
    services = _endless(), _endless()

    with running(services[0]) as one, running(services[1]) as other, connect(f"ipv4:{one},{other}") as client:
        _call_until(client, lambda: all(service.calls for service in services))


def test_draining_server_is_skipped(connect: Connect) -> None:
    draining, healthy = ScriptedService(), _endless()
    draining.script.extend(itertools.repeat(refuses_for(grpc.StatusCode.UNAVAILABLE, "DRAINING"), MAX_CALLS))

    with running(draining) as one, running(healthy) as other, connect(f"ipv4:{one},{other}", channel=FAST) as client:
        _call_until(client, lambda: len(draining.calls) >= 3)


def test_calls_continue_after_a_server_has_died(connect: Connect) -> None:
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
