"""Compared work: real sentences by the bundled model, artificial ones by Transformer-base; and quality scores."""

import argparse
import json
import os
import random
import re
from collections.abc import Sequence
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
from loadtests.benchmarks.interface import SearchOptions, TokenIds, Work
from loadtests.benchmarks.models import BASE_VOCABULARY_SIZE, FIRST_ORDINARY_ID, artificial_word
from loadtests.generator.texts import BUILT_IN, DATA_VARIABLE, Profile
from loadtests.generator.workload import Workload

Mode = Literal["short", "full"]
DEFAULT_SEARCH: Final = SearchOptions(length_penalty=0.6, extra_target_tokens=EXTRA_TARGET_TOKENS)  # of the service
_SOURCE_TOKENS: Final = 24  # of random sources, with EOS
_TARGET_TOKENS: Final = 32
_BATCHES: Final = (1, 8, 32, 64)  # sources per call of Transformer-base; the short mode omits the last
_GPU_BATCHES: Final = (1, 8, 32, 64, 128, 512)
_NUM_SINGLE_SOURCES: Final = 8
_NUM_SINGLE_SENTENCES: Final = 40  # of the cases with one sentence per call
_TEST_SETS: Final = ("tatoeba", "newstest2013")
_NUM_UNDER_LOAD: Final = 300  # sentences of each test set for servers
_DEADLINE_S: Final = 10.0  # far beyond the objective, because other systems ignore it
_SEED: Final = 1
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_OPTIONS: Final = {  # other systems stop with the K-th finished hypothesis and have no repetition guard
    "shipped": {"earlyStopping": True},
    "base": {"earlyStopping": True, "repetitionGuard": False},
}
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Work):
    """Work for all systems."""

    model: str  # `base` or `shipped`
    name: str
    references: tuple[str, ...] = ()  # human translations, for BLEU
    has_meaning: bool = False  # sources are sentences, so translations can be compared


def add_files(parser: argparse.ArgumentParser, output: str) -> None:
    """Add the flags for test sets and results."""
    data = f"test sets (default: {DATA_VARIABLE}, or built-in sentences without BLEU)"
    parser.add_argument("--data", type=Path, metavar="DIR", help=data)
    parser.add_argument("--output", type=Path, default=Path(output), metavar="DIR", help=f"({output})")


def base_cases(mode: Mode, *, on_gpu: bool = False) -> list[Case]:
    """Return the cases of Transformer-base: random tokens, targets of a fixed length; on a GPU, larger batches."""
    sizes = (_GPU_BATCHES[:2] if mode == "short" else _GPU_BATCHES) if on_gpu else _BATCHES
    generator, ordinary = random.Random(_SEED), range(FIRST_ORDINARY_ID, BASE_VOCABULARY_SIZE)
    sources = tuple((*generator.choices(ordinary, k=_SOURCE_TOKENS - 1), EOS_ID) for _ in range(max(sizes)))
    batch = Case(model="base", name="", sources=sources, search=fixed_length(_TARGET_TOKENS))
    cases = [
        replace(batch, name=f"batch{size}", sources=sources[: max(size, _NUM_SINGLE_SOURCES)], sources_per_call=size)
        for size in sizes
    ]
    return cases[:-1] if mode == "short" and not on_gpu else cases


def shipped_cases(name: str, sources: tuple[TokenIds, ...], *, references: tuple[str, ...], mode: Mode) -> list[Case]:
    """Return the cases of the bundled model on a set of sentences; the short mode omits one of them."""
    case = Case(
        model="shipped", name="", sources=sources, references=references, search=DEFAULT_SEARCH, has_meaning=True
    )
    few = tuple(sample(sources, _NUM_SINGLE_SENTENCES))
    single = replace(case, name=f"{name}-1", sources=few, references=(), sources_per_call=1)
    batches, everything = replace(case, name=f"{name}-32", sources_per_call=32), replace(case, name=f"{name}-all")
    return [single, everything] if mode == "short" else [single, batches, everything]


def fixed_length(num_tokens: int) -> SearchOptions:
    """Return options under which every target has the same length."""
    return SearchOptions(min_target_tokens=num_tokens, max_target_tokens=num_tokens)


def sentence_sets(directory: Path | None, *, size: int) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return name, sentences and translations of each test set; without test sets, the built-in sentences.

    The directory defaults to the value of LOADTESTS_DATA.
    """
    directory = directory or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    found = []
    for name in _TEST_SETS:
        if directory and (path := directory / f"{name}-en-de" / "test.tsv.gz").is_file():
            pairs = sample(read_corpus([ParallelFiles(source=path)], max_malformed=0.0).pairs, size)
            found.append((name, tuple(pair.source for pair in pairs), tuple(pair.target for pair in pairs)))
    return found or [("built-in", tuple(sample(BUILT_IN, size)), ())]


def sample(values: Sequence[_T], size: int) -> list[_T]:
    """Return evenly spaced values, all if there are fewer."""
    size = min(size, len(values))
    return [values[index * len(values) // size] for index in range(size)]


def workload(model: str, data: Path | None, *, directory: Path) -> Workload:
    """Return calls for a server with default options, one sentence each, from a file that is written.

    The sentences are those of all test sets that are not split; Transformer-base gets one artificial word per word.
    """
    sets = sentence_sets(data, size=_NUM_UNDER_LOAD)
    texts = [" ".join(text.split()) for _, texts, _ in sets for text in texts]
    sentences = [text for text in texts if [*iterate_sentences(text, language="en")] == [Span(start=0, end=len(text))]]
    if model == "base":
        generator, ordinary = random.Random(_SEED), range(FIRST_ORDINARY_ID, BASE_VOCABULARY_SIZE)
        words = [generator.choices(ordinary, k=len(_WORD.findall(sentence))) for sentence in sentences]
        sentences = [" ".join(map(artificial_word, token_ids)) for token_ids in words]
    lines = directory / f"{model}.txt"
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(f"{text}\n" for text in sentences), encoding="utf-8")
    return Workload(profile=Profile.LINES, lines=lines, deadline_s=_DEADLINE_S, options=json.dumps(_OPTIONS[model]))


def encode(bundle: Bundle, texts: Sequence[str]) -> tuple[TokenIds, ...]:
    """Return the token ids of each text, truncated to the model's limit, EOS last."""
    tokenizer, longest = open_tokenizer(bundle), bundle.manifest.limits.max_source_tokens - 1
    return tuple((*tokenizer.encode(text)[:longest], tokenizer.eos_id) for text in texts)


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    """Return the corpus BLEU with one reference per text."""
    return float(BLEU().corpus_score(list(texts), [list(references)]).score)


def share_of_equal(ours: Sequence[object], theirs: Sequence[object]) -> float:
    """Return the share of equal elements."""
    return sum(mine == other for mine, other in zip(ours, theirs, strict=True)) / len(ours)
