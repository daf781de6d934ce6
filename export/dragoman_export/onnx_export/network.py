"""A network: configuration, weights and graphs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dragoman_export.errors import BundleWriteError
from dragoman_export.model.config import ModelConfig
from dragoman_export.onnx_export.arithmetic import Arithmetic, Float16, Float32, FloatArray
from dragoman_export.onnx_export.attention import build_attention
from dragoman_export.onnx_export.decoder import build_decoder
from dragoman_export.onnx_export.encoder import build_encoder
from dragoman_export.onnx_export.int8_weights import describe_weights
from dragoman_export.onnx_export.quantize import Int8, Mixed, ProductKind, Rounding
from dragoman_export.onnx_export.write import WeightsFile, save_model
from dragoman_service.bundle.architecture import Architecture, FloatType, Limits
from dragoman_service.bundle.int8_weights import Int8Weights
from dragoman_service.bundle.manifest import GraphFiles

if TYPE_CHECKING:  # needs PyTorch, which the conversion of bundles does not
    from dragoman_export.model.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Configuration and weights of a model; BundleWriteError if bundles do not support it."""

    config: ModelConfig
    weights: Mapping[str, FloatArray]  # float32, by the names of the checkpoint
    # of the input of each projection in int8, by path; empty: not calibrated
    roundings: Mapping[str, Rounding] = field(default_factory=dict)
    kept: frozenset[ProductKind] = frozenset()  # products that stay in float32 in int8 graphs

    def __post_init__(self) -> None:
        if self.config.key_head_size != self.config.head_size:
            size = self.config.head_size
            raise BundleWriteError(f"key_dim is {self.config.key_dim}: a bundle supports only the head size, {size}")

    @property
    def architecture(self) -> Architecture:
        """The architecture as in a manifest."""
        fields = self.config.to_dict()
        return Architecture(**{name: fields[name] for name in Architecture.model_fields})

    @classmethod
    def of(
        cls,
        model: "Transformer",
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

    If all decoder products are int8, a file describes the weights of decoder and encoder. Raises BundleWriteError if a
    weight is out of the range of the precision.
    """
    float_type = FLOAT_TYPES[precision]
    largest = float(np.finfo(float_type).max)
    for name, array in network.weights.items():
        if not (magnitude := np.abs(array).max(initial=0)) <= largest:  # also NaN
            raise BundleWriteError(
                f"{name} has a weight of magnitude {magnitude:g}: {precision} has at most {largest:g}"
            )
    parts = network.config, network.weights, ARITHMETICS[precision](network), float_type
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
