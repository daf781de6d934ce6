import base64
import html
import math
import re
from statistics import fmean

import pytest

from loadtests.generator.calls import Outcome
from loadtests.generator.metrics import Sample
from loadtests.generator.slo import parse_slo
from loadtests.report.page import series_of
from tests.unit.loadtests.fake_calls import BEGAN_S, answered, record, reported, run_of, sample

STAGES = ["client", "queue", "encode", "decode", "text", "beyond"]
DRAWN = [
    ["seconds", "offered", "answered"],
    ["seconds", "ms", "answered", "client p95"],
    ["ms", "calls answered", "ms", "share of the calls answered", *STAGES],
    [word for stage in STAGES for word in ("seconds", "ms", stage, "p50", "p95")],
    *(["seconds", name] for name in ("target tokens", "queue")),
    ["seconds", "batch segments", "batch rows", "segments of a step"],
    *(["seconds", name] for name in ("processor", "memory")),
    ["seconds", "generator lag p99", "limit"],
]
"""Titles and labels of each picture on the page of a run whose calls were all answered."""


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_the_page_needs_nothing_but_itself_and_says_what_was_measured_where() -> None:
    page = reported(run_of(samples=list(map(sample, range(11)))), slo=parse_slo("p95<2s")).page()

    loaded = re.findall(r"""\b(?:src|href|srcset|data|action)\s*=\s*["']?([^"'\s>]*)""", page)
    kinds, pictures = zip(*(address.split(",", 1) for address in loaded), strict=True)
    assert set(kinds) == {"data:image/svg+xml;base64"}
    # matplotlib draws letters as paths, each text after a comment that has it
    assert [re.findall(r"<!-- ([a-z].*?) -->", base64.b64decode(one).decode()) for one in pictures] == DRAWN
    assert not re.search(r"<(script|link|iframe|object|base)\b|url\(|@import", page)
    for fact in (
        "Abacus <1>, 2 cores (avx2)",
        "Python 3.11, dragoman 0.1.0",
        "2026-11-21T12:00:00+00:00",
        "python -m loadtests load --rate 1",
        'onnxruntime="1.31",version="0.1.0"',
        "10 s, after 0 s to warm up; seed 1",
        "10 offered, 10 answered before their deadline of 10 s",
        "the objective p95<2s was held",
        "batch_segments_mean",
        "the server: the encoder run",
        "Translate OK",
    ):
        assert fact in text_of(page)


def test_what_was_broken_is_on_the_page() -> None:
    text = text_of(reported(slo=parse_slo("p95<1ms"), broken=["p95 is <too> late"]).page())

    assert "p95 is <too> late" in text
    assert "was held" not in text


def test_a_run_in_which_nothing_was_answered_has_a_page_too() -> None:
    records = [record(kind, planned_s=BEGAN_S + 1) for kind in (Outcome.ERROR, Outcome.REJECTED)]

    report = reported(run_of(records))

    assert "none" in text_of(report.page())
    assert report.figures["p50_ms"] == report.figures["p95_ms"] == "none"


def test_gauges_are_shown_as_they_stand_and_counters_as_they_grow() -> None:
    found = series_of(run_of(samples=list(map(sample, range(-5, 13)))))

    assert found["queue"].points == [(float(second), float(second)) for second in range(12)]
    means = [fmean(found[name].values) for name in ("target tokens", "processor", "segments of a step")]
    assert means == pytest.approx([3.0, 0.5, 3.0])
    assert max(found["memory"].values) == 111.0


def test_what_is_not_known_has_no_points() -> None:
    queue_only = [Sample(at_s=BEGAN_S + second, values={"dragoman_queue_segments": 1.0}) for second in range(3)]
    gap_within = [sample(0.0), Sample(at_s=BEGAN_S + 1, values={}), sample(2.0), sample(3.0)]
    unchanged = [Sample(at_s=BEGAN_S + at_s, values=sample(1.0).values) for at_s in (0.0, 1.0)]
    lacking, gap, idle = (series_of(run_of(samples=samples)) for samples in (queue_only, gap_within, unchanged))

    assert len(lacking["queue"].points) == 3
    assert lacking["memory"].points == lacking["processor"].points == []
    assert gap["target tokens"].points == [(2.0, 3.0), (3.0, 3.0)]
    assert idle["segments of a step"].points == []


def test_calls_are_counted_by_when_they_should_have_come() -> None:
    records = [answered(0.2, 5.0), answered(0.4, 0.1), record(Outcome.REJECTED, planned_s=BEGAN_S + 2.4)]

    found = series_of(run_of(records, duration_s=2.5))

    assert found["offered"].points == [(0.5, 2.0), (1.5, 0.0), (2.25, 2.0)]
    assert found["rejected"].points == [(0.5, 0.0), (1.5, 0.0), (2.25, 2.0)]
    assert [(at_s, round(value)) for at_s, value in found["client p95"].points] == [(0.5, 5000)]
    assert [math.floor(at_s) for at_s, _ in found["generator lag p99"].points] == [0, 2]
    assert len(series_of(run_of(records, duration_s=1800.0))["offered"].points) == 60  # no more than can be seen
