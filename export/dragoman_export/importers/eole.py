"""Reads Transformers that eole trained to translate, from the directory of a model.

eole succeeds OpenNMT-py: vocabularies and network are those of `opennmt`, with other names of tensors and more options.
What these mean is read from the code of eole 0.6. Of `config.json` the parts `model` and `transforms` say what is
computed from a text; the rest is about training, or chosen by callers.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.files import ForeignConfig, dotted, read_json, read_tensors
from dragoman_export.importers.opennmt import (
    Rotation,
    Shape,
    StackNames,
    Tensors,
    imported_model,
    named_variables,
    read_vocabularies,
)
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from dragoman_service.bundle.architecture import Positions

_STACKS: Final = ("encoder", "decoder")
_SIDES: Final = ("src", "tgt")
_PLACES: Final = ("model", "model.encoder", "model.decoder", "model.embeddings")
"""Of options; what a stack does not say of itself, the model says of both."""

_ARCHITECTURES: Final = ("transformer", "custom")
_OTHER_ARCHITECTURES: Final = {
    "transformer_lm": "it has no encoder, as language models",
    "vision_transformer_lm": "it reads pictures",
    "whisper": "it writes down speech",
    "transformer_encoder": "it has no decoder",
    "transformer_encoder_scorer": "it scores translations",
    "transformer_encoder_decoder_scorer": "it scores translations",
    "rnn": "it is a recurrent network",
    "cnn": "it is a convolutional network",
}

_ACTIVATIONS: Final = {"relu": 0, "gelu": 3, "silu": 2, "gated-silu": 2}
"""By `mlp_activation_fn`, as CTranslate2 numbers them."""
_GATED: Final = "gated-silu"

_POSITIONS: Final[Mapping[str, Positions]] = {
    "SinusoidalInterleaved": "sinusoidal",
    "SinusoidalConcat": "sinusoidal",
    "Learned": "learned",
    "Rotary": "rotary",
    "none": "none",
}
"""By `position_encoding_type`; null stands for none."""

_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    "encoder_type": ("transformer",),
    "encoder_layer_style": ("standard",),
    "final_encoder_layer_norm": (True,),
    "decoder_type": ("transformer",),
    "aan_useffn": (False,),
    "coverage_attn": (False,),
    "LM_type": ("causal",),
    "global_head_dim": (),
    "global_heads_kv": (),
    "num_mtp_heads": (0,),
    "sliding_window": (0,),
    "relative_positions_buckets": (0,),
    "layer_norm": ("standard", "standardFP32", "rms"),
    "shared_layer_norm": (False,),
    "ffn_layernorm": (False,),
    **{f"{part}_norm": (False,) for part in ("query", "key", "value")},
    "parallel_residual": (False,),
    "num_experts": (0,),
    "q_gating": (False,),
    "interpolate_mode": (),
    "rope_config.rotary_theta": (10000,),
    "rope_config.scaling_type": (),
    "rope_config.xdrope_section": (),
    "rope_config.interleave_local": (0,),
    "rope_config.tmax_index": (0,),
    "rope_config.rotary_dim_global": (0,),
    "rope_config.partial_rotary_factor": (0,),
    "rope_config.multidimensional_rope": (False,),
    "embedding_type": ("standard",),
    "embedding_layer_norm": (False,),
    "token_type_vocab_size": (0,),
    "generator_function": ("softmax",),
    "add_estimator": (False,),
    "left_pad": (False,),
    "adapter": (),
}
"""Options that make another network, and the values with which they make this one."""

_REQUIRED_ELSEWHERE: Final[Mapping[str, tuple[object, ...]]] = {
    "training.lora_layers": ([],),
    "training.lora_embedding": (False,),
    "training.quant_layers": ([],),
    "training.quant_type": ("",),
    "inference.optional_eos": ([],),
}

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
"""Options that matter in training only, that tensors show, or that belong to parts that are not there."""

_OF_TRAINING: Final = ("filtertooshort", "filtertoolong", "switchout", "tokendrop", "tokenmask", "bart")
"""Transforms that leave a text as it is when it is translated."""
_SPLITTERS: Final = ("sentencepiece", "onmt_tokenize")
"""Transforms that split a text into the pieces of a SentencePiece model."""
_TRANSFORMS: Final = (*_SPLITTERS, "prefix", *_OF_TRAINING)
_HARMLESS_OF_SPLITTERS: Final = (
    *(f"{side}_subword_{key}" for side in _SIDES for key in ("model", "vocab", "nbest", "alpha")),
    "replace_newline_sentinel",
)
"""Options that matter in training only, or that choose files."""

_T = TypeVar("_T")


def read_eole(directory: Path, *, source_spm: Path | None = None, target_spm: Path | None = None) -> ImportedModel:
    """Read `config.json`, `vocab.json`, `model.00.safetensors` and further parts, and SentencePiece models.

    Args:
        directory: of a model, or of one of its steps.
        source_spm: SentencePiece model of sources; None: what `config.json` names, or else the only one, in the
            directory.
        target_spm: the same of targets.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
    """
    settings = _read_settings(directory / "config.json")
    vocabularies = _read_vocabularies(directory / "vocab.json")
    transforms = _read_transforms(settings)
    spm = _find_models(settings, directory, transforms, (source_spm, target_spm))
    source_prefix = _read_prefix(settings, vocabularies, spm) if "prefix" in transforms else ()
    network = _read_network(settings, vocabularies, directory)
    most = min(MAX_TOKENS, *_of_stacks(settings, "max_position_embeddings", int, 8192).values())
    settings.finish([f"{place}.{key}" for place in _PLACES for key in _HARMLESS], prefixes=("model.",))
    return imported_model(network, vocabularies, spm, most=most, source_prefix=source_prefix)


def _read_settings(path: Path) -> ForeignConfig:
    """Return the options by dotted paths, after a look at those that would make another network."""
    content = read_json(path)
    model = content.get("model")
    if not isinstance(model, dict):
        raise ImportFormatError(f"{path} has no model: not the configuration of a model of eole")
    architecture = model.get("architecture", "custom")
    if architecture not in _ARCHITECTURES:
        reason = _OTHER_ARCHITECTURES.get(str(architecture), "only Transformers with encoder and decoder are")
        raise ImportFormatError(f"{path}: model.architecture is {architecture!r}, which cannot be served: {reason}")
    for stack in _STACKS:
        if model.get(stack) is None and (stack in model or architecture == "custom"):
            raise ImportFormatError(
                f"{path}: model.{stack} is None: only Transformers with encoder and decoder are served"
            )
    fields = dict(dotted(content))
    fields.pop("model.architecture", None)
    for place in _PLACES:
        if fields.get(name := f"{place}.position_encoding_type", "") is None:
            fields[name] = "none"
    settings = ForeignConfig(path, fields)
    for place in _PLACES:
        for key, values in _REQUIRED.items():
            settings.require(f"{place}.{key}", *values)
    for key, values in _REQUIRED_ELSEWHERE.items():
        settings.require(key, *values)
    return settings


def _read_vocabularies(path: Path) -> Vocabularies:
    vocab = read_json(path)
    spelled = vocab.get("specials")
    special = {name: spelled.get(f"{name}_token") for name in ("eos", "unk")} if isinstance(spelled, dict) else {}
    return read_vocabularies(vocab, path, **{name: str(token) for name, token in special.items() if token is not None})


def _read_transforms(settings: ForeignConfig) -> list[str]:
    """Return what is done to a text, and refuse other ways to split it than SentencePiece's."""
    transforms = settings.take("transforms", list, default=[])
    for name in transforms:
        if name not in _TRANSFORMS:
            expected = ", ".join(_TRANSFORMS)
            raise ImportFormatError(f"{settings.path}: transforms has {name!r}: expected {expected}")
    return transforms


