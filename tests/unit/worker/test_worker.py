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
    DegenerationReport,
    Hypothesis,
    SamplingConfig,
    SearchConfig,
    Segment,
)
from dragoman_service.decoding.degeneration import EndedSegment
from dragoman_service.decoding.running_batch import BatchLoad
from dragoman_service.decoding.step_model import EncodedSource, StepModel
from dragoman_service.worker.messages import BatchCommand, BatchReport, BatchStepOutput, Clock, NewSegment
from dragoman_service.worker.worker import BatchExecutor, ServedModel, Worker
from tests.fakes import FlakyModel, GatedModel, ManualClock, TimedModel, ToyModel, WrappedModel, make_segment
from tests.mortal_worker import TIMEOUT_S, decode_here, ended_in, joining, next_report

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
MANY_STEPS = 5000
NUM_ENDS = 200  # some of which come at the worst moment


def new_segments(*ids: int, num_steps: int = 12, deadline_s: float = 100.0) -> tuple[NewSegment, ...]:
    segment = make_segment(7, 8, beam_size=2, max_target_tokens=num_steps)
    return tuple(NewSegment(segment_id=key, segment=segment, deadline_s=deadline_s) for key in ids)


def command(*ids: int, ahead: tuple[int, ...] = (), dropped: tuple[int, ...] = (), **options: Any) -> BatchCommand:
    sources = {key: new_segments(key)[0].segment.source_ids for key in ahead}
    return BatchCommand(new_segments=new_segments(*ids, **options), dropped_ids=dropped, prefetch=sources)


def make_batch(model: StepModel = ENDLESS, clock: Clock | None = None) -> BatchExecutor:
    return BatchExecutor(model, clock or (model.clock if isinstance(model, TimedModel) else ManualClock()))


def test_output_has_the_times_and_sizes_of_a_step() -> None:
    output = make_batch(TimedModel(ENDLESS)).execute(command(5, 6))

    assert (output.started_ids, output.num_encoded_tokens) == ((5, 6), 6)
    assert (output.encode_s, output.started_at_s, output.step_s, output.step_ended_s) == (2.0, 12.0, 1.0, 13.0)
    assert output.busy_s == 3.0
    assert output.load == BatchLoad.of(new.segment for new in new_segments(5, 6))
    assert (output.num_rows, output.step_rows, output.decode_cost) == (4, 4, 10)


def test_segments_end_by_their_ids_in_any_order() -> None:
    batch = make_batch()
    outputs = [batch.execute(each) for each in (command(40, 9, num_steps=3), command(5), BatchCommand())]

    assert [sorted(ended.segment_id for ended in output.ended) for output in outputs] == [[], [], [9, 40]]
    assert (outputs[2].num_tokens, outputs[2].num_steps) == (6, 6)
    assert batch.num_segments == 1


def test_dropped_segments_leave_before_new_ones_start() -> None:
    batch = make_batch(model := TimedModel(ENDLESS))
    batch.execute(command(1, 2))
    model.operations.clear()

    output = batch.execute(command(3, dropped=(2, 7)))  # 7 is unknown, which is not a fault

    assert [operation for operation, _ in model.operations] == ["drop", "encode", "start", "step"]
    assert output.load.num_segments == batch.num_segments == 2
    assert (output.ended, output.late_ids, output.fault) == ((), (), "")


def test_empty_batch_takes_no_step() -> None:
    batch = make_batch()
    batch.execute(command(1))

    output = batch.execute(command(dropped=(1,)))

    assert (output.num_rows, output.decode_cost, batch.num_segments) == (0, 0, 0)


def test_segments_that_were_encoded_ahead_join_without_an_encoder_run() -> None:
    batch = make_batch(model := TimedModel(ENDLESS))

    outputs = [batch.execute(command(1, ahead=(2, 3))), batch.execute(command(3, 2))]

    assert model.encoded == [3]
    assert [(output.encoded_ids, output.started_ids) for output in outputs] == [((1, 2, 3), (1,)), ((), (3, 2))]
    assert [(output.num_encoded_tokens, output.encode_s) for output in outputs] == [(9, 2.0), (0, 0.0)]
    assert [output.started_at_s for output in outputs] == [12.0, 13.0]


