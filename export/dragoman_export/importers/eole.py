"""Imports Transformers from model directories of eole, the successor of OpenNMT-py.

The meaning of options follows the code of eole 0.6. The parts `model` and `transforms` of `config.json` determine the
translation; the rest concerns training, or is chosen by callers.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.files import ForeignConfig, Tensors, dotted, read_json, read_tensors
from dragoman_export.importers.onmt_tensors import (
    ACTIVATIONS,
    EOLE,
    Rotation,
    Shape,
    named_variables,
    read_vocabularies,
)
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from dragoman_service.bundle.architecture import Positions

_STACKS: Final = ("encoder", "decoder")
_SIDES: Final = ("src", "tgt")
# sections with options; those of the model are defaults of the stacks
_PLACES: Final = ("model", "model.encoder", "model.decoder", "model.embeddings")

_OTHER_ARCHITECTURES: Final = {
    "transformer_lm": "a language model without encoder",
    "vision_transformer_lm": "image input",
    "whisper": "speech recognition",
    "transformer_encoder": "no decoder",
    "transformer_encoder_scorer": "quality estimation",
    "transformer_encoder_decoder_scorer": "quality estimation",
    "rnn": "a recurrent network",
    "cnn": "a convolutional network",
}

_ACTIVATIONS: Final = {**{name: (number, False) for name, number in ACTIVATIONS.items()}, "gated-silu": (2, True)}

# by `position_encoding_type`; null is none
_POSITIONS: Final[Mapping[str, Positions]] = {
    "SinusoidalInterleaved": "sinusoidal",
    "SinusoidalConcat": "sinusoidal",
    "Learned": "learned",
    "Rotary": "rotary",
    "none": "none",
}

# options of other networks, with the supported values
_FALSE: Final = (
    *("aan_useffn", "coverage_attn", "shared_layer_norm", "ffn_layernorm", "query_norm", "key_norm", "value_norm"),
    *("parallel_residual", "q_gating", "rope_config.multidimensional_rope", "embedding_layer_norm", "add_estimator"),
    "left_pad",
)
_ZERO: Final = (
    *("num_mtp_heads", "sliding_window", "relative_positions_buckets", "num_experts", "token_type_vocab_size"),
    *(f"rope_config.{key}" for key in ("interleave_local", "tmax_index", "rotary_dim_global", "partial_rotary_factor")),
)
_ABSENT: Final = (
    *("global_head_dim", "global_heads_kv", "interpolate_mode", "adapter"),
    *("rope_config.scaling_type", "rope_config.xdrope_section"),
)
_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(("encoder_type", "decoder_type"), ("transformer",)),
    **dict.fromkeys(("encoder_layer_style", "embedding_type"), ("standard",)),
    "final_encoder_layer_norm": (True,),
    "LM_type": ("causal",),
    "layer_norm": ("standard", "standardFP32", "rms"),
    "rope_config.rotary_theta": (10000,),
    "generator_function": ("softmax",),
    **dict.fromkeys(_FALSE, (False,)),
    **dict.fromkeys(_ZERO, (0,)),
    **dict.fromkeys(_ABSENT, ()),
}
_REQUIRED_ELSEWHERE: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(("training.lora_layers", "training.quant_layers", "inference.optional_eos"), ([],)),
    "training.lora_embedding": (False,),
    "training.quant_type": ("",),
}

# options for training only, visible in the tensors, or of unused parts
_HARMLESS: Final = (
    *("hidden_size", "transformer_ff", "src_word_vec_size", "tgt_word_vec_size", "word_vec_size", "n_positions"),
    *("add_qkvbias", "add_key_bias", "add_final_linear_bias", "add_ffnbias", "generator_bias", "with_cross_attn"),
    *("position_encoding", "freeze_word_vecs_enc", "freeze_word_vecs_dec", "input_feed", "huggingface_model"),
    *("eole_version", "lambda_coverage", "global_attention", "global_attention_function", "lambda_align"),
    *("alignment_layer", "alignment_heads", "full_context_alignment", "mtp_lambda", "mtp_emb_norm"),
    *("moe_transformer_ff", "num_shared_experts", "shared_expert_gate", "first_k_dense_replace"),
    *("num_experts_per_tok", "moe_softmax_after", "moe_renormalize", "qk_norm_post_rope", "linear_conv_kernel_dim"),
    *("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads"),
    *("adapter_bias", "projector_activation_fn", "spatial_merge_size", "estimator_type"),
    *(f"rope_config.{key}" for key in ("alpha", "scaling_factor", "low_freq_factor", "high_freq_factor")),
    *(f"rope_config.{key}" for key in ("original_max_position_embeddings", "rotary_theta_local")),
)

_OF_TRAINING: Final = ("filtertooshort", "filtertoolong", "switchout", "tokendrop", "tokenmask", "bart")  # transforms
_SPLITTERS: Final = ("sentencepiece", "onmt_tokenize")
_TRANSFORMS: Final = (*_SPLITTERS, "prefix", *_OF_TRAINING)
# options for training only, or that choose files
_HARMLESS_OF_SPLITTERS: Final = (
    *(f"{side}_subword_{key}" for side in _SIDES for key in ("model", "vocab", "nbest", "alpha")),
    "replace_newline_sentinel",
)

_T = TypeVar("_T")


def read_eole(directory: Path, *, source_spm: Path | None = None, target_spm: Path | None = None) -> ImportedModel:
    """Import the directory of a model or of one of its steps, with `config.json`, `vocab.json` and weights.

    The arguments are those of `dragoman export import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    settings = _read_settings(directory / "config.json")
    vocab = read_json(directory / "vocab.json")
    specials = vocab.get("specials")
    spelled = {name: specials.get(f"{name}_token") for name in ("eos", "unk")} if isinstance(specials, dict) else {}
    spellings = {name: str(token) for name, token in spelled.items() if token is not None}
    vocabularies = read_vocabularies(vocab, directory / "vocab.json", **spellings)
    transforms = settings.take("transforms", list, default=[])
    for name in transforms:
        if name not in _TRANSFORMS:
            raise settings.error("transforms", name, ", ".join(_TRANSFORMS))
    spm = _find_models(settings, directory, transforms, (source_spm, target_spm))
    prefix = _read_prefix(settings, vocabularies, spm) if "prefix" in transforms else ()
    network = _read_network(settings, vocabularies, directory)
    most = min(MAX_TOKENS, *_of_stacks(settings, "max_position_embeddings", int, 8192).values())
    settings.finish([f"{place}.{key}" for place in _PLACES for key in _HARMLESS], prefixes=("model.",))
    return network.imported(spm, most=most, source_prefix=prefix, source_suffix=())


def _read_settings(path: Path) -> ForeignConfig:
    # Options by dotted paths, without unsupported ones.
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ImportFormatError(f"{path} has no model: not the configuration of an eole model")
    architecture = model.get("architecture", "custom")
    if architecture not in ("transformer", "custom"):
        reason = _OTHER_ARCHITECTURES.get(str(architecture), "expected a Transformer with encoder and decoder")
        raise ImportFormatError(f"{path}: unsupported model.architecture {architecture!r}: {reason}")
    for stack in _STACKS:
        if model.get(stack) is None and (stack in model or architecture == "custom"):
            raise ImportFormatError(f"{path}: model.{stack} is None: expected a Transformer with encoder and decoder")
    fields = dict(dotted(content))
    fields.pop("model.architecture", None)
    for place in _PLACES:
        if fields.get(name := f"{place}.position_encoding_type", "") is None:
            fields[name] = "none"
    settings = ForeignConfig(path, fields)
    required = {f"{place}.{key}": values for place in _PLACES for key, values in _REQUIRED.items()}
    for key, values in {**required, **_REQUIRED_ELSEWHERE}.items():
        settings.require(key, *values)
    return settings


def _find_models(
    settings: ForeignConfig, directory: Path, transforms: Sequence[str], given: tuple[Path | None, Path | None]
) -> SentencePieceFiles:
    # The given models, the directory's copies of those of a transform, or the models in the directory.
    named: list[str | None] = [None, None]
    for transform in (name for name in _SPLITTERS if name in transforms):
        place = f"transforms_configs.{transform}"
        if transform == "onmt_tokenize":
            for side in _SIDES:
                settings.choose(f"{place}.{side}_subword_type", {"sentencepiece": None}, "none")
                settings.require(f"{place}.{side}_onmttok_kwargs.mode", "none")
            settings.require(f"{place}.gpt2_pretok", False)
            settings.require(f"{place}.mapped_tokens", [])
        for side in _SIDES:
            settings.require(f"{place}.{side}_vocab_threshold", 0)
        named = [settings.take_optional(f"{place}.{side}_subword_model", str) for side in _SIDES]
        settings.finish([f"{place}.{key}" for key in _HARMLESS_OF_SPLITTERS], prefixes=(f"{place}.",))
    source, target = named
    if settings.take("share_vocab", bool, default=False):
        target = source  # with a shared vocabulary, eole reads only one of them
    if any(given) or not source or not target:
        return SentencePieceFiles.find(directory, *given)
    return SentencePieceFiles(source=directory / Path(source).name, target=directory / Path(target).name)


def _read_prefix(settings: ForeignConfig, vocabularies: Vocabularies, spm: SentencePieceFiles) -> tuple[int, ...]:
    path = "transforms_configs.prefix"
    settings.require(f"{path}.tgt_prefix", "")
    pieces = settings.take(f"{path}.src_prefix", str, default="").split()
    for piece in pieces:
        if piece not in vocabularies.source:
            raise settings.error(f"{path}.src_prefix", piece, "tokens of the vocabulary")
        if spm.is_of_sources(piece):  # the prefix of a bundle must not occur in texts
            raise settings.error(f"{path}.src_prefix", piece, "tokens that no text contains")
    return tuple(vocabularies.source.index(piece) for piece in pieces)


def _read_network(settings: ForeignConfig, vocabularies: Vocabularies, directory: Path) -> Network:
    num_heads, head_dim, width = (
        _of_both(settings, key, int, default) for key, default in (("heads", 8), ("head_dim", 0), ("hidden_size", 512))
    )
    head_size = head_dim or width // max(num_heads, 1)
    num_layers = _of_stacks(settings, "layers", int, 2)
    for kind in settings.take("model.decoder.layer_types", list, default=[]):
        if kind != "full_attention":
            raise settings.error("model.decoder.layer_types", kind, "full_attention")
    for place in _PLACES:
        settings.require(f"{place}.attn_scaling", head_size)
        settings.require(f"{place}.rope_config.rotary_dim", 0, head_size)
    name = _of_both(settings, "mlp_activation_fn", str, "relu")
    if name not in _ACTIVATIONS:
        raise settings.error("mlp_activation_fn", name, ", ".join(_ACTIVATIONS))
    activation, is_gated = _ACTIVATIONS[name]
    stored = _read_parts(directory)
    # tensors shared by two parts are stored once
    for option, tensor, origin in (
        ("share_embeddings", "tgt_emb.embeddings.weight", "src_emb.embeddings.weight"),
        ("share_decoder_embeddings", "generator.weight", "tgt_emb.embeddings.weight"),
    ):
        is_shared = settings.take(f"model.{option}", bool, default=False) and origin in stored
        if is_shared and not torch.equal(stored.setdefault(tensor, stored[origin]), stored[origin]):
            raise ImportFormatError(f"{directory}: {tensor} differs from {origin}, but model.{option} is True")
    positions, scales, rotations = _read_positions(settings, stored)
    for layer in range(min(num_layers["decoder"], len(stored))):
        stored.pop(f"decoder.transformer_layers.{layer}.layer_scalar", None)  # for other types of layers
    shape = Shape(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_of_both(settings, "heads_kv", int, 0) or None,
        head_dim=head_size,
        activation=activation,
        is_gated=is_gated,
        positions=positions,
        scales_embeddings=scales,
        rotations=rotations,
    )
    variables = Variables(named_variables(Tensors(stored, directory), EOLE, shape), directory)
    epsilon = _of_both(settings, "norm_eps", float, 1e-5)
    return Network(variables, vocabularies, epsilon, has_positions=positions != "none")


def _read_parts(directory: Path) -> dict[str, Tensor]:
    stored: dict[str, Tensor] = {}
    paths = sorted(directory.glob("model.*.safetensors"))
    if not paths:
        raise ImportFormatError(f"{directory} has no model.00.safetensors")
    for path in paths:
        for name, tensor in read_tensors(path).items():
            if name in stored or tensor.dim() == 0:
                raise ImportFormatError(f"{path}: {name} is {'a duplicate' if name in stored else 'a scalar'}")
            stored[name] = tensor
    return stored


def _read_positions(
    settings: ForeignConfig, stored: dict[str, Tensor]
) -> tuple[Positions, bool, Mapping[str, Rotation]]:
    # Kind of positions, whether embeddings are scaled, and rotations; converts stored tables of learned positions.
    default = settings.take("model.position_encoding_type", str, default="SinusoidalInterleaved")
    name = settings.take("model.embeddings.position_encoding_type", str, default)
    if name not in _POSITIONS:
        raise settings.error("position_encoding_type", name, ", ".join(_POSITIONS))
    positions = _POSITIONS[name]
    interleave = settings.take("model.rope_config.rotary_interleave", bool, default=True)
    rotations = {}
    for stack in _STACKS:
        own = settings.take_optional(f"model.{stack}.position_encoding_type", str)
        if own not in (None, name):
            raise settings.error(f"model.{stack}.position_encoding_type", own, name)
        # A stack with its own type does not inherit the rope_config of the model.
        default_pairs = interleave if own is None else True
        has_pairs = settings.take(f"model.{stack}.rope_config.rotary_interleave", bool, default_pairs)
        if positions == "rotary":
            rotations[stack] = Rotation(interleave=has_pairs)
    shift = settings.take("model.embeddings.position_shift", int, default=0)
    if positions == "sinusoidal":  # always added to scaled embeddings
        settings.require("model.embeddings.normalize", False)
        return positions, True, rotations
    scales = settings.take("model.embeddings.normalize", bool, default=False)
    tables = (f"{side}_emb.pe.weight" for side in _SIDES) if positions == "learned" else ()
    for path in (path for path in tables if path in stored):
        if not 0 <= shift < len(stored[path]):
            raise settings.error("model.embeddings.position_shift", shift, f"a row of {len(stored[path])} positions")
        table = stored[path][shift:]
        stored[path] = table * math.sqrt(table.shape[-1]) if scales else table  # the sum is scaled
    return positions, scales, rotations


def _of_stacks(settings: ForeignConfig, key: str, kind: type[_T], default: _T) -> dict[str, _T]:
    of_model = settings.take(f"model.{key}", kind, default)
    return {stack: settings.take(f"model.{stack}.{key}", kind, of_model) for stack in _STACKS}


def _of_both(settings: ForeignConfig, key: str, kind: type[_T], default: _T) -> _T:
    # An option that must be equal in both stacks.
    encoder, decoder = _of_stacks(settings, key, kind, default).values()
    if encoder != decoder:
        raise settings.error(f"{key} of the decoder", decoder, repr(encoder))
    return encoder
