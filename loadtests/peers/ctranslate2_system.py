"""CTranslate2 with our weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerSpec, common_spec

from loadtests.peers.systems import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds

if TYPE_CHECKING:  # needs PyTorch, which a server over CTranslate2 does without
    from export.graph.arithmetic import FloatArray
    from export.graph.network import Network

_COMPUTE_TYPES = {"int8": "int8", "fp32": "float32"}


_LAYER_NORM_EPSILON = 1e-5
_NUM_POSITIONS = 512
_SELF = ("query", "key", "value")


class CTranslate2System:
    """A translator of CTranslate2: `inter_threads` are our streams, `intra_threads` the threads of each."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        """Load the converted model, which is quantized now if int8 is asked for."""
        self._translator = ctranslate2.Translator(
            str(files.ctranslate2_path),
            device="cpu",
            compute_type=_COMPUTE_TYPES[settings.precision],
            inter_threads=settings.num_streams,
            intra_threads=settings.num_threads,
        )

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order; CTranslate2 sorts by length and cuts into batches."""
        results = self._translator.translate_batch(
            [list(map(str, source_ids)) for source_ids in sources],
            max_batch_size=batch_size,
            beam_size=search.beam_size,
            length_penalty=search.length_penalty,
            min_decoding_length=search.min_target_tokens,
            max_decoding_length=search.longest_target(max(map(len, sources))),
            suppress_sequences=[[str(token_id)] for token_id in search.suppressed_tokens] or None,
            max_input_length=0,
            return_scores=True,
            return_end_token=True,
        )
        return [
            Output(token_ids=tuple(map(int, result.hypotheses[0])), score=float(result.scores[0])) for result in results
        ]

    def close(self) -> None:
        """Unload the model."""
        self._translator.unload_model()


def convert(network: "Network", directory: Path) -> None:
    """Write a network in the format of CTranslate2, as 32-bit floats.

    Token ids become the words of its vocabulary, so that it takes and gives the very ids of the others.
    """
    config = network.config
    spec = TransformerSpec.from_config(
        (config.num_encoder_layers, config.num_decoder_layers),
        config.num_heads,
        pre_norm=config.norm == "pre",
        activation=common_spec.Activation.RELU,
    )
    words = [str(token_id) for token_id in range(config.vocabulary_size)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.layer_norm_epsilon = _LAYER_NORM_EPSILON
    spec.config.add_source_bos = spec.config.add_source_eos = False
    spec.config.bos_token = spec.config.decoder_start_token = str(config.bos_id)
    spec.config.eos_token = str(config.eos_id)
    spec.config.unk_token = str(config.eos_id + 1)
    _fill(spec, network)
    spec.validate()
    spec.optimize()
    directory.mkdir(parents=True)
    spec.save(str(directory))


def _fill(spec: Any, network: "Network") -> None:
    from export.model.layers import sinusoidal_positions  # noqa: PLC0415 - needs PyTorch, which a server does without

    weights = network.weights
    positions = sinusoidal_positions(_NUM_POSITIONS, network.config.d_model).numpy()
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = weights["embedding.weight"]
    spec.decoder.projection.weight = weights["embedding.weight"]
    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        stack.position_encodings.encodings = positions
        if network.config.norm == "pre":
            _fill_norm(stack.layer_norm, weights, f"{name}.norm")
        for index, layer in enumerate(stack.layer):
            _fill_layer(layer, weights, f"{name}.layers.{index}")


def _fill_layer(layer: Any, weights: Mapping[str, "FloatArray"], path: str) -> None:
    _fill_linear(layer.self_attention.linear[0], weights, *(f"{path}.self_attention.{part}" for part in _SELF))
    _fill_linear(layer.self_attention.linear[1], weights, f"{path}.self_attention.output")
    _fill_norm(layer.self_attention.layer_norm, weights, f"{path}.self_attention_norm")
    if hasattr(layer, "attention"):
        cross = f"{path}.cross_attention"
        _fill_linear(layer.attention.linear[0], weights, f"{cross}.query")
        _fill_linear(layer.attention.linear[1], weights, f"{cross}.key", f"{cross}.value")
        _fill_linear(layer.attention.linear[2], weights, f"{cross}.output")
        _fill_norm(layer.attention.layer_norm, weights, f"{cross}_norm")
    _fill_linear(layer.ffn.linear_0, weights, f"{path}.feed_forward.inner")
    _fill_linear(layer.ffn.linear_1, weights, f"{path}.feed_forward.outer")
    _fill_norm(layer.ffn.layer_norm, weights, f"{path}.feed_forward_norm")


def _fill_linear(linear: Any, weights: Mapping[str, "FloatArray"], *paths: str) -> None:
    """Fill one projection with several of ours side by side."""
    linear.weight = np.concatenate([weights[f"{path}.weight"] for path in paths])
    linear.bias = np.concatenate([weights[f"{path}.bias"] for path in paths])


def _fill_norm(norm: Any, weights: Mapping[str, "FloatArray"], path: str) -> None:
    norm.gamma, norm.beta = weights[f"{path}.weight"], weights[f"{path}.bias"]
