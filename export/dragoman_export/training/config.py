"""Every setting of a training run: how it learns, from which text, and which model."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dragoman_export.data.augmentation import VariationConfig
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.errors import SettingError
from dragoman_export.model.config import ModelConfig

_AT_LEAST_1 = (
    *("batch_tokens", "accumulation", "max_tokens", "pool_size", "warmup_steps", "max_steps", "max_epochs", "patience"),
    *("eval_interval", "checkpoint_interval", "keep_checkpoints", "log_interval", "threads"),
)

_SHARES = (
    *("concatenate", "label_smoothing", "subword_sampling"),
    *("placeholders", "placeholder_words", "tags", "capitals", "full_stops"),
)

_RANGES: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("at least 1", lambda value: value >= 1, _AT_LEAST_1),
    ("at least 0", lambda value: value >= 0, ("bleu_sentences", "cooldown_steps", "clip_norm", "r_drop")),
    ("above 0", lambda value: value > 0, ("lr_factor", "muon_lr", "max_minutes")),
    ("at least 0 and below 1", lambda value: 0 <= value < 1, _SHARES),
    ("from 0 to 2147483647", lambda value: 0 <= value < 1 << 31, ("seed",)),
    ("adam or muon", lambda value: value in ("adam", "muon"), ("optimizer",)),
)
"""What holds for the fields of `TrainingConfig`, in words and in code; where a field may be None, None is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """How a model is trained; any field but `optimizer` may be given anew when a run is resumed."""

    seed: int = 1
    """Number that decides weights, dropout, batches and concatenations."""

    batch_tokens: int = 4096
    """Most tokens on either side of a batch, padding counted; a longer pair is a batch of its own. The rows of a batch
    are shared out among all ranks, so that more ranks learn the same, faster."""

    accumulation: int = 1
    """Batches whose gradients are summed for one step."""

    max_tokens: int = 256
    """Pairs with more tokens than this on a side, EOS counted, are left out and reported."""

    pool_size: int = 1 << 17
    """Examples that are sorted by length together; smaller is more random and pads more."""

    concatenate: float = 0.0
    """Share of an epoch's examples that are two or three random pairs joined by a space, from 0 to below 1."""

    subword_sampling: float = 0.0
    """Draw the pieces of each text at random in every epoch, from 0 to below 1; 0: no. With a unigram vocabulary it is
    the exponent of a segmentation's probability, such as 0.2; with BPE the share of merges left out, such as 0.1."""

    placeholders: float = 0.0
    """Share of the pairs in which names and numbers that both sides have are replaced by numbered placeholders such as
    ⟦1⟧, pieces of the vocabulary that the model learns to copy, from 0 to below 1; above 0, code in backticks and
    addresses are replaced in nine of ten pairs that have them."""

    placeholder_words: float = 0.0
    """Share of the pairs in which one or two words that translate each other, by a lexicon learned from the text, are
    replaced by placeholders too, so that the model keeps one wherever a word may stand, from 0 to below 1."""

    tags: float = 0.0
    """Share of the pairs with a pair of tag pieces, such as ⟪1⟫ and ⟪/1⟫, around spans that translate each other, from
    0 to below 1."""

    capitals: float = 0.0
    """Share of the pairs in capitals, or, half of them, with capitalised words in the source, from 0 to below 1."""

    full_stops: float = 0.0
    """Share of the pairs that lose the full stop, question or exclamation mark that ends both sides, from 0 to below
    1."""

    label_smoothing: float = 0.1
    """Probability taken from the right token and spread over the vocabulary, from 0 to below 1."""

    r_drop: float = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop, Liang et al. 2021, arXiv:2106.14448),
    such as 5; a step then takes twice the time. 0: one pass."""

    optimizer: Literal["adam", "muon"] = "adam"
    """Optimizer of the projection matrices, fixed when a run begins; everything else is always Adam's."""

    warmup_steps: int = 4000
    """Steps until the learning rate is highest."""

    lr_factor: float = 1.0
    """Multiplies the paper's rate d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""

    muon_lr: float = 0.002
    """Muon's highest rate; over the steps it changes as the paper's does."""

    cooldown_steps: int = 0
    """Last steps before `max_steps`, or steps after the end of `patience`, in which the rate also falls linearly to 0.
    A preset's shrinks with `max_steps`."""

    clip_norm: float = 1.0
    """Gradients of the mean loss with a larger norm are scaled down to it; 0: no clipping."""

    max_steps: int | None = None
    """Stop after so many steps in all invocations together."""

    max_epochs: int | None = None
    """Stop after so many epochs in all invocations together."""

    max_minutes: float | None = None
    """Stop this invocation after so many minutes."""

    patience: int | None = None
    """Stop after so many evaluations in a row without a better dev loss, and the cooldown that follows them."""

    eval_interval: int = 500
    """Steps between evaluations on the dev text."""

    bleu_sentences: int = 300
    """Dev sentences translated for BLEU, spread evenly over the dev text; 0: no BLEU."""

    checkpoint_interval: int = 500
    """Steps between checkpoints."""

    keep_checkpoints: int = 10
    """Newest checkpoints kept; the best is kept besides."""

    log_interval: int = 50
    """Steps between lines of the log."""

    bf16: bool = True
    """Compute products in bfloat16 (autocast); weights stay float32."""

    compile: bool = False
    """Compile the network with torch.compile, which on a CPU makes the small preset slower."""

    threads: int | None = None
    """Threads of PyTorch; none: its own choice."""

    def __post_init__(self) -> None:
        """Refuse values that make no run.

        Raises:
            SettingError: naming the first field that is out of range.
        """
        for expected, is_valid, names in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not is_valid(value):
                    raise SettingError(name, value, expected)
        if self.cooldown_steps and self.max_steps is None and self.patience is None:
            raise SettingError("cooldown_steps", self.cooldown_steps, "0 without max_steps or patience")
        if self.max_steps is not None and self.cooldown_steps > self.max_steps:
            raise SettingError("cooldown_steps", self.cooldown_steps, f"at most max_steps={self.max_steps}")

    @property
    def is_drawn(self) -> bool:
        """Whether each epoch has other text or pieces."""
        return self.subword_sampling > 0 or self.variation.is_on

    @property
    def variation(self) -> VariationConfig:
        """How pairs are varied in every epoch."""
        names = VariationConfig.__slots__
        return VariationConfig(**{name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "TrainingConfig":
        """Return the configuration that `to_dict` gave; TypeError on unknown fields."""
        return cls(**fields)


TRAINING_PRESETS: Mapping[str, TrainingConfig] = {
    # As in the paper, which averages the last checkpoints instead of a cooldown (sections 5.1 to 5.3 and 6.1).
    "base": TrainingConfig(batch_tokens=25000, max_steps=100_000, checkpoint_interval=1500, eval_interval=1500),
    "big": TrainingConfig(
        batch_tokens=25000, max_steps=300_000, checkpoint_interval=1500, eval_interval=1500, keep_checkpoints=20
    ),
    # What the shipped model was learned with: after 920,000 target tokens the dev loss was 2.97, where Adam (warm-up
    # 1000, factor 1) stood at 3.94.
    "small": TrainingConfig(
        optimizer="muon",
        muon_lr=0.003,
        lr_factor=0.7,
        warmup_steps=500,
        batch_tokens=3072,
        max_steps=30_000,
        cooldown_steps=3_000,
        patience=10,
    ),
    "tiny": TrainingConfig(
        batch_tokens=1024,
        warmup_steps=100,
        max_steps=2000,
        patience=10,
        eval_interval=50,
        checkpoint_interval=50,
        bleu_sentences=20,
        log_interval=10,
    ),
}
"""Settings that go with the model presets of the same names; each ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which text a run uses."""

    train: tuple[ParallelFiles, ...]
    dev: tuple[ParallelFiles, ...]
    max_malformed: float = 0.001
    """Largest accepted share of malformed lines, from 0 to 1."""

    def __post_init__(self) -> None:
        """Refuse missing text.

        Raises:
            SettingError: naming the first field that is out of range.
        """
        for name in ("train", "dev"):
            if not getattr(self, name):
                raise SettingError(f"--{name}", None, "one or more files")
        if not 0 <= self.max_malformed <= 1:
            raise SettingError("max_malformed", self.max_malformed, "from 0 to 1")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values; files as lists of one TSV path or two paths."""
        return {"train": _to_paths(self.train), "dev": _to_paths(self.dev), "max_malformed": self.max_malformed}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "DataConfig":
        """Return the configuration that `to_dict` gave."""
        files = {name: _from_paths(fields[name]) for name in ("train", "dev")}
        return cls(**files, max_malformed=fields["max_malformed"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """All that config.json holds."""

    model: ModelConfig
    training: TrainingConfig
    data: DataConfig

    def __post_init__(self) -> None:
        """Refuse text that is longer than learned positions.

        Raises:
            SettingError: naming the fields.
        """
        most = self.model.max_positions
        if most is not None and self.training.max_tokens > most:
            raise SettingError("max_tokens", self.training.max_tokens, f"at most max_positions={most}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values."""
        return {"model": self.model.to_dict(), "training": self.training.to_dict(), "data": self.data.to_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "RunConfig":
        """Return the configuration that `to_dict` gave; KeyError or TypeError on missing or unknown fields."""
        return cls(
            model=ModelConfig.from_dict(fields["model"]),
            training=TrainingConfig.from_dict(fields["training"]),
            data=DataConfig.from_dict(fields["data"]),
        )


def _to_paths(files: Sequence[ParallelFiles]) -> list[list[str]]:
    return [[str(path) for path in (pair.source, pair.target) if path is not None] for pair in files]


def _from_paths(paths: Sequence[Sequence[str]]) -> tuple[ParallelFiles, ...]:
    return tuple(
        ParallelFiles(source=Path(source), target=Path(target[0]) if target else None) for source, *target in paths
    )
