import math
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest

from dragoman_service.datatypes import (
    Degeneration,
    DegenerationKind,
    GuardReport,
    Hypothesis,
    SamplingConfig,
    SearchConfig,
    Segment,
)
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.decoding.step_model import EncodedSource, StepModel
from dragoman_service.worker.messages import (
    BatchCommand,
    BatchReport,
    BatchStepOutput,
    Clock,
    NewSegment,
    WaitingSource,
)
from dragoman_service.worker.worker import BatchExecutor, Worker
from tests.fakes import FlakyModel, GatedModel, ManualClock, ToyModel, WrappedModel, make_segment
from tests.threaded_core import TIMEOUT_S, decode_here, ended_in, joining, next_report

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
MANY_STEPS = 5000
NUM_ENDS = 200  # of which some come at the worst moment


class SlowModel(WrappedModel):
    """Encoding takes 2 s of a clock moved by hand, a step 1 s; takes note of what is used."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self.used: list[str] = []
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self.used.append(operation)
        self._clock.advance({"encode": 2.0, "step": 1.0}.get(operation, 0.0))


def two_words(*ids: int, num_steps: int = 12, deadline_s: float = 100.0) -> BatchCommand:
    segment = make_segment(7, 8, beam_size=2, max_target_tokens=num_steps)
    return BatchCommand(
        new_segments=tuple(NewSegment(segment_id=one, segment=segment, deadline_s=deadline_s) for one in ids)
    )


def make_batch(model: StepModel = ENDLESS, clock: ManualClock | None = None) -> BatchExecutor:
    return BatchExecutor(model, clock or ManualClock())


def test_an_output_tells_what_the_step_took() -> None:
    clock = ManualClock(10.0)
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    output = batch.run_step(two_words(5, 6))

    assert (output.started_ids, output.num_encoded_tokens) == ((5, 6), 6)
    assert (output.encode_s, output.started_at_s, output.step_s, output.step_ended_s) == (2.0, 12.0, 1.0, 13.0)
    assert output.busy_s == 3.0
    assert output.load == BatchLoad.of(new.segment for new in two_words(5, 6).new_segments)
    assert (output.num_rows, output.step_rows, output.work) == (4, 4, 10)


def test_a_segment_that_ends_is_reported_by_its_id_and_leaves() -> None:
    batch = make_batch()
    outputs = [
        batch.run_step(two_words(40, num_steps=3)),
        batch.run_step(two_words(50)),
        batch.run_step(BatchCommand()),
    ]

    assert [[ended.segment_id for ended in output.ended] for output in outputs] == [[], [], [40]]
    assert (outputs[2].num_tokens, outputs[2].num_steps) == (3, 3)
    assert batch.num_segments == 1


def test_ids_need_not_come_in_order() -> None:
    batch = make_batch()
    batch.run_step(two_words(9, 2, 5, num_steps=2))

    ended = batch.run_step(BatchCommand()).ended

    assert sorted(one.segment_id for one in ended) == [2, 5, 9]


def test_a_dropped_segment_takes_part_in_no_further_step() -> None:
    batch = make_batch()
    batch.run_step(two_words(1, 2))

    output = batch.run_step(BatchCommand(dropped_ids=(1,)))

    assert output.load.num_segments == batch.num_segments == 1
    assert (output.ended, output.late_ids) == ((), ())


def test_dropped_segments_leave_before_new_ones_start() -> None:
    clock = ManualClock()
    model = SlowModel(ENDLESS, clock)
    batch = make_batch(model, clock)
    batch.run_step(two_words(1, 2))
    model.used.clear()

    batch.run_step(BatchCommand(new_segments=two_words(3).new_segments, dropped_ids=(2,)))

    assert model.used == ["drop", "encode", "start", "step"]


def sources_of(command: BatchCommand) -> tuple[WaitingSource, ...]:
    return tuple(
        WaitingSource(segment_id=new.segment_id, source_ids=new.segment.source_ids) for new in command.new_segments
    )


def test_segments_that_were_encoded_ahead_join_without_an_encoder_run() -> None:
    clock = ManualClock(10.0)
    model = SlowModel(ENDLESS, clock)
    batch = make_batch(model, clock)
    first = BatchCommand(new_segments=two_words(1).new_segments, encode_ahead=sources_of(two_words(2, 3)))

    outputs = [batch.run_step(first), batch.run_step(two_words(3, 2))]

    assert model.used == ["encode", "new_batch", "start", "step", "start", "step"]
    assert [(output.encoded_ids, output.started_ids) for output in outputs] == [((1, 2, 3), (1,)), ((), (3, 2))]
    assert [(output.num_encoded_tokens, output.encode_s) for output in outputs] == [(9, 2.0), (0, 0.0)]
    assert [output.started_at_s for output in outputs] == [12.0, 13.0]


def test_what_was_encoded_ahead_belongs_to_its_segment() -> None:
    together = joining(*range(10, 16), beam_size=3, num_hypotheses=3)
    expected = decode_here(ToyModel(), together)
    batch = make_batch(ToyModel())
    first, *others = together.new_segments
    ahead = sources_of(BatchCommand(new_segments=tuple(others[::-1])))

    outputs = [batch.run_step(BatchCommand(new_segments=(first,), encode_ahead=ahead))]
    outputs += [batch.run_step(BatchCommand(new_segments=(other,))) for other in others]
    while batch.num_segments:
        outputs.append(batch.run_step(BatchCommand()))

    assert {ended.segment_id: ended for output in outputs for ended in output.ended} == expected


def test_a_batch_takes_what_another_one_has_encoded() -> None:
    clock, encoded = ManualClock(), dict[int, EncodedSource]()
    model = SlowModel(ENDLESS, clock)
    one, other = (BatchExecutor(model, clock, encoded) for _ in range(2))
    one.run_step(BatchCommand(new_segments=two_words(1).new_segments, encode_ahead=sources_of(two_words(2))))

    output = other.run_step(two_words(2))

    assert (output.encoded_ids, output.started_ids) == ((), (2,))
    assert encoded == {}


def test_what_was_encoded_ahead_is_forgotten_with_its_segment_or_its_batch() -> None:
    encoded = dict[int, EncodedSource]()
    batch = BatchExecutor(ENDLESS, ManualClock(), encoded)
    batch.run_step(BatchCommand(new_segments=two_words(1).new_segments, encode_ahead=sources_of(two_words(2, 3, 4))))

    batch.run_step(BatchCommand(dropped_ids=(2,)))
    assert encoded.keys() == {3, 4}
    batch.run_step(two_words(3))
    assert encoded.keys() == {4}
    batch.close()
    assert encoded == {}


def test_to_drop_an_unknown_segment_is_no_fault() -> None:
    batch = make_batch()
    batch.run_step(two_words(1))

    assert not batch.run_step(BatchCommand(dropped_ids=(7, 8))).fault
    assert batch.num_segments == 1


def test_an_empty_batch_takes_no_step() -> None:
    batch = make_batch()
    batch.run_step(two_words(1))

    output = batch.run_step(BatchCommand(dropped_ids=(1,)))

    assert (output.num_rows, output.work, batch.num_segments) == (0, 0, 0)


def test_a_late_segment_is_dropped_after_the_step_and_reported() -> None:
    clock = ManualClock()
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    outputs = [
        batch.run_step(
            BatchCommand(new_segments=(*two_words(1, deadline_s=4.0).new_segments, *two_words(2).new_segments))
        ),
        batch.run_step(BatchCommand()),
    ]

    assert [output.late_ids for output in outputs] == [(), (1,)]
    assert batch.num_segments == 1


def test_a_segment_that_ends_in_the_step_in_which_it_is_late_is_answered() -> None:
    clock = ManualClock()
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    output = batch.run_step(two_words(1, num_steps=1, deadline_s=1.0))

    assert ([ended.segment_id for ended in output.ended], output.late_ids) == ([1], ())


@pytest.mark.parametrize("operation", ["encode", "new_batch", "start", "step", "drop"])
def test_a_fault_empties_the_batch_and_the_next_step_begins_afresh(operation: str) -> None:
    faults = [operation]
    batch = make_batch(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop())))

    outputs = [batch.run_step(two_words(1, 2)), batch.run_step(BatchCommand(dropped_ids=(1,)))]

    assert sum(f"{operation} broken on purpose" in output.fault for output in outputs) == 1
    assert batch.num_segments == 0
    assert [ended.segment_id for ended in batch.run_step(two_words(3, num_steps=1)).ended] == [3]


@pytest.mark.parametrize("operation", ["encode", "start", "step", "drop"])
def test_a_fault_names_all_segments_of_the_batch_new_ones_included(operation: str) -> None:
    is_broken = False
    batch = make_batch(FlakyModel(ENDLESS, lambda used: is_broken and used == operation))
    batch.run_step(two_words(1, 2))

    is_broken = True
    output = batch.run_step(BatchCommand(new_segments=two_words(3).new_segments, dropped_ids=(1,)))

    assert output.fault
    assert {2, 3} <= set(output.lost_ids) <= {1, 2, 3}
    assert len(set(output.lost_ids)) == len(output.lost_ids)


def test_a_segment_that_ended_before_the_fault_of_the_same_step_is_not_lost() -> None:
    clock = ManualClock()
    drops = iter([False, True])  # of who has ended, then of who is late
    model = FlakyModel(SlowModel(ENDLESS, clock), lambda used: used == "drop" and next(drops))
    batch = make_batch(model, clock)
    batch.run_step(
        BatchCommand(
            new_segments=(
                *two_words(1, num_steps=2).new_segments,
                *two_words(2, deadline_s=4.0).new_segments,
            )
        )
    )

    output = batch.run_step(BatchCommand())

    assert output.fault
    assert ([ended.segment_id for ended in output.ended], output.lost_ids) == ([1], (2,))


class SlowStepModel(WrappedModel):
    """A step takes 1 s of a clock moved by hand."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self._clock.advance(1.0 if operation == "step" else 0.0)


