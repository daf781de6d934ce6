"""The batches of a model whose network runs in a process of its own.

Python runs one thread of a process at a time, and decoding needs its turn several times a step, as does whoever answers
calls: in one process either waits for the other, with cores idle. And a network that crashes its process takes those in
its batches with it, but neither the server nor who waits.
"""

import logging
import threading
import time
from multiprocessing.connection import Connection
from typing import Any, Final

from service.bundle import Bundle
from service.errors import DragomanError, EngineError
from service.hosting.hosted_batch import HostedBatch
from service.hosting.messages import LoadOrder, Report
from service.hosting.process import DecodingProcess
from service.models.names import full_name
from service.runtime.device import Placement
from service.runtime.model_limits import ManifestLimits
from service.runtime.settings import RuntimeSettings
from service.scheduling.batch import Clock
from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

_SOUND_AGE_S: Final = 10.0
"""A process that ends sooner is started again only when somebody needs it: it may end as soon the next time."""


class HostedBatches(ManifestLimits):
    """A decoding process, started again whenever it has ended, and the batches in it; any thread may use it."""

    def __init__(self, bundle: Bundle, settings: RuntimeSettings, *, niceness: int, metrics: Metrics) -> None:
        """Start the process and wait until it has loaded the network.

        Raises:
            BundleError: if a graph does not fit the manifest, or the precision asked for is not there.
            ConfigError: if the settings ask for what this machine or ONNX Runtime cannot do.
            EngineError: if the process ends before it has loaded the network.
        """
        super().__init__(bundle.manifest)
        self._metrics = metrics
        self._order = LoadOrder(
            directory=bundle.directory,
            settings=settings,
            niceness=niceness,
            log_level=logging.getLogger().getEffectiveLevel(),
        )
        self._lock = threading.Lock()
        self._is_closed = False
        self.cache_bytes = 0
        """Bytes that the caches of all batches take, as last reported."""
        self._process = self._started()

    @property
    def placement(self) -> Placement:
        """Device and precision that were chosen."""
        return self._process.placement

    @property
    def weights_bytes(self) -> int:
        """Size of the files that hold graphs and weights of the precision."""
        return self._process.weights_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory of the process; 0 if it has ended, or where this cannot be told."""
        return self._process.resident_bytes

    def new_batch(self, clock: Clock) -> HostedBatch:
        """Return an empty batch.

        Raises:
            ValueError: if the clock is not that of all processes of the machine.
        """
        if clock is not time.monotonic:
            raise ValueError("another process goes by time.monotonic")
        return HostedBatch(self._connect, note=self._note)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._is_closed = True
            self._process.close()

    def _started(self) -> DecodingProcess:
        return DecodingProcess(self._order, on_end=self._on_end)

    def _connect(self) -> "Connection[Any, Any]":
        """Return a connection to a new batch, of a new process if need be."""
        with self._lock:
            if self._is_closed:
                raise EngineError("decoding has ended")
            try:
                return self._process.connect()
            except OSError:
                self._restart()
                return self._process.connect()

    def _on_end(self, process: DecodingProcess) -> None:
        with self._lock:
            if process is not self._process or self._is_closed or process.age_s < _SOUND_AGE_S:
                return
            try:
                self._restart()
            except EngineError:
                log.exception("decoding process cannot be started again")

    def _restart(self) -> None:
        self._process.close()
        try:
            self._process = self._started()
        except EngineError:
            raise
        except DragomanError as error:
            raise EngineError(str(error)) from error
        self.cache_bytes = 0
        self._metrics.decoding_process_restarts.inc()
        model = full_name(self._manifest.name, self._manifest.version)
        log.warning("decoding process started again", extra={"model": model, "pid": self._process.pid})

    def _note(self, report: Report) -> None:
        self.cache_bytes = report.cache_bytes
        self._metrics.decoding_process_cpu_seconds.inc(report.cpu_s)
