"""A trained network: files of checkpoint and vocabulary, weights, and graphs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import RunFolderError
from dragoman_export.importers.portable import WEIGHTS_NAME, PortableModel, TokenizerFiles
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.arithmetic import Arithmetic, Float16, Float32, FloatArray
from dragoman_export.onnx_export.attention import build_attention
from dragoman_export.onnx_export.calibration import Rounding
from dragoman_export.onnx_export.decoder import build_decoder
from dragoman_export.onnx_export.encoder import build_encoder
from dragoman_export.onnx_export.int8_weights import describe_weights
from dragoman_export.onnx_export.quantize import Int8, Mixed, ProductKind
from dragoman_export.onnx_export.write import WeightsFile, save_model
from dragoman_export.training.checkpoint import load_checkpoint, load_model
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.bundle.architecture import Architecture, FloatType, Limits
from dragoman_service.bundle.int8_weights import Int8Weights
from dragoman_service.bundle.manifest import GraphFiles
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_AVERAGE_NAME = "average.pt"  # written by `dragoman export average`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The files of a trained or imported model."""

    checkpoint: Path
    run: RunFolder  # contains the vocabulary; unused by an import
    portable: PortableModel | None = None  # imported from another system; None: trained here, or imported from a bundle
    tokenizer_files: TokenizerFiles | None = None  # imported tokenizer; None: one SentencePiece model in the run folder

    @classmethod
    def find(cls, path: Path) -> "TrainedModel":
        """Return the model at a path: a checkpoint inside a run folder, or the folder itself.

        A folder is searched for the average, the checkpoint with the lowest dev loss, and an import, in this order.
        ImportFormatError if a portable model is damaged, RunFolderError if checkpoint or vocabulary are missing.
        """
        run = RunFolder(path)
        if PortableModel.is_at(path):
            portable = PortableModel.open(path)
            files = portable.tokenizer_files
            return cls(checkpoint=path / WEIGHTS_NAME, run=run, portable=portable, tokenizer_files=files)
        candidates = [path / _AVERAGE_NAME, run.best, run.imported] if path.is_dir() else [path]
        checkpoint = next((candidate for candidate in candidates if candidate.is_file()), None)
        if checkpoint is None:
            raise RunFolderError(f"no checkpoint at {' or '.join(map(str, candidates))}")
        folders = [RunFolder(folder) for folder in checkpoint.parents[:2]]
        holders = [folder for folder in folders if folder.vocabulary.is_file() or folder.tokenizer.is_dir()]
        if not holders:
            raise RunFolderError(f"no vocabulary at {' or '.join(str(folder.vocabulary) for folder in folders)}")
        directory = holders[0].tokenizer
        tokenizer_files = TokenizerFiles.read(directory) if directory.is_dir() else None
        return cls(checkpoint=checkpoint, run=holders[0], tokenizer_files=tokenizer_files)

    def load(self) -> Transformer:
        """Return the network in evaluation mode; RunFolderError or ImportFormatError on failure."""
        return load_model(self.checkpoint) if self.portable is None else self.portable.load()

    def read_settings(self) -> Mapping[str, Any]:
        """Return config.json of the run folder; empty if there is none or the model was imported."""
        has_settings = self.portable is None and (self.run.path / "config.json").is_file()
        return self.run.read_settings() if has_settings else {}

    @property
    def limits(self) -> Limits:
        """Limits of an imported model, or the longest training pair."""
        if self.portable is not None:
            return self.portable.limits
        max_tokens = self.read_settings().get("training", {}).get("max_tokens", TrainingConfig().max_tokens)
        return Limits(max_source_tokens=max_tokens, max_target_tokens=max_tokens)

    def read_vocabulary(self) -> Vocabulary | TokenizerFiles:
        """Return the tokenizer for a bundle; CorpusError if the vocabulary is damaged."""
        return self.tokenizer_files or Vocabulary.load(self.run.vocabulary)

    def open_tokenizer(self) -> SentencePieceTokenizer:
        """Return the tokenizer; BundleError if its files are damaged."""
        if self.portable is not None:
            return self.portable.open_tokenizer()
        if self.tokenizer_files is not None:
            config = ModelConfig(**load_checkpoint(self.checkpoint)["model_config"])
            return self.tokenizer_files.open_at(self.run.tokenizer, config)
        return SentencePieceTokenizer(self.run.vocabulary)


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Configuration and weights of a model."""

    config: ModelConfig
    weights: Mapping[str, FloatArray]  # float32, by the names of the checkpoint
    # of the input of each projection in int8, by path; empty: not calibrated
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    kept: frozenset[ProductKind] = frozenset()  # products that stay in float32 in int8 graphs

    @property
    def architecture(self) -> Architecture:
        """The architecture as in a manifest."""
        fields = self.config.to_dict()
        return Architecture(**{name: fields[name] for name in Architecture.model_fields})

    @classmethod
    def of(
        cls,
        model: Transformer,
        roundings: Mapping[str, Rounding] | None = None,
        *,
        kept: frozenset[ProductKind] = frozenset(),
    ) -> "Network":
        """Copy the weights of a PyTorch model."""
        weights = {name: tensor.detach().float().numpy() for name, tensor in model.state_dict().items()}
        return cls(config=model.config, weights=weights, roundings=roundings or {}, kept=kept)


# arithmetic of each precision of a bundle
ARITHMETICS: Mapping[str, Callable[[Network], Arithmetic]] = {
    "fp32": lambda _: Float32(),
    "fp16": lambda _: Float16(),
    "int8": lambda network: Mixed(network.kept, kept=Float32(), others=Int8(network.roundings)),
}
# of states, keys and values, by precision
FLOAT_TYPES: Mapping[str, FloatType] = {"fp32": "float32", "fp16": "float16", "int8": "float32"}


def write_graphs(directory: Path, network: Network, precision: str, limits: Limits) -> GraphFiles:
    """Write the graphs of a precision and their weights into a directory; return the file names.

    If all decoder products are int8, a file describes the weights of decoder and encoder.
    """
    parts = network.config, network.weights, ARITHMETICS[precision](network), FLOAT_TYPES[precision]
    max_target_tokens = limits.max_target_tokens
    graphs = {
        "encoder": build_encoder(parts, max_source_tokens=limits.max_source_tokens),
        "decoder": build_decoder(parts, max_target_tokens=max_target_tokens),
        "attention": build_attention(parts, max_target_tokens=max_target_tokens),
    }
    names = {kind: f"{kind}.{precision}.onnx" for kind in graphs}
    shared = WeightsFile(directory / f"weights.{precision}.bin")
    for kind, graph in graphs.items():
        save_model(graph, directory / names[kind], shared)
    described = describe_weights(graphs["encoder"], graphs["decoder"], shared, network.architecture, limits)
    int8_weights = None if described is None else write_int8_weights(directory, precision, described)
    return GraphFiles(**names, weights=shared.name, int8_weights=int8_weights)


def write_int8_weights(directory: Path, precision: str, weights: Int8Weights) -> str:
    """Write the description of int8 weights and return the file name."""
    name = f"weights.{precision}.json"
    (directory / name).write_text(weights.model_dump_json() + "\n", encoding="utf-8")
    return name
