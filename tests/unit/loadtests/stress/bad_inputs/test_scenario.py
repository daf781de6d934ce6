from dataclasses import replace
from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.__main__ import main
from loadtests.stress.bad_inputs.answers import Answer
from loadtests.stress.bad_inputs.inputs import BadInput
from loadtests.stress.bad_inputs.kinds import KINDS
from loadtests.stress.bad_inputs.run import Growth, Record, Run, growths
from loadtests.stress.bad_inputs.scenario import details, summarize
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.stress.callers import Reply
from loadtests.stress.verdict import Summary
from loadtests.wire import Method

MODEL = pb.ModelVersion(
    limits=pb.ModelLimits(max_text_characters=1000, max_document_characters=2000),
    language_pairs=[pb.LanguagePair(source_language="en", target_language="de")],
)


def record(index: int, **fields: Any) -> Record:
    values = {"kind": "nul", "method": "unary", "num_characters": 2000, "status": "OK", "seconds": 0.02, **fields}
    return Record(index=index, **values)


def reply(latency_s: float, status: str = "OK", message: str = "") -> Reply:
    return Reply(status=status, message=message, began_s=1.0, ended_s=1.0 + latency_s)


GROWTH = Growth(shape="dots", method="Translate", num_characters=10_000, half_s=0.4, whole_s=0.9, ratio=2.25)
GOOD = Run(
    model=MODEL,
    records=[record(0), record(1, status="INVALID_ARGUMENT"), record(2, status="LEFT", kind="megabytes")],
    memory_mb=[100.0, 130.0, 120.0],
    translations=[reply(0.125), reply(0.25)],
    alone=[reply(0.125)],
    looks=[reply(0.03125)],
    growths=[GROWTH],
    elapsed_s=1.5,
)


def summary(run: Run) -> Summary:
    return summarize(run, seed=7, max_rss_growth_mb=256)


def test_a_run_that_holds_has_its_figures_in_the_line_and_failures_are_no_rejections() -> None:
    failed = [record(2, status=status) for status in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED", "UNAVAILABLE")]

    assert summary(replace(GOOD, records=[*GOOD.records, *failed])).line == (
        "bad_inputs inputs=7 kinds=2 ok=1 refused=1 left=1 internal=2 hangs=1 lost=1 rss_growth_mb=30.0 slowest_ms=20 "
        "p99_us_per_character=10.0 bystander_p99_ms=250.0 look_p99_ms=31.2 look_max_ms=31.2 worst_growth=2.2 "
        "inputs_per_s=5 verdict=held"
    )


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"records": [record(5, faults=("no hypothesis",))]}, "no hypothesis (--seed 7 --only nul --index 5, unary)"),
        ({"memory_mb": [100.0, 400.0, 120.0]}, "300 MB, more than 256"),
        ({"server_faults": ["the server says that it does not serve"]}, "the server says that it does not serve"),
        ({"translations": [reply(0.1, "INTERNAL", "x")]}, "bystanders are answered as before: INTERNAL: x"),
        ({"looks": [reply(0.1, "WRONG_ANSWER", "no model")]}, "WRONG_ANSWER: no model"),
        ({"alone": [reply(0.1, "UNAVAILABLE", "y")]}, "UNAVAILABLE: y"),
        ({"translations": [reply(11.0)]}, "translations of bystanders at p99: 11 s, more than 10"),
        ({"looks": [reply(1.5)]}, "calls that need the event loop only at p99: 1.5 s, more than 1"),
        (
            {"growths": [GROWTH._replace(whole_s=1.6, ratio=4.0)]},
            "Translate of dots took 4.0 times as long for twice the text",
        ),
    ],
)
def test_each_promise_can_be_broken(changed: dict[str, Any], sentence: str) -> None:
    found = summary(replace(GOOD, **changed))

    (broken,) = found.broken
    assert sentence in broken.sentence
    assert found.line.endswith("verdict=broken")


def test_what_is_fast_is_too_noisy_to_grow() -> None:
    assert summary(replace(GOOD, growths=[GROWTH._replace(half_s=0.001, whole_s=0.1, ratio=100.0)])).exit_status == 0


def test_the_report_has_the_faults_and_the_slowest_first() -> None:
    records = [record(index, seconds=index / 10, faults=("wrong",) if index == 3 else ()) for index in range(30)]

    found = details(replace(GOOD, records=records))

    assert [fault["index"] for fault in found["faults"]] == [3]
    assert found["statuses_by_kind"] == {"nul": {"OK": 30}}
    assert [one["index"] for one in found["slowest"]] == list(range(29, 19, -1))


@pytest.mark.parametrize("power", [1, 2])
def test_twice_the_text_shows_the_power_with_which_work_grows(power: int) -> None:
    def send(bad: BadInput) -> Answer:
        seconds = (bad.num_characters / 1000) ** power
        if bad.method is Method.TRANSLATE_DOCUMENT:
            return Answer(status="LEFT", seconds=seconds)
        response = pb.TranslateResponse()
        response.timings.text.FromNanoseconds(round(1e9 * seconds))
        return Answer(status="OK", seconds=2 * seconds, responses=[response])

    found = list(growths(send, MODEL, shapes=["dots", "nul"], seed=1))

    assert [growth.ratio for growth in found] == pytest.approx([2**power] * 4)
    assert [growth.num_characters for growth in found] == [1000, 2000] * 2
    assert found[0].whole_s == pytest.approx(1.0)


def test_what_is_rejected_does_not_grow() -> None:
    rejected = Answer(status="INVALID_ARGUMENT", seconds=0.0)

    assert {growth.ratio for growth in growths(lambda _: rejected, MODEL, shapes=sorted(SHAPES), seed=1)} == {1.0}


def test_the_list_says_what_each_kind_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bad-inputs", "--list"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(KINDS)
    assert all(len(line.split()) > 3 for line in lines)


def test_fewer_inputs_than_kinds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bad-inputs", "--count", "2", "--only", "nul,bidi,emoji"])

    assert "--count 2: expected at least 3, one input of each kind" in capsys.readouterr().err
