from pathlib import Path
from typing import Literal

from export.graph.network import Network
from loadtests.peers.models import write_model
from loadtests.peers.systems import ModelFiles
from service.bundle import Limits
from tests.tiny_bundle import tiny_model, tiny_vocabulary


def write_tiny_model(directory: Path, *, norm: Literal["pre", "post"] = "pre") -> ModelFiles:
    vocabulary = tiny_vocabulary()
    network = Network.of(tiny_model(len(vocabulary), norm=norm))
    return write_model(directory, network, vocabulary, Limits(max_source_tokens=64, max_target_tokens=64))