def test_encoding_ahead_does_not_change_results() -> None:
    together = joining(*range(10, 16), beam_size=3, num_hypotheses=3)
    first, *others = together.new_segments
    ahead = {other.segment_id: other.segment.source_ids for other in reversed(others)}
    batch = make_batch(ToyModel())

    outputs = [batch.execute(BatchCommand(new_segments=(first,), prefetch=ahead))]
    outputs += [batch.execute(BatchCommand(new_segments=(other,))) for other in others]
    while batch.num_segments:
        outputs.append(batch.execute(BatchCommand()))

    ended = {ended.segment_id: ended for output in outputs for ended in output.ended}
    assert ended == decode_here(ToyModel(), together)


def test_batches_share_encoder_outputs_until_the_segment_or_the_batch_ends() -> None:
    encoded = dict[int, EncodedSource]()
    batch, other = (BatchExecutor(ENDLESS, ManualClock(), encoded) for _ in range(2))
    batch.execute(command(1, ahead=(2, 3, 4, 5)))

    output = other.execute(command(2))
    assert (output.encoded_ids, output.started_ids) == ((), (2,))
    batch.execute(command(dropped=(3,)))
    assert encoded.keys() == {4, 5}
    batch.execute(command(4))
    assert encoded.keys() == {5}
    batch.close()
    assert encoded == {}


def test_late_segment_is_dropped_after_the_step_unless_it_ended() -> None:
    batch = make_batch(model := TimedModel(ENDLESS))
    late, ending = new_segments(1, deadline_s=14.0), new_segments(3, num_steps=1, deadline_s=11.0)

    outputs = [
        batch.execute(BatchCommand(new_segments=(*late, *new_segments(2), *ending))),
        batch.execute(BatchCommand()),
    ]

    assert [[ended.segment_id for ended in output.ended] for output in outputs] == [[3], []]
    assert [output.late_ids for output in outputs] == [(), (1,)]
    assert model.clock() == 14.0
    assert batch.num_segments == 1


@pytest.mark.parametrize("operation", ["encode", "new_batch", "start", "step", "drop"])
def test_fault_empties_the_batch_and_names_its_segments(operation: str) -> None:
    faults: list[str] = []
    batch = make_batch(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop())))
    if operation != "new_batch":
        batch.execute(command(1, 2))

    faults.append(operation)
    output = batch.execute(command(3, dropped=(1,)))

    assert f"{operation} broken on purpose" in output.fault
    assert ({2, 3} if operation != "new_batch" else {3}) <= set(output.lost_ids) <= {1, 2, 3}
    assert len(set(output.lost_ids)) == len(output.lost_ids)
    assert batch.num_segments == 0
    assert [ended.segment_id for ended in batch.execute(command(4, num_steps=1)).ended] == [4]


def test_segment_that_ended_before_the_fault_of_the_same_step_is_not_lost() -> None:
    drops = iter([False, True])  # of segments that ended, then of late segments
    timed = TimedModel(ENDLESS)
    batch = make_batch(FlakyModel(timed, lambda used: used == "drop" and next(drops)), timed.clock)
    batch.execute(BatchCommand(new_segments=(*new_segments(1, num_steps=2), *new_segments(2, deadline_s=14.0))))

    output = batch.execute(BatchCommand())

    assert output.fault
    assert ([ended.segment_id for ended in output.ended], output.lost_ids) == ([1], (2,))


class MeasuredModel(WrappedModel):
    """Uses the same memory and copies more bytes at each measurement."""

    cache_bytes = 42

    def __init__(self, inner: StepModel) -> None:
        super().__init__(inner)
        self._copied = zip(count(100, 10), count(7), strict=True)

    @property
    def copied_bytes(self) -> tuple[int, int]:  # type: ignore[override]
        return next(self._copied)


class Bench:
    """A batch in a thread and the connection to it; its clock stands still, so it reports results only."""

    def __init__(self, model: ServedModel, *, clock: ManualClock, cpu_clock: Clock) -> None:
        self.worker = Worker(model, clock=clock, cpu_clock=cpu_clock)
        self.connection = self.worker.connect()

    def reports_until_end(self) -> list[BatchReport]:
        """Return reports until a segment ends."""
        reports = [next_report(self.connection)]
        while not reports[-1].outputs[-1].ended:
            reports.append(next_report(self.connection))
        return reports

    def has_ended(self) -> bool:
        self.worker.close(TIMEOUT_S)
        return not any(thread.is_alive() for thread in self.worker._threads)


