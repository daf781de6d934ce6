"""What is translated: real sentences by the model that ships, made-up ones by Transformer-base; and scores of it."""

import argparse
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeVar

from sacrebleu.metrics.bleu import BLEU

from dragoman_export.data.reader import ParallelFiles, read_corpus
from dragoman_export.data.vocabulary import EOS_ID
from dragoman_service.bundle.files import Bundle
from dragoman_service.datatypes import Span
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.segmentation import iterate_sentences
from dragoman_service.text.tokenizer import open_tokenizer
from loadtests.benchmarks.models import BASE_VOCABULARY_SIZE, FIRST_ORDINARY_ID, MODELS, SPECIAL_IDS, made_up_word
from loadtests.benchmarks.systems import SearchOptions, TokenIds, Work
from loadtests.generator.flags import parsed_by
from loadtests.generator.texts import BUILT_IN, DATA_VARIABLE, Profile
from loadtests.generator.workload import Workload

Mode = Literal["short", "full"]
Kind = Literal["speed", "growth", "agreement"]
"""growth: a point of the curve of cost by length, where int8 at all cores is enough; agreement: in 32-bit floats and
without a length penalty systems should say the same, so speed is not compared."""
USUAL: Final = SearchOptions(length_penalty=0.6, extra_target_tokens=EXTRA_TARGET_TOKENS)
"""As the service searches by default."""
SOURCE_TOKENS: Final = 24
"""EOS counted, of random sources."""
TARGET_TOKENS: Final = 32
"""Of their translations, where the length is not what is measured."""
_SWEPT_LENGTHS: Final = (10, 25, 50, 100, 150, 200)  # target tokens of the cases that show how cost grows with length
_BATCHES: Final = (1, 8, 32, 64)  # sources of a call of Transformer-base; the short mode leaves out the last
_GPU_BATCHES: Final = (1, 8, 32, 64, 128, 512)
_NUM_LONE_SOURCES: Final = 8
_NUM_LONE_SENTENCES: Final = 40  # of the cases in which they come one by one
_TEST_SETS: Final = ("tatoeba", "newstest2013")
_NUM_UNDER_LOAD: Final = 300  # sentences of each test set that servers are asked
_DEADLINE_S: Final = 10.0  # of each call to a server: far beyond the objective, as the other system does not look at it
_SEED: Final = 1
_WORD: Final = re.compile(r"\w+|[^\w\s]")  # a word or a mark of punctuation: about a token of a usual vocabulary
_OPTIONS: Final = {
    "shipped": {"earlyStopping": True},
    "base": {"earlyStopping": True, "repetitionGuard": False},
}
"""The other systems stop with the K-th finished hypothesis, too; ours would otherwise search further than they do. A
network that says nothing says it again and again, and only ours would look for that."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Work):
    """One piece of work, done alike by all systems."""

    model: str  # `base` or `shipped`
    name: str
    kind: Kind = "speed"
    references: tuple[str, ...] = ()  # human translations of the sources, for BLEU; empty: there are none
    has_meaning: bool = False  # whether sources are sentences, so that it can be compared what systems say


def add_files(parser: argparse.ArgumentParser, output: str, *, has_models: bool = False, has_data: bool = True) -> None:
    """Declare the flags for models, test sets and results."""
    if has_models:
        some, both = some_of(*MODELS), "base, shipped (both)"
        parser.add_argument("--models", type=some, default=MODELS, metavar="M,M", help=both)
    if has_data:
        what = f"holds test sets ({DATA_VARIABLE}; without it: built-in sentences, no BLEU)"
        parser.add_argument("--data", type=Path, metavar="DIR", help=what)
    parser.add_argument("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")


def some_of(*known: str) -> Callable[[str], tuple[str, ...]]:
    """Return what reads some of these names, with commas between them, for `argparse`."""

    def read(text: str) -> tuple[str, ...]:
        if unknown := set(text.split(",")) - set(known):
            raise ValueError(f"{', '.join(sorted(unknown))}: expected {', '.join(known)}")
        return tuple(text.split(","))

    return parsed_by(read)


def base_cases(mode: Mode, *, on_gpu: bool = False) -> list[Case]:
    """Return the cases of Transformer-base: random token ids, targets of exactly as many tokens on every system.

    On a GPU there are more sources in a call; what a longer target costs is not asked.
    """
    sizes = (_GPU_BATCHES[:2] if mode == "short" else _GPU_BATCHES) if on_gpu else _BATCHES
    sources = random_sources(max(sizes), vocabulary_size=BASE_VOCABULARY_SIZE, eos_id=EOS_ID)
    batch = Case(model="base", name="", sources=sources, search=fixed_length(TARGET_TOKENS))
    cases = [
        replace(batch, name=f"batch{size}", sources=sources[: max(size, _NUM_LONE_SOURCES)], sources_per_call=size)
        for size in sizes
    ]
    if on_gpu:
        return cases
    few = replace(batch, kind="growth", sources=sources[:_NUM_LONE_SOURCES])
    lengths = [replace(few, name=f"length{length}", search=fixed_length(length)) for length in _SWEPT_LENGTHS]
    return cases[:-1] if mode == "short" else cases + lengths


def shipped_cases(name: str, sources: tuple[TokenIds, ...], *, references: tuple[str, ...], mode: Mode) -> list[Case]:
    """Return the cases of the model that ships on a set of sentences; the short mode leaves out two of them."""
    asked = Case(model="shipped", name="", sources=sources, references=references, search=USUAL, has_meaning=True)
    few = tuple(sample(sources, _NUM_LONE_SENTENCES))
    lone = replace(asked, name=f"{name}-1", sources=few, references=(), sources_per_call=1)
    batches, everything = replace(asked, name=f"{name}-32", sources_per_call=32), replace(asked, name=f"{name}-all")
    search = replace(USUAL, length_penalty=0.0, suppressed_tokens=SPECIAL_IDS)
    agreement = replace(asked, name=f"{name}-agreement", search=search, kind="agreement")
    return [lone, everything] if mode == "short" else [lone, batches, everything, agreement]


def random_sources(count: int, *, vocabulary_size: int, eos_id: int) -> tuple[TokenIds, ...]:
    """Return sources of ordinary tokens, the same in every run."""
    generator = random.Random(_SEED)
    ordinary = range(FIRST_ORDINARY_ID, vocabulary_size)
    return tuple((*generator.choices(ordinary, k=SOURCE_TOKENS - 1), eos_id) for _ in range(count))


def fixed_length(num_tokens: int) -> SearchOptions:
    """Return options under which every target has exactly so many tokens."""
    return SearchOptions(min_target_tokens=num_tokens, max_target_tokens=num_tokens)


def sentence_sets(directory: Path | None, *, size: int) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return so many sentences of each test set below a directory, or of the built-in ones if there is none.

    Each has its name, and human translations if there are any. Without a directory it is the one that the environment
    names, if it does.
    """
    directory = directory or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    found = []
    for name in _TEST_SETS:
        if directory and (path := directory / f"{name}-en-de" / "test.tsv.gz").is_file():
            pairs = sample(read_corpus([ParallelFiles(source=path)], max_malformed=0.0).pairs, size)
            found.append((name, tuple(pair.source for pair in pairs), tuple(pair.target for pair in pairs)))
    return found or [("built-in", tuple(sample(BUILT_IN, size)), ())]


