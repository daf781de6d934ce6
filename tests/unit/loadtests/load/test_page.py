import base64
import json
import re
from html.parser import HTMLParser

from loadtests.load import page
from loadtests.load.baseline import Change
from loadtests.load.run import as_json, broken_promises, line
from loadtests.slo import parse_slo
from loadtests.wire import Outcome
from tests.unit.loadtests.fake_calls import record, summary_of
from tests.unit.loadtests.load.fake_runs import BEGAN_S, answered, run_of, sample

SAMPLES = [sample(float(second)) for second in range(11)]
STAGES = ["client", "queue", "encode", "decode", "text", "beyond"]
DRAWN = [
    ["seconds", "offered", "answered"],
    ["seconds", "ms", "answered", "client p95"],
    ["ms", "calls answered", "ms", "share of the calls answered", *STAGES],
    [*STAGES, "seconds", "ms", "p50", "p95"],
    ["seconds", "target tokens"],
    ["seconds", "queue"],
    ["seconds", "batch segments", "batch rows", "segments of a step"],
    ["seconds", "processor"],
    ["seconds", "memory"],
    ["seconds"],
]
"""Titles and labels of each picture on the page of a run whose calls were all answered."""


class Page(HTMLParser):
    """Collects everything that a page could load, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset", "data", "action"}]

    def handle_data(self, data: str) -> None:
        self.text += data


def words_of(address: str) -> list[str]:
    """Titles and labels of a picture; matplotlib draws letters as paths, each text after a comment that has it."""
    drawn = base64.b64decode(address.partition(",")[2]).decode()
    return [text for text in re.findall(r"<!-- (.*?) -->", drawn) if re.match(r"[a-z]", text)]


def test_the_page_needs_nothing_but_itself_and_says_what_was_measured_where() -> None:
    rendered = page.render(run_of(samples=SAMPLES, slo="p95<2s"))

    parsed = Page(rendered)
    assert [words_of(address) for address in parsed.addresses] == DRAWN
    assert all(address.startswith("data:image/svg+xml;base64,") for address in parsed.addresses)
    assert not parsed.tags & {"script", "link", "iframe", "object", "base"}
    assert not re.search(r"url\(|@import", rendered)
    for fact in (
        "Abacus <1>, 2 cores (avx2)",
        "Python 3.11, dragoman 0.1.0",
        "2026-11-21T12:00:00+00:00",
        "python -m loadtests load --rate 1",
        'onnxruntime="1.31",version="0.1.0"',
        "the objective p95<2s was held",
        "batch_segments_mean",
        "Translate OK",
    ):
        assert fact in parsed.text


def test_what_was_broken_and_what_changed_is_on_the_page() -> None:
    changes = [Change(name="p95_ms", before=100.0, now=125.0)]

    text = Page(page.render(run_of(slo="p95<1ms", broken=["p95 is <too> late"]), changes)).text

    assert "p95 is <too> late" in text
    assert "+25.0%" in text
    assert "was held" not in text


def test_a_run_in_which_nothing_was_answered_has_a_page_too() -> None:
    run = run_of([record(Outcome.ERROR, planned_s=BEGAN_S + 1), record(Outcome.REJECTED, planned_s=BEGAN_S + 2)])

    assert "none" in Page(page.render(run)).text
    assert line(run).startswith("loadtest profile=sentence rate=1 p50_ms=none p95_ms=none")


def test_a_run_is_kept_as_strict_json() -> None:
    kept = json.loads(json.dumps(as_json(run_of(samples=SAMPLES)), allow_nan=False))

    assert kept["figures"]["p50_ms"] == 500.0
    assert kept["figures"]["server_cores"] == 0.5
    assert kept["figures"]["generator_cores"] == 0.05
    assert kept["settings"]["rate_per_s"] == 1.0
    assert {series["name"] for series in kept["series"]} >= {"queue", "offered", "decode p95", "memory"}


def test_the_line_has_what_a_script_wants() -> None:
    records = [*(answered(index, 0.1) for index in range(8)), record(Outcome.REJECTED, planned_s=BEGAN_S)]

    assert line(run_of(records)) == (
        "loadtest profile=sentence rate=1 p50_ms=100.0 p95_ms=100.0 p99_ms=100.0 max_ms=100.0 goodput=0.8889 "
        "rejected=0.1111 errors=0.0000 tokens_per_s=10 generator_lag_p99_ms=1.0"
    )


def test_objective_and_generator_are_each_told() -> None:
    summary = summary_of(latencies_s=[0.1], lag_s=0.03)

    assert broken_promises(summary, slo=parse_slo("p95<50ms"), max_lag_ms=25.0) == [
        "generator_lag_p99_ms is 30.0, the limit is 25: the run does not count",
        "p95 is 100ms, the limit is < 50ms",
    ]
    assert broken_promises(summary, slo=parse_slo("p95<1s"), max_lag_ms=30.1) == []
    assert broken_promises(summary, slo=None, max_lag_ms=30.1) == []
