"""Reads Transformers that OpenNMT-py trained to translate, version 3 on, from their checkpoint.

What the options mean is read from the code of OpenNMT-py 3.5. Its network, and that of its successor eole, is that of
CTranslate2, which began as its engine: tensors get the names that they have there, and the same code takes them over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.network import Network
from dragoman_export.importers.ctranslate2.variables import Variables
from dragoman_export.importers.files import ForeignConfig, fields_of, float_tensors, read_checkpoint
from dragoman_export.importers.huggingface_text import Text
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies
from dragoman_service.bundle.architecture import Limits

_ACTIVATIONS: Final = {"relu": 0, "gelu": 3, "silu": 2}
"""By `pos_ffn_activation_fn`, as CTranslate2 numbers them; silu has a gate."""

_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    "model_task": ("seq2seq",),
    "model_type": ("text",),
    "encoder_type": ("transformer",),
    "decoder_type": ("transformer",),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat"),
    "relative_positions_buckets": (0,),
    "parallel_residual": (False,),
    "shared_layer_norm": (False,),
    "copy_attn": (False,),
    "coverage_attn": (False,),
    "generator_function": ("softmax",),
    "sliding_window": (0,),
    "num_experts": (0,),
    "layer_norm": ("standard", "rms"),
    "quant_layers": ([],),
    "quant_type": ("",),
    "lora_layers": ([],),
    "parallel_mode": ("data_parallel",),
}
"""Options that make another network, and the values with which they make this one. The hundreds of others that a
checkpoint remembers are about training, or show in the tensors."""

_ROTARY: Final = -1
"""Of `max_relative_positions`: positions are rotary; 0: they are sinusoids."""

_UNK: Final = "<unk>"
_EOS: Final = "</s>"
_BOS: Final = "<s>"


@dataclass(frozen=True, slots=True, kw_only=True)
class StackNames:
    """What a system calls the parts of a stack."""

    embeddings: str
    positions: str | None
    """A table of position encodings; None: there is none."""
    layers: str
    attentions: Mapping[str, tuple[str, str]]
    """Within a layer: attention and the normalisation before it, by their names in CTranslate2."""
    feed_forward_norm: str
    feed_forward: Mapping[str, str]
    """Its products, by their names in CTranslate2; with a gate there is a `linear_0_noact`."""


def _names(*, has_gate: bool, has_table: bool) -> dict[str, StackNames]:
    """Return the names of OpenNMT-py."""
    layers: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
        "encoder": ("transformer", {"self_attention": ("self_attn", "layer_norm")}),
        "decoder": (
            "transformer_layers",
            {"self_attention": ("self_attn", "layer_norm_1"), "attention": ("context_attn", "layer_norm_2")},
        ),
    }
    products = {"linear_0": "w_1", "linear_1": "w_2", **({"linear_0_noact": "w_3"} if has_gate else {})}
    return {
        stack: StackNames(
            embeddings=f"{stack}.embeddings.make_embedding.emb_luts.0.weight",
            positions=f"{stack}.embeddings.make_embedding.pe.pe" if has_table else None,
            layers=f"{stack}.{name}",
            attentions=attentions,
            feed_forward_norm="feed_forward.layer_norm",
            feed_forward={ours: f"feed_forward.{theirs}" for ours, theirs in products.items()},
        )
        for stack, (name, attentions) in layers.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Rotary positions of a stack."""

    has_pairs: bool
    """Whether the pairs that are rotated are neighbours, or half a head apart."""
    size: int = 0
    """Of a head, how much is rotated; 0: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tensors do not tell of a network."""

    num_layers: Mapping[str, int]
    """By the stack."""
    num_heads: int
    num_kv_heads: int | None = None
    """None: as many as of queries."""
    head_dim: int | None = None
    """None: the width of the network divided by the heads."""
    activation: int
    """As CTranslate2 numbers them."""
    scales_embeddings: bool = True
    """By the square root of the width."""
    rotations: Mapping[str, Rotation] = field(default_factory=dict)
    """By the stack; empty: positions are not rotary."""