class Bench:
    """A batch in a thread, and the connection to it. Its clock stands still: it reports news only."""

    def __init__(self, model: StepModel, *, clock: ManualClock, cpu_clock: Clock) -> None:
        copied = zip(count(100, 10), count(7), strict=True)
        self.core = Worker(
            model, clock=clock, cache_bytes=lambda: 42, cpu_clock=cpu_clock, copied_bytes=lambda: next(copied)
        )
        self.connection = self.core.connect()

    def tell(self, command: BatchCommand) -> None:
        self.connection.send(command)

    def report(self) -> BatchReport:
        """Return the next report."""
        return next_report(self.connection)

    def reports_until_empty(self) -> list[BatchReport]:
        """Return reports until one of a step with which a segment ended."""
        reports = [self.report()]
        while not reports[-1].outputs[-1].ended:
            reports.append(self.report())
        return reports

    def has_ended(self) -> bool:
        self.core.close(TIMEOUT_S)
        return not any(thread.is_alive() for thread in self.core._threads)


@contextmanager
def bench_of(model: StepModel, *, clock: ManualClock | None = None, cpu_clock: Clock = lambda: 0.0) -> Iterator[Bench]:
    bench = Bench(model, clock=clock or ManualClock(), cpu_clock=cpu_clock)
    try:
        yield bench
    finally:
        if isinstance(model, GatedModel):
            model.open()
        bench.connection.close()
        assert bench.has_ended()