@contextmanager
def bench_of(
    model: ServedModel, *, clock: ManualClock | None = None, cpu_clock: Clock = lambda: 0.0
) -> Iterator[Bench]:
    bench = Bench(model, clock=clock or ManualClock(), cpu_clock=cpu_clock)
    try:
        yield bench
    finally:
        if isinstance(model, GatedModel):
            model.open()
        bench.connection.close()
        assert bench.has_ended()


def test_results_and_attention_over_a_connection_are_identical() -> None:
    search = make_segment(7, beam_size=3, num_hypotheses=3).search
    sources = [make_segment(4 + key % 5, 5).source_ids for key in range(6)]
    segments = [Segment(source_ids=source, search=search, wants_attention=True) for source in sources]
    new = [NewSegment(segment_id=key, segment=one, deadline_s=math.inf) for key, one in enumerate(segments, 10)]
    together = BatchCommand(new_segments=tuple(new))
    expected = decode_here(ToyModel(), together)

    with bench_of(ToyModel()) as bench:
        bench.connection.send(together)
        reports: list[BatchReport] = []
        while len(ended_in(*reports)) < len(new):
            reports.append(next_report(bench.connection))

    ended = ended_in(*reports)
    assert ended == expected
    for key, segment in ended.items():
        for received, local in zip(segment.hypotheses, expected[key].hypotheses, strict=True):
            assert received.attention is not None
            assert local.attention is not None
            np.testing.assert_array_equal(received.attention, local.attention)


def test_late_segment_is_reported_at_once_and_the_others_continue() -> None:
    clock = ManualClock()
    model = GatedModel(ENDLESS)
    commands = [joining(1, max_target_tokens=100), joining(2, deadline_s=0.01, max_target_tokens=100)]
    with bench_of(model, clock=clock) as bench:
        bench.connection.send(BatchCommand.merged(commands))
        assert model.wait_for_step() == 2
        clock.advance(0.01)  # less than the interval between reports
        model.let_pass()

        assert next_report(bench.connection).outputs[-1].late_ids == (2,)
        assert model.wait_for_step() == 1


def test_batch_without_results_reports_when_it_is_empty() -> None:
    with bench_of(ENDLESS) as bench:
        bench.connection.send(joining(1, max_target_tokens=6))

        first, others = next_report(bench.connection).outputs

    assert [1 + len(output.earlier_steps_s) for output in (first, others)] == [1, 5]
    assert all(output.num_rows > 0 for output in (first, others))
    assert [len(output.ended) for output in (first, others)] == [0, 1]


def test_each_long_step_is_reported() -> None:
    model = TimedModel(ENDLESS, encode_s=0.0)
    with bench_of(model, clock=model.clock) as bench:
        bench.connection.send(joining(1, max_target_tokens=6))

        reports = bench.reports_until_end()

    assert [len(report.outputs) for report in reports] == [1] * 6


def make_step(**changes: Any) -> BatchStepOutput:
    load = BatchLoad(num_segments=1, longest_source=3, widest_beam=2, source_tokens=3, live_rows=2)
    return BatchStepOutput(**{"load": load, "step_rows": 2, "num_rows": 2, "step_s": 0.5, "busy_s": 0.75, **changes})


def test_plain_steps_are_merged() -> None:
    merged = make_step()
    for step_s in (1.0, 2.0):
        merged, earlier = make_step(step_s=step_s), merged
        assert merged.merge(earlier)

    assert ([*merged.earlier_steps_s, merged.step_s], merged.busy_s) == ([0.5, 1.0, 2.0], 2.25)
    assert merged.decode_cost == 3 * make_step().decode_cost


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
def test_steps_are_not_merged_if_anything_changed(changed: dict[str, Any], earlier: dict[str, Any]) -> None:
    step = make_step(**changed)

    assert not step.merge(make_step(**earlier))
    assert step == make_step(**changed)


