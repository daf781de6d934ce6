"""What a network is, and the inputs and outputs of its graphs that follow from it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FloatType = Literal["float32", "float16"]
"""Element type of states, keys and values, and of the ancestor mask. Scores are always float32."""

Activation = Literal["relu", "gelu", "swish", "swiglu"]
"""Of feed-forward blocks; GELU by the error function."""

NormKind = Literal["layer", "rms"]

Positions = Literal["sinusoidal", "learned", "rotary", "none"]
"""How a token's place is told."""

SinusoidLayout = Literal["interleaved", "halves", "fairseq"]
"""Order and wavelengths of sinusoids; `dragoman_export.model.layers.sinusoidal_positions` says how they differ."""

TiedEmbeddings = Literal["all", "decoder", "none"]
"""Which of the tables of source, target and projection are one: all, the latter two, or none."""

PROJECTION_BIAS: Final = "projection.bias"
"""Name of the bias of the logits, in graphs as well as in checkpoints."""

Size = Annotated[int, Field(ge=1, le=1 << 24)]
_NumLayers = Annotated[int, Field(ge=1, le=256)]
NumTokens = Annotated[int, Field(ge=1, le=1 << 16)]


class Section(BaseModel):
    """A part of a manifest or of a file that it names; unknown fields and other types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DerivedSizes:
    """What follows from an architecture's fields, here and in `dragoman_export.model.config.ModelConfig`."""

    __slots__ = ()

    if TYPE_CHECKING:  # else they would be fields before the others
        vocabulary_size: int
        d_model: int
        num_heads: int
        norm: Literal["pre", "post"]
        final_norm: bool | None
        head_dim: int | None
        num_kv_heads: int | None
        source_vocabulary_size: int | None

    @property
    def head_size(self) -> int:
        """D, width of one head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values, in the caches."""
        return self.num_kv_heads or self.num_heads

    @property
    def key_size(self) -> int:
        """Width of the keys of a token, and of its values, over all their heads."""
        return self.num_key_heads * self.head_size

    @property
    def num_source_tokens(self) -> int:
        """Entries of the source's vocabulary."""
        return self.source_vocabulary_size or self.vocabulary_size

    @property
    def has_final_norm(self) -> bool:
        """Whether what leaves each stack is normalised."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class Architecture(Section, DerivedSizes):
    """The network but for its weights; the defaults are those of the paper, and of bundles before version 4."""

    vocabulary_size: Size
    """V, entries of the target's vocabulary."""
    d_model: Size
    """Width of the residual stream."""
    num_heads: Size
    """H, of queries."""
    ffn_size: Size
    """Width of the hidden layer of the feed-forward blocks."""
    num_encoder_layers: _NumLayers
    num_decoder_layers: _NumLayers
    norm: Literal["pre", "post"]
    """Normalisation before each sublayer or after each residual sum."""
    activation: Activation = "relu"
    norm_kind: NormKind = "layer"
    """Layer normalisation, or RMS normalisation, which has no bias."""
    norm_epsilon: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    embedding_norm: bool = False
    """Whether what enters each stack is normalised."""
    final_norm: bool | None = None
    """Whether what leaves each stack is; None: with norm `pre`."""
    head_dim: Size | None = None
    """D; None: `d_model` over `num_heads`."""
    num_kv_heads: Size | None = None
    """Heads of keys and values: query head h takes number h modulo this; None: `num_heads`."""
    positions: Positions = "sinusoidal"
    sinusoid_layout: SinusoidLayout = "interleaved"
    position_offset: Annotated[int, Field(ge=0, le=1000)] = 0
    """Position of the first token, where positions are added to embeddings."""
    max_positions: Size | None = None
    """Tokens for which learned tables have a position."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by sqrt(d_model)."""
    tied_embeddings: TiedEmbeddings = "all"
    projection_bias: bool = False
    """Whether the projection to the vocabulary has a bias."""
    source_vocabulary_size: Size | None = None
    """Entries of the source's vocabulary; None: `vocabulary_size`."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is no multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_key_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if (self.max_positions is not None) != (self.positions == "learned"):
            raise ValueError(f"max_positions {self.max_positions} with positions {self.positions}")
        if self.tied_embeddings == "all" and self.num_source_tokens != self.vocabulary_size:
            raise ValueError(f"source_vocabulary_size {self.source_vocabulary_size} with one table for all")
        return self


class Limits(Section):
    """Longest sequences that the graphs have positions for."""

    max_source_tokens: NumTokens
    """EOS counted."""
    max_target_tokens: NumTokens
    """EOS counted, BOS not."""


class GraphTensors(Section):
    """Inputs and outputs of a graph: name to element type, as numpy spells it."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class Tensors(Section):
    """Inputs and outputs of the graphs of one precision."""

    encoder: GraphTensors
    decoder: GraphTensors
    attention: GraphTensors | None = None
    """None if the precision has no such graph."""

    @property
    def float_type(self) -> FloatType:
        """Element type of the KV cache."""
        return "float16" if "float16" in self.encoder.outputs.values() else "float32"


