"""A trainer on an invented language pair with steps of a few milliseconds."""

from pathlib import Path
from typing import Any

import torch

from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.data.reader import Pair
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.config import TrainingConfig
from dragoman_export.training.evaluation import DevSet
from dragoman_export.training.loop import Trainer
from dragoman_export.training.ranks import Ranks
from dragoman_export.training.run_folder import RunFolder
from dragoman_export.training.text import TrainingText
from tests.unit.export.data.tiny_text import make_pairs, tiny_vocabulary
from tests.unit.export.model.tiny_models import tiny_config


def encode(pairs: list[tuple[str, str]]) -> EncodedCorpus:
    sources, targets = (tiny_vocabulary().encode([pair[side] for pair in pairs]) for side in (0, 1))
    return EncodedCorpus(sources=TokenLists(sources), targets=TokenLists(targets))


def make_text(train: list[tuple[str, str]] | None = None) -> TrainingText:
    dev = make_pairs(12, seed=1)
    pairs = make_pairs(120) if train is None else train
    return TrainingText(
        train=encode(pairs),
        dev=DevSet(corpus=encode(dev), references=tuple(target for _, target in dev)),
        vocabulary=tiny_vocabulary(),
        train_pairs=tuple(Pair(source=source, target=target, location="") for source, target in pairs),
    )


def make_model(*, norm: str = "pre", dropout: float = 0.1) -> Transformer:
    torch.manual_seed(1)
    return Transformer(tiny_config(norm=norm, dropout=dropout, vocabulary_size=320))


def make_trainer(
    path: Path,
    *,
    text: TrainingText | None = None,
    model: Transformer | None = None,
    ranks: Ranks | None = None,
    **settings: Any,
) -> Trainer:
    """A trainer without BLEU whose batches have 128 tokens; `settings` are fields of TrainingConfig."""
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    return Trainer(
        model or make_model(),
        TrainingConfig(**{"batch_tokens": 128, "warmup_steps": 10, "bleu_sentences": 0, **settings}),
        text or make_text(),
        folder=folder,
        ranks=ranks or Ranks(),
    )
