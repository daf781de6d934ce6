"""Steps that are captured as CUDA graphs, compared with the same steps run eagerly."""

import ctypes
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from dragoman_service.bundle.files import Bundle
from dragoman_service.errors import BundleError
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET
from dragoman_service.runtimes.onnx.session import open_capturing
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.onnx_cuda.cuda_graphs import CAPTURE_FAILED, DeviceUse
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.fake_device import CapturingSession, FakeDeviceModel
from tests.parity.test_device_batch import decode, random_segments, take_step
from tests.tiny_bundle import build_tiny_bundle

_TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32",))


class FailingSession(CapturingSession):
    """Session that cannot capture."""

    def capture(self, graph_id: int, bindings: Any) -> None:
        raise RuntimeError("CUDA failure 900: operation not permitted when stream is capturing")


class StaleSession(CapturingSession):
    """Replays the log-probabilities of the capture, like a graph that reads an input on the host."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        super().__init__(session)
        self.given: dict[int, bytes] = {}

    def capture(self, graph_id: int, bindings: Any) -> None:
        super().capture(graph_id, bindings)
        self.given[graph_id] = ctypes.string_at(*_log_probs(bindings))

    def replay(self, graph_id: int, bindings: Any) -> None:
        super().replay(graph_id, bindings)
        ctypes.memmove(_log_probs(bindings)[0], self.given[graph_id], len(self.given[graph_id]))


def _log_probs(bindings: Any) -> tuple[int, int]:
    """Return the address and size of the log-probabilities."""
    shape, address = bindings.bound["log_probs"]
    return address, 4 * int(np.prod(shape))


def test_hypotheses_equal_those_of_the_cpu(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    segments = random_segments(24, seed=4)
    model = FakeDeviceModel(bundle, capturing=CapturingSession)
    on_cpu = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))

    assert decode(model, segments, batch_size=7) == decode(on_cpu, segments, batch_size=7)
    assert _decoder(model).num_replays > 50
    assert not caplog.records


def _decoder(model: FakeDeviceModel) -> CapturingSession:
    decoder = model._sessions.decoder
    assert isinstance(decoder, CapturingSession)
    return decoder


def test_each_shape_has_its_own_graph_which_is_reused(bundle: Bundle) -> None:
    model = FakeDeviceModel(bundle, capturing=CapturingSession)
    batch = model.new_batch()
    batch.start(model.encode([[5, 2]] * 2))
    for _ in range(LENGTH_BUCKET + 5):  # into the next bucket of slots
        take_step(batch, num_rows=1)
    batch.drop([0])
    for _ in range(5):
        take_step(batch, num_rows=1)
    sizes = [(bound["token_ids"][0], bound["self_key_pool.0"][0][1]) for bound in _decoder(model).graphs.values()]
    known, replays = dict(_decoder(model).graphs), _decoder(model).num_replays

    batch.drop([])
    batch.start(model.encode([[5, 2]] * 2))
    for _ in range(LENGTH_BUCKET):
        take_step(batch, num_rows=1)

    assert sizes == [((2, 1), 32), ((2, 1), 64), ((1, 1), 64)]
    assert _decoder(model).graphs == known
    assert _decoder(model).num_replays == replays + LENGTH_BUCKET
    del batch
    assert sorted(_decoder(model).released) == sorted(known)


def test_other_thread_runs_a_captured_step_eagerly(bundle: Bundle) -> None:
    model = FakeDeviceModel(bundle, capturing=CapturingSession)
    batch = model.new_batch()
    batch.start(model.encode([[5, 2]] * 2))
    for _ in range(5):
        take_step(batch, num_rows=1)
    before = _decoder(model).num_replays

    _in_thread(partial(take_step, batch, num_rows=1)).join(_TIMEOUT_S)

    assert _decoder(model).num_replays == before > 0
    assert batch.num_segments == 2


def test_growing_batch_frees_the_graphs_of_its_former_memory(bundle: Bundle) -> None:
    model = FakeDeviceModel(bundle, capturing=CapturingSession)
    batch = model.new_batch()
    for _ in range(2):
        batch.start(model.encode([[5, 2]] * 2))
        for _ in range(5):
            take_step(batch, num_rows=1)

    assert _decoder(model).released == [1]
    assert list(_decoder(model).graphs) == [2]


@pytest.mark.parametrize(
    ("session", "reason"),
    [
        (FailingSession, "cannot capture the step: CUDA failure 900"),
        (StaleSession, "log-probabilities of a captured step differ"),
    ],
)
def test_failed_or_wrong_capture_is_logged_and_does_not_change_results(
    bundle: Bundle, session: type[CapturingSession], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    segments = random_segments(12, seed=5)
    model = FakeDeviceModel(bundle, capturing=session)
    on_cpu = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))

    assert decode(model, segments, batch_size=5) == decode(on_cpu, segments, batch_size=5)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert reason in record.__dict__["reason"]
    assert _decoder(model).num_replays == (session is StaleSession)


@pytest.mark.parametrize("is_possible", [True, False])
def test_session_that_cannot_capture_is_opened_without_captures(
    is_possible: bool, caplog: pytest.LogCaptureFixture, bundle: Bundle
) -> None:
    opened: list[bool] = []
    decoder = FakeDeviceModel(bundle)._sessions.opened("decoder")

    def open_graph(*, captures: bool = False) -> onnxruntime.InferenceSession:
        opened.append(captures)
        if captures and not is_possible:
            raise BundleError(str(Path("decoder.onnx")), found="nodes on the CPU", expected="", what="graph")
        return decoder

    session, captures = open_capturing(open_graph)

    assert session is decoder
    assert (captures is not None) is is_possible
    assert opened == ([True] if is_possible else [True, False])
    assert [record.getMessage() for record in caplog.records] == ([] if is_possible else [CAPTURE_FAILED])


def _in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def test_capture_excludes_all_other_uses() -> None:
    use, used, may_end, order = DeviceUse(), threading.Event(), threading.Event(), list[str]()
    later = list[threading.Thread]()

    def use_long() -> None:
        with use:
            used.set()
            may_end.wait(_TIMEOUT_S)
            order.append("used")

    def capture() -> None:
        with use.alone(), use:  # exclusive use is reentrant
            later.append(_in_thread(use_later))
            order.append("captured")

    def use_later() -> None:
        with use:
            order.append("used later")

    first = _in_thread(use_long)
    assert used.wait(_TIMEOUT_S)
    with use:  # concurrently
        order.append("used too")
    second = _in_thread(capture)
    may_end.set()
    for thread in (first, second):
        thread.join(_TIMEOUT_S)
    later[0].join(_TIMEOUT_S)

    assert order == ["used too", "used", "captured", "used later"]
