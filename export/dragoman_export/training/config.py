"""Settings of a training run."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict

from dragoman_export.data.augmentation import AugmentationConfig
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
    *("numbers", "names", "symbols", "endings", "quotation_marks", "single_words"),
)

_MAX_WEIGHT, _MAX_TEMPERATURE = 1000, 1000

# expected values in words, check, and fields of `TrainingConfig`; None is valid where the type allows it
_RANGES: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    ("at least 1", lambda value: value >= 1, _AT_LEAST_1),
    (
        "at least 0",
        lambda value: value >= 0,
        ("bleu_sentences", "cooldown_steps", "cooldown_minutes", "clip_norm", "r_drop", "workers"),
    ),
    ("above 0", lambda value: value > 0, ("lr_factor", "muon_lr", "max_minutes")),
    ("at least 0 and below 1", lambda value: 0 <= value < 1, _SHARES),
    ("from 0 to 2147483647", lambda value: 0 <= value < 1 << 31, ("seed",)),
    ("adam or muon", lambda value: value in ("adam", "muon"), ("optimizer",)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """Settings of the training; all fields except `optimizer` may change on resume."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)  # docstrings are the help of flags

    seed: int = 1
    """Seed of weights, dropout, batches and concatenations."""
    batch_tokens: int = 4096
    """Most tokens on either side of a batch, padding included; a longer pair forms its own batch. The rows of a batch
    are distributed over all ranks, so more ranks train the same model faster."""
    accumulation: int = 1
    """Batches whose gradients are summed for one step."""
    max_tokens: int = 256
    """Pairs with more tokens on a side, EOS included, are skipped and reported."""
    pool_size: int = 1 << 17
    """Examples sorted by length together; smaller pools are more random and need more padding."""
    concatenate: float = 0.0
    """Share of examples that join two or three random pairs by a space, from 0 to below 1."""
    subword_sampling: float = 0.0
    """Sample a new segmentation of each text in every epoch, from 0 to below 1; 0: off. Unigram vocabularies: exponent
    of the segmentation's probability, such as 0.2; BPE: share of skipped merges, such as 0.1."""
    placeholders: float = 0.0
    """Share of pairs in which names and numbers that occur on both sides become numbered placeholders such as ⟦1⟧,
    pieces of the vocabulary that the model learns to copy, from 0 to below 1; above 0, code in backticks and addresses
    are replaced in 90 % of the pairs that contain them."""
    placeholder_words: float = 0.0
    """Share of pairs in which one or two words that translate each other, by a lexicon learned from the text, also
    become placeholders, so that the model keeps placeholders in any context, from 0 to below 1."""
    tags: float = 0.0
    """Share of pairs with a pair of tag pieces, such as ⟪1⟫ and ⟪/1⟫, around spans that translate each other, from 0 to
    below 1."""
    capitals: float = 0.0
    """Share of pairs in upper case or, in half of them, with capitalised source words, from 0 to below 1."""
    full_stops: float = 0.0
    """Share of pairs without the full stop, question or exclamation mark that ends both sides, from 0 to below 1."""
    numbers: float = 0.0
    """Share of pairs in which numbers that occur on both sides get other digits, from 0 to below 1."""
    names: float = 0.0
    """Share of pairs in which names that occur on both sides become names of many languages, from 0 to below 1."""
    symbols: float = 0.0
    """Share of pairs with a symbol, emoji, list marker or brackets on both sides, from 0 to below 1."""
    endings: float = 0.0
    """Share of pairs with another end on both sides, such as an ellipsis, `?!` or a smiley, from 0 to below 1."""
    quotation_marks: float = 0.0
    """Share of pairs with typographic quotation marks and apostrophes in the source in place of straight ones, or the
    reverse, from 0 to below 1."""
    single_words: float = 0.0
    """Share of pairs reduced to one word and its translation, by a lexicon learned from the text, from 0 to below 1."""
    label_smoothing: float = 0.1
    """Probability moved from the correct token to the whole vocabulary, from 0 to below 1."""
    r_drop: float = 0.0
    """Weight of the divergence between two passes with different dropout (R-Drop, Liang et al. 2021, arXiv:2106.14448),
    such as 5; doubles the time of a step. 0: one pass."""
    optimizer: Literal["adam", "muon"] = "adam"
    """Optimizer of the projection matrices, fixed for the run; all other weights use Adam."""
    warmup_steps: int = 4000
    """Steps until the highest learning rate."""
    lr_factor: float = 1.0
    """Factor of the paper's rate d_model^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    muon_lr: float = 0.002
    """Highest rate of Muon, with the same schedule."""
    cooldown_steps: int = 0
    """Last steps before `max_steps`, or steps after the end of `patience`, in which the rate also falls linearly to 0.
    The value of a preset is scaled with `max_steps`."""
    cooldown_minutes: float = 0.0
    """Last minutes before `max_minutes` in which the rate also falls linearly to 0, whatever the number of steps."""
    clip_norm: float = 1.0
    """Largest norm of the gradient of the mean loss; larger ones are scaled down. 0: no clipping."""
    max_steps: int | None = None
    """Stop after this many steps over all invocations."""
    max_epochs: int | None = None
    """Stop after this many epochs over all invocations."""
    max_minutes: float | None = None
    """Stop this invocation after this many minutes."""
    patience: int | None = None
    """Stop after this many consecutive evaluations without a lower dev loss, and the cooldown after them."""
    eval_interval: int = 500
    """Steps between evaluations on the dev text."""
    bleu_sentences: int = 300
    """Dev sentences translated for BLEU, spread evenly over the dev text; 0: no BLEU."""
    checkpoint_interval: int = 500
    """Steps between checkpoints."""
    keep_checkpoints: int = 10
    """Newest checkpoints kept, in addition to the best."""
    log_interval: int = 50
    """Steps between records of the log."""
    bf16: bool = True
    """Compute products in bfloat16 (autocast); weights stay float32."""
    compile: bool = False
    """Compile the network with torch.compile; slower for the small preset on a CPU."""
    cuda_graphs: bool = True
    """On a GPU, pad batches to few shapes and replay their passes as CUDA graphs; not with `compile`."""
    threads: int | None = None
    """Threads of PyTorch; none: PyTorch's default."""
    workers: int = 1
    """Processes that augment and encode the text of the next epoch during an epoch; 0, or with
    `subword_sampling`: a thread of this process."""

    def __post_init__(self) -> None:
        for expected, is_valid, names in _RANGES:
            for name in names:
                value = getattr(self, name)
                if value is not None and not is_valid(value):
                    raise SettingError(name, value, expected)
        if self.cooldown_steps and self.max_steps is None and self.patience is None:
            raise SettingError("cooldown_steps", self.cooldown_steps, "0 without `max_steps` or `patience`")
        if self.max_steps is not None and self.cooldown_steps > self.max_steps:
            raise SettingError("cooldown_steps", self.cooldown_steps, f"at most max_steps={self.max_steps}")
        if self.cooldown_minutes > (self.max_minutes or 0):
            raise SettingError("cooldown_minutes", self.cooldown_minutes, f"at most max_minutes={self.max_minutes}")

    @property
    def is_drawn(self) -> bool:
        """True if text or segmentation differ between epochs."""
        return self.subword_sampling > 0 or self.augmentation.is_on

    @property
    def augmentation(self) -> AugmentationConfig:
        """Augmentation of pairs."""
        names = AugmentationConfig.__slots__
        return AugmentationConfig(**{name: getattr(self, name) for name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return dataclasses.asdict(self)


# training settings of the model presets of the same names; each sets a limit
TRAINING_PRESETS: Mapping[str, TrainingConfig] = {
    # As in the paper, which averages the last checkpoints instead of a cooldown (sections 5.1 to 5.3 and 6.1).
    "base": TrainingConfig(batch_tokens=25000, max_steps=100_000, checkpoint_interval=1500, eval_interval=1500),
    "big": TrainingConfig(
        batch_tokens=25000, max_steps=300_000, checkpoint_interval=1500, eval_interval=1500, keep_checkpoints=20
    ),
    # Settings of the bundled model: dev loss 2.97 after 920,000 target tokens, compared with 3.94 for Adam (warm-up
    # 1000, factor 1).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Text of a run."""

    train: tuple[ParallelFiles, ...]
    dev: tuple[ParallelFiles, ...]
    max_malformed: float = 0.001  # largest accepted share of malformed lines, from 0 to 1
    weights: tuple[float, ...] = ()  # draws of each pair per epoch, for each file of `train`; empty: 1
    temperature: float | None = None  # see `temperature_weights`; None: the weights

    def __post_init__(self) -> None:
        for name in ("train", "dev"):
            if not getattr(self, name):
                raise SettingError(f"--{name}", None, "one or more files")
        if not 0 <= self.max_malformed <= 1:
            raise SettingError("max_malformed", self.max_malformed, "from 0 to 1")
        if self.weights and self.temperature is not None:
            raise SettingError("--temperature", self.temperature, "no value with --weights")
        if self.weights and len(self.weights) != len(self.train):
            values = " ".join(f"{weight:g}" for weight in self.weights)
            raise SettingError("--weights", values, f"{len(self.train)} numbers, one per training file")
        for weight in self.weights:
            if not 0 < weight <= _MAX_WEIGHT:
                raise SettingError("--weights", weight, f"above 0 and at most {_MAX_WEIGHT}")
        if self.temperature is not None and not 1 <= self.temperature <= _MAX_TEMPERATURE:
            raise SettingError("--temperature", self.temperature, f"from 1 to {_MAX_TEMPERATURE}")
        self._check_languages()

    def _check_languages(self) -> None:
        named = self.language_pairs
        tags = {tag for pair in named for tag in pair}
        sources, targets = ({pair[side] for pair in named} for side in (0, 1))
        if len({tag.lower() for tag in tags}) < len(tags):
            raise SettingError("--train", " ".join(sorted(tags)), "one spelling of each language")
        for name in ("train", "dev"):
            for file in getattr(self, name):
                if (file.languages is None) != (not named):
                    raise SettingError(f"--{name}", str(file.source), "languages, as FILE@en,de, of all files or none")
                if file.languages and not (file.languages[0] in sources and file.languages[1] in targets):
                    raise SettingError(f"--{name}", str(file.source), "languages of the training text")

    @property
    def language_pairs(self) -> tuple[tuple[str, str], ...]:
        """Languages of source and target in the training text, in order; empty if they are not named."""
        return tuple(dict.fromkeys(file.languages for file in self.train if file.languages is not None))

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values; files as lists of one TSV path or two paths."""
        files = {
            name: [[str(path) for path in (pair.source, pair.target) if path] for pair in pairs]
            for name, pairs in (("train", self.train), ("dev", self.dev))
        }
        mixing = {"weights": list(self.weights), "temperature": self.temperature}
        return {**files, "max_malformed": self.max_malformed, **mixing}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "DataConfig":
        """Inverse of `to_dict`."""
        train, dev = (
            tuple(ParallelFiles(source=Path(paths[0]), target=Path(paths[1]) if paths[1:] else None) for paths in files)
            for files in (fields["train"], fields["dev"])
        )
        return cls(
            train=train,
            dev=dev,
            max_malformed=fields["max_malformed"],
            weights=tuple(fields.get("weights", ())),  # runs of earlier versions have none
            temperature=fields.get("temperature"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """Content of config.json."""

    model: ModelConfig
    training: TrainingConfig
    data: DataConfig

    def __post_init__(self) -> None:
        most = self.model.max_positions
        if most is not None and self.training.max_tokens > most:
            raise SettingError("max_tokens", self.training.max_tokens, f"at most max_positions={most}")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {"model": self.model.to_dict(), "training": self.training.to_dict(), "data": self.data.to_dict()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "RunConfig":
        """Inverse of `to_dict`; KeyError or TypeError on missing or unknown fields."""
        return cls(
            model=ModelConfig(**fields["model"]),
            training=TrainingConfig(**fields["training"]),
            data=DataConfig.from_dict(fields["data"]),
        )
