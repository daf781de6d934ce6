"""Networks, text and trainers that take milliseconds: targets are the reversed source words in capitals."""

import functools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.data.reader import Pair, ParallelFiles
from dragoman_export.data.vocabulary import Vocabulary, VocabularyConfig, train_vocabulary
from dragoman_export.model.config import PRESETS, ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.checkpoint import save_checkpoint
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig, TrainingConfig
from dragoman_export.training.evaluation import DevSet
from dragoman_export.training.loop import Trainer
from dragoman_export.training.ranks import Ranks
from dragoman_export.training.run_folder import RunFolder
from dragoman_export.training.text import TrainingText

VOCABULARY_SIZE = 40
_WORDS = [
    "red",
    "green",
    "blue",
    "one",
    "two",
    "three",
    "four",
    "cat",
    "dog",
    "bird",
    "tree",
    "house",
    "river",
    "light",
]


def tiny_config(**fields: Any) -> ModelConfig:
    sizes = {"d_model": 16, "num_heads": 2, "ffn_size": 32, "num_encoder_layers": 2, "num_decoder_layers": 2}
    return ModelConfig(**{"vocabulary_size": VOCABULARY_SIZE, "norm": "pre", **sizes, **fields})


def tiny_model(*, seed: int = 0, **fields: Any) -> Transformer:
    """Return a network in evaluation mode."""
    torch.manual_seed(seed)
    return Transformer(tiny_config(**fields)).eval()


def save_model(path: Path, *, seed: int = 0, **fields: Any) -> Path:
    model = tiny_model(seed=seed, **fields)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, {"model": model.state_dict(), "model_config": model.config.to_dict()})
    return path


def random_ids(rows: int, length: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(4, VOCABULARY_SIZE, (rows, length), generator=generator)


def mask_of(lengths: list[int]) -> Tensor:
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def make_pairs(count: int, *, seed: int = 0) -> list[tuple[str, str]]:
    random = np.random.default_rng(seed)
    sources = [random.choice(_WORDS, size=random.integers(1, 7)).tolist() for _ in range(count)]
    return [(" ".join(words), " ".join(reversed(words)).upper()) for words in sources]


def write_tsv(path: Path, count: int, *, seed: int = 0) -> Path:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in make_pairs(count, seed=seed)))
    return path


@functools.cache
def tiny_vocabulary(normalization: str = "nmt_nfkc", model_type: Literal["unigram", "bpe"] = "unigram") -> Vocabulary:
    sentences = (side for pair in make_pairs(200) for side in pair)
    return train_vocabulary(sentences, VocabularyConfig(size=320, normalization=normalization, model_type=model_type))


def store_settings(path: Path) -> RunFolder:
    """Write the settings of a run whose text does not exist."""
    text = (ParallelFiles(source=path / "absent.tsv"),)
    data = DataConfig(train=text, dev=text)
    folder = RunFolder(path)
    folder.write_settings(RunConfig(model=PRESETS["tiny"], training=TRAINING_PRESETS["tiny"], data=data).to_dict())
    return folder


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


def make_model(**fields: Any) -> Transformer:
    """Return an untrained network for `make_text`."""
    return tiny_model(seed=1, **{"vocabulary_size": len(tiny_vocabulary()), **fields}).train()


def make_trainer(
    path: Path,
    *,
    text: TrainingText | None = None,
    model: Transformer | None = None,
    ranks: Ranks | None = None,
    **settings: Any,
) -> Trainer:
    """Return a trainer without BLEU whose batches have 128 tokens; `settings` are fields of TrainingConfig."""
    folder = RunFolder(path)
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    config = TrainingConfig(**{"batch_tokens": 128, "warmup_steps": 10, "bleu_sentences": 0, **settings})
    return Trainer(model or make_model(), config, text or make_text(), folder=folder, ranks=ranks or Ranks())