def _find_models(
    settings: ForeignConfig, directory: Path, transforms: Sequence[str], given: tuple[Path | None, Path | None]
) -> SentencePieceFiles:
    """Return the models that are given, the copies that a directory has of those of a transform, or what lies there."""
    named: list[str | None] = [None, None]
    for transform in (name for name in _SPLITTERS if name in transforms):
        place = f"transforms_configs.{transform}"
        if transform == "onmt_tokenize":
            for side in _SIDES:
                kind = settings.take(f"{place}.{side}_subword_type", str, default="none")
                _known(settings, f"{place}.{side}_subword_type", kind, ("sentencepiece",))
                settings.require(f"{place}.{side}_onmttok_kwargs.mode", "none")
            settings.require(f"{place}.gpt2_pretok", False)
            settings.require(f"{place}.mapped_tokens", [])
        for side in _SIDES:
            settings.require(f"{place}.{side}_vocab_threshold", 0)
        named = [settings.take_optional(f"{place}.{side}_subword_model", str) for side in _SIDES]
        settings.finish([f"{place}.{key}" for key in _HARMLESS_OF_SPLITTERS], prefixes=(f"{place}.",))
    source, target = named
    if settings.take("share_vocab", bool, default=False):
        target = source  # with one vocabulary, eole reads one of them
    if any(given) or not source or not target:
        return SentencePieceFiles.find(directory, *given)
    return SentencePieceFiles(source=directory / Path(source).name, target=directory / Path(target).name)