def sample(values: Sequence[_T], size: int) -> list[_T]:
    """Return `size` of the values at even distances, all if there are fewer."""
    size = min(size, len(values))
    return [values[index * len(values) // size] for index in range(size)]


def whole_sentences(texts: Sequence[str]) -> list[str]:
    """Return the texts that the service decodes as they are: one sentence, nothing to cut off."""
    return [text for text in texts if [*iterate_sentences(text, language="en")] == [Span(start=0, end=len(text))]]


def workload(model: str, data: Path | None, *, directory: Path) -> Workload:
    """Return the calls to a server of a model, with the defaults of the service: a sentence each, from a file of them.

    Sentences are those of all test sets, or the built-in ones, that are translated as they are. Transformer-base gets
    made-up ones, the same in every run: a word for each of theirs.
    """
    sets = sentence_sets(data, size=_NUM_UNDER_LOAD)
    sentences = whole_sentences([" ".join(text.split()) for _, texts, _ in sets for text in texts])
    if model == "base":
        generator, ordinary = random.Random(_SEED), range(FIRST_ORDINARY_ID, BASE_VOCABULARY_SIZE)
        words = [generator.choices(ordinary, k=len(_WORD.findall(sentence))) for sentence in sentences]
        sentences = [" ".join(map(made_up_word, token_ids)) for token_ids in words]
    lines = directory / f"{model}.txt"
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(f"{text}\n" for text in sentences), encoding="utf-8")
    return Workload(profile=Profile.LINES, lines=lines, deadline_s=_DEADLINE_S, options=json.dumps(_OPTIONS[model]))


def encode(bundle: Bundle, texts: Sequence[str]) -> tuple[TokenIds, ...]:
    """Return the token ids of each text, cut to what a model takes, EOS last."""
    tokenizer, longest = open_tokenizer(bundle), bundle.manifest.limits.max_source_tokens - 1
    return tuple((*tokenizer.encode(text)[:longest], tokenizer.eos_id) for text in texts)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the corpus BLEU of texts, one reference each."""
    return float(BLEU().corpus_score(list(texts), [list(references)]).score)


def share_of_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of places, of at least one, at which both hold the same."""
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
