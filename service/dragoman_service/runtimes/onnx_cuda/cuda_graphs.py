"""CUDA graphs: ONNX Runtime captures decoder steps of one shape and replays each with a single launch.

Requirements of ONNX Runtime 1.31, from the documentation and the source of its CUDA provider:

- All nodes, except nodes that compute shapes, run on the device, and the graph does not use control flow. Otherwise the
  session cannot be opened.
- All runs with one `gpu_graph_id` have the same shapes and addresses; runs with id -1 are eager.
- The first run with an id executes several times within one call: twice eagerly and once for the capture. A step must
  therefore give the same result if it is repeated. This holds because a step overwrites its outputs before it reads
  them.
- A capture belongs to the thread that made it. It fails if any thread of the process allocates device memory or waits
  for a device during the capture.

A captured step must give the same results as the same step run eagerly. Each captured step is compared with an eager
run twice: when it is captured, and at its first replay, with other inputs. An error or a difference disables captures
for the model and is logged.
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

CAPTURE_FAILED: Final = "CUDA graph capture failed; running eagerly"  # log event

_RUNS_BEFORE: Final = 2  # eager steps of a shape before a capture, which is not worthwhile for a short-lived shape
_CHECKED_RUNS: Final = 2
_TOLERANCE: Final = 1e-2  # of log-probabilities; half-precision sums can differ in their order of summation

_GRAPH_ID: Final = "gpu_graph_id"


class DeviceUse:
    """Readers-writer lock for devices: each use enters it as a reader, a capture as the writer with `alone`.

    Not reentrant, except for the thread that holds `alone`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_users = self._num_waiting = 0
        self._owner: int | None = None

    def __enter__(self) -> None:
        if self._owner != threading.get_ident():
            with self._changed:
                self._changed.wait_for(lambda: self._owner is None and not self._num_waiting)
                self._num_users += 1

    def __exit__(self, *_: object) -> None:
        if self._owner != threading.get_ident():
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude all other threads."""
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
"""Lock for all devices and models of the process, because any use of a device can break a capture."""


class Runnable(Protocol):
    """A graph with bound inputs and outputs."""

    def run(self, options: onnxruntime.RunOptions | None = None) -> None:
        """Run the graph."""


class GraphCaptures:
    """Captures steps of a session with CUDA graphs enabled; thread-safe."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session, self._ids = session, itertools.count(1)
        self.is_on = True  # permanently False after a failed capture

    def new_graph(self, bound: Runnable, read: Callable[[], FloatArray]) -> "StepGraph":
        """Return a step that is captured after a few runs; `read` downloads its log-probabilities for comparison."""
        return StepGraph(self, bound, read, graph_id=next(self._ids))

    def turn_off(self, reason: str) -> None:
        """Disable captures permanently and log the reason."""
        if self.is_on:
            self.is_on = False
            log.warning(CAPTURE_FAILED, extra={"reason": reason})

    def release(self, graph_id: int) -> None:
        """Free a captured graph if ONNX Runtime supports it."""
        with suppress(Exception):  # not guaranteed to work in a thread other than the capturing one
            self._session.release_captured_graph(graph_id)


class StepGraph:
    """Step with fixed shapes and addresses; not safe for concurrent use."""

    def __init__(
        self, captures: GraphCaptures, bound: Runnable, read: Callable[[], FloatArray], *, graph_id: int
    ) -> None:
        """Initialize without a capture; `graph_id` must be unique during the life of the session."""
        self._captures, self._bound, self._read = captures, bound, read
        self._eager_options, self._graph_options = _options(-1), _options(graph_id)
        self._num_runs = self._num_checked = 0
        self._id, self._thread = graph_id, 0

    def run(self) -> None:
        """Run the step: first eagerly, then captured. A thread other than the capturing one runs it eagerly."""
        self._num_runs += 1
        is_elsewhere = self._num_checked and self._thread != threading.get_ident()
        if not self._captures.is_on or self._num_runs <= _RUNS_BEFORE or is_elsewhere:
            self._bound.run(self._eager_options)
        elif self._num_checked == _CHECKED_RUNS:
            self._bound.run(self._graph_options)
        else:
            with nullcontext() if self._num_checked else DEVICE_USE.alone():
                self._run_checked()

    def _run_checked(self) -> None:
        # The eager run is the second one, so that the outputs are always those of the eager run.
        if not self._num_checked:
            self._thread = threading.get_ident()
            weakref.finalize(self, self._captures.release, self._id)
        captured = None
        try:
            self._bound.run(self._graph_options)
            captured = self._read().copy()
        except Exception as error:  # noqa: BLE001 (its exception classes have no common base)
            self._captures.turn_off(f"ONNX Runtime cannot capture the step: {error}")
        self._bound.run(self._eager_options)
        self._num_checked += 1
        if captured is not None and not np.allclose(captured, self._read(), rtol=0, atol=_TOLERANCE, equal_nan=True):
            self._captures.turn_off("log-probabilities of a captured step differ from those of the eager step")


def _options(graph_id: int) -> onnxruntime.RunOptions:
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(_GRAPH_ID, str(graph_id))
    return options