def read_opennmt(path: Path, *, source_spm: Path | None = None, target_spm: Path | None = None) -> ImportedModel:
    """Read a checkpoint (`.pt`), of which nothing but tensors and plain values is loaded.

    Args:
        path: the checkpoint.
        source_spm: SentencePiece model of sources; None: `source.spm`, or the only one, beside the checkpoint.
        target_spm: the same of targets.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
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
    named = {f"generator.{name.removeprefix('0.')}": tensor for name, tensor in generator.items()}
    activation = settings.take("pos_ffn_activation_fn", str, default="relu")
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ImportFormatError(f"{path}: pos_ffn_activation_fn is {activation!r}: expected {known}")
    rotation = _read_rotation(settings)
    shape = Shape(
        num_layers={stack: settings.take(f"{stack[:3]}_layers", int) for stack in ("encoder", "decoder")},
        num_heads=settings.take("heads", int, default=8),
        num_kv_heads=settings.take("num_kv", int, default=0) or None,
        activation=_ACTIVATIONS[activation],
        scales_embeddings=rotation is None,  # which is done where sinusoids are added
        rotations={} if rotation is None else dict.fromkeys(("encoder", "decoder"), rotation),
    )
    names = _names(has_gate=activation == "silu", has_table=rotation is None)
    variables = named_variables(Tensors({**model, **named}, path), names, shape)
    epsilon = settings.take("norm_eps", float, default=1e-6)
    return imported_model(Network(Variables(variables, path), vocabularies, epsilon), vocabularies, spm)


def _read_rotation(settings: ForeignConfig) -> Rotation | None:
    """Return how heads are rotated, None if positions are sinusoids; ImportFormatError if they are something else."""
    kind = settings.take("max_relative_positions", int, default=0)
    if kind not in (0, _ROTARY):
        raise ImportFormatError(
            f"{settings.path}: max_relative_positions is {kind}: expected 0 (sinusoids) or {_ROTARY} (rotary positions)"
        )
    settings.require("position_encoding", kind != _ROTARY)
    if kind != _ROTARY:
        return None
    settings.require("rotary_theta", 10000)
    return Rotation(
        has_pairs=settings.take("rotary_interleave", bool),  # versions that do not store it may mean either
        size=settings.take("rotary_dim", int, default=0),
    )


def imported_model(
    network: Network,
    vocabularies: Vocabularies,
    spm: SentencePieceFiles,
    *,
    most: int = MAX_TOKENS,
    source_prefix: tuple[int, ...] = (),
) -> ImportedModel:
    """Return a model whose sources end without EOS.

    Args:
        network: with token ids as the vocabularies have them.
        vocabularies: of both sides.
        spm: what splits texts into their tokens.
        most: longest sequence that its trainer takes.
        source_prefix: token ids that every source begins with.

    Raises:
        ImportFormatError: if the files are missing, or are not those of the vocabularies.
    """
    spm.check((vocabularies.source, vocabularies.target))
    models = spm.read()
    most = min(network.num_positions, most)
    return ImportedModel(
        config=network.config(),
        limits=Limits(max_source_tokens=most, max_target_tokens=most),
        weights=network.weights,
        tokenizer=Text(
            model=models[1],
            source_model=models[0],
            pieces=vocabularies.target,
            source_pieces=vocabularies.source,
            source_prefix=source_prefix,
            source_suffix=(),
        ).files(),
    )


def read_vocabularies(vocab: Mapping[str, Any], path: Path, *, eos: str = _EOS, unk: str = _UNK) -> Vocabularies:
    """Return the tokens of both sides.

    Args:
        vocab: `src` and `tgt`, lists of tokens, and `decoder_start_token`.
        path: what errors name.
        eos: spelling of EOS.
        unk: spelling of the unknown token.

    Raises:
        ImportFormatError: if there are no lists, or a token is missing.
    """
    source, target = (vocab.get(side) for side in ("src", "tgt"))
    start = vocab.get("decoder_start_token", _BOS)
    if not isinstance(source, list) or not isinstance(target, list) or not isinstance(start, str):
        raise ImportFormatError(f"{path}: vocab holds no lists of tokens, as before version 3 of OpenNMT-py")
    if vocab.get("src_feats"):
        raise ImportFormatError(f"{path}: vocab has src_feats: several embeddings of a source token cannot be served")
    lists = [str(token) for token in source], [str(token) for token in target]
    return Vocabularies.fitted(*lists, eos=eos, unk=unk, start=start, origin=path)


class Tensors:
    """The tensors of a checkpoint, each to be used once."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self._left = dict(tensors)
        self._path = path

    def take(self, name: str) -> Tensor:
        """Return a tensor; ImportFormatError if it is missing."""
        if name not in self._left:
            raise ImportFormatError(f"{self._path}: there is no tensor {name}")
        return self._left.pop(name)

    def linear(self, *names: str) -> dict[str, Tensor]:
        """Return the weights of products of the same input as one, and their biases if one of them has any."""
        weights = [self.take(f"{name}.weight") for name in names]
        if len({weight.shape[1:] for weight in weights}) > 1:
            raise ImportFormatError(f"{self._path}: {', '.join(names)} are not of inputs of the same width")
        has_bias = any(f"{name}.bias" in self._left for name in names)
        zeros = {name: weight.new_zeros(len(weight)) for name, weight in zip(names, weights, strict=True)}
        biases = [self._left.pop(f"{name}.bias", zeros[name]) for name in names]
        return {"weight": torch.cat(weights), **({"bias": torch.cat(biases)} if has_bias else {})}

    def norm(self, name: str) -> dict[str, Tensor]:
        """Return a normalisation, by the names of CTranslate2."""
        parts = {"gamma": self.take(f"{name}.weight")}
        return {**parts, **({"beta": self.take(f"{name}.bias")} if f"{name}.bias" in self._left else {})}

    def finish(self) -> None:
        """Raise ImportFormatError, naming the first tensor that was not read."""
        for name in sorted(self._left):
            raise ImportFormatError(f"{self._path}: nothing is known of tensor {name}")


