"""`serve --fake` as a process, called over gRPC and HTTP."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dragoman.client import (
    ChannelSettings,
    DecodingOptions,
    OverloadedError,
    RetrySettings,
    TextFormat,
    TranslationClient,
)
from dragoman_service.datatypes import Ports
from tests.integration.real_process import START_S, process
from tests.integration.running_server import TEST_TIMEOUT_S

ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
OVERLOADED = "fake:overloaded 7.5"


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    """Ports of a ready server, which has logged that it serves a fake model."""
    with process("--fake") as server:
        event = server.wait_for("serving a fake model: answers are not translations", timeout_s=START_S)
        assert event["level"] == "warning"
        yield server.wait_until_ready(timeout_s=START_S)


@pytest.fixture
def client(ports: Ports) -> Iterator[TranslationClient]:
    with TranslationClient(f"127.0.0.1:{ports.grpc_port}") as client:
        yield client


def post(ports: Ports, path: str, body: object) -> tuple[int, str | None, Any]:
    """Return status, `Retry-After` and body."""
    url = f"http://127.0.0.1:{ports.http_port}{path}"
    response = httpx.post(url, json=body, timeout=TEST_TIMEOUT_S, trust_env=False)
    return response.status_code, response.headers.get("retry-after"), response.json()


def test_any_language_pair_is_answered_over_grpc(client: TranslationClient) -> None:
    result = client.translate(["Hello. How are you?"], source_language="pt-BR", target_language="zh-Hant")

    assert result[0].text == "[zh-Hant] Hello. [zh-Hant] How are you?"
    assert result.model_name == "fake"
    assert [model.name for model in client.list_models()] == ["fake"]


def test_markup_and_placeholders_are_preserved(client: TranslationClient) -> None:
    html = DecodingOptions(format=TextFormat.HTML)
    languages: Any = {"source_language": "en", "target_language": "de"}

    marked = client.translate(["<p>Press the <b>red</b> key.</p>"], options=html, **languages)[0]
    plain = client.translate(["See {name} at https://a.example/x?y=1!"], **languages)[0]

    assert (marked.text, marked.warnings) == ("<p>[de] Press the <b>red</b> key.</p>", ())
    assert (plain.text, plain.warnings) == ("[de] See {name} at https://a.example/x?y=1!", ())


def test_http_api_is_answered(ports: Ports) -> None:
    body = {"texts": ["Hello."], "source_language": "en", "target_language": "fr"}
    status, _, answer = post(ports, "/v1/translate", body)

    assert (status, answer["translations"][0]["hypotheses"][0]["text"]) == (200, "[fr] Hello.")


def test_injected_rejection_has_its_retry_delay_over_grpc_and_http(ports: Ports) -> None:
    with (
        TranslationClient(f"127.0.0.1:{ports.grpc_port}", channel=ONE_ATTEMPT) as client,
        pytest.raises(OverloadedError) as caught,
    ):
        client.translate([OVERLOADED], source_language="en", target_language="de")
    body = {"texts": [OVERLOADED], "source_language": "en", "target_language": "de"}
    status, retry_after, problem = post(ports, "/v1/translate", body)

    assert caught.value.retry_after_s == 7.5
    assert (status, retry_after) == (503, "8")
    assert (problem["reason"], problem["retryDelay"]) == ("OVERLOADED", "7.500s")
