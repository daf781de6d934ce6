from pathlib import Path

import onnx_ir as ir
import pytest

from dragoman_export.onnx_export.network import Network, write_graphs
from dragoman_service.bundle.architecture import Limits
from tests.tiny_bundle import tiny_model


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_half_precision_norms_and_softmax_use_float32(tmp_path: Path, norm_kind: str) -> None:
    network = Network.of(tiny_model(40, norm_kind=norm_kind))
    files = write_graphs(tmp_path, network, "fp16", Limits(max_source_tokens=8, max_target_tokens=8))

    nodes = [node for name in (files.encoder, files.decoder) for node in ir.load(tmp_path / name).graph]

    norms = [node for node in nodes if node.op_type in {"LayerNormalization", "RMSNormalization"}]
    (softmax,) = [node for node in nodes if node.op_type == "LogSoftmax"]
    (entered,) = [node for node in nodes if softmax.inputs[0] in node.outputs]
    assert len(norms) == 12
    # the type of mean and variance, by default float32
    assert not any("stash_type" in node.attributes for node in norms)
    assert (entered.op_type, entered.attributes["to"].value) == ("Cast", ir.DataType.FLOAT)
