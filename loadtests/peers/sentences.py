"""What is translated: real sentences for the model that ships, made-up ones for Transformer-base; and scores of it."""

import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from sacrebleu.metrics.bleu import BLEU

from export.corpus.reader import ParallelFiles, read_corpus
from export.corpus.vocabulary import EOS_ID
from loadtests.peers.models import BASE_VOCABULARY_SIZE, SPECIAL_IDS, made_up_word
from loadtests.peers.systems import Output, TokenIds
from loadtests.texts import BUILT_IN, DATA_VARIABLE, Profile
from loadtests.workload import Workload
from service.bundle import Bundle
from service.text.segmentation import iterate_sentences
from service.text.tokenizer import open_tokenizer

_TEST_SETS: Final = {
    "tatoeba": Path("tatoeba-en-de/test.tsv.gz"),
    "newstest2013": Path("newstest2013-en-de/test.tsv.gz"),
}
_NUM_UNDER_LOAD: Final = 300
"""Sentences of each test set that servers are asked."""
_DEADLINE_S: Final = 10.0
"""Of each call to a server: far beyond the objective, as the other system does not look at it."""
_SEED: Final = 1
_WORD: Final = re.compile(r"\w+|[^\w\s]")
"""Or a mark of punctuation: about a token of a usual vocabulary."""
_OPTIONS: Final = {"earlyStopping": True}
"""The other systems stop with the K-th finished hypothesis, too; ours would otherwise search further than they do."""
_MADE_UP_OPTIONS: Final = {**_OPTIONS, "repetitionGuard": False}
"""A network that says nothing says it again and again, and only ours would look for that."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """Sentences of one origin."""

    name: str
    texts: tuple[str, ...]
    references: tuple[str, ...] = ()
    """Their human translations; empty: there are none."""


def sentence_sets(directory: Path | None, *, size: int) -> list[Sentences]:
    """Return a sample of each test set below a directory, or the built-in sentences if there is none.

    Args:
        directory: holds `tatoeba-en-de/test.tsv.gz` and `newstest2013-en-de/test.tsv.gz`; None: the one that the
            environment names, if it does.
        size: sentences of each sample, taken at even distances.
    """
    directory = directory or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    paths = {} if directory is None else {name: directory / path for name, path in _TEST_SETS.items()}
    found = [_read(name, path, size) for name, path in paths.items() if path.is_file()]
    return found or [Sentences(name="built-in", texts=tuple(sample(BUILT_IN, size)))]


def _read(name: str, path: Path, size: int) -> Sentences:
    pairs = sample(read_corpus([ParallelFiles(source=path)], max_malformed=0.0).pairs, size)
    texts, references = zip(*((pair.source, pair.target) for pair in pairs), strict=True)
    return Sentences(name=name, texts=texts, references=references)


def sample(values: Sequence[_T], size: int) -> list[_T]:
    """Return `size` of the values at even distances, all if there are fewer."""
    if len(values) <= size:
        return list(values)
    return [values[index * len(values) // size] for index in range(size)]


def whole_sentences(texts: Sequence[str]) -> list[str]:
    """Return the texts that the service decodes as they are: one sentence, nothing to cut off."""
    return [
        text
        for text in texts
        if [text[span.start : span.end] for span in iterate_sentences(text, language="en")] == [text]
    ]


def made_up_sentences(sentences: Sequence[str]) -> list[str]:
    """Return sentences of made-up words, the same in every run: one for each word of real sentences."""
    generator = random.Random(_SEED)
    ordinary = range(max(*SPECIAL_IDS, EOS_ID) + 1, BASE_VOCABULARY_SIZE)
    return [
        " ".join(map(made_up_word, generator.choices(ordinary, k=len(_WORD.findall(sentence)))))
        for sentence in sentences
    ]


def real_sentences(data: Path | None) -> list[str]:
    """Return sentences of all test sets, or the built-in ones, that are translated as they are."""
    texts = (text for sentences in sentence_sets(data, size=_NUM_UNDER_LOAD) for text in sentences.texts)
    return whole_sentences([" ".join(text.split()) for text in texts])


def workload(model: str, sentences: Sequence[str], *, directory: Path) -> Workload:
    """Return the calls to a server of a model: one sentence each, with the defaults of the service.

    Args:
        model: one of `loadtests.peers.models.MODELS`.
        sentences: real ones.
        directory: where the texts go.
    """
    texts = made_up_sentences(sentences) if model == "base" else sentences
    lines = directory / f"{model}.txt"
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    options = json.dumps(_MADE_UP_OPTIONS if model == "base" else _OPTIONS)
    return Workload(profile=Profile.LINES, lines=lines, deadline_s=_DEADLINE_S, options=options)


def encode(bundle: Bundle, texts: Sequence[str]) -> tuple[TokenIds, ...]:
    """Return the token ids of each text, cut to what a model takes, EOS last."""
    tokenizer, longest = open_tokenizer(bundle), bundle.manifest.limits.max_source_tokens - 1
    return tuple((*tokenizer.encode(text)[:longest], tokenizer.eos_id) for text in texts)


def judge_of(bundle: Bundle) -> Callable[[Sequence[Output], Sequence[str]], float]:
    """Return what gives the corpus BLEU of outputs of a model, one reference each."""
    tokenizer = open_tokenizer(bundle)
    return lambda outputs, references: bleu([tokenizer.decode(one.token_ids) for one in outputs], references)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the corpus BLEU of texts, one reference each."""
    return float(BLEU().corpus_score(list(texts), [list(references)]).score)


def share_of_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of places, of at least one, at which both hold the same."""
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
