"""Real sentences for the model that ships: samples of public test sets, or else of this repository's own documents."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from export.corpus.reader import ParallelFiles, read_corpus
from service.text.segmentation import split_sentences

DATA_VARIABLE: Final = "DRAGOMAN_DATA"
"""Names the directory of the test sets if no flag does."""

_TEST_SETS: Final = {
    "tatoeba": Path("tatoeba-en-de/test.tsv.gz"),
    "newstest2013": Path("newstest2013-en-de/test.tsv.gz"),
}
_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "docs/guides/*.md",
    "docs/operations/*.md",
    "docs/internals/*.md",
)
_MIN_CHARACTERS = 20
"""Of a line of a document that is taken for a sentence."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """Sentences of one origin."""

    name: str
    texts: tuple[str, ...]
    references: tuple[str, ...]
    """Their human translations; empty: there are none."""


def sentence_sets(directory: Path | None, *, size: int) -> list[Sentences]:
    """Return a sample of each test set below a directory, or of the documents if there is none.

    Args:
        directory: holds `tatoeba-en-de/test.tsv.gz` and `newstest2013-en-de/test.tsv.gz`; None: the one that the
            environment names, if it does.
        size: sentences of each sample, taken at even distances.
    """
    directory = directory or (Path(os.environ[DATA_VARIABLE]) if DATA_VARIABLE in os.environ else None)
    paths = {} if directory is None else {name: directory / path for name, path in _TEST_SETS.items()}
    found = [_read(name, path, size) for name, path in paths.items() if path.is_file()]
    return found or [_documents(size)]


def _read(name: str, path: Path, size: int) -> Sentences:
    pairs = sample(read_corpus([ParallelFiles(source=path)], max_malformed=0.0).pairs, size)
    return Sentences(
        name=name, texts=tuple(pair.source for pair in pairs), references=tuple(pair.target for pair in pairs)
    )


def _documents(size: int) -> Sentences:
    paths = [path for pattern in _DOCUMENTS for path in sorted(_CHECKOUT.glob(pattern))]
    texts = (path.read_text(encoding="utf-8") for path in paths)
    sentences = [text[span.start : span.end] for text in texts for span in split_sentences(text, language="en")]
    whole = [sentence for sentence in sentences if len(sentence) >= _MIN_CHARACTERS and sentence[0].isupper()]
    return Sentences(name="documents", texts=tuple(sample(whole, size)), references=())


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
        if [text[span.start : span.end] for span in split_sentences(text, language="en")] == [text]
    ]