def test_results_over_a_connection_equal_those_without() -> None:
    command = joining(*range(10, 16), beam_size=3, num_hypotheses=3)
    expected = decode_here(ToyModel(), command)

    with bench_of(ToyModel()) as bench:
        bench.tell(command)
        reports: list[BatchReport] = []
        while len(ended_in(*reports)) < len(command.new_segments):
            reports.append(bench.report())

    assert ended_in(*reports) == expected


def test_attention_arrives_unchanged() -> None:
    segment = Segment(source_ids=make_segment(7, 8).source_ids, search=make_segment(7).search, wants_attention=True)
    command = BatchCommand(new_segments=(NewSegment(segment_id=3, segment=segment, deadline_s=math.inf),))
    expected = decode_here(ToyModel(), command)[3].hypotheses[0].attention

    with bench_of(ToyModel()) as bench:
        bench.tell(command)
        attention = ended_in(*bench.reports_until_empty())[3].hypotheses[0].attention

    assert attention is not None
    assert expected is not None
    np.testing.assert_array_equal(attention, expected)


def test_new_segments_join_a_running_batch() -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        bench.tell(joining(1, max_target_tokens=MANY_STEPS))
        assert model.wait_for_step() == 1
        bench.tell(joining(2, max_target_tokens=3))
        model.let_pass()
        model.pass_until(2)
        model.let_pass()
        model.pass_until(1)

        (report,) = [bench.report()]

    assert set(ended_in(report)) == {2}


