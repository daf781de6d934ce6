"""A batch that is decoded by whoever gives it orders: newcomers are encoded, all step, who has ended or is late leaves.

Whatever the model does, it is told in the turn: an exception ends those who were in the batch, and the next turn begins
with a fresh one.
"""

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from service.decoding.running_batch import EndedSegment, Engine
from service.decoding.step_model import StepModel, VocabularySpec
from service.scheduling.batch import Clock, Newcomer, Orders
from service.scheduling.batching import BatchLoad
from service.scheduling.turn import Turn
from service.threads import lower_priority

_EMPTY: Final = BatchLoad()


class LocalBatch:
    """The segments of one batch and the engine that decodes them."""

    def __init__(self, model: StepModel, clock: Clock) -> None:
        self._model = model
        self._clock = clock
        self._engine: Engine | None = None  # made when needed: making it may fail like any other use of the model
        self._running: dict[int, Newcomer] = {}  # by the engine's handle
        self._load = _EMPTY

    @property
    def num_segments(self) -> int:
        """Segments in the batch."""
        return len(self._running)

    def exchange(self, orders: Orders) -> Sequence[Turn]:
        """Obey, and take one turn."""
        return (self.turn(orders),)

    def turn(self, orders: Orders) -> Turn:
        """Drop whom nobody waits for, start newcomers, take one step, drop who is late."""
        began_s = self._clock()
        turn = Turn()
        try:
            self._drop(handle for handle, newcomer in self._running.items() if newcomer.key in orders.dropped)
            self._start(orders.newcomers, turn)
            if self._running:
                self._step(turn)
                self._drop_late(turn)
        except Exception:  # noqa: BLE001 - one bad batch must strand neither its callers nor the decoding thread
            turn.fault = traceback.format_exc()
            turn.lost = tuple({newcomer.key for newcomer in (*self._running.values(), *orders.newcomers)})
            self.reset()
        turn.busy_s = self._clock() - began_s
        return turn

    def wake(self) -> None:
        """Do nothing: an exchange is a step."""

    def interrupt(self) -> None:
        """Do nothing: nothing interrupts a step."""

    def reset(self) -> None:
        """Begin with an empty batch, and give up the memory of the one before."""
        self._engine, self._running, self._load = None, {}, _EMPTY

    def adopt_thread(self, *, niceness: int) -> None:
        """Let the calling thread stand back: it is the one that decodes."""
        lower_priority(niceness)

    def close(self) -> None:
        """Do nothing: its memory is freed with it."""

    def _require_engine(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._model)
        return self._engine

    def _start(self, newcomers: Sequence[Newcomer], turn: Turn) -> None:
        if not newcomers:
            return
        turn.encode_began_s = self._clock()
        turn.newcomers = tuple(newcomer.key for newcomer in newcomers)
        turn.num_encoded_tokens = sum(len(newcomer.segment.source_ids) for newcomer in newcomers)
        handles = self._require_engine().start([newcomer.segment for newcomer in newcomers])
        turn.encode_s = self._clock() - turn.encode_began_s
        self._running.update(zip(handles, newcomers, strict=True))
        self._measure()

    def _step(self, turn: Turn) -> None:
        turn.load = self._load
        began_s = self._clock()
        report = self._require_engine().step()
        turn.step_ended_s = self._clock()
        turn.step_s = turn.step_ended_s - began_s
        turn.num_rows, turn.step_rows = turn.load.live_rows, report.num_segments * report.num_rows
        if report.ended:
            turn.ended = tuple(self._leaves(ended, turn) for ended in report.ended)
            self._measure()

    def _leaves(self, ended: EndedSegment, turn: Turn) -> EndedSegment:
        """Take one who has ended out of the books; return it under its key."""
        newcomer = self._running.pop(ended.handle)
        if ended.hypotheses:
            turn.num_tokens += len(newcomer.segment.source_ids)
            turn.num_steps += ended.num_steps
        return replace(ended, handle=newcomer.key)

    def _drop_late(self, turn: Turn) -> None:
        now_s = self._clock()
        late = [handle for handle, newcomer in self._running.items() if newcomer.deadline_s <= now_s]
        turn.late = tuple(self._running[handle].key for handle in late)
        self._drop(late)

    def _drop(self, handles: Iterable[int]) -> None:
        gone = list(handles)
        if not gone:
            return
        self._require_engine().drop(gone)
        for handle in gone:
            del self._running[handle]
        self._measure()

    def _measure(self) -> None:
        self._load = BatchLoad.of(newcomer.segment for newcomer in self._running.values())


class LocalBatches:
    """Makes batches that the decoding threads of this process step themselves."""

    def __init__(self, model: StepModel) -> None:
        """Make batches of a model."""
        self._model = model

    @property
    def vocabulary(self) -> VocabularySpec:
        """Of the model, as the other limits."""
        return self._model.vocabulary

    @property
    def max_source_tokens(self) -> int:
        """Longest source it takes, EOS counted."""
        return self._model.max_source_tokens

    @property
    def max_target_tokens(self) -> int:
        """Longest target it can hold, EOS counted."""
        return self._model.max_target_tokens

    def new_batch(self, clock: Clock) -> LocalBatch:
        """Return an empty batch that goes by a clock."""
        return LocalBatch(self._model, clock)

    def close(self) -> None:
        """Do nothing: the model's memory is freed with it."""
