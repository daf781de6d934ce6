"""Retries as gRPC makes them, over a real socket. Waits that must not happen would take ten minutes."""

from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.errors import (
    DeadlineExceededError,
    DragomanError,
    ExhaustedError,
    OverloadedError,
    RateLimitedError,
)
from tests.unit.proto.samples import RESPONSE, RESULT
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers, refuses, refuses_for

Connect = Callable[..., Any]

TEN_MINUTES_MS = 600_000
FAST = ChannelSettings(retry=RetrySettings(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01))
SLOW = ChannelSettings(retry=RetrySettings(max_attempts=4, initial_backoff_s=600.0, max_backoff_s=600.0))
NUM_FAILURES = 200  # more than a channel without throttling needs

retryable = pytest.mark.parametrize(
    "code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED]
)


@retryable
def test_pushback_of_the_server_replaces_the_backoff(
    target: str, service: ScriptedService, connect: Connect, code: grpc.StatusCode
) -> None:
    service.script += [*[refuses(code, pushback_ms=1)] * 3, answers(RESPONSE)]

    with connect(target, channel=SLOW) as client:
        assert client.translate(["One."], **EN_DE) == RESULT

    assert len({call.request.request_id for call in service.calls}) == 1
    assert len(service.calls) == 4


@retryable
def test_call_fails_after_the_last_attempt(
    target: str, service: ScriptedService, connect: Connect, code: grpc.StatusCode
) -> None:
    service.script += [refuses(code)] * 10

    with connect(target, channel=FAST) as client, pytest.raises(DragomanError) as caught:
        client.translate(["One."], **EN_DE)

    assert caught.value.code is code
    assert len(service.calls) == 4


def test_backoff_ends_with_the_deadline(target: str, service: ScriptedService, connect: Connect) -> None:
    service.script.append(refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms=TEN_MINUTES_MS))

    with connect(target, channel=FAST) as client, pytest.raises(DeadlineExceededError):
        client.translate(["One."], timeout_s=0.3, **EN_DE)

    assert len(service.calls) == 1


@pytest.mark.parametrize(("reason", "error"), [("OVERLOADED", OverloadedError), ("RATE_LIMITED", RateLimitedError)])
def test_server_can_forbid_retries_and_still_send_a_delay(
    target: str, service: ScriptedService, connect: Connect, reason: str, error: type[DragomanError]
) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=600))
    service.script.append(refuses_for(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, delay, pushback_ms=-1))

    with connect(target, channel=FAST) as client, pytest.raises(error) as caught:
        client.translate(["One."], **EN_DE)

    assert caught.value.retry_after_s == 600.0
    assert len(service.calls) == 1


def test_retries_stop_after_many_failures(target: str, service: ScriptedService, connect: Connect) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * NUM_FAILURES * 4

    with connect(target, channel=FAST) as client:
        attempts = []
        for _ in range(NUM_FAILURES):
            num_before = len(service.calls)
            with pytest.raises(DragomanError):
                client.list_models()
            attempts.append(len(service.calls) - num_before)

    assert (attempts[0], attempts[-1]) == (4, 1)


def test_document_is_retried_before_its_first_sentence(target: str, service: ScriptedService, connect: Connect) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE), answers(iter(()))]

    with connect(target, channel=FAST) as client:
        assert list(client.translate_document("One.", **EN_DE)) == []

    assert len(service.calls) == 2


def test_request_of_a_megabyte_is_retried(target: str, service: ScriptedService, connect: Connect) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE), answers(RESPONSE)]

    with connect(target, channel=FAST) as client:
        assert client.translate(["x" * 10_000] * 100, **EN_DE) == RESULT


def test_request_above_the_size_limit_is_not_sent(target: str, service: ScriptedService, connect: Connect) -> None:
    with connect(target, channel=SLOW) as client, pytest.raises(ExhaustedError):
        client.translate(["One."], target_prefixes=["x" * 5 * 2**20], **EN_DE)

    assert not service.calls
