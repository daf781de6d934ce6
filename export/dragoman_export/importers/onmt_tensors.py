"""Networks and vocabularies of OpenNMT-py and its successor eole.

Both networks are those of CTranslate2, which began as the engine of OpenNMT-py. Tensors are renamed to CTranslate2's
variables by a table per library, and `ctranslate2.network` converts them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import Tensors
from dragoman_export.importers.vocabulary_text import Vocabularies

ACTIVATIONS: Final = {"relu": 0, "gelu": 3, "silu": 2}  # CTranslate2's numbers

# products of an attention block that CTranslate2 stores as one
_ATTENTION: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "self_attention": (("linear_query", "linear_keys", "linear_values"), ("final_linear",)),
    "attention": (("linear_query",), ("linear_keys", "linear_values"), ("final_linear",)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """Names of a library's tensors; `{stack}` is encoder or decoder, `{side}` is src or tgt."""

    embeddings: str
    positions: Mapping[str, str]  # table of position encodings, by kind
    layers: Mapping[str, str]  # by stack
    norms: Mapping[str, tuple[str, ...]]  # before each attention, by stack
    feed_forward_norm: str
    feed_forward: tuple[str, str, str]  # first or gate, second, gated


OPENNMT: Final = TensorNames(
    embeddings="{stack}.embeddings.make_embedding.emb_luts.0.weight",
    positions={"sinusoidal": "{stack}.embeddings.make_embedding.pe.pe"},
    layers={"encoder": "encoder.transformer", "decoder": "decoder.transformer_layers"},
    norms={"encoder": ("layer_norm",), "decoder": ("layer_norm_1", "layer_norm_2")},
    feed_forward_norm="feed_forward.layer_norm",
    feed_forward=("feed_forward.w_1", "feed_forward.w_2", "feed_forward.w_3"),
)
EOLE: Final = TensorNames(
    embeddings="{side}_emb.embeddings.weight",
    positions={"sinusoidal": "{side}_emb.pe.pe", "learned": "{side}_emb.pe.weight"},
    layers={"encoder": "encoder.transformer_layers", "decoder": "decoder.transformer_layers"},
    norms={"encoder": ("input_layernorm",), "decoder": ("input_layernorm", "precontext_layernorm")},
    feed_forward_norm="post_attention_layernorm",
    feed_forward=("mlp.gate_up_proj", "mlp.down_proj", "mlp.up_proj"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Rotary positions of a stack."""

    interleave: bool  # pairs are adjacent; otherwise half a head apart
    size: int = 0  # rotated part of a head; 0: all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Properties of a network that its tensors do not show."""

    num_layers: Mapping[str, int]  # by stack
    num_heads: int
    num_kv_heads: int | None = None  # None: the number of query heads
    head_dim: int | None = None  # None: width / heads
    activation: int  # CTranslate2's number
    is_gated: bool
    positions: str  # key of `TensorNames.positions`; other kinds have no tensors
    scales_embeddings: bool = True
    rotations: Mapping[str, Rotation] = field(default_factory=dict)  # by stack; empty: not rotary


def read_vocabularies(vocab: Mapping[str, Any], path: Path, *, eos: str = "</s>", unk: str = "<unk>") -> Vocabularies:
    """Return the tokens of `src` and `tgt` of a vocabulary; ImportFormatError if one is missing."""
    source, target = (vocab.get(side) for side in ("src", "tgt"))
    start = vocab.get("decoder_start_token", "<s>")
    if not isinstance(source, list) or not isinstance(target, list) or not isinstance(start, str):
        raise ImportFormatError(f"{path}: vocab has no lists of tokens; OpenNMT-py before version 3 is not supported")
    if vocab.get("src_feats"):
        raise ImportFormatError(f"{path}: vocab has src_feats: source features are not supported")
    lists = [str(token) for token in source], [str(token) for token in target]
    return Vocabularies.fitted(*lists, eos=eos, unk=unk, start=start, origin=path)


def named_variables(tensors: Tensors, names: TensorNames, shape: Shape) -> dict[str, Tensor]:
    """Return all tensors as variables of CTranslate2; ImportFormatError on a missing or unknown tensor.

    The projection is `generator`; attributes describe the shape.
    """
    variables: dict[str, Tensor] = {}

    def put(name: str, parts: Mapping[str, Tensor]) -> None:
        variables.update({f"{name}/{part}": tensor for part, tensor in parts.items()})

    products = ("linear_0", "linear_1", *(["linear_0_noact"] if shape.is_gated else []))
    feed_forward = dict(zip(products, names.feed_forward, strict=False))
    for stack, side, embeddings in (("encoder", "src", "embeddings_0"), ("decoder", "tgt", "embeddings")):
        put(stack, {"num_heads": torch.tensor(shape.num_heads), "activation": torch.tensor(shape.activation)})
        put(stack, {"scale_embeddings": torch.tensor(shape.scales_embeddings, dtype=torch.int8)})
        table = names.embeddings.format(stack=stack, side=side)
        put(f"{stack}/{embeddings}", {"weight": tensors.take(table)})
        if shape.positions in names.positions:
            table = names.positions[shape.positions].format(stack=stack, side=side)
            encodings = tensors.take(table)
            put(f"{stack}/position_encodings", {"encodings": encodings.reshape(len(encodings), -1)})
        put(f"{stack}/layer_norm", tensors.norm(f"{stack}.layer_norm"))
        blocks = (("self_attention", "self_attn"), ("attention", "context_attn"))
        for layer in range(shape.num_layers[stack]):
            target, source = f"{stack}/layer_{layer}", f"{names.layers[stack]}.{layer}"
            for (block, attention), norm in zip(blocks, names.norms[stack], strict=False):
                put(f"{target}/{block}/layer_norm", tensors.norm(f"{source}.{norm}"))
                put(f"{target}/{block}", _attention_attributes(shape, stack if block == "self_attention" else ""))
                for index, parts in enumerate(_ATTENTION[block]):
                    linear = tensors.linear(*(f"{source}.{attention}.{part}" for part in parts))
                    put(f"{target}/{block}/linear_{index}", linear)
            put(f"{target}/ffn/layer_norm", tensors.norm(f"{source}.{names.feed_forward_norm}"))
            for variable, product in feed_forward.items():
                put(f"{target}/ffn/{variable}", tensors.linear(f"{source}.{product}"))
    put("decoder/projection", tensors.linear("generator"))
    tensors.finish()
    return variables


def _attention_attributes(shape: Shape, rotated_stack: str) -> dict[str, Tensor]:
    numbers = {"num_heads_kv": shape.num_kv_heads, "head_dim": shape.head_dim}
    if (rotation := shape.rotations.get(rotated_stack)) is not None:
        numbers |= {"rotary_dim": rotation.size, "rotary_interleave": rotation.interleave}
    return {name: torch.tensor(number) for name, number in numbers.items() if number is not None}
