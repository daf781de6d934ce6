"""Architecture of a network, and the resulting inputs and outputs of its graphs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FloatType = Literal["float32", "float16"]
"""Element type of states, keys, values and the ancestor mask. Scores are always float32."""

Activation = Literal["relu", "gelu", "swish", "swiglu"]
"""Activation of the feed-forward blocks; `gelu` is the exact form with the error function."""

NormKind = Literal["layer", "rms"]

DecoderType = Literal["self_attention", "ssru"]
"""First sublayer of decoder layers: self-attention, or a simpler simple recurrent unit (Kim et al. 2019,
https://aclanthology.org/D19-5632), whose state replaces keys and values of the target."""

Positions = Literal["sinusoidal", "learned", "rotary", "none"]  # kind of position encoding

SinusoidLayout = Literal["interleaved", "halves", "fairseq"]
"""Order and wavelengths of sinusoids, see `dragoman_export.model.positions.sinusoidal_positions`."""

TiedEmbeddings = Literal["all", "decoder", "none"]
"""Shared tables: source, target and projection (`all`), target and projection (`decoder`), or none."""

PROJECTION_BIAS: Final = "projection.bias"  # name of the bias of the logits, in graphs and checkpoints

Size = Annotated[int, Field(ge=1, le=1 << 24)]
_NumLayers = Annotated[int, Field(ge=1, le=256)]
NumTokens = Annotated[int, Field(ge=1, le=1 << 16)]


class Section(BaseModel):
    """Base class of the parts of a manifest; unknown fields and wrong types are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DerivedSizes:
    """Sizes derived from the fields of `Architecture` and of `dragoman_export.model.config.ModelConfig`."""

    __slots__ = ()

    if TYPE_CHECKING:  # at run time, pydantic would add these as fields
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
        """D, size of one head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def num_key_heads(self) -> int:
        """Number of key and value heads in the KV cache."""
        return self.num_kv_heads or self.num_heads

    @property
    def key_size(self) -> int:
        """Size of the keys of a token over all heads; the values have the same size."""
        return self.num_key_heads * self.head_size

    @property
    def num_source_tokens(self) -> int:
        """Size of the source vocabulary."""
        return self.source_vocabulary_size or self.vocabulary_size

    @property
    def has_final_norm(self) -> bool:
        """True if the output of each stack is normalised."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class Architecture(Section, DerivedSizes):
    """Network architecture. The defaults match Vaswani et al. (2017) and bundles before version 4."""

    vocabulary_size: Size  # V, size of the target vocabulary
    d_model: Size  # width of the residual stream
    num_heads: Size  # H, number of query heads
    ffn_size: Size  # size of the hidden layer of the feed-forward blocks
    num_encoder_layers: _NumLayers
    num_decoder_layers: _NumLayers
    decoder_type: DecoderType = "self_attention"
    norm: Literal["pre", "post"]  # `pre`: normalisation before each sublayer; `post`: after each residual sum
    activation: Activation = "relu"
    norm_kind: NormKind = "layer"  # `layer`: layer normalisation; `rms`: RMS normalisation, without bias
    norm_epsilon: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    embedding_norm: bool = False  # True: the input of each stack is normalised
    final_norm: bool | None = None  # True: the output of each stack is normalised; None: only with norm `pre`
    head_dim: Size | None = None  # D; None: `d_model / num_heads`
    num_kv_heads: Size | None = None
    """Number of key and value heads: query head h uses head h modulo this number; None: `num_heads`."""
    positions: Positions = "sinusoidal"
    sinusoid_layout: SinusoidLayout = "interleaved"
    position_offset: Annotated[int, Field(ge=0, le=1000)] = 0
    """Position of the first token, for encodings that are added to embeddings."""
    max_positions: Size | None = None  # number of learned positions; None for other position encodings
    scale_embeddings: bool = True  # True: embeddings are multiplied by sqrt(d_model)
    tied_embeddings: TiedEmbeddings = "all"
    projection_bias: bool = False  # True: the projection to the vocabulary has a bias
    source_vocabulary_size: Size | None = None  # size of the source vocabulary; None: `vocabulary_size`

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is not a multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_key_heads:
            raise ValueError(f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}")
        if (self.max_positions is not None) != (self.positions == "learned"):
            raise ValueError(f"max_positions {self.max_positions} with positions {self.positions}")
        if self.tied_embeddings == "all" and self.num_source_tokens != self.vocabulary_size:
            raise ValueError(f"source_vocabulary_size {self.source_vocabulary_size} with one table for all")
        return self


class Limits(Section):
    """Maximum sequence lengths of the graphs."""

    max_source_tokens: NumTokens  # including EOS
    max_target_tokens: NumTokens  # including EOS, excluding BOS


class GraphTensors(Section):
    """Inputs and outputs of a graph: name to element type, as a NumPy type name."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class Tensors(Section):
    """Inputs and outputs of the graphs of one precision."""

    encoder: GraphTensors
    decoder: GraphTensors
    attention: GraphTensors | None = None  # None if the precision has no attention graph

    @property
    def float_type(self) -> FloatType:
        """Element type of the KV cache."""
        return "float16" if "float16" in self.encoder.outputs.values() else "float32"


def graph_tensors(
    num_decoder_layers: int, float_type: FloatType, decoder_type: DecoderType = "self_attention"
) -> Tensors:
    """Return the names and element types of the inputs and outputs of the graphs of a precision.

    Keys, values, pools and the ancestor mask have type `float_type`; scores and attention weights are float32. Shapes,
    with B segments of K rows, S source and T target tokens, L slots, C candidates, H heads of size D (keys, values and
    pools may have fewer heads, see `Architecture.num_kv_heads`):

        encoder    source_ids [B, S], source_lengths [B] -> cross_key.i and cross_value.i [B, H, S, D]
        decoder    token_ids [B, K], positions [B, 1], slots [B, K, 2] (segment and slot that each row writes to),
                   query_rows [Q] (0 to K - 1, and 0 again for a single row), ancestor_mask [B, 1, Q, L] (added to
                   attention scores), source_lengths [B], num_candidates [1], self_key_pool.i and self_value_pool.i
                   [B, L, H * D], cross_key.i and cross_value.i [B, H, S, D]
                   -> log_probs and candidate_ids [B, K, C]; the updated pools, as <pool>.written.i. With SSRU, there is
                   one pool per layer, state_pool.i [B, L, d_model], and parents [B, K, 2] (segment and slot whose state
                   each row continues) in place of ancestor_mask
        attention  token_ids [B, T] (BOS, then the target without its last token), source_lengths [B], cross_key.i
                   [B, H, S, D] of every decoder layer, cross_value.i [B, H, S, D] of every layer except the last
                   -> cross_attention.i [B, H, T, S]; the sum of each row is 1
    """
    cross = _layer_floats(("cross_key", "cross_value"), num_decoder_layers, float_type)
    kinds = pool_kinds(decoder_type)
    pools = _layer_floats(kinds, num_decoder_layers, float_type)
    written = _layer_floats([f"{kind}.written" for kind in kinds], num_decoder_layers, float_type)
    state = dict.fromkeys(("token_ids", "positions", "slots", "query_rows"), "int64")
    ancestors = {"parents": "int64"} if decoder_type == "ssru" else {"ancestor_mask": str(float_type)}
    sizes = {**ancestors, "source_lengths": "int32", "num_candidates": "int64"}
    return Tensors(
        encoder=GraphTensors(inputs={"source_ids": "int64", "source_lengths": "int32"}, outputs=cross),
        decoder=GraphTensors(
            inputs={**state, **sizes, **pools, **cross},
            outputs={"log_probs": "float32", "candidate_ids": "int64", **written},
        ),
        attention=attention_tensors(num_decoder_layers, float_type),
    )


def attention_tensors(num_decoder_layers: int, float_type: FloatType) -> GraphTensors:
    """Return the inputs and outputs of an attention graph; see `graph_tensors`."""
    cross = layer_names(("cross_key", "cross_value"), num_decoder_layers)[:-1]
    weights = layer_names(("cross_attention",), num_decoder_layers)
    return GraphTensors(
        inputs={"token_ids": "int64", "source_lengths": "int32", **dict.fromkeys(cross, float_type)},
        outputs=dict.fromkeys(weights, "float32"),
    )


def pool_kinds(decoder_type: DecoderType) -> tuple[str, ...]:
    """Return the names, without the layer, of the pools that decoder steps update."""
    return ("state_pool",) if decoder_type == "ssru" else ("self_key_pool", "self_value_pool")


def layer_names(kinds: Sequence[str], num_layers: int) -> tuple[str, ...]:
    """Return `<kind>.<layer>` for every layer and kind, sorted by layer."""
    return tuple(f"{kind}.{layer}" for layer in range(num_layers) for kind in kinds)


def _layer_floats(kinds: Sequence[str], num_layers: int, float_type: FloatType) -> dict[str, str]:
    return dict.fromkeys(layer_names(kinds, num_layers), float_type)
