"""The size and shape of a Transformer, and the named presets."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from export.errors import SettingError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Hyper-parameters that fix every tensor shape of a model, and its dropout."""

    vocabulary_size: int
    """V, tokens of the vocabulary shared by source and target."""

    d_model: int
    """Width of the residual stream, numbers a token."""

    num_heads: int
    """H, attention heads; divides `d_model`."""

    ffn_size: int
    """Width of the hidden layer of the feed-forward blocks, numbers a token."""

    num_encoder_layers: int
    """Layers of the encoder."""

    num_decoder_layers: int
    """Layers of the decoder."""

    dropout: float = 0.1
    """Probability of dropping an element of a sublayer's output or of the embedded input, from 0 to below 1."""

    norm: Literal["pre", "post"] = "post"
    """Layer normalisation after each residual sum (post, as in the paper) or before each sublayer (pre)."""

    pad_id: int = 0
    """Token id of padding."""

    bos_id: int = 1
    """Token id that decoding begins with."""

    eos_id: int = 2
    """Token id that ends every source and target."""

    def __post_init__(self) -> None:
        """Refuse sizes that make no network.

        Raises:
            SettingError: naming the first field that is out of range.
        """
        for name in ("vocabulary_size", "d_model", "num_heads", "ffn_size", "num_encoder_layers", "num_decoder_layers"):
            if getattr(self, name) < 1:
                raise SettingError(name, getattr(self, name), "at least 1")
        if self.d_model % 2 or self.d_model % self.num_heads:
            raise SettingError("d_model", self.d_model, f"an even multiple of num_heads={self.num_heads}")
        if not 0 <= self.dropout < 1:
            raise SettingError("dropout", self.dropout, "at least 0 and below 1")
        if self.norm not in ("pre", "post"):
            raise SettingError("norm", self.norm, "pre or post")

    @property
    def head_size(self) -> int:
        """D, the width of one head."""
        return self.d_model // self.num_heads

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "ModelConfig":
        """Return the configuration that `to_dict` gave; TypeError on unknown or missing fields."""
        return cls(**fields)


PRESETS: Mapping[str, ModelConfig] = {
    "base": ModelConfig(
        vocabulary_size=37000,
        d_model=512,
        num_heads=8,
        ffn_size=2048,
        num_encoder_layers=6,
        num_decoder_layers=6,
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
"""`base` and `big` as in table 3 of the paper; `small` learns and serves on CPU; `tiny` is for tests."""
