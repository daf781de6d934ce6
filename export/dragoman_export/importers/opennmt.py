"""Imports Transformers from checkpoints of OpenNMT-py 3; the meaning of options follows the code of version 3.5."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.files import ForeignConfig, Tensors, fields_of, float_tensors, read_checkpoint
from dragoman_export.importers.onmt_tensors import (
    ACTIVATIONS,
    OPENNMT,
    Rotation,
    Shape,
    named_variables,
    read_vocabularies,
)
from dragoman_export.importers.portable import ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles

# options of other networks, with the supported values; other options concern training, or show in the tensors
_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    **dict.fromkeys(("encoder_type", "decoder_type"), ("transformer",)),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "generator_function": ("softmax",),
    "layer_norm": ("standard", "rms"),
    "quant_type": ("",),
    "parallel_mode": ("data_parallel",),
    **dict.fromkeys(("parallel_residual", "shared_layer_norm", "copy_attn", "coverage_attn"), (False,)),
    **dict.fromkeys(("relative_positions_buckets", "sliding_window", "num_experts"), (0,)),
    **dict.fromkeys(("quant_layers", "lora_layers"), ([],)),
}
_ROTARY: Final = -1  # `max_relative_positions` of rotary positions; 0: sinusoids


def read_opennmt(path: Path, *, source_spm: Path | None = None, target_spm: Path | None = None) -> ImportedModel:
    """Import a checkpoint (`.pt`); only tensors and plain values are loaded.

    The arguments are those of `dragoman export import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    content = read_checkpoint(path)
    options = fields_of(content.get("opt"))
    if options is None:
        raise ImportFormatError(f"{path} has no options (opt): not a checkpoint of OpenNMT-py")
    settings = ForeignConfig(path, options)
    for key, values in _REQUIRED.items():
        settings.require(key, *values)
    vocabularies = read_vocabularies(fields_of(content.get("vocab")) or {}, path)
    spm = SentencePieceFiles.find(path.parent, source_spm, target_spm)
    model, generator = (float_tensors(content.get(part) or {}, path) for part in ("model", "generator"))
    tensors = {**model, **{f"generator.{name.removeprefix('0.')}": tensor for name, tensor in generator.items()}}
    activation = settings.choose("pos_ffn_activation_fn", ACTIVATIONS, "relu")
    rotation = _read_rotation(settings)
    shape = Shape(
        num_layers={stack: settings.take(f"{stack[:3]}_layers", int) for stack in ("encoder", "decoder")},
        num_heads=settings.take("heads", int, default=8),
        num_kv_heads=settings.take("num_kv", int, default=0) or None,
        activation=activation,
        is_gated=activation == ACTIVATIONS["silu"],
        positions="rotary" if rotation else "sinusoidal",
        scales_embeddings=rotation is None,  # the module that adds sinusoids scales the embeddings
        rotations=dict.fromkeys(("encoder", "decoder"), rotation) if rotation else {},
    )
    variables = Variables(named_variables(Tensors(tensors, path), OPENNMT, shape), path)
    epsilon = settings.take("norm_eps", float, default=1e-6)
    return Network(variables, vocabularies, epsilon).imported(spm, source_suffix=())


def _read_rotation(settings: ForeignConfig) -> Rotation | None:
    kind = settings.take("max_relative_positions", int, default=0)
    if kind not in (0, _ROTARY):
        raise settings.error("max_relative_positions", kind, f"0 (sinusoids) or {_ROTARY} (rotary positions)")
    settings.require("position_encoding", kind != _ROTARY)
    if kind != _ROTARY:
        return None
    settings.require("rotary_theta", 10000)
    return Rotation(
        interleave=settings.take("rotary_interleave", bool),  # the default differs between versions
        size=settings.take("rotary_dim", int, default=0),
    )
