import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from service.datatypes import Priority, SearchConfig, Segment
from service.decoding.step_model import StepModel
from service.engine.client import Scheduler, Worker
from service.engine.core import LocalBatch
from service.engine.process import HostedBatch
from service.engine.protocol import Newcomer, Orders, Report, Turn
from service.engine.queue import PendingSegment
from service.engine.settings import SchedulingSettings
from service.errors import EngineError
from service.telemetry.metrics import Metrics
from tests.fakes import EOS, FlakyModel, GatedModel, ToyModel, make_segment
from tests.hosted_in_threads import CACHE_BYTES, TIMEOUT_S, ThreadedBatches, begin, decode, exchange, joining

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
NUM_WAKES = 500
NUM_STOPPED = 30  # of which some would be stopped by two in the very same moment
LARGE = 20_000
"""Source tokens: with their attention a report is larger than what a socket holds, as are orders of a few."""


@contextmanager
def hosted(model: StepModel) -> Iterator[tuple[ThreadedBatches, HostedBatch]]:
    batches = ThreadedBatches(model)
    batch = batches.new_batch(time.monotonic)
    try:
        yield batches, batch
    finally:
        if isinstance(model, GatedModel):
            model.open()
        batch.close()
        batches.close()


class Script:
    """The other end of a connection, held by the test itself."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.connection: Connection[Any, Any] = Connection(theirs.detach())
        self._ours: Connection[Any, Any] = Connection(ours.detach())

    def connect(self) -> "Connection[Any, Any]":
        """For one hosted batch, once."""
        return self._ours

    def tell(self, *turns: Turn) -> None:
        self.connection.send(Report(turns=turns, cache_bytes=0, cpu_s=0.0))


@contextmanager
def scripted() -> Iterator[tuple[Script, HostedBatch]]:
    script = Script()
    batch = HostedBatch(script.connect, note=lambda _: None)
    try:
        yield script, batch
    finally:
        script.connection.close()
        batch.close()


def large_orders(*keys: int) -> Orders:
    search = SearchConfig(beam_size=1, max_target_tokens=2)
    source = (*range(4, 9),) * (LARGE // 5)
    return Orders(
        newcomers=tuple(
            Newcomer(
                key=key,
                segment=Segment(source_ids=(*source, *[4] * key, EOS), search=search, wants_attention=True),
                deadline_s=float("inf"),
            )
            for key in keys
        )
    )


def test_results_equal_those_of_a_local_batch() -> None:
    orders = joining(*range(8), beam_size=4, num_hypotheses=2)
    expected = decode(LocalBatch(ToyModel(), time.monotonic), orders)

    with hosted(ToyModel()) as (_, batch):
        ended = decode(batch, orders)

    assert ended == expected


def test_newcomers_join_a_running_batch() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (_, batch):
        batch.wake()
        assert not exchange(batch, joining(1, max_target_tokens=5000))
        assert model.wait_for_step() == 1
        batch.wake()
        assert not exchange(batch, joining(2, max_target_tokens=2))

        model.open()
        keys = [ended.handle for ended in exchange_until_ended(batch)]

    assert keys == [2]
    assert 2 in model.step_sizes


def exchange_until_ended(batch: HostedBatch) -> list[Any]:
    while True:
        if ended := [one for turn in exchange(batch) for one in turn.ended]:
            return ended


def test_who_is_dropped_is_decoded_no_further() -> None:
    with hosted(ENDLESS) as (_, batch):
        exchange(batch, joining(1, 2, max_target_tokens=5000))

        ended = decode(batch, Orders(newcomers=joining(3, max_target_tokens=2).newcomers, dropped=(1, 2)))

    assert set(ended) == {3}


def test_who_is_late_is_told() -> None:
    with hosted(ENDLESS) as (_, batch):
        turns = exchange(batch, joining(1, deadline_s=time.monotonic(), max_target_tokens=5000))

    assert [key for turn in turns for key in turn.late] == [1]


def test_a_fault_is_told_and_the_connection_stays() -> None:
    faults = ["step"]
    with hosted(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()))) as (batches, batch):
        (broken,) = exchange(batch, joining(1, 2))
        ended = decode(batch, joining(3))

        assert len(batches.connections) == 1
    assert "step broken on purpose" in broken.fault
    assert set(ended) == {3}


def test_each_report_is_noted() -> None:
    with hosted(ENDLESS) as (batches, batch):
        decode(batch, joining(1))
        decode(batch, joining(2))

        assert {report.cache_bytes for report in batches.reports} == {CACHE_BYTES}
        assert len(batches.reports) >= 2


def test_a_wake_makes_a_waiting_exchange_return() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (_, batch):
        waiting = begin(batch.exchange, joining(1))
        model.wait_for_step()

        batch.wake()

        assert waiting.result(TIMEOUT_S) == []


def test_a_wake_before_the_exchange_is_not_lost() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (_, batch):
        batch.wake()

        assert exchange(batch, joining(1)) == []


def test_many_wakes_are_one() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (_, batch):
        for _ in range(100_000):  # more than a pipe holds
            batch.wake()
        assert exchange(batch, joining(1)) == []
        model.wait_for_step()

        waiting = begin(batch.exchange, Orders())
        model.open()

        assert waiting.result(TIMEOUT_S) != []


def test_no_wake_is_ever_lost() -> None:
    """Whoever says something and wakes is heard: an exchange begins or returns after it was said."""
    model = GatedModel(ENDLESS)
    said = [0, 0, 0]

    def speak(index: int) -> None:
        for _ in range(NUM_WAKES):
            said[index] += 1
            batch.wake()

    def listen() -> None:
        while sum(said) < len(said) * NUM_WAKES:
            batch.exchange(Orders())

    with hosted(model) as (_, batch):
        batch.wake()
        exchange(batch, joining(1))
        model.wait_for_step()

        listening = begin(listen)
        for speaking in [begin(speak, index) for index in range(len(said))]:
            speaking.result(TIMEOUT_S)

        listening.result(TIMEOUT_S)


def test_one_wake_after_the_other_is_heard() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (_, batch):
        batch.wake()
        exchange(batch, joining(1))

        for _ in range(NUM_WAKES):
            waiting = begin(batch.exchange, Orders())
            batch.wake()
            assert waiting.result(TIMEOUT_S) == []


def test_an_end_with_somebody_in_the_batch_is_an_error_and_the_next_exchange_connects_anew() -> None:
    with hosted(GatedModel(ENDLESS)) as (batches, batch):
        waiting = begin(batch.exchange, joining(1))
        model_of(batches).wait_for_step()

        batches.die()

        with pytest.raises(EngineError, match="has ended"):
            waiting.result(TIMEOUT_S)
        model_of(batches).open()
        assert set(decode(batch, joining(2))) == {2}
        assert len(batches.connections) == 2


def model_of(batches: ThreadedBatches) -> GatedModel:
    model = batches._model
    assert isinstance(model, GatedModel)
    return model


def test_an_end_between_two_exchanges_with_somebody_in_the_batch_is_an_error() -> None:
    with hosted(GatedModel(ENDLESS)) as (batches, batch):
        batch.wake()
        exchange(batch, joining(1))
        batches.die()

        with pytest.raises(EngineError):
            exchange(batch, joining(2))

        model_of(batches).open()
        assert set(decode(batch, joining(3))) == {3}


@pytest.mark.parametrize("num_ends", [1, 3])
def test_an_end_while_nobody_is_in_the_batch_is_not_noticed(num_ends: int) -> None:
    with hosted(ENDLESS) as (batches, batch):
        for key in range(num_ends):
            decode(batch, joining(key))
            batches.die()

        assert set(decode(batch, joining(100))) == {100}
        assert len(batches.connections) == num_ends + 1


def test_an_end_after_all_were_dropped_is_not_noticed() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (batches, batch):
        batch.wake()
        exchange(batch, joining(1))
        batch.wake()
        exchange(batch, Orders(dropped=(1,)))
        batches.die()
        model.open()

        assert set(decode(batch, joining(2))) == {2}


def test_an_end_after_a_fault_is_not_noticed() -> None:
    faults = ["step"]
    with hosted(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop()))) as (batches, batch):
        exchange(batch, joining(1))
        batches.die()

        assert set(decode(batch, joining(2))) == {2}


def test_what_an_ended_process_said_of_those_who_were_dropped_is_forgotten() -> None:
    model = GatedModel(ENDLESS)
    with hosted(model) as (batches, batch):
        batch.wake()
        exchange(batch, joining(1, max_target_tokens=1))
        model.wait_for_step()
        batch.wake()
        exchange(batch, Orders(dropped=(1,)))
        model.let_pass()
        assert batches.connections[0].poll(TIMEOUT_S), "no report came"
        batches.die()

        model.open()
        assert set(decode(batch, joining(2))) == {2}


def test_nothing_to_connect_to_is_an_error_and_tried_again() -> None:
    batches = ThreadedBatches(ENDLESS)
    faults = ["cannot be started", "refused"]

    def connect() -> "Connection[Any, Any]":
        if len(faults) == 2:
            raise EngineError(faults.pop(0))
        if faults:
            raise ConnectionRefusedError(faults.pop(0))
        return batches.connect()

    batch = HostedBatch(connect, note=lambda _: None)
    with pytest.raises(EngineError, match="cannot be started"):
        exchange(batch, joining(1))
    with pytest.raises(EngineError, match="has ended"):
        exchange(batch, joining(2))

    assert set(decode(batch, joining(3))) == {3}
    batch.close()
    batches.close()


def test_closing_it_ends_the_batch_in_the_process() -> None:
    with hosted(ENDLESS) as (batches, batch):
        exchange(batch, joining(1, max_target_tokens=5000))

        batch.close()

        (thread,) = batches.threads
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()


def test_one_that_never_connected_can_be_closed() -> None:
    HostedBatch(Script().connect, note=lambda _: None).close()


def test_a_wake_after_the_end_does_no_harm() -> None:
    batch = HostedBatch(Script().connect, note=lambda _: None)
    batch.close()

    batch.wake()


def test_large_orders_and_large_reports_at_the_same_time_arrive() -> None:
    model = GatedModel(ToyModel(eos_bias=-100.0, max_source_tokens=2 * LARGE))
    rounds = [large_orders(*range(10 * index, 10 * index + 8)) for index in range(3)]
    ended: dict[int, Any] = {}
    with hosted(model) as (batches, batch):
        batch.wake()
        assert exchange(batch, rounds[0]) == []
        model.wait_for_step()
        model.open()
        for orders in rounds[1:]:
            assert batches.connections[0].poll(TIMEOUT_S), "no report came"  # more of it than the socket can hold
            for turn in exchange(batch, orders):
                ended.update({one.handle: one for one in turn.ended})
        while len(ended) < sum(len(orders.newcomers) for orders in rounds):
            ended.update({one.handle: one for turn in exchange(batch) for one in turn.ended})

    expected = decode(LocalBatch(model, time.monotonic), rounds[2])
    for key, one in expected.items():
        attention, there = one.hypotheses[0].attention, ended[key].hypotheses[0].attention
        assert attention is not None
        assert there is not None
        np.testing.assert_array_equal(attention, there)


def test_an_answer_that_came_before_the_end_is_given() -> None:
    """The process was sound when it answered: whoever has left the batch loses nothing."""
    (answer,) = LocalBatch(ENDLESS, time.monotonic).exchange(joining(1, max_target_tokens=1))
    with scripted() as (script, batch):
        batch.wake()
        exchange(batch, joining(1, 2))
        script.tell(answer)
        script.connection.close()

        assert [ended.handle for turn in exchange(batch) for ended in turn.ended] == [1]

        with pytest.raises(EngineError):  # of the other one
            exchange(batch)


def test_a_fault_of_a_step_before_somebody_joined_does_not_concern_him() -> None:
    """The report of the fault and the orders with the newcomer cross each other."""
    faults = ["step"]
    model = GatedModel(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop())))
    with hosted(model) as (batches, batch):
        worker = Worker(batch, metrics=Metrics(CollectorRegistry()), clock=time.monotonic)
        broken, whole = make_pending(), make_pending()
        worker.hand_over([broken])
        batch.wake()
        begin(worker.exchange).result(TIMEOUT_S)
        model.wait_for_step()
        model.open()
        assert batches.connections[0].poll(TIMEOUT_S), "the fault was not told"

        worker.hand_over([whole])
        while worker.num_segments:
            begin(worker.exchange).result(TIMEOUT_S)

    assert isinstance(broken.future.exception(0), EngineError)
    assert whole.future.exception(0) is None


def make_pending() -> PendingSegment:
    segment = make_segment(7, 8, max_target_tokens=3)
    return PendingSegment(segment=segment, priority=Priority.INTERACTIVE, admitted_at_s=0.0, deadline_s=float("inf"))


def test_a_scheduler_may_be_stopped_by_several_at_once() -> None:
    """By who unloads a version, and by the end of the server while it is being unloaded."""
    for _ in range(NUM_STOPPED):
        batches, metrics = ThreadedBatches(ENDLESS), Metrics(CollectorRegistry())
        scheduler = Scheduler(batches, SchedulingSettings(num_decoding_threads=3), metrics)
        scheduler.start()
        (future,) = scheduler.submit([make_segment(7)])
        future.result(TIMEOUT_S)

        for stopping in [begin(scheduler.stop) for _ in range(4)]:
            stopping.result(TIMEOUT_S)

        assert not [thread for thread in batches.threads if thread.is_alive()]
        assert metrics.registry.get_sample_value("mt_batch_live_segments") == 0