def graph_tensors(num_decoder_layers: int, float_type: FloatType) -> Tensors:
    """Return names and element types of the inputs and outputs of the graphs of a precision.

    Keys, values, pools and the ancestor mask are of `float_type`; scores and attention weights are float32. Shapes,
    with B segments, K rows each, S source and T target tokens, L slots, C candidates, H heads of size D (keys and
    values, and so pools, may have fewer; see `Architecture.num_kv_heads`):

        encoder    source_ids [B, S], source_lengths [B] -> cross_key.i and cross_value.i [B, H, S, D]
        decoder    token_ids [B, K], positions [B, 1], slots [B, K, 2] (segment and slot each row writes to),
                   query_rows [Q] (0 to K - 1, and 0 again for a single row), ancestor_mask [B, 1, Q, L] (added to
                   attention scores), source_lengths [B], num_candidates [1], self_key_pool.i and self_value_pool.i
                   [B, L, H * D], cross_key.i and cross_value.i [B, H, S, D]
                   -> log_probs and candidate_ids [B, K, C]; the pools written to, as <pool>.written.i
        attention  token_ids [B, T] (BOS, then the target without its last token), source_lengths [B], cross_key.i
                   [B, H, S, D] of every decoder layer, cross_value.i [B, H, S, D] of every one but the last
                   -> cross_attention.i [B, H, T, S]; each row adds up to 1
    """
    cross = _layer_floats(("cross_key", "cross_value"), num_decoder_layers, float_type)
    pools = _layer_floats(("self_key_pool", "self_value_pool"), num_decoder_layers, float_type)
    written = _layer_floats(("self_key_pool.written", "self_value_pool.written"), num_decoder_layers, float_type)
    state = dict.fromkeys(("token_ids", "positions", "slots", "query_rows"), "int64")
    sizes = {"ancestor_mask": str(float_type), "source_lengths": "int32", "num_candidates": "int64"}
    return Tensors(
        encoder=GraphTensors(inputs={"source_ids": "int64", "source_lengths": "int32"}, outputs=cross),
        decoder=GraphTensors(
            inputs={**state, **sizes, **pools, **cross},
            outputs={"log_probs": "float32", "candidate_ids": "int64", **written},
        ),
        attention=attention_tensors(num_decoder_layers, float_type),
    )


def attention_tensors(num_decoder_layers: int, float_type: FloatType) -> GraphTensors:
    """Return those of an attention graph; see `graph_tensors`."""
    cross = layer_names(("cross_key", "cross_value"), num_decoder_layers)[:-1]
    weights = layer_names(("cross_attention",), num_decoder_layers)
    return GraphTensors(
        inputs={"token_ids": "int64", "source_lengths": "int32", **dict.fromkeys(cross, float_type)},
        outputs=dict.fromkeys(weights, "float32"),
    )


def layer_names(kinds: Sequence[str], num_layers: int) -> tuple[str, ...]:
    """Return `<kind>.<layer>` for every layer and, within it, every kind."""
    return tuple(f"{kind}.{layer}" for layer in range(num_layers) for kind in kinds)


def _layer_floats(kinds: Sequence[str], num_layers: int, float_type: FloatType) -> dict[str, str]:
    return dict.fromkeys(layer_names(kinds, num_layers), float_type)
