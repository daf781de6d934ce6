"""Entry point of the worker process: loads a model and decodes until the server closes the connection or exits.

    python -m dragoman_service.worker DESCRIPTOR DIGEST

Only `worker.supervisor` starts it, with the descriptor of a socket and the digest of the messages of the server.
"""

import contextlib
import gc
import logging
import os
import resource
import sys
import time
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from dragoman_service.bundle.files import open_bundle
from dragoman_service.errors import DragomanError, EngineError
from dragoman_service.observability.gpu_metrics import free_memory_bytes
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.memory_budget import cache_memory
from dragoman_service.runtimes.native.step_model import NativeStepModel
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.signals import DRAIN_SIGNALS, UNUSED_SIGNALS, ignore
from dragoman_service.threads import lower_priority
from dragoman_service.worker.messages import LoadCommand, Loaded, format_digest
from dragoman_service.worker.worker import Worker

_VERSION_MISMATCH = "the installed service differs from the version that the server runs: restart the server"


def load_step_model(command: LoadCommand) -> tuple[OnnxStepModel | NativeStepModel, Loaded]:
    """Load the model of a bundle; raises as `open_bundle` and `open_step_model`."""
    bundle = open_bundle(command.directory, checked_files=command.checked_files)
    settings = RuntimeSettings.model_validate(command.settings)
    model = open_step_model(bundle, settings)
    device, precision, manifest = model.placement.device, model.placement.precision, bundle.manifest
    memory = None
    if device == "cuda":
        memory = cache_memory(
            manifest.architecture,
            manifest.limits,
            manifest.tensors[precision].float_type,
            settings,
            weights_bytes=model.weights_bytes,
            free_bytes=free_memory_bytes(settings.device_index),
        )
    return model, Loaded(device=device, precision=precision, weights_bytes=model.weights_bytes, cache_memory=memory)


class ConnectionHandler(QueueHandler):
    """Sends log records over a connection in a form that can be pickled."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Use a connection, to which no other thread sends."""
        super().__init__(connection)  # type: ignore[arg-type] # only `enqueue` touches it
        self.setFormatter(logging.Formatter("%(message)s"))  # level and logger are attributes of the record

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy that can be pickled and has no attributes beyond those of the record."""
        prepared: logging.LogRecord = super().prepare(record)
        del prepared.message  # equals `msg` now
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self.queue.send(record)  # type: ignore[attr-defined]


def main() -> None:
    """Run the worker process."""
    lower_priority(0)  # short time slices are for the threads of the server
    ignore(*DRAIN_SIGNALS, *UNUSED_SIGNALS)  # the server also receives them, and drains first
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):  # the server has closed it or has exited
        if sys.argv[2] == format_digest(RuntimeSettings):
            _serve(control)
        else:
            control.recv_bytes()  # the load command, whose fields differ
            control.send(EngineError(_VERSION_MISMATCH))
    os._exit(0)  # without waiting for steps


def _serve(control: "Connection[Any, Any]") -> None:
    command: LoadCommand = control.recv()
    logging.basicConfig(level=command.log_level, handlers=[ConnectionHandler(control)])
    try:
        limit = RuntimeSettings.model_validate(command.settings).memory_limit_bytes
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        model, loaded = load_step_model(command)
    except Exception as error:  # noqa: BLE001 - reported to the server
        is_own = isinstance(error, DragomanError)
        control.send(error if is_own else EngineError(f"{type(error).__name__}: {error}"))
        return
    control.send(loaded)
    worker = Worker(model, niceness=command.niceness, cpu_clock=time.process_time)
    gc.freeze()
    while True:
        worker.serve(Connection(recv_handle(control)))


if __name__ == "__main__":
    main()
