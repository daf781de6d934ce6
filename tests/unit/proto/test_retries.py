"""What gRPC does with the retry policy, over a real socket; the waits it must not take are ten minutes long."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2

from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.errors import DeadlineExceededError, DragomanError, ExhaustedError, OverloadedError, RateLimitedError
from dragoman.results import TranslationResult
from tests.unit.proto.samples import RESPONSE, RESULT
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers, refuses, refuses_for

RETRYABLE = [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED]
TEN_MINUTES_MS = 600_000
EAGER = RetrySettings(max_attempts=4, initial_backoff_s=0.01, max_backoff_s=0.01)
PATIENT = RetrySettings(max_attempts=4, initial_backoff_s=600.0, max_backoff_s=600.0)
"""Retries after ten minutes unless the server says otherwise."""

MANY = 200
"""Failed calls after which a channel that still retries is not throttled."""

Translate = Callable[..., TranslationResult]


def _translate(target: str, retry: RetrySettings, **options: Any) -> TranslationResult:
    with TranslationClient(target, channel=ChannelSettings(retry=retry)) as client:
        return client.translate(["One."], **options, **EN_DE)


def _translate_async(target: str, retry: RetrySettings, **options: Any) -> TranslationResult:
    async def translate() -> TranslationResult:
        async with AsyncTranslationClient(target, channel=ChannelSettings(retry=retry)) as client:
            return await client.translate(["One."], **options, **EN_DE)

    return asyncio.run(translate())


both = pytest.mark.parametrize("translate", [_translate, _translate_async])


@both
@pytest.mark.parametrize("code", RETRYABLE)
def test_the_pushback_of_the_server_replaces_the_wait(
    target: str, service: ScriptedService, translate: Translate, code: grpc.StatusCode
) -> None:
    service.script += [*[refuses(code, pushback_ms=1)] * 3, answers(RESPONSE)]

    assert translate(target, PATIENT) == RESULT
    assert len(service.calls) == 4


@both
@pytest.mark.parametrize("code", RETRYABLE)
def test_the_last_attempt_gives_up(
    target: str, service: ScriptedService, translate: Translate, code: grpc.StatusCode
) -> None:
    service.script += [refuses(code)] * 10

    with pytest.raises(DragomanError) as caught:
        translate(target, EAGER)

    assert caught.value.code is code
    assert len(service.calls) == 4


@both
def test_no_wait_outlasts_the_deadline(target: str, service: ScriptedService, translate: Translate) -> None:
    service.script.append(refuses(grpc.StatusCode.RESOURCE_EXHAUSTED, pushback_ms=TEN_MINUTES_MS))

    with pytest.raises(DeadlineExceededError):
        translate(target, EAGER, timeout_s=0.3)

    assert len(service.calls) == 1


@both
@pytest.mark.parametrize(("reason", "error"), [("OVERLOADED", OverloadedError), ("RATE_LIMITED", RateLimitedError)])
def test_a_server_that_forbids_to_retry_still_says_when_the_caller_may(
    target: str, service: ScriptedService, translate: Translate, reason: str, error: type[DragomanError]
) -> None:
    delay = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=600))
    service.script.append(refuses_for(grpc.StatusCode.RESOURCE_EXHAUSTED, reason, delay, pushback_ms=-1))

    with pytest.raises(error) as caught:
        translate(target, EAGER)

    assert caught.value.retry_after_s == 600.0
    assert len(service.calls) == 1


def test_after_many_failures_calls_are_no_longer_repeated(target: str, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * MANY * 4

    with TranslationClient(target, channel=ChannelSettings(retry=EAGER)) as client:
        attempts = [_attempts(client, service) for _ in range(MANY)]

    assert attempts[0] == 4
    assert attempts[-1] == 1


def test_a_document_is_asked_for_again_before_its_first_sentence(target: str, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE), answers(iter(()))]

    with TranslationClient(target, channel=ChannelSettings(retry=EAGER)) as client:
        assert list(client.translate_document("One.", **EN_DE)) == []

    assert len(service.calls) == 2


@both
def test_a_request_that_is_too_large_fails_at_once(target: str, service: ScriptedService, translate: Translate) -> None:
    with pytest.raises(ExhaustedError, match="message larger than max"):
        translate(target, PATIENT, target_prefixes=["x" * 5 * 2**20])

    assert not service.calls


def _attempts(client: TranslationClient, service: ScriptedService) -> int:
    before = len(service.calls)
    with pytest.raises(DragomanError):
        client.list_models()
    return len(service.calls) - before
