"""The decoding process: loads a network, then serves its batches until the server closes the connection or ends.

    python -m service.hosting.child DESCRIPTOR DIGEST

Started by the server alone, which hands it its end of a socket and says what it takes the messages to be.
"""

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

from service.bundle import open_bundle
from service.errors import DragomanError, EngineError
from service.hosting.batch_server import BatchServer
from service.hosting.log_forwarding import ConnectionHandler
from service.hosting.messages import Loaded, LoadOrder, NotLoaded, format_digest
from service.hosting.usage import Usage
from service.runtime.onnx_model import OnnxStepModel
from service.scheduling.local_batch import LocalBatch

_OTHER_FILES = "the installed service is not the one that the server was started from: restart the server"


def main() -> None:
    """Do as the other end of the socket says."""
    for number in (signal.SIGINT, signal.SIGTERM):  # whoever ends the server gets all answers first
        signal.signal(number, signal.SIG_IGN)
    control: Connection[Any, Any] = Connection(int(sys.argv[1]))
    with contextlib.suppress(EOFError, OSError):  # the server has closed, or is gone
        _serve(control)
    os._exit(0)  # at once: threads in a step are waited for by nobody


def _serve(control: "Connection[Any, Any]") -> None:
    if sys.argv[2] != format_digest():
        control.recv_bytes()  # an order that cannot be read
        control.send(NotLoaded(error=EngineError(_OTHER_FILES)))
        return
    order: LoadOrder = control.recv()
    logging.basicConfig(level=order.log_level, handlers=[ConnectionHandler(control)])
    model = _load(order, control)
    if model is None:
        return
    gc.freeze()
    usage = Usage(lambda: model.cache_bytes)
    while True:
        control.recv()
        connection: Connection[Any, Any] = Connection(recv_handle(control))
        server = BatchServer(
            LocalBatch(model, time.monotonic),
            connection,
            niceness=order.niceness,
            clock=time.monotonic,
            usage=usage,
        )
        threading.Thread(target=server.run, name="decode", daemon=True).start()


def _load(order: LoadOrder, control: "Connection[Any, Any]") -> OnnxStepModel | None:
    try:
        model = OnnxStepModel(open_bundle(order.directory), order.settings)
    except DragomanError as error:
        control.send(NotLoaded(error=error))
    except Exception as error:  # noqa: BLE001 - told to the server, whoever raised it
        control.send(NotLoaded(error=EngineError(f"{type(error).__name__}: {error}")))
    else:
        control.send(Loaded(placement=model.placement, weights_bytes=model.weights_bytes))
        return model
    return None


if __name__ == "__main__":
    main()
