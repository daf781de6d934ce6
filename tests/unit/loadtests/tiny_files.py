from pathlib import Path
from typing import Literal

from dragoman_export.onnx_export.network import Network
from dragoman_service.bundle.architecture import Limits
from loadtests.benchmarks.interface import ModelFiles
from loadtests.benchmarks.models import write_model
from tests.tiny_bundle import tiny_model, tiny_vocabulary


def write_tiny_model(directory: Path, *, norm: Literal["pre", "post"] = "pre") -> ModelFiles:
    network = Network.of(tiny_model(len(tiny_vocabulary()), norm=norm))
    return write_model(directory, network, tiny_vocabulary(), Limits(max_source_tokens=64, max_target_tokens=64))