def named_variables(tensors: Tensors, names: Mapping[str, StackNames], shape: Shape) -> dict[str, Tensor]:
    """Return all tensors by the names that CTranslate2 has for them, with what they do not tell.

    Args:
        tensors: of which none may be left over; a generator as `generator`, normalisations of what leaves a stack as
            `encoder.layer_norm` and `decoder.layer_norm`.
        names: of each stack.
        shape: of the network.

    Raises:
        ImportFormatError: naming a tensor that is missing, or not known.
    """
    found: dict[str, Tensor] = {}

    def put(name: str, parts: Mapping[str, Tensor]) -> None:
        found.update({f"{name}/{part}": tensor for part, tensor in parts.items()})

    heads = {"num_heads_kv": shape.num_kv_heads, "head_dim": shape.head_dim}
    of_attention = {name: torch.tensor(number) for name, number in heads.items() if number is not None}
    for stack, embeddings in (("encoder", "embeddings_0"), ("decoder", "embeddings")):
        own = names[stack]
        put(stack, {"num_heads": torch.tensor(shape.num_heads), "activation": torch.tensor(shape.activation)})
        put(stack, {"scale_embeddings": torch.tensor(shape.scales_embeddings, dtype=torch.int8)})
        put(f"{stack}/{embeddings}", {"weight": tensors.take(own.embeddings)})
        if own.positions is not None:
            table = tensors.take(own.positions)
            put(f"{stack}/position_encodings", {"encodings": table.reshape(len(table), -1)})
        put(f"{stack}/layer_norm", tensors.norm(f"{stack}.layer_norm"))
        for layer in range(shape.num_layers[stack]):
            ours, theirs = f"{stack}/layer_{layer}", f"{own.layers}.{layer}"
            for block, (attention, norm) in own.attentions.items():
                put(f"{ours}/{block}/layer_norm", tensors.norm(f"{theirs}.{norm}"))
                put(f"{ours}/{block}", of_attention)
                if block == "self_attention" and stack in shape.rotations:
                    put(f"{ours}/{block}", _rotary_attributes(shape.rotations[stack]))
                for index, fused in enumerate(_fused(block)):
                    linear = tensors.linear(*(f"{theirs}.{attention}.{name}" for name in fused))
                    put(f"{ours}/{block}/linear_{index}", linear)
            put(f"{ours}/ffn/layer_norm", tensors.norm(f"{theirs}.{own.feed_forward_norm}"))
            for name, stored in own.feed_forward.items():
                put(f"{ours}/ffn/{name}", tensors.linear(f"{theirs}.{stored}"))
    put("decoder/projection", tensors.linear("generator"))
    tensors.finish()
    return found


def _rotary_attributes(rotation: Rotation) -> dict[str, Tensor]:
    return {"rotary_dim": torch.tensor(rotation.size), "rotary_interleave": torch.tensor(rotation.has_pairs)}


def _fused(block: str) -> Sequence[Sequence[str]]:
    """Return the products of an attention block that CTranslate2 has as one, in its order."""
    query, others = ["linear_query"], ["linear_keys", "linear_values"]
    return [[*query, *others], ["final_linear"]] if block == "self_attention" else [query, others, ["final_linear"]]
