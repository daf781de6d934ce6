import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from service.datatypes import Segment
from service.decoding.running_batch import EndedSegment
from service.decoding.step_model import StepModel
from service.engine.core import BatchServer, LocalBatch, Usage, merged
from service.engine.protocol import Newcomer, Orders, Report
from tests.fakes import FlakyModel, GatedModel, ManualClock, ToyModel, WrappedModel, make_segment
from tests.hosted_in_threads import TIMEOUT_S, decode, joining

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
MANY_STEPS = 5000
NUM_ENDS = 200  # of which some come at the worst moment


class SlowModel(WrappedModel):
    """A step takes 1 s of a clock moved by hand."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self._clock.advance(1.0 if operation == "step" else 0.0)


class Bench:
    """A batch in a thread, and the connection to it. Its clock stands still: it reports news only."""

    def __init__(self, model: StepModel, *, clock: ManualClock, usage: Usage) -> None:
        ours, theirs = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(ours.detach())
        server = BatchServer(
            LocalBatch(model, clock), Connection(theirs.detach()), niceness=0, clock=clock, usage=usage
        )
        self.thread = threading.Thread(target=server.run, daemon=True)
        self.thread.start()

    def tell(self, orders: Orders) -> None:
        self.connection.send(orders)

    def report(self) -> Report:
        """Return the next report."""
        assert self.connection.poll(TIMEOUT_S), "no report came"
        report: Report = self.connection.recv()
        return report

    def reports_until_empty(self) -> list[Report]:
        """Return reports until one of a turn after which nobody is in the batch."""
        reports = [self.report()]
        while not reports[-1].turns[-1].ended:
            reports.append(self.report())
        return reports

    def has_ended(self) -> bool:
        self.thread.join(TIMEOUT_S)
        return not self.thread.is_alive()


@contextmanager
def bench_of(model: StepModel, *, clock: ManualClock | None = None, usage: Usage | None = None) -> Iterator[Bench]:
    bench = Bench(model, clock=clock or ManualClock(), usage=usage or Usage(lambda: 0))
    try:
        yield bench
    finally:
        if isinstance(model, GatedModel):
            model.open()
        bench.connection.close()
        assert bench.has_ended()


def pass_steps_until(model: GatedModel, num_segments: int) -> None:
    """Let one step after the other run until one has so many segments."""
    for _ in range(MANY_STEPS):
        if model.wait_for_step() == num_segments:
            return
        model.let_pass()
    raise AssertionError(f"no step of {num_segments} segments came")


def ended_in(reports: list[Report]) -> dict[int, EndedSegment]:
    return {ended.handle: ended for report in reports for turn in report.turns for ended in turn.ended}


def test_results_equal_those_of_a_batch_without_a_connection() -> None:
    orders = joining(*range(10, 16), beam_size=3, num_hypotheses=3)
    expected = decode(LocalBatch(ToyModel(), ManualClock()), orders)

    with bench_of(ToyModel()) as bench:
        bench.tell(orders)
        reports: list[Report] = []
        while len(ended_in(reports)) < len(orders.newcomers):
            reports.append(bench.report())

    assert ended_in(reports) == expected


def test_attention_arrives_unchanged() -> None:
    segment = Segment(source_ids=make_segment(7, 8).source_ids, search=make_segment(7).search, wants_attention=True)
    orders = Orders(newcomers=(Newcomer(key=3, segment=segment, deadline_s=1.0),))
    expected = decode(LocalBatch(ToyModel(), ManualClock()), orders)[3].hypotheses[0].attention

    with bench_of(ToyModel()) as bench:
        bench.tell(orders)
        attention = ended_in(bench.reports_until_empty())[3].hypotheses[0].attention

    assert attention is not None
    assert expected is not None
    np.testing.assert_array_equal(attention, expected)


def test_newcomers_join_a_running_batch() -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        bench.tell(joining(1, max_target_tokens=MANY_STEPS))
        assert model.wait_for_step() == 1
        bench.tell(joining(2, max_target_tokens=3))
        model.let_pass()
        pass_steps_until(model, 2)
        model.let_pass()
        pass_steps_until(model, 1)

        (report,) = [bench.report()]

    assert set(ended_in([report])) == {2}


def test_who_is_dropped_leaves_a_running_batch() -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        bench.tell(joining(1, 2, max_target_tokens=MANY_STEPS))
        assert model.wait_for_step() == 2

        bench.tell(Orders(dropped=(1,)))
        model.let_pass()
        pass_steps_until(model, 1)


def test_the_last_who_is_dropped_is_reported_as_a_turn_in_which_nothing_was_done() -> None:
    with bench_of(GatedModel(ENDLESS)) as bench:
        bench.tell(Orders(dropped=(7,)))

        (turn,) = bench.report().turns

    assert (turn.newcomers, turn.num_rows, turn.ended, turn.late, turn.fault) == ((), 0, (), (), "")


def test_who_is_late_leaves_and_the_others_stay() -> None:
    clock = ManualClock()
    model = GatedModel(ENDLESS)
    patient, hurried = joining(1, max_target_tokens=100), joining(2, deadline_s=0.01, max_target_tokens=100)
    with bench_of(model, clock=clock) as bench:
        bench.tell(merged([patient, hurried]))
        assert model.wait_for_step() == 2
        clock.advance(0.01)  # less than a report waits otherwise
        model.let_pass()

        late = [turn.late for turn in bench.report().turns]

        assert late[-1] == (2,)
        assert model.wait_for_step() == 1


@pytest.mark.parametrize("operation", ["new_batch", "start", "step"])
def test_a_fault_is_told_and_the_batch_goes_on_with_others(operation: str) -> None:
    faults = [operation]
    model = FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()))
    with bench_of(model) as bench:
        bench.tell(joining(1, 2))
        (broken,) = bench.report().turns

        bench.tell(joining(3))
        reports = bench.reports_until_empty()

    assert f"{operation} broken on purpose" in broken.fault
    assert set(ended_in(reports)) == {3}


def test_a_batch_that_has_nothing_to_tell_reports_once_everybody_has_left() -> None:
    with bench_of(ENDLESS) as bench:
        bench.tell(joining(1, max_target_tokens=6))

        report = bench.report()

    assert [turn.num_rows > 0 for turn in report.turns] == [True] * 6
    assert [len(turn.ended) for turn in report.turns] == [0] * 5 + [1]


def test_a_batch_whose_steps_take_long_reports_each_of_them() -> None:
    clock = ManualClock()
    with bench_of(SlowModel(ENDLESS, clock), clock=clock) as bench:
        bench.tell(joining(1, max_target_tokens=6))

        reports = bench.reports_until_empty()

    assert [len(report.turns) for report in reports] == [1] * 6


def test_a_report_has_the_caches_and_the_cpu_time_since_the_last_one() -> None:
    used_s = iter([2.0, 5.0])
    with bench_of(ENDLESS, usage=Usage(lambda: 42, lambda: next(used_s))) as bench:
        reports = []
        for key in (1, 2):
            bench.tell(joining(key, max_target_tokens=2))
            reports.append(bench.report())

    assert [(report.cache_bytes, report.cpu_s) for report in reports] == [(42, 2.0), (42, 3.0)]


def test_closing_the_connection_ends_a_batch_that_waits() -> None:
    with bench_of(ENDLESS) as bench:
        bench.connection.close()

        assert bench.has_ended()


def test_closing_the_connection_ends_a_batch_after_its_step() -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        bench.tell(joining(1, max_target_tokens=MANY_STEPS))
        model.wait_for_step()

        bench.connection.close()
        model.open()

        assert bench.has_ended()
    assert len(model.step_sizes) < MANY_STEPS


def test_an_end_in_the_middle_of_reports_ends_all_threads_without_an_error() -> None:
    """An exception in any thread fails the test."""
    for _ in range(NUM_ENDS):
        clock = ManualClock()
        with bench_of(SlowModel(ENDLESS, clock), clock=clock) as bench:
            bench.tell(joining(1, max_target_tokens=MANY_STEPS))
            bench.report()


def test_orders_are_merged_in_their_order() -> None:
    first, second = joining(1, 2), joining(3)

    whole = merged([first, Orders(dropped=(8,)), second, Orders(dropped=(9,))])

    assert whole == Orders(newcomers=(*first.newcomers, *second.newcomers), dropped=(8, 9))


def test_who_is_dropped_before_he_has_started_does_not_start() -> None:
    whole = merged([joining(1, 2), Orders(dropped=(1,))])

    assert [newcomer.key for newcomer in whole.newcomers] == [2]
