"""A scheduler with its worker, clock and metrics, for tests."""

import math
from concurrent.futures import Future
from typing import Any, Self

from prometheus_client import CollectorRegistry

from dragoman_service.datatypes import Priority, SegmentResult
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import RequestContext
from dragoman_service.scheduling.batch_connection import WorkerHandle
from dragoman_service.scheduling.core_shares import CoreShares
from dragoman_service.scheduling.scheduler import Scheduler
from dragoman_service.scheduling.settings import SchedulingSettings
from dragoman_service.worker.messages import Clock
from tests.background_loop import background_loop
from tests.fakes import GatedModel, ManualClock, ToyModel, make_segment
from tests.mortal_worker import TIMEOUT_S, MortalWorker

ENDLESS = ToyModel(eos_bias=-100.0, max_target_tokens=5000)
MANY_STEPS = 5000
NUM_CHARACTERS = 6  # of the text of each segment


class Bench:
    """A scheduler with one worker thread unless the settings have another number, over a gated model."""

    def __init__(
        self,
        model: StepModel = ENDLESS,
        *,
        worker: WorkerHandle | None = None,
        clock: Clock | None = None,
        cores: CoreShares | None = None,
        **settings: Any,
    ) -> None:
        self.model = GatedModel(model)
        self.clock = clock if isinstance(clock, ManualClock) else ManualClock()
        self.worker = MortalWorker(self.model, clock or self.clock)
        self.metrics = Metrics(CollectorRegistry())
        self.scheduler = Scheduler(
            worker or self.worker,
            model.limits,
            SchedulingSettings(**{"num_workers": 1, **settings}),
            self.metrics,
            clock=clock or self.clock,
            loop=background_loop(),
            cores=cores,
        )

    def start(self, *, is_open: bool = False) -> Self:
        """Start the scheduler; with `is_open`, steps do not wait at the gate."""
        if is_open:
            self.model.open()
        self.scheduler.start()
        return self

    def submit(
        self,
        num_steps: int = 12,
        *,
        priority: Priority = Priority.INTERACTIVE,
        timeout_s: float = math.inf,
        caller: str = "",
    ) -> "Future[SegmentResult]":
        """Submit one segment."""
        context = RequestContext(priority=priority, deadline_s=self.clock() + timeout_s, caller=caller)
        segment = make_segment(7, 8, max_target_tokens=num_steps)
        (future,) = self.scheduler.submit([segment], context, num_characters=NUM_CHARACTERS)
        return future

    def decodes(self) -> bool:
        """Return whether a segment is decoded."""
        return self.submit(2).result(TIMEOUT_S).num_steps == 2

    def metric(self, name: str, **labels: str) -> float:
        """Return the value of a metric."""
        return self.metrics.registry.get_sample_value(f"dragoman_{name}", labels) or 0.0

    def stop(self) -> None:
        """Open the gate and stop the scheduler."""
        self.model.open()
        self.scheduler.stop(TIMEOUT_S)
