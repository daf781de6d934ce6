"""A trained network: where its checkpoint and vocabulary lie, its weights, and both of its graphs as files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from export.errors import RunFolderError
from export.graph.arithmetic import Arithmetic, Float32, FloatArray
from export.graph.decoder import build_decoder
from export.graph.encoder import build_encoder
from export.graph.quantize import Int8
from export.graph.write import save_model
from export.model.config import ModelConfig
from export.model.transformer import Transformer
from export.training.run_folder import RunFolder
from service.bundle import GraphFiles, Limits

ARITHMETICS: Mapping[str, Arithmetic] = {"fp32": Float32(), "int8": Int8()}
"""Precisions a bundle can have, and how each multiplies."""


_AVERAGE_NAME = "average.pt"
"""What `python -m export average` writes into a run folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The files that training leaves behind."""

    checkpoint: Path
    run: RunFolder
    """Holds the vocabulary, if nothing else."""

    @classmethod
    def find(cls, path: Path) -> "TrainedModel":
        """Return the model at a path: a checkpoint inside a run folder, or the folder itself.

        Of a folder the average is taken, or else the checkpoint with the lowest dev loss.

        Raises:
            RunFolderError: if there is no checkpoint, or no vocabulary beside or above it.
        """
        run = RunFolder(path)
        candidates = [path / _AVERAGE_NAME, run.best] if path.is_dir() else [path]
        checkpoint = next((candidate for candidate in candidates if candidate.is_file()), None)
        if checkpoint is None:
            raise RunFolderError(f"no checkpoint at {' or '.join(map(str, candidates))}")
        folders = [RunFolder(folder) for folder in checkpoint.parents[:2]]
        holders = [folder for folder in folders if folder.vocabulary.is_file()]
        if not holders:
            raise RunFolderError(f"no vocabulary at {' or '.join(str(folder.vocabulary) for folder in folders)}")
        return cls(checkpoint=checkpoint, run=holders[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Shape and weights of a model."""

    config: ModelConfig
    weights: Mapping[str, FloatArray]
    """Float32, by the names of the checkpoint."""

    @classmethod
    def of(cls, model: Transformer) -> "Network":
        """Take the weights of a PyTorch model."""
        weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
        return cls(config=model.config, weights=weights)


def write_graphs(directory: Path, network: Network, precision: str, limits: Limits) -> GraphFiles:
    """Write encoder and decoder of one of `ARITHMETICS` into a directory and return their names there."""
    config, weights, arithmetic = network.config, network.weights, ARITHMETICS[precision]
    files = GraphFiles(encoder=f"encoder.{precision}.onnx", decoder=f"decoder.{precision}.onnx")
    encoder = build_encoder(config, weights, arithmetic, max_source_tokens=limits.max_source_tokens)
    save_model(encoder, directory / files.encoder)
    decoder = build_decoder(config, weights, arithmetic, max_target_tokens=limits.max_target_tokens)
    save_model(decoder, directory / files.decoder)
    return files
