import asyncio
import os
import platform
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path

import grpc
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from dragoman.v1 import translation_pb2 as pb
from tests.integration.observability.otlp_collector import Collector, running_collector
from tests.integration.running_server import RunningServer, observed_server, request
from tests.waiting import until

SERVICE = "/dragoman.v1.TranslationService"
SERVICES = pb.DESCRIPTOR.services_by_name.values()
DRAGOMAN = version("dragoman")
INTERNAL = {"reason", "outcome", "kind", "stage", "priority", "lane", "state"}
"""Labels whose values are defined by the service."""

SAMPLED = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
async def observed(tiny_model: Path) -> AsyncIterator[RunningServer]:
    async with observed_server(tiny_model) as server:
        yield server


async def call_with_hostile_data(server: RunningServer, word: str) -> None:
    """Send a word in every field of a request, in successful and failing calls."""
    hostile_metadata = (
        ("x-request-id", word),
        ("user-agent", word),
        ("authorization", f"Bearer {word}"),
        ("x-a", word),
    )
    options = pb.DecodingOptions
    answered = request(f"A {word}.", request_id=word, options=options(num_hypotheses=2, target_prefix=word))
    await server.translation.Translate(answered, metadata=hostile_metadata)
    for rejected in (
        request("A man.", model=word),
        request("A man.", model=f"{word}/{word}"),
        request("A man.", source_language=word),
        request("A man.", target_language=word),
        request("A man.", source_language=f"{word} {word}"),
        request("A man.", options=options(suppressed_tokens=[word])),
        request("A man.", request_id=word * 100),
        request(word * 5000),
    ):
        with pytest.raises(grpc.aio.AioRpcError):
            await server.translation.Translate(rejected, metadata=hostile_metadata)
    for method in (f"{SERVICE}/{word}", f"/{word}/Translate", f"{SERVICE}/{word}/Translate"):
        with pytest.raises(grpc.aio.AioRpcError):
            await server.channel.unary_unary(method)(b"")
    with pytest.raises(grpc.aio.AioRpcError):
        await server.translation.Translate(request(f"{word} rides a bicycle. " * 300), timeout=0.2)
    await until(lambda: server.sample("dragoman_requests_in_flight", method="Translate") == 0)  # its end is counted


def label_values(exposition: str) -> dict[str, set[str]]:
    values: dict[str, set[str]] = {}
    for family in parse_text(exposition):
        for sample in family.samples:
            for name, value in sample.labels.items():
                values.setdefault(name, set()).add(value)
    return values


async def test_labels_contain_no_values_of_callers(observed: RunningServer) -> None:
    await call_with_hostile_data(observed, "mallory")
    exposition = (await observed.get("/metrics"))[1]

    values = label_values(exposition)
    assert "mallory" not in exposition.lower()
    assert values["method"] <= {method.name for service in SERVICES for method in service.methods}
    assert values["status"] >= {"OK", "NOT_FOUND", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED"}
    assert values["status"] <= {code.name for code in grpc.StatusCode}
    assert (values["model"], values["version"] - {DRAGOMAN, platform.python_version()}) == ({"tiny"}, {"1"})
    assert all(re.fullmatch(r"[a-z][a-z_0-9]*", value) for name in INTERNAL & set(values) for value in values[name])


async def test_counters_agree_with_responses(observed: RunningServer) -> None:
    def counts() -> list[float]:
        names = ("dragoman_source_tokens_total", "dragoman_target_tokens_total", "dragoman_length_ratio_count")
        answered = observed.sample("dragoman_requests_total", method="Translate", status="OK")
        return [answered, *map(observed.sample, names)]

    before = counts()
    response = await observed.translate("A man. Two children.")

    counted = [now - then for now, then in zip(counts(), before, strict=True)]
    assert counted == [1, response.num_source_tokens, response.num_target_tokens, 2]
    assert observed.sample("dragoman_requests_in_flight", method="Translate") == 0


async def test_both_formats_have_the_same_metrics(observed: RunningServer) -> None:
    await observed.translate("A man.")
    text, openmetrics = (await observed.get("/metrics"))[1], (await observed.get("/metrics", OPENMETRICS))[1]

    strict = text_string_to_metric_families(openmetrics)  # type: ignore[no-untyped-call]
    names = {family.name for family in strict}
    assert names == {family.name.removesuffix("_total") for family in parse_text(text)}


async def test_promtool_accepts_the_metrics(tiny_model: Path, collector: Collector) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        assert not os.environ.get("CI"), "CI must have promtool: see .ci/run"
        pytest.skip("promtool is not installed (Debian: the package prometheus)")

    async with observed_server(tiny_model, tracing__endpoint=collector.endpoint) as server:
        await server.translate("A man.", metadata=SAMPLED)
        await call_with_hostile_data(server, "mallory")
        exposition = (await server.get("/metrics"))[1]

    checked = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=exposition, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
