"""Networks with random weights that compute in milliseconds."""

import torch
from torch import Tensor

from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer

VOCABULARY_SIZE = 40


def tiny_config(
    *, norm: str = "pre", dropout: float = 0.1, vocabulary_size: int = VOCABULARY_SIZE, d_model: int = 16
) -> ModelConfig:
    return ModelConfig(
        vocabulary_size=vocabulary_size,
        d_model=d_model,
        num_heads=2,
        ffn_size=2 * d_model,
        num_encoder_layers=2,
        num_decoder_layers=2,
        dropout=dropout,
        norm=norm,  # type: ignore[arg-type]
    )


def tiny_model(*, norm: str = "pre", seed: int = 0) -> Transformer:
    """A network in evaluation mode."""
    torch.manual_seed(seed)
    return Transformer(tiny_config(norm=norm)).eval()


def random_ids(rows: int, length: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY_SIZE, (rows, length), generator=generator)


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
