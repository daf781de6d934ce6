"""The decoding process: an engine core on ONNX Runtime, until the server closes the connection or ends.

    python -m dragoman_service.runtimes DESCRIPTOR DIGEST

Started by the server alone (`worker.supervisor`), which hands it one end of a socket, and the digest of the
messages as it knows them.
"""

import contextlib
import gc
import logging
import os
import resource
import signal
import sys
import time
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from dragoman_service.bundle.files import open_bundle
from dragoman_service.errors import DragomanError, EngineError
from dragoman_service.observability.gpu_metrics import free_memory_bytes
from dragoman_service.runtimes.memory_budget import cache_memory
from dragoman_service.runtimes.native.step_model import NativeStepModel, open_step_model
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.threads import lower_priority
from dragoman_service.worker.messages import LoadCommand, Loaded, LoadFailed, format_digest
from dragoman_service.worker.worker import Worker

_OTHER_FILES = "the installed service is not the one that the server was started from: restart the server"


def load_network(command: LoadCommand) -> tuple[OnnxStepModel | NativeStepModel, Loaded]:
    """Load the network of a bundle; raises as `open_bundle` and `open_step_model`."""
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
    """Sends log records over a connection, prepared so that they can be pickled."""

    def __init__(self, connection: "Connection[Any, Any]") -> None:
        """Use a connection; while this sends, nothing else may."""
        super().__init__(connection)  # type: ignore[arg-type] # only `enqueue` touches it
        self.setFormatter(logging.Formatter("%(message)s"))  # level and logger are sent beside it

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return a copy that can be pickled, with nothing in it that the record itself does not have."""
        prepared: logging.LogRecord = super().prepare(record)
        del prepared.message  # is `msg` by now
        return prepared

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send a record."""
        self.queue.send(record)  # type: ignore[attr-defined]


def main() -> None:
    """Do as the other end of the socket says."""
    lower_priority(0)  # only the server's own threads have short slices
    for number in (signal.SIGINT, signal.SIGTERM):  # the server gets them too, and answers all its callers first
        signal.signal(number, signal.SIG_IGN)
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):  # the server has closed it, or has ended
        if sys.argv[2] == format_digest(RuntimeSettings):
            _serve(control)
        else:
            control.recv_bytes()  # a command that cannot be read
            control.send(LoadFailed(error=EngineError(_OTHER_FILES)))
    os._exit(0)  # at once: threads in a step are not waited for


def _serve(control: "Connection[Any, Any]") -> None:
    command: LoadCommand = control.recv()
    logging.basicConfig(level=command.log_level, handlers=[ConnectionHandler(control)])
    try:
        limit = RuntimeSettings.model_validate(command.settings).memory_limit_bytes
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        model, loaded = load_network(command)
    except Exception as error:  # noqa: BLE001 - told to the server, whatever was raised
        is_ours = isinstance(error, DragomanError)
        control.send(LoadFailed(error=error if is_ours else EngineError(f"{type(error).__name__}: {error}")))
        return
    control.send(loaded)
    core = Worker(
        model,
        niceness=command.niceness,
        cache_bytes=lambda: model.cache_bytes,
        cpu_clock=time.process_time,
        copied_bytes=lambda: model.copied_bytes,
    )
    gc.freeze()
    while True:
        control.recv()
        core.serve(Connection(recv_handle(control)))


if __name__ == "__main__":
    main()
