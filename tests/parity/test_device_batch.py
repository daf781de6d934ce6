"""Batches on a device, compared with the CPU; keys and values stay on the device."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from dragoman_service.bundle.architecture import FloatType
from dragoman_service.bundle.files import Bundle
from dragoman_service.datatypes import Hypothesis, SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.decoding.step_model import Placeholder, StepBatch, StepModel
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET
from dragoman_service.runtimes.onnx.session import providers
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.onnx_cuda.cache_graphs import advance_graph, write_graph, zeros_graph
from dragoman_service.runtimes.onnx_cuda.device import DeviceArray
from dragoman_service.runtimes.onnx_cuda.device_batch import bucket_of_segments
from dragoman_service.runtimes.settings import Device, RuntimeSettings
from dragoman_service.worker.messages import BatchCommand, NewSegment
from dragoman_service.worker.worker import BatchExecutor
from tests.fake_device import DEVICES, CapturingSession, FakeDeviceMemory, FakeDeviceModel
from tests.tiny_bundle import build_tiny_bundle

_TIMEOUT_S = 30.0

_TOLERANCE = 2e-5  # of log-probabilities and weights, whose order of summation differs


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return build_tiny_bundle(tmp_path_factory.mktemp("bundle") / "tiny", precisions=("fp32", "fp16"))


@pytest.fixture(scope="module")
def grouped_bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Bundle whose query heads share keys and values."""
    directory = tmp_path_factory.mktemp("bundle") / "grouped"
    return build_tiny_bundle(directory, precisions=("fp32",), num_kv_heads=1, head_dim=24, positions="rotary")


@pytest.fixture(params=DEVICES)
def model(request: pytest.FixtureRequest, bundle: Bundle) -> FakeDeviceModel:
    return FakeDeviceModel(bundle, device=request.param)


def random_segments(count: int, seed: int) -> list[Segment]:
    """Return segments that differ in length, beams and limits."""
    rng = np.random.default_rng(seed)
    return [
        Segment(
            source_ids=(*rng.integers(4, 320, rng.integers(0, 40)).tolist(), 2),
            search=SearchConfig(beam_size=int(rng.integers(1, 6)), max_target_tokens=int(rng.integers(3, 50))),
        )
        for _ in range(count)
    ]


def decode(model: StepModel, segments: list[Segment], *, batch_size: int) -> list[tuple[Hypothesis, ...]]:
    """Decode segments, `batch_size` at a time; every fifth one is dropped before its first step."""
    batch, waiting = RunningBatch(model), list(range(len(segments)))[::-1]
    running: dict[int, int] = {}
    found: dict[int, tuple[Hypothesis, ...]] = {}
    while waiting or running:
        while waiting and len(running) < batch_size:
            index = waiting.pop()
            (segment_id,) = batch.start([segments[index]])
            if index % 5 == 4:
                batch.drop([segment_id])  # before its first step
                found[index] = ()
            else:
                running[segment_id] = index
        for ended in batch.step().ended:
            found[running.pop(ended.segment_id)] = tuple(ended.hypotheses)
    return [found[index] for index in range(len(segments))]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_hypotheses_equal_those_of_the_cpu(bundle: Bundle, precision: str) -> None:
    segments = random_segments(24, seed=4)
    on_cpu = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision=precision))

    found = decode(FakeDeviceModel(bundle, precision=precision), segments, batch_size=7)

    assert found == decode(on_cpu, segments, batch_size=7)
    assert len({hypotheses for hypotheses in found if hypotheses}) > 15


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_placeholders_that_are_not_in_the_source_are_masked(bundle: Bundle, cuda_graphs: bool) -> None:
    segments, tokens = random_segments(24, seed=4), range(20, 220)
    on_device = FakeDeviceModel(bundle, cuda_graphs=cuda_graphs)
    on_cpu = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))
    for model in (on_device, on_cpu):
        taught = replace(model.limits.vocabulary, placeholders=tuple(Placeholder(token, token) for token in tokens))
        model.limits = replace(model.limits, vocabulary=taught)

    found = decode(on_device, segments, batch_size=7)

    assert found == decode(on_cpu, segments, batch_size=7)
    copied = [{token for one in hypotheses for token in one.token_ids} & set(tokens) for hypotheses in found]
    assert any(copied)
    assert all(each <= set(segment.source_ids) for each, segment in zip(copied, segments, strict=True))