def _read_prefix(settings: ForeignConfig, vocabularies: Vocabularies, spm: SentencePieceFiles) -> tuple[int, ...]:
    """Return the ids that every source begins with."""
    path = "transforms_configs.prefix"
    settings.require(f"{path}.tgt_prefix", "")
    pieces = settings.take(f"{path}.src_prefix", str, default="").split()
    for piece in pieces:
        is_known = piece in vocabularies.source
        if not is_known or spm.is_of_sources(piece):  # no text may have what a bundle's sources begin with
            reason = "which texts have as well" if is_known else "which is not in the vocabulary"
            raise ImportFormatError(f"{settings.path}: src_prefix has {piece!r}, {reason}")
    return tuple(vocabularies.source.index(piece) for piece in pieces)


def _read_network(settings: ForeignConfig, vocabularies: Vocabularies, directory: Path) -> Network:
    """Return the network; tensors that two parts share are stored once."""
    num_heads, head_dim, width = (
        _of_both(settings, key, int, default) for key, default in (("heads", 8), ("head_dim", 0), ("hidden_size", 512))
    )
    head_size = head_dim or width // max(num_heads, 1)
    num_layers = _of_stacks(settings, "layers", int, 2)
    for kind in settings.take("model.decoder.layer_types", list, default=[]):
        _known(settings, "model.decoder.layer_types", kind, ("full_attention",))
    for place in _PLACES:
        settings.require(f"{place}.attn_scaling", head_size)
        settings.require(f"{place}.rope_config.rotary_dim", 0, head_size)
    activation = _known(
        settings, "mlp_activation_fn", _of_both(settings, "mlp_activation_fn", str, "relu"), _ACTIVATIONS
    )
    stored = _read_parts(directory)
    for option, name, origin in (
        ("share_embeddings", "tgt_emb.embeddings.weight", "src_emb.embeddings.weight"),
        ("share_decoder_embeddings", "generator.weight", "tgt_emb.embeddings.weight"),
    ):
        is_shared = settings.take(f"model.{option}", bool, default=False) and origin in stored
        if is_shared and not torch.equal(stored.setdefault(name, stored[origin]), stored[origin]):
            raise ImportFormatError(f"{directory}: {name} is not {origin}, though model.{option} is True")
    positions, scales, rotations = _read_positions(settings, stored)
    for layer in range(min(num_layers["decoder"], len(stored))):
        stored.pop(f"decoder.transformer_layers.{layer}.layer_scalar", None)  # which other kinds of layers use
    shape = Shape(
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_of_both(settings, "heads_kv", int, 0) or None,
        head_dim=head_size,
        activation=_ACTIVATIONS[activation],
        scales_embeddings=scales,
        rotations=rotations,
    )
    names = _names(positions, has_gate=activation == _GATED)
    variables = Variables(named_variables(Tensors(stored, directory), names, shape), directory)
    epsilon = _of_both(settings, "norm_eps", float, 1e-5)
    return Network(variables, vocabularies, epsilon, has_positions=positions != "none")