def test_reports_have_the_resources_used_since_the_last_report() -> None:
    used_s = iter([2.0, 5.0])
    with bench_of(MeasuredModel(ENDLESS), cpu_clock=lambda: next(used_s)) as bench:
        reports = []
        for key in (1, 2):
            bench.connection.send(joining(key, max_target_tokens=2))
            reports.append(next_report(bench.connection))

    assert [(report.cache_bytes, report.cpu_s) for report in reports] == [(42, 2.0), (42, 3.0)]
    assert [report.copied_bytes for report in reports] == [(100, 7), (10, 1)]
    assert Worker(ENDLESS).make_report(()).cpu_s == 0.0


def test_cpu_time_of_concurrent_reports_adds_up() -> None:
    ticks = count(1)
    worker = Worker(ENDLESS, cpu_clock=lambda: float(next(ticks)))
    reported_s: list[float] = []
    threads = [
        threading.Thread(target=lambda: reported_s.extend(worker.make_report(()).cpu_s for _ in range(500)))
        for _ in range(4)
    ]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(reported_s) == len(reported_s) == 2000
    assert min(reported_s) == 1.0


@pytest.mark.parametrize("is_decoding", [False, True])
def test_closing_the_connection_ends_a_batch_after_its_step(is_decoding: bool) -> None:
    model = GatedModel(ENDLESS)
    with bench_of(model) as bench:
        if is_decoding:
            bench.connection.send(joining(1, max_target_tokens=MANY_STEPS))
            model.wait_for_step()

        bench.connection.close()
        model.open()

        assert bench.has_ended()
    assert len(model.step_sizes) < MANY_STEPS


def test_closing_the_connection_during_reports_raises_in_no_thread() -> None:
    """An exception in any thread fails the test."""
    for _ in range(NUM_ENDS):
        model = TimedModel(ENDLESS)
        with bench_of(model, clock=model.clock) as bench:
            bench.connection.send(joining(1, max_target_tokens=MANY_STEPS))
            next_report(bench.connection)


def test_commands_are_merged_in_order_without_segments_dropped_before_they_start() -> None:
    first, second = joining(1, 2), joining(3)

    ahead = [BatchCommand(dropped_ids=(8, 1), prefetch={9: (2,)}), BatchCommand(prefetch={4: (2,)})]

    merged = BatchCommand.merged([first, *ahead, second, BatchCommand(dropped_ids=(9,))])

    assert merged == BatchCommand(
        new_segments=(first.new_segments[1], *second.new_segments), dropped_ids=(8, 1, 9), prefetch={4: (2,)}
    )


def test_exception_of_a_batch_thread_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    faults = [RuntimeError("clock broken on purpose")]

    def clock() -> float:
        if faults:
            raise faults.pop()
        return 0.0

    worker = Worker(ENDLESS, clock=clock)
    with worker.connect() as connection:
        connection.send(joining(1))

        with pytest.raises(EOFError):
            connection.recv()
    worker.close(TIMEOUT_S)
    assert "batch ended" in caplog.messages


def test_messages_are_equal_after_pickling() -> None:
    search = SearchConfig(beam_size=2, target_prefix=(7,), suppressed_tokens=frozenset({8}), sampling=SamplingConfig())
    segment = Segment(source_ids=(5, 6, 2), search=search, wants_attention=True)
    best = Hypothesis(token_ids=(9, 2), token_log_probs=(-0.5, -0.25), log_prob=-0.75, score=-0.5, is_finished=True)
    loop = Degeneration(kind=DegenerationKind.REPETITION, detail="a run")
    report = DegenerationReport(found=(loop,), remaining=(), is_replaced=True)
    ended = EndedSegment(segment_id=1, hypotheses=(best,), num_steps=2, degeneration=report)
    output = BatchStepOutput(load=BatchLoad(num_segments=1), earlier_steps_s=[0.1], ended=(ended,))

    for message in (
        BatchCommand(
            new_segments=(NewSegment(segment_id=1, segment=segment, deadline_s=math.inf),),
            prefetch={2: (2,)},
        ),
        BatchReport(outputs=(output,), cache_bytes=3, cpu_s=0.5),
    ):
        assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301