@pytest.mark.parametrize(("precision", "least_equal"), [("fp32", 0.98), ("fp16", 0.9)])
@pytest.mark.parametrize("cuda_graphs", [False, True])
@pytest.mark.parametrize("device", DEVICES[1:])
def test_most_hypotheses_of_a_gpu_equal_those_of_the_cpu(
    bundle: Bundle, device: Device, precision: str, least_equal: float, cuda_graphs: bool
) -> None:
    segments = random_segments(100, seed=8)
    on_cpu = OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision="fp32"))

    found, expected = (
        decode(model, segments, batch_size=30)
        for model in (
            FakeDeviceModel(bundle, precision=precision, device=device, cuda_graphs=cuda_graphs),
            on_cpu,
        )
    )

    best = [[one[0].token_ids if one else () for one in hypotheses] for hypotheses in (found, expected)]
    assert np.mean([one == other for one, other in zip(*best, strict=True)]) >= least_equal


@pytest.mark.parametrize("float_type", ["float32", "float16"])
@pytest.mark.parametrize("device", DEVICES[1:])
def test_cache_graphs_run_entirely_on_the_gpu(device: Device, float_type: FloatType) -> None:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")  # otherwise opening the session fails

    for make in (zeros_graph, write_graph, advance_graph):
        onnxruntime.InferenceSession(make(float_type), options, providers=providers(device, RuntimeSettings())[:1])


def test_grouped_query_heads_give_the_hypotheses_of_the_cpu(grouped_bundle: Bundle) -> None:
    segments = random_segments(12, seed=6)
    on_cpu = OnnxStepModel(grouped_bundle, RuntimeSettings(device="cpu"))

    assert decode(FakeDeviceModel(grouped_bundle), segments, batch_size=5) == decode(on_cpu, segments, batch_size=5)


def test_keys_and_values_are_not_copied_between_host_and_device(bundle: Bundle, model: FakeDeviceModel) -> None:
    decode(model, random_segments(24, seed=5), batch_size=7)

    kinds = {(copy.is_up, copy.dtype.name) for copy in model.memory.log}
    assert kinds == {
        (True, "int32"),
        (True, "int64"),
        (False, "float32"),
        (False, "int64"),
    }  # float32: log-probabilities
    architecture = bundle.manifest.architecture
    part_bytes = 2 * architecture.num_decoder_layers * LENGTH_BUCKET * architecture.d_model * 4
    assert max(copy.num_bytes for copy in model.memory.log) < part_bytes / 5


def take_step(batch: StepBatch, *, num_rows: int = 2) -> None:
    shape = (batch.num_segments, num_rows)
    batch.step(np.full(shape, 5), np.zeros(shape, dtype=np.int64), num_candidates=4)


def _pools(memory: FakeDeviceMemory) -> Iterator[tuple[int, int, int]]:
    """Yield segments, slots and address of each binding of a decoder."""
    for (num_segments, num_slots, _), address in memory.bound_pools:
        yield num_segments, num_slots, address


def test_bindings_and_addresses_are_reused_within_a_bucket(model: FakeDeviceModel) -> None:
    batch = model.new_batch()
    batch.start(model.encode([[5, 2], [6, 7, 2], [8, 2], [9, 2], [10, 2]]))
    for _ in range(3):
        take_step(batch)
        batch.drop(range(batch.num_segments - 1, 0, -1))  # one segment is dropped, the others change places
        take_step(batch)
        batch.start(model.encode([[11, 12, 2]]))

    assert [num_segments for num_segments, _, _ in _pools(model.memory)] == [8, 4]
    assert len({address for _, _, address in _pools(model.memory)}) == 1


def test_smaller_batch_reuses_the_memory_of_the_grown_one(model: FakeDeviceModel) -> None:
    batch = model.new_batch()
    batch.start(model.encode([[5, 2], [6, 2]]))
    for _ in range(LENGTH_BUCKET + 1):
        take_step(batch, num_rows=1)
    batch.start(model.encode([[5, 2]] * 7))
    take_step(batch, num_rows=1)
    batch.drop([0, 1])
    take_step(batch, num_rows=1)

    pools = list(_pools(model.memory))

    assert [pool[:2] for pool in pools] == [(2, 32), (2, 64), (16, 64), (2, 64)]
    assert len({address for *_, address in pools}) == 3
    assert pools[2][2] == pools[3][2]


def test_step_uploads_one_small_array_and_downloads_candidates(model: FakeDeviceModel) -> None:
    batch = model.new_batch()
    batch.start(model.encode([[5, 2]] * 8))
    take_step(batch, num_rows=4)
    before, (up, down) = len(model.memory.log), model.copied_bytes

    take_step(batch, num_rows=4)

    copies = [(copy.is_up, copy.num_bytes) for copy in model.memory.log[before:]]
    num_integers = 2 + 4 + 4 + 4 + 8  # length, position, tokens, parents, slots in the mask and in the pool
    assert copies == [(True, 8 * num_integers * 4), (False, 8 * 4 * 4 * 4), (False, 8 * 4 * 4 * 8)]
    assert model.copied_bytes == (up + 8 * num_integers * 4, down + 8 * 4 * 4 * 12)