def test_a_dropped_segment_leaves_a_running_batch() -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        bench.tell(joining(1, 2, max_target_tokens=MANY_STEPS))
        assert model.wait_for_step() == 2

        bench.tell(BatchCommand(dropped_ids=(1,)))
        model.let_pass()
        model.pass_until(1)


def test_the_last_segment_dropped_is_reported_as_a_step_in_which_nothing_was_done() -> None:
    with bench_of(GatedModel(ENDLESS)) as bench:
        bench.tell(BatchCommand(dropped_ids=(7,)))

        (output,) = bench.report().outputs

    assert (output.started_ids, output.num_rows, output.ended, output.late_ids, output.fault) == ((), 0, (), (), "")


def test_a_late_segment_leaves_and_the_others_stay() -> None:
    clock = ManualClock()
    model = GatedModel(ENDLESS)
    patient, hurried = joining(1, max_target_tokens=100), joining(2, deadline_s=0.01, max_target_tokens=100)
    with bench_of(model, clock=clock) as bench:
        bench.tell(BatchCommand.merged([patient, hurried]))
        assert model.wait_for_step() == 2
        clock.advance(0.01)  # less than a report waits otherwise
        model.let_pass()

        late = [output.late_ids for output in bench.report().outputs]

        assert late[-1] == (2,)
        assert model.wait_for_step() == 1


@pytest.mark.parametrize("operation", ["encode", "new_batch", "start", "step"])
def test_a_fault_is_reported_and_the_batch_goes_on_with_others(operation: str) -> None:
    faults = [operation]
    model = FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()))
    with bench_of(model) as bench:
        bench.tell(joining(1, 2))
        (broken,) = bench.report().outputs

        bench.tell(joining(3))
        reports = bench.reports_until_empty()

    assert f"{operation} broken on purpose" in broken.fault
    assert set(ended_in(*reports)) == {3}


def test_a_batch_without_news_reports_once_it_is_empty() -> None:
    with bench_of(ENDLESS) as bench:
        bench.tell(joining(1, max_target_tokens=6))

        report = bench.report()

    joined, others = report.outputs
    assert [1 + len(output.earlier_steps_s) for output in (joined, others)] == [1, 5]
    assert all(output.num_rows > 0 for output in report.outputs)
    assert [len(output.ended) for output in report.outputs] == [0, 1]


def make_step(**changes: Any) -> BatchStepOutput:
    load = BatchLoad(num_segments=1, longest_source=3, widest_beam=2, source_tokens=3, live_rows=2)
    return BatchStepOutput(**{"load": load, "step_rows": 2, "num_rows": 2, "step_s": 0.5, "busy_s": 0.75, **changes})


def test_steps_in_which_nothing_else_happened_are_told_together() -> None:
    told = make_step()
    for step_s in (1.0, 2.0):
        told, earlier = make_step(step_s=step_s), told
        assert told.take_in(earlier)

    assert ([*told.earlier_steps_s, told.step_s], told.busy_s) == ([0.5, 1.0, 2.0], 2.25)
    assert told.work == 3 * make_step().work


@pytest.mark.parametrize(
    ("changed", "earlier"),
    [
        ({"started_ids": (1,)}, {}),
        ({}, {"started_ids": (1,)}),
        ({}, {"encoded_ids": (1,)}),
        ({"load": BatchLoad()}, {}),
        ({"step_rows": 4}, {}),
        ({"num_rows": 0, "fault": "broken"}, {"num_rows": 0}),
    ],
)
def test_a_step_before_which_something_changed_is_told_by_itself(
    changed: dict[str, Any], earlier: dict[str, Any]
) -> None:
    step = make_step(**changed)

    assert not step.take_in(make_step(**earlier))
    assert step == make_step(**changed)


