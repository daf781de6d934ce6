"""Configuration of a Transformer, and the named presets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import ConfigDict

from dragoman_export.errors import SettingError
from dragoman_service.bundle.architecture import (
    Activation,
    DecoderType,
    DerivedSizes,
    NormKind,
    Positions,
    SinusoidLayout,
    TiedEmbeddings,
)

_SIZES = ("vocabulary_size", "d_model", "num_heads", "ffn_size", "num_encoder_layers", "num_decoder_layers")
_OPTIONAL_SIZES = ("head_dim", "key_dim", "num_kv_heads", "max_positions", "source_vocabulary_size")

# fields used in training only: they may change on resume, and bundles do not contain them
DROPOUTS = ("dropout", "attention_dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(DerivedSizes):
    """Hyper-parameters of the network and its dropouts.

    Defaults are those of the paper. `dragoman_service.bundle.architecture.Architecture` is the same configuration in a
    bundle.
    """

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # docstrings are the help of flags

    vocabulary_size: int
    """V, tokens of the target vocabulary; also of the source unless `source_vocabulary_size` is set."""
    d_model: int
    """Width of the residual stream."""
    num_heads: int
    """H, attention heads; divides `d_model` unless `head_dim` is set."""
    ffn_size: int
    """Width of the hidden layer of the feed-forward blocks."""
    num_encoder_layers: int
    """Encoder layers."""
    num_decoder_layers: int
    """Decoder layers."""
    decoder_type: DecoderType = "self_attention"
    """First sublayer of decoder layers: self-attention as in the paper, or a simpler simple recurrent unit (Kim et al.
    2019, https://aclanthology.org/D19-5632), which takes the same time for each token of a target."""
    dropout: float = 0.1
    """Dropout of sublayer outputs and embedded inputs, from 0 to below 1."""
    attention_dropout: float = 0.0
    """Dropout of attention weights, from 0 to below 1; 0 in the paper."""
    norm: Literal["pre", "post"] = "post"
    """Normalise after each residual sum (post, as in the paper) or before each sublayer (pre)."""
    activation: Activation = "relu"
    """Activation of the feed-forward blocks: ReLU as in the paper, GELU (error function), swish (x times its sigmoid),
    or SwiGLU (Shazeer 2020, arXiv:2002.05202), where the swish of a third projection gates the inner one."""
    norm_kind: NormKind = "layer"
    """Layer normalisation, or RMS normalisation without mean and bias (Zhang and Sennrich 2019, arXiv:1910.07467)."""
    norm_epsilon: float = 1e-5
    """Added to the variance by every normalisation."""
    embedding_norm: bool = False
    """Normalise the input of each stack, embeddings plus positions, as BART does."""
    final_norm: bool | None = None
    """Normalise the output of each stack. None: only with pre-norm."""
    head_dim: int | None = None
    """D, width of one head. None: `d_model` / `num_heads`."""
    key_dim: int | None = None
    """Width of one head of keys and queries, for experiments: bundles support the width of the values only. None: that
    width, D."""
    num_kv_heads: int | None = None
    """Heads of keys and values, a divisor of `num_heads`: query head h uses head h modulo this number (grouped-query
    attention, Ainslie et al. 2023, arXiv:2305.13245; 1: multi-query attention). None: `num_heads`."""
    positions: Positions = "sinusoidal"
    """Position encoding: sinusoids as in the paper or a learned table, added to the embeddings; rotary (Su et al. 2021,
    arXiv:2104.09864); or none."""
    sinusoid_layout: SinusoidLayout = "interleaved"
    """Order of sinusoids: sine and cosine in turn as in the paper; all sines before all cosines (halves, Marian); or
    the same order with the wavelengths of fairseq, where the longest is exactly 10000 times the shortest."""
    position_offset: int = 0
    """Position of the first token, for sinusoids and learned tables: 2 for BART, M2M-100 and NLLB."""
    max_positions: int | None = None
    """Tokens with a learned position; the tables have `position_offset` more rows."""
    scale_embeddings: bool = True
    """Multiply embeddings by the square root of `d_model`."""
    tied_embeddings: TiedEmbeddings = "all"
    """Shared tables: source, target and output (all), target and output (decoder), or none."""
    projection_bias: bool = False
    """Add a bias to the logits."""
    source_vocabulary_size: int | None = None
    """Tokens of a separate source vocabulary, whose table cannot be shared. None: source and target share one."""
    pad_id: int = 0
    """Token id of padding."""
    bos_id: int = 1
    """Token id of the beginning of a sentence."""
    eos_id: int = 2
    """Token id at the end of every source and target."""
    unk_id: int = 3
    """Token id of unknown text."""
    decoder_start_id: int | None = None
    """Token id of the first decoder input. None: `bos_id`."""

    def __post_init__(self) -> None:
        for name in (*_SIZES, *_OPTIONAL_SIZES):
            size = getattr(self, name)
            if not (size is None and name in _OPTIONAL_SIZES) and size < 1:
                raise SettingError(name, size, "at least 1")
        for name, hint in get_type_hints(ModelConfig).items():
            choices = get_args(hint) if get_origin(hint) is Literal else ()
            if choices and getattr(self, name) not in choices:
                raise SettingError(name, getattr(self, name), f"{', '.join(choices[:-1])} or {choices[-1]}")
        for name, value, holds, expected in self._rules():
            if not holds:
                raise SettingError(name, value, expected)

    def _rules(self) -> tuple[tuple[str, object, bool, str], ...]:
        # field, value, whether it is consistent with the other fields, and the expected value
        heads, kv_heads, offset = self.num_heads, self.num_key_heads, self.position_offset
        is_divisible = self.d_model % 2 == 0 and (self.head_dim is not None or self.d_model % heads == 0)
        is_rotary, is_learned = self.positions == "rotary", self.positions == "learned"
        is_added = is_learned or self.positions == "sinusoidal"
        own_size = self.source_vocabulary_size
        key_name = "key_dim" if self.key_dim else "head_dim"
        has_own_table = own_size in (None, self.vocabulary_size) or self.tied_embeddings != "all"
        return (
            ("d_model", self.d_model, is_divisible, f"an even multiple of num_heads={heads}"),
            ("num_kv_heads", kv_heads, heads % kv_heads == 0, f"a divisor of num_heads={heads}"),
            (key_name, self.key_head_size, not is_rotary or self.key_head_size % 2 == 0, "even with rotary positions"),
            *((name, getattr(self, name), 0 <= getattr(self, name) < 1, "at least 0 and below 1") for name in DROPOUTS),
            ("norm_epsilon", self.norm_epsilon, 0 < self.norm_epsilon < 1, "above 0 and below 1"),
            ("position_offset", offset, 0 <= offset <= (1000 if is_added else 0), "0 to 1000, or 0 if none are added"),
            ("max_positions", self.max_positions, (self.max_positions is not None) == is_learned, "learned positions"),
            ("source_vocabulary_size", own_size, has_own_table, "that of the target, or a table of its own"),
        )

    @property
    def key_head_size(self) -> int:
        """Size of one head of keys and queries."""
        return self.key_dim or self.head_size

    @property
    def start_id(self) -> int:
        """Token id of the first decoder input."""
        return self.bos_id if self.decoder_start_id is None else self.decoder_start_id

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)


# `base` and `big` as in table 3 of the paper; `small` trains and serves on CPU; `tiny` is for tests
PRESETS: Mapping[str, ModelConfig] = {
    "base": ModelConfig(
        vocabulary_size=37000, d_model=512, num_heads=8, ffn_size=2048, num_encoder_layers=6, num_decoder_layers=6
    ),
    "big": ModelConfig(
        vocabulary_size=37000,
        d_model=1024,
        num_heads=16,
        ffn_size=4096,
        num_encoder_layers=6,
        num_decoder_layers=6,
        dropout=0.3,
    ),
    "small": ModelConfig(
        vocabulary_size=8000,
        d_model=256,
        num_heads=4,
        ffn_size=1024,
        num_encoder_layers=6,
        num_decoder_layers=2,
        norm="pre",
    ),
    "tiny": ModelConfig(
        vocabulary_size=1000,
        d_model=64,
        num_heads=2,
        ffn_size=128,
        num_encoder_layers=2,
        num_decoder_layers=1,
        norm="pre",
    ),
}