def _read_parts(directory: Path) -> dict[str, Tensor]:
    """Return the tensors of all files."""
    stored: dict[str, Tensor] = {}
    paths = sorted(directory.glob("model.*.safetensors"))
    if not paths:
        raise ImportFormatError(f"{directory} has no model.00.safetensors")
    for path in paths:
        tensors = read_tensors(path)
        for name, tensor in tensors.items():
            if name in stored or tensor.dim() == 0:
                found = "in another file as well" if name in stored else "a single number"
                raise ImportFormatError(f"{path}: {name} is {found}")
        stored |= tensors
    return stored


def _read_positions(
    settings: ForeignConfig, stored: dict[str, Tensor]
) -> tuple[Positions, bool, Mapping[str, Rotation]]:
    """Return how places are told, whether embeddings are scaled, and rotations, with tables changed to what is ours."""
    default = settings.take("model.position_encoding_type", str, default="SinusoidalInterleaved")
    name = settings.take("model.embeddings.position_encoding_type", str, default)
    positions = _POSITIONS[_known(settings, "position_encoding_type", name, _POSITIONS)]
    is_paired = settings.take("model.rope_config.rotary_interleave", bool, default=True)
    rotations = {}
    for stack in _STACKS:
        own = settings.take_optional(f"model.{stack}.position_encoding_type", str)
        _known(settings, f"model.{stack}.position_encoding_type", own or name, (name,))
        # A stack that says this of itself does not take the model's rope_config.
        default_pairs = is_paired if own is None else True
        has_pairs = settings.take(f"model.{stack}.rope_config.rotary_interleave", bool, default_pairs)
        if positions == "rotary":
            rotations[stack] = Rotation(has_pairs=has_pairs)
    shift = settings.take("model.embeddings.position_shift", int, default=0)
    if positions == "sinusoidal":  # which are added to scaled embeddings, whatever is given
        settings.require("model.embeddings.normalize", False)
        return positions, True, rotations
    scales = settings.take("model.embeddings.normalize", bool, default=False)
    names = (f"{side}_emb.pe.weight" for side in _SIDES) if positions == "learned" else ()
    for path in (path for path in names if path in stored):
        if not 0 <= shift < len(stored[path]):
            expected = f"a row of {len(stored[path])} positions"
            raise ImportFormatError(f"{settings.path}: model.embeddings.position_shift is {shift}: expected {expected}")
        table = stored[path][shift:]
        stored[path] = table * math.sqrt(table.shape[-1]) if scales else table  # their sum is scaled
    return positions, scales, rotations


def _names(positions: Positions, *, has_gate: bool) -> dict[str, StackNames]:
    products = {
        "linear_0": "gate_up_proj",
        "linear_1": "down_proj",
        **({"linear_0_noact": "up_proj"} if has_gate else {}),
    }
    attentions = {
        "self_attention": ("self_attn", "input_layernorm"),
        "attention": ("context_attn", "precontext_layernorm"),
    }
    table = {"sinusoidal": "pe.pe", "learned": "pe.weight"}.get(positions)
    return {
        stack: StackNames(
            embeddings=f"{side}_emb.embeddings.weight",
            positions=table and f"{side}_emb.{table}",
            layers=f"{stack}.transformer_layers",
            attentions=dict(list(attentions.items())[:num_attentions]),
            feed_forward_norm="post_attention_layernorm",
            feed_forward={ours: f"mlp.{theirs}" for ours, theirs in products.items()},
        )
        for stack, side, num_attentions in zip(_STACKS, _SIDES, (1, 2), strict=True)
    }


def _of_stacks(settings: ForeignConfig, key: str, kind: type[_T], default: _T) -> dict[str, _T]:
    """Return an option of each stack."""
    of_both = settings.take(f"model.{key}", kind, default)
    return {stack: settings.take(f"model.{stack}.{key}", kind, of_both) for stack in _STACKS}


def _of_both(settings: ForeignConfig, key: str, kind: type[_T], default: _T) -> _T:
    """Return an option of both stacks, which are alike here."""
    encoder, decoder = _of_stacks(settings, key, kind, default).values()
    if encoder != decoder:
        raise ImportFormatError(f"{settings.path}: {key} of the decoder is {decoder!r}: expected {encoder!r}")
    return encoder


def _known(settings: ForeignConfig, key: str, value: str, known: Collection[str]) -> str:
    if value not in known:
        raise ImportFormatError(f"{settings.path}: {key} is {value!r}: expected {', '.join(known)}")
    return value