def test_a_batch_whose_steps_take_long_reports_each_of_them() -> None:
    clock = ManualClock()
    with bench_of(SlowStepModel(ENDLESS, clock), clock=clock) as bench:
        bench.tell(joining(1, max_target_tokens=6))

        reports = bench.reports_until_empty()

    assert [len(report.outputs) for report in reports] == [1] * 6


def test_a_report_has_the_caches_and_cpu_time_and_copies_since_the_last_one() -> None:
    used_s = iter([2.0, 5.0])
    with bench_of(ENDLESS, cpu_clock=lambda: next(used_s)) as bench:
        reports = []
        for key in (1, 2):
            bench.tell(joining(key, max_target_tokens=2))
            reports.append(bench.report())

    assert [(report.cache_bytes, report.cpu_s) for report in reports] == [(42, 2.0), (42, 3.0)]
    assert [report.copied_bytes for report in reports] == [(100, 7), (10, 1)]


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
        with bench_of(SlowStepModel(ENDLESS, clock), clock=clock) as bench:
            bench.tell(joining(1, max_target_tokens=MANY_STEPS))
            bench.report()


def test_commands_are_merged_in_their_order() -> None:
    first, second = joining(1, 2), joining(3)

    whole = BatchCommand.merged([first, BatchCommand(dropped_ids=(8,)), second, BatchCommand(dropped_ids=(9,))])

    assert whole == BatchCommand(new_segments=(*first.new_segments, *second.new_segments), dropped_ids=(8, 9))


def test_a_segment_that_is_dropped_before_it_has_started_does_not_start() -> None:
    whole = BatchCommand.merged([joining(1, 2), BatchCommand(dropped_ids=(1,))])

    assert [new.segment_id for new in whole.new_segments] == [2]


def test_cpu_time_that_several_batches_report_adds_up() -> None:
    ticks = count(1)
    core = Worker(ENDLESS, cpu_clock=lambda: float(next(ticks)))
    told: list[float] = []
    threads = [
        threading.Thread(target=lambda: told.extend(core.report_of(()).cpu_s for _ in range(500))) for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(told) == len(told) == 2000
    assert min(told) == 1.0


def test_caches_are_asked_for_each_report() -> None:
    sizes = iter([10, 20])
    core = Worker(ENDLESS, cache_bytes=lambda: next(sizes))

    assert [core.report_of(()).cache_bytes for _ in range(2)] == [10, 20]


def test_a_core_without_a_process_of_its_own_reports_no_cpu_time() -> None:
    assert Worker(ENDLESS).report_of(()).cpu_s == 0.0


def test_whatever_ends_a_batch_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    faults = [RuntimeError("no time on purpose")]

    def clock() -> float:
        if faults:
            raise faults.pop()
        return 0.0

    core = Worker(ENDLESS, clock=clock)
    with core.connect() as connection:
        connection.send(joining(1))

        with pytest.raises(EOFError):
            connection.recv()
    core.close(TIMEOUT_S)
    assert "batch ended" in caplog.messages


def test_messages_arrive_as_they_were_sent() -> None:
    search = SearchConfig(beam_size=2, target_prefix=(7,), suppressed_tokens=frozenset({8}), sampling=SamplingConfig())
    segment = Segment(source_ids=(5, 6, 2), search=search, wants_attention=True)
    best = Hypothesis(token_ids=(9, 2), token_log_probs=(-0.5, -0.25), log_prob=-0.75, score=-0.5, is_finished=True)
    guard = GuardReport(
        found=(Degeneration(kind=DegenerationKind.REPETITION, detail="a run"),), remaining=(), is_replaced=True
    )
    ended = EndedSegment(segment_id=1, hypotheses=(best,), num_steps=2, guard=guard)
    output = BatchStepOutput(load=BatchLoad(num_segments=1), earlier_steps_s=[0.1], ended=(ended,))

    for message in (
        BatchCommand(
            new_segments=(NewSegment(segment_id=1, segment=segment, deadline_s=math.inf),),
            encode_ahead=(WaitingSource(segment_id=2, source_ids=(2,)),),
        ),
        BatchReport(outputs=(output,), cache_bytes=3, cpu_s=0.5),
    ):
        assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - its own
