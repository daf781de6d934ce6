from collections.abc import Sequence

import pytest

from service.decoding.step_model import StepModel
from service.engine.core import LocalBatch, LocalBatches
from service.engine.protocol import BatchLoad, Newcomer, Orders
from tests.fakes import FlakyModel, ManualClock, ToyModel, WrappedModel, make_segment

ENDLESS = ToyModel(eos_bias=-100.0)


class SlowModel(WrappedModel):
    """Encoding takes 2 s of a clock moved by hand, a step 1 s; takes note of what is used."""

    def __init__(self, inner: StepModel, clock: ManualClock) -> None:
        super().__init__(inner)
        self.used: list[str] = []
        self._clock = clock

    def before(self, operation: str, num_segments: int) -> None:
        self.used.append(operation)
        self._clock.advance({"start": 2.0, "step": 1.0}.get(operation, 0.0))


def joining(*keys: int, num_steps: int = 12, deadline_s: float = 100.0) -> Orders:
    segment = make_segment(7, 8, beam_size=2, max_target_tokens=num_steps)
    return Orders(newcomers=tuple(Newcomer(key=key, segment=segment, deadline_s=deadline_s) for key in keys))


def make_batch(model: StepModel = ENDLESS, clock: ManualClock | None = None) -> LocalBatch:
    return LocalBatch(model, clock or ManualClock())


def test_a_turn_tells_what_it_took() -> None:
    clock = ManualClock(10.0)
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    turn = batch.turn(joining(5, 6))

    assert (turn.newcomers, turn.num_encoded_tokens) == ((5, 6), 6)
    assert (turn.encode_began_s, turn.encode_s, turn.step_s, turn.step_ended_s) == (10.0, 2.0, 1.0, 13.0)
    assert turn.busy_s == 3.0
    assert turn.load == BatchLoad.of(newcomer.segment for newcomer in joining(5, 6).newcomers)
    assert (turn.num_rows, turn.step_rows, turn.work) == (4, 4, 10)


def test_who_ends_is_reported_under_his_key_and_is_in_the_batch_no_more() -> None:
    batch = make_batch()
    turns = [batch.turn(joining(40, num_steps=3)), batch.turn(joining(50)), batch.turn(Orders())]

    assert [[ended.handle for ended in turn.ended] for turn in turns] == [[], [], [40]]
    assert (turns[2].num_tokens, turns[2].num_steps) == (3, 3)
    assert batch.num_segments == 1


def test_keys_need_not_come_in_order() -> None:
    batch = make_batch()
    batch.turn(joining(9, 2, 5, num_steps=2))

    ended = batch.turn(Orders()).ended

    assert sorted(one.handle for one in ended) == [2, 5, 9]


def test_who_is_dropped_takes_part_in_no_further_step() -> None:
    batch = make_batch()
    batch.turn(joining(1, 2))

    turn = batch.turn(Orders(dropped=(1,)))

    assert turn.load.num_segments == batch.num_segments == 1
    assert (turn.ended, turn.late) == ((), ())


def test_the_dropped_make_room_before_newcomers_start() -> None:
    clock = ManualClock()
    model = SlowModel(ENDLESS, clock)
    batch = make_batch(model, clock)
    batch.turn(joining(1, 2))
    model.used.clear()

    batch.turn(Orders(newcomers=joining(3).newcomers, dropped=(2,)))

    assert model.used == ["drop", "start", "step"]


def test_who_is_dropped_and_unknown_is_no_fault() -> None:
    batch = make_batch()
    batch.turn(joining(1))

    assert not batch.turn(Orders(dropped=(7, 8))).fault
    assert batch.num_segments == 1


def test_nobody_left_means_that_no_step_is_taken() -> None:
    batch = make_batch()
    batch.turn(joining(1))

    turn = batch.turn(Orders(dropped=(1,)))

    assert (turn.num_rows, turn.work, batch.num_segments) == (0, 0, 0)


def test_who_is_late_is_dropped_after_the_step_and_told() -> None:
    clock = ManualClock()
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    turns = [
        batch.turn(Orders(newcomers=(*joining(1, deadline_s=4.0).newcomers, *joining(2).newcomers))),
        batch.turn(Orders()),
    ]

    assert [turn.late for turn in turns] == [(), (1,)]
    assert batch.num_segments == 1


def test_who_ends_in_the_step_in_which_he_is_late_is_answered() -> None:
    clock = ManualClock()
    batch = make_batch(SlowModel(ENDLESS, clock), clock)

    turn = batch.turn(joining(1, num_steps=1, deadline_s=1.0))

    assert ([ended.handle for ended in turn.ended], turn.late) == ([1], ())


@pytest.mark.parametrize("operation", ["new_batch", "start", "step", "drop"])
def test_a_fault_empties_the_batch_and_the_next_turn_begins_afresh(operation: str) -> None:
    faults = [operation]
    batch = make_batch(FlakyModel(ENDLESS, lambda used: used in faults and bool(faults.pop())))

    turns = [batch.turn(joining(1, 2)), batch.turn(Orders(dropped=(1,)))]

    assert sum(f"{operation} broken on purpose" in turn.fault for turn in turns) == 1
    assert batch.num_segments == 0
    assert [ended.handle for ended in batch.turn(joining(3, num_steps=1)).ended] == [3]


@pytest.mark.parametrize("operation", ["start", "step", "drop"])
def test_a_fault_names_all_who_were_in_the_batch_newcomers_included(operation: str) -> None:
    is_broken = False
    batch = make_batch(FlakyModel(ENDLESS, lambda used: is_broken and used == operation))
    batch.turn(joining(1, 2))

    is_broken = True
    turn = batch.turn(Orders(newcomers=joining(3).newcomers, dropped=(1,)))

    assert turn.fault
    assert {2, 3} <= set(turn.lost) <= {1, 2, 3}
    assert len(set(turn.lost)) == len(turn.lost)


def test_who_ended_before_the_fault_of_the_same_turn_is_not_lost() -> None:
    clock = ManualClock()
    drops = iter([False, True])  # of who has ended, then of who is late
    model = FlakyModel(SlowModel(ENDLESS, clock), lambda used: used == "drop" and next(drops))
    batch = make_batch(model, clock)
    batch.turn(Orders(newcomers=(*joining(1, num_steps=2).newcomers, *joining(2, deadline_s=4.0).newcomers)))

    turn = batch.turn(Orders())

    assert turn.fault
    assert ([ended.handle for ended in turn.ended], turn.lost) == ([1], (2,))


def test_an_exchange_is_one_turn() -> None:
    turns: Sequence[object] = make_batch().exchange(joining(1))

    assert len(turns) == 1


def test_batches_of_a_model_have_its_limits_and_do_not_know_each_other() -> None:
    batches = LocalBatches(ENDLESS)
    first, second = (batches.new_batch(ManualClock()) for _ in range(2))

    first.exchange(joining(1))

    assert (first.num_segments, second.num_segments) == (1, 0)
    assert (batches.limits.max_source_tokens, batches.limits.max_target_tokens) == (64, 200)
    assert batches.limits == ENDLESS.limits
