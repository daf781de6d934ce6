"""Graphs that loop forever or allocate all memory fail to load without affecting other models or the exit."""

import json
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from dragoman_service.bundle.files import MANIFEST_NAME, file_entry
from dragoman_service.bundle.manifest import MAX_FILE_BYTES
from tests.integration.real_process import START_S, STOP_S, get, process, wait_for_sample

pytestmark = pytest.mark.slow

HUGE = 1_200_000_000  # floats: 4.5 GiB
LOAD_TIMEOUT_S = 10.0  # of the endless model; the good one loads at the same time, also on a loaded machine
WATCHFUL = {"DRAGOMAN_MODELS__POLL_INTERVAL_S": "0.05", "DRAGOMAN_MODELS__SETTLE_S": "0"}


def endless() -> Sequence[onnx.NodeProto]:
    """Return nodes that add 1 to `burden` forever."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes"]), helper.make_node("Add", ["sum", "burden.one"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("count", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes", TensorProto.BOOL, []),
            helper.make_tensor_value_info("next", TensorProto.FLOAT, []),
        ],
    )
    return [
        helper.make_node("Constant", [], ["burden.one"], value=helper.make_tensor("", TensorProto.FLOAT, [], [1.0])),
        helper.make_node("Constant", [], ["burden.times"], value_int=2**62),
        helper.make_node("Constant", [], ["burden.true"], value=helper.make_tensor("", TensorProto.BOOL, [], [True])),
        helper.make_node("Loop", ["burden.times", "burden.true", "burden.one"], ["burden"], body=body),
    ]


def huge() -> Sequence[onnx.NodeProto]:
    """Return nodes that need 4.5 GiB for `burden`."""
    return [
        helper.make_node("Constant", [], ["burden.size"], value_ints=[HUGE]),
        helper.make_node("ConstantOfShape", ["burden.size"], ["burden.zeros"]),
        helper.make_node("ReduceMax", ["burden.zeros"], ["burden"], keepdims=0),
    ]


def add_bundle(models: Path, source: Path, name: str, nodes: Sequence[onnx.NodeProto] = ()) -> None:
    """Add a copy of a bundle atomically; with nodes, `burden` is added to its log-probabilities."""
    hidden = models / f".{name}"
    shutil.copytree(source, hidden / "1")
    path = hidden / "1" / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["name"] = name
    if nodes:
        decoder = next(hidden.rglob("decoder*.onnx"))
        model = onnx.load(decoder, load_external_data=False)
        (last,) = [node for node in model.graph.node if "log_probs" in node.output]
        last.output[list(last.output).index("log_probs")] = "burden.without"
        model.graph.node.extend([*nodes, helper.make_node("Add", ["burden.without", "burden"], ["log_probs"])])
        onnx.save(model, decoder)
        manifest["files"][decoder.name] = file_entry(decoder).model_dump()
    path.write_text(json.dumps(manifest), encoding="utf-8")
    hidden.rename(models / name)


@pytest.fixture
def bundle(tiny_model: Path) -> Path:
    return tiny_model / "tiny" / "1"


def state_line(name: str, state: str) -> str:
    return f'dragoman_model_state{{model="{name}",state="{state}",version="1"}} 1.0'


@pytest.mark.parametrize("nodes", [endless, huge])
def test_failed_warm_up_fails_one_version_and_loads_the_others(
    tmp_path: Path, bundle: Path, nodes: Callable[[], Sequence[onnx.NodeProto]]
) -> None:
    models = tmp_path / "models"
    add_bundle(models, bundle, "tiny")
    limits = {
        "DRAGOMAN_MODELS__LOAD_TIMEOUT_S": str(LOAD_TIMEOUT_S),
        "DRAGOMAN_RUNTIME__MEMORY_LIMIT_BYTES": str(1 << 30),
    }
    with process("--models", str(models), **WATCHFUL, **limits) as server:
        ports = server.wait_until_ready(timeout_s=START_S)
        add_bundle(models, bundle, "bad", nodes())
        wait_for_sample(ports, state_line("bad", "loading"))

        add_bundle(models, bundle, "good")
        wait_for_sample(ports, state_line("good", "ready"))
        wait_for_sample(ports, state_line("bad", "failed"))

        assert state_line("tiny", "ready") in get(ports, "/metrics")[1]
        server.send(signal.SIGTERM)
        assert server.wait(timeout_s=STOP_S) == 0
    fault = "models.load_timeout_s" if nodes is endless else "ConstantOfShape"
    assert fault in server.log


@pytest.mark.parametrize("isolation", ["process", "none"])
def test_signal_ends_a_server_whose_model_loops_at_startup(tmp_path: Path, bundle: Path, isolation: str) -> None:
    add_bundle(tmp_path, bundle, "bad", endless())
    with process("--models", str(tmp_path), DRAGOMAN_RUNTIME__ISOLATION=isolation) as server:
        server.wait_for("device chosen", timeout_s=START_S)

        server.send(signal.SIGTERM)

        assert server.wait(timeout_s=START_S) == 0
    assert "Traceback" not in server.log


def test_signal_ends_a_server_that_reads_a_large_file_at_startup(tmp_path: Path, bundle: Path) -> None:
    add_bundle(tmp_path, bundle, "big")
    path = tmp_path / "big" / "1" / MANIFEST_NAME
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["files"]["sparse.bin"] = {"sha256": "0" * 64, "bytes": MAX_FILE_BYTES}
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with (path.parent / "sparse.bin").open("wb") as sparse:
        sparse.truncate(MAX_FILE_BYTES)
    with process("--models", str(tmp_path)) as server:
        server.wait_for("listening", timeout_s=START_S)

        server.send(signal.SIGTERM)

        assert server.wait(timeout_s=STOP_S) == 0
        assert "SHA-256" not in server.log