class MeetingSession(CapturingSession):
    """Waits until two threads are in a step."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        super().__init__(session)
        self._both = threading.Barrier(2, timeout=_TIMEOUT_S)

    def run_with_iobinding(self, bindings: Any, options: onnxruntime.RunOptions) -> None:
        self._both.wait()
        super().run_with_iobinding(bindings, options)


def test_two_batches_can_step_at_the_same_time(bundle: Bundle) -> None:
    model = FakeDeviceModel(bundle, capturing=MeetingSession)

    def decode_two_tokens(source_id: int) -> list[float]:
        batch = model.new_batch()
        batch.start(model.encode([[source_id, 2]]))
        take_step(batch)
        return batch.step(np.array([[6]]), np.zeros((1, 1), np.int64), num_candidates=4).log_probs.ravel().tolist()

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(decode_two_tokens, [5, 7])

    assert first != second


def test_values_of_a_dropped_segment_do_not_affect_later_ones(bundle: Bundle, model: FakeDeviceModel) -> None:
    others = FakeDeviceModel(bundle)
    batch, alone = model.new_batch(), others.new_batch()
    batch.start(model.encode([[5, 2], [6, 2]]))
    take_step(batch)
    pools = batch._pools.array  # type: ignore[union-attr]
    model.memory.write(pools, _infinities(model.memory, pools.shape), {0: 0, 1: 1}, axis=2)
    batch.drop([])
    (source,) = model.encode([[7, 8, 2]])
    batch.start([source])
    alone.start(others.encode([[7, 8, 2]]))

    for _ in range(3):
        tokens, parents = np.array([[5, 6]]), np.array([[0, 1]])
        own = batch.step(tokens, parents, num_candidates=4)
        expected = alone.step(tokens, parents, num_candidates=4)

        np.testing.assert_allclose(own.log_probs, expected.log_probs, atol=_TOLERANCE)


def _infinities(memory: FakeDeviceMemory, shape: tuple[int, ...]) -> DeviceArray:
    return memory.upload(np.full(shape, np.inf, dtype=memory.float_type))


@pytest.mark.parametrize("device", DEVICES)
def test_attention_equals_that_of_the_cpu_before_and_after_a_step(grouped_bundle: Bundle, device: Device) -> None:
    sources = [[5, 6, 7, 2], [8, 2], [9] * 40 + [2]]
    model = FakeDeviceModel(grouped_bundle, device=device)
    on_cpu = OnnxStepModel(grouped_bundle, RuntimeSettings(device="cpu"))
    batches = [one.new_batch() for one in (model, on_cpu)]
    for batch, one in zip(batches, (model, on_cpu), strict=True):
        batch.start(one.encode(sources))

    for _ in range(2):
        for segment, source in enumerate(sources):
            found, expected = (batch.cross_attention(segment, [10, 11, 2]) for batch in batches)
            assert found.shape == (2, 2, 3, len(source))
            np.testing.assert_allclose(found, expected, atol=_TOLERANCE)
        for batch in batches:
            take_step(batch)


@pytest.mark.parametrize(
    ("count", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 24), (33, 40)]
)
def test_number_of_segments_is_rounded_up_to_a_bucket(count: int, bucket: int) -> None:
    assert bucket_of_segments(count) == bucket


def _new(segments: list[Segment]) -> tuple[NewSegment, ...]:
    return tuple(
        NewSegment(segment_id=index, segment=segment, deadline_s=float("inf")) for index, segment in enumerate(segments)
    )


@pytest.mark.parametrize("num_arrays", range(4))
def test_exhausted_device_memory_fails_the_batch_but_not_the_worker(model: FakeDeviceModel, num_arrays: int) -> None:
    segments = [Segment(source_ids=(5, 6, 2), search=SearchConfig(beam_size=2, max_target_tokens=50))] * 5
    core = BatchExecutor(model, clock=lambda: 0.0)
    core.execute(BatchCommand(new_segments=_new(segments)[:2]))
    model.memory.num_arrays_left = num_arrays  # the encoder output, and a larger buffer for each cache

    output = core.execute(BatchCommand(new_segments=_new(segments)[2:]))
    model.memory.num_arrays_left = None
    after = core.execute(BatchCommand(new_segments=() if num_arrays == 3 else _new(segments)))

    assert ("Failed to allocate memory" in output.fault) is (num_arrays < 3)
    assert sorted(output.lost_ids) == ([] if num_arrays == 3 else [0, 1, 2, 3, 4])
    assert not after.fault
    assert core.num_segments == 5
