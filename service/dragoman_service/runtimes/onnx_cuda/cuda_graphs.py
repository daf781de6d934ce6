"""CUDA graphs: decoder steps of one shape that a device repeats with a single launch, as ONNX Runtime captures them.

What ONNX Runtime (1.31) wants of them, from the documentation and the source of its CUDA provider:

- All nodes run on the device, but for those that compute shapes, and there is no control flow; else it opens no
  session.
- What has one `gpu_graph_id` has always the same shapes and addresses; -1 is run as usual.
- The first run with an id is repeated within the same call, twice as usual and once to be captured. So it must not
  matter how often a step is taken, and it does not: it never reads what it has written before it writes it again.
- A capture belongs to the thread that made it. It fails if any thread of the process allocates memory of a device or
  waits for one meanwhile.

A captured step must not give other results than the same step run as usual. So each is compared with it when it is
captured, and once more when it is repeated for the first time, with other inputs; what fails, or differs, turns the
captures of the model off, with a word in the log.
"""

import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final, Protocol

import numpy as np
import onnxruntime

from dragoman_service.decoding.step_model import FloatArray

log = logging.getLogger(__name__)

_RUNS_BEFORE: Final = 2
"""Steps of a shape that are taken before it is captured: one that is only passed through is not worth it."""

_CHECKED_RUNS: Final = 2

_TOLERANCE: Final = 1e-2
"""Log-probabilities of the same kernels on the same inputs; those of half precision may be summed in another order."""

_GRAPH_ID: Final = "gpu_graph_id"


class DeviceUse:
    """What threads do with devices, side by side, but for captures: entered by each use, `alone` by a capture.

    A thread that has entered must not enter again, unless it is alone.
    """

    def __init__(self) -> None:
        """Begin unused."""
        self._changed = threading.Condition()
        self._num_users = self._num_waiting = 0
        self._owner: int | None = None

    def __enter__(self) -> None:
        """Wait until no other thread is alone, or waits to be."""
        if self._owner != threading.get_ident():
            with self._changed:
                self._changed.wait_for(lambda: self._owner is None and not self._num_waiting)
                self._num_users += 1

    def __exit__(self, *_: object) -> None:
        """Let a capture begin if this was the last use."""
        if self._owner != threading.get_ident():
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep all other threads out."""
        with self._changed:
            self._num_waiting += 1
            self._changed.wait_for(lambda: self._owner is None and not self._num_users)
            self._num_waiting -= 1
            self._owner = threading.get_ident()
        try:
            yield
        finally:
            with self._changed:
                self._owner = None
                self._changed.notify_all()


DEVICE_USE: Final = DeviceUse()
"""Of all devices and models of the process, as any of them can spoil a capture."""


class Runnable(Protocol):
    """A graph whose inputs and outputs are bound."""

    def run(self, options: onnxruntime.RunOptions | None = None) -> None:
        """Run the graph."""


class GraphCaptures:
    """Captures steps of a session that was opened for it; any thread may use it."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        """Capture nothing yet."""
        self._session, self._ids = session, itertools.count(1)
        self.is_on = True
        """False for good once a capture has failed."""

    def new_graph(self, bound: Runnable, read: Callable[[], FloatArray]) -> "StepGraph":
        """Return a step that is captured in time; `read` downloads its log-probabilities, to compare."""
        return StepGraph(self, bound, read, graph_id=next(self._ids))

    def turn_off(self, reason: str) -> None:
        """Capture no more."""
        if self.is_on:
            self.is_on = False
            log.warning("CUDA graphs are off: steps are run as usual", extra={"reason": reason})

    def release(self, graph_id: int) -> None:
        """Free a captured graph, as far as ONNX Runtime can."""
        with suppress(Exception):  # it does not promise that another thread can
            self._session.release_captured_graph(graph_id)


class StepGraph:
    """A step with fixed shapes and addresses; one thread may use it."""

    def __init__(
        self, captures: GraphCaptures, bound: Runnable, read: Callable[[], FloatArray], *, graph_id: int
    ) -> None:
        """Capture nothing yet; the id is that of this step alone, for as long as the session lives."""
        self._captures, self._bound, self._read = captures, bound, read
        self._usual, self._captured = _options(-1), _options(graph_id)
        self._num_runs = self._num_checked = 0
        self._id, self._thread = graph_id, 0

    def run(self) -> None:
        """Take the step: the first times as usual, then captured, but in no other thread than before."""
        self._num_runs += 1
        is_elsewhere = self._num_checked and self._thread != threading.get_ident()
        if not self._captures.is_on or self._num_runs <= _RUNS_BEFORE or is_elsewhere:
            self._bound.run(self._usual)
        elif self._num_checked == _CHECKED_RUNS:
            self._bound.run(self._captured)
        else:
            with nullcontext() if self._num_checked else DEVICE_USE.alone():
                self._run_checked()

    def _run_checked(self) -> None:
        """Take the step captured and then as usual, which leaves behind what the usual one writes, and compare."""
        if not self._num_checked:
            self._thread = threading.get_ident()
            weakref.finalize(self, self._captures.release, self._id)
        found = None
        try:
            self._bound.run(self._captured)
            found = self._read().copy()
        except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
            self._captures.turn_off(f"ONNX Runtime cannot capture the step: {error}")
        self._bound.run(self._usual)
        self._num_checked += 1
        if found is not None and not np.allclose(found, self._read(), rtol=0, atol=_TOLERANCE, equal_nan=True):
            self._captures.turn_off("a captured step gives other log-probabilities than the same step run as usual")


def _options(graph_id: int) -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, str(graph_id))
    return options
