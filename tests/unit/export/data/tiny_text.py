"""An invented language pair that a tiny network learns in seconds: targets are reversed sources in capitals."""

import functools
from pathlib import Path
from typing import Literal

import numpy as np

from dragoman_export.data.vocabulary import Vocabulary, VocabularyConfig, train_vocabulary

_WORDS = (
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
)


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
