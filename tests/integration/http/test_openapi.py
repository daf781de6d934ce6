"""Responses to valid and invalid requests generated from the OpenAPI document match the document."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import jsonschema  # type: ignore[import-untyped]
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.integration.running_server import RunningServer, http_client, running_server

NUM_EXAMPLES = 20  # of each operation, valid and invalid alike
TIMEOUT_S = 20.0

ACCEPTANCE = "positive_data_acceptance"
# fields whose values depend on other fields or on the model, so that a request may match the schema and be invalid
DEPENDENT_FIELDS = {"options", "targetPrefixes", "pivotLanguages"}


def restricted_schema(server: RunningServer) -> Any:
    """Return the schema restricted to the served languages, as other requests are rejected early."""
    document = httpx.get(f"{server.url}/openapi.json", trust_env=False).json()
    for request in ("TranslateRequest", "TranslateDocumentRequest"):
        schema = document["components"]["schemas"][request]
        schema["required"] = [*schema["required"], "sourceLanguage"]  # a text may be too short to detect its language
        schema["properties"].update(sourceLanguage={"const": "en"}, targetLanguage={"const": "de"}, model={"const": ""})
    return schemathesis.openapi.from_dict(document)


def check(server: RunningServer, mode: schemathesis.GenerationMode) -> set[tuple[str, int]]:
    """Send requests that match or violate the document; return the paths and the statuses of the responses."""
    statuses: set[tuple[str, int]] = set()
    for result in restricted_schema(server).get_all_operations():
        operation = result.ok()

        @settings(
            max_examples=NUM_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case[Any]) -> None:
            response = case.call(base_url=server.url, timeout=TIMEOUT_S)
            statuses.add((case.operation.path, response.status_code))
            excluded: list[Any] = []
            if isinstance(case.body, dict) and not case.body.keys().isdisjoint(DEPENDENT_FIELDS):
                excluded = [one for one in schemathesis.checks.CHECKS.get_all() if one.__name__ == ACCEPTANCE]
            case.validate_response(response, excluded_checks=excluded)

        send()
    return statuses


@pytest.mark.slow
async def test_responses_to_valid_requests_match_the_schema(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        statuses = await asyncio.to_thread(check, server, schemathesis.GenerationMode.POSITIVE)

    assert {(path, 200) for path in ("/v1/translate", "/v1/translate/document", "/v1/models")} <= statuses


@pytest.mark.slow
async def test_rejections_of_invalid_requests_match_the_schema(tiny_model: Path) -> None:
    async with running_server(tiny_model) as server:
        statuses = await asyncio.to_thread(check, server, schemathesis.GenerationMode.NEGATIVE)

    assert {("/v1/translate", 400), ("/v1/translate/document", 400)} <= statuses
    assert max(code for _, code in statuses) < 500


async def test_response_with_all_fields_matches_the_schema(server: RunningServer) -> None:
    options = {
        "numHypotheses": 2,
        "returnTokens": True,
        "returnScores": True,
        "returnAlignment": True,
        "returnAttention": "ATTENTION_DETAIL_ALL_HEADS",
        "maxTargetTokens": 2,
        "sampling": {"seed": "9223372036854775807"},
    }
    body = {"texts": ["A man. Rain.", ""], "sourceLanguage": "en", "targetLanguage": "de", "options": options}
    async with http_client(server) as http:
        document, answer = (await http.get("/openapi.json")).json(), await http.post("/v1/translate", json=body)

    assert answer.status_code == 200
    assert answer.json()["translations"][0]["warnings"]
    schema = {"$ref": "#/components/schemas/TranslateResponse", "components": document["components"]}
    jsonschema.Draft202012Validator(schema).validate(answer.json())
    for message in document["components"]["schemas"].values():  # the document must describe all fields
        if message.get("additionalProperties") is None:
            message["additionalProperties"] = False
    jsonschema.Draft202012Validator(schema).validate(answer.json())
