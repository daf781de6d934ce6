"""What the load tests translate: English by length, of test sets, or else of the sentences beside this file."""

import enum
import gzip
import os
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

DATA_VARIABLE: Final = "DRAGOMAN_DATA"
"""Names the directory of the test sets if no flag does."""

_TEST_SETS: Final = (Path("tatoeba-en-de/test.tsv.gz"), Path("newstest2013-en-de/test.tsv.gz"))
_BUILT_IN_PATH: Final = Path(__file__).with_name("sentences.txt")
BUILT_IN: Final = tuple(_BUILT_IN_PATH.read_text(encoding="utf-8").splitlines())
"""Sentences for those who have no test set; after the first ones they follow each other as in their documents."""
SENTENCES: Final = BUILT_IN[:24]
"""Some of them, each by itself, of different lengths."""

_MAX_SENTENCES: Final = 3000
"""Of each test set; they are in the order of the articles, so neighbours belong together."""

_CHAT_CHARACTERS: Final = 45
"""Length from which a sentence is no longer taken for chat, and up to which it is taken for nothing else."""
_MAX_SENTENCE_CHARACTERS: Final = 300
_PARAGRAPH_CHARACTERS: Final = 400
_DOCUMENT_CHARACTERS: Final = 3000
"""Length, of a paragraph likewise, from which no more sentences are added."""
_SENTENCES_OF_A_PARAGRAPH: Final = 4
"""Of a document."""


class Profile(enum.Enum):
    """Texts by length."""

    CHAT = "chat"
    """One short sentence, below 45 characters."""

    SENTENCE = "sentence"
    """One sentence of 45 to 300 characters."""

    PARAGRAPH = "paragraph"
    """Sentences that follow each other, 400 characters or a little more."""

    DOCUMENT = "document"
    """Paragraphs that follow each other, 3,000 characters or a little more; asked of TranslateDocument by default."""

    MIXED = "mixed"
    """Of 20 texts, 10 of chat, 6 sentences, 3 paragraphs, 1 document."""

    LINES = "lines"
    """The lines of a file, whatever their length."""


_MIXED: Final = {Profile.CHAT: 10, Profile.SENTENCE: 6, Profile.PARAGRAPH: 3, Profile.DOCUMENT: 1}


class Texts:
    """Texts to draw from."""

    def __init__(self, sentences: Sequence[str], *, origin: str, lines: Sequence[str] = ()) -> None:
        """Take sentences that follow each other as in their documents; at least one of each length.

        Args:
            sentences: to make the texts of all profiles of.
            origin: for people: where they are from.
            lines: the texts of `Profile.LINES`.
        """
        self.origin = origin
        self._sentences = tuple(sentences)
        self._lines = tuple(lines)
        self._chat = [text for text in self._sentences if len(text) < _CHAT_CHARACTERS]
        self._long = [text for text in self._sentences if _CHAT_CHARACTERS <= len(text) <= _MAX_SENTENCE_CHARACTERS]
        if not self._lines and not (self._chat and self._long):
            raise ValueError(f"{origin}: too few sentences: there is no short one, or no long one")

    def draw(self, profile: Profile, generator: random.Random) -> tuple[Profile, str]:
        """Return a text, and which profile it is of where the profile is a mixture.

        Raises:
            ValueError: for `Profile.LINES` without lines.
        """
        match profile:
            case Profile.MIXED:
                (drawn,) = generator.choices(list(_MIXED), list(_MIXED.values()))
                return self.draw(drawn, generator)
            case Profile.CHAT:
                return profile, generator.choice(self._chat)
            case Profile.SENTENCE:
                return profile, generator.choice(self._long)
            case Profile.PARAGRAPH:
                return profile, " ".join(self._run(generator, _PARAGRAPH_CHARACTERS))
            case Profile.DOCUMENT:
                return profile, _paragraphs(self._run(generator, _DOCUMENT_CHARACTERS))
            case Profile.LINES:
                if not self._lines:
                    raise ValueError("the profile lines needs a file of texts")
                return profile, generator.choice(self._lines)

    def _run(self, generator: random.Random, num_characters: int) -> list[str]:
        """Return sentences that follow each other, from a random place until they have so many characters."""
        index, run, length = generator.randrange(len(self._sentences)), list[str](), -1
        while length < num_characters:
            run.append(self._sentences[index % len(self._sentences)])
            length += len(run[-1]) + 1
            index += 1
        return run


def sample(generator: random.Random, size: int) -> Sequence[str]:
    """Return so many of the sentences; some may occur twice."""
    return generator.choices(SENTENCES, k=size)


def read_texts(directory: Path | None = None, *, lines: Path | None = None) -> Texts:
    """Return the texts of a directory, or those that are built in, the same whatever else changes.

    Args:
        directory: holds `tatoeba-en-de/test.tsv.gz` or `newstest2013-en-de/test.tsv.gz`, English first, a tab behind;
            None: the one that DRAGOMAN_DATA names, if it does.
        lines: a file with a text in each line, for `Profile.LINES`.

    Raises:
        ValueError: if the directory, named by the argument, has no test set, or the file no line.
        OSError: if a file cannot be read.
    """
    if lines is not None:
        texts = tuple(line for line in lines.read_text(encoding="utf-8").splitlines() if line.strip())
        if not texts:
            raise ValueError(f"{lines}: no text in it; expected one in each line")
        return Texts(SENTENCES, origin=lines.name, lines=texts)
    given = directory or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    found = [given / path for path in _TEST_SETS if (given / path).is_file()] if given else []
    if found:
        names = ", ".join(path.parent.name for path in found)
        return Texts([sentence for path in found for sentence in _test_set(path)], origin=names)
    if directory is not None:
        raise ValueError(f"{directory}: expected {' or '.join(map(str, _TEST_SETS))} in it")
    return Texts(BUILT_IN, origin=_BUILT_IN_PATH.name)


def _test_set(path: Path) -> Iterator[str]:
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        for _, line in zip(range(_MAX_SENTENCES), stream, strict=False):
            source = line.partition("\t")[0].strip()
            if source:
                yield source


def _paragraphs(sentences: Sequence[str]) -> str:
    starts = range(0, len(sentences), _SENTENCES_OF_A_PARAGRAPH)
    return "\n\n".join(" ".join(sentences[start : start + _SENTENCES_OF_A_PARAGRAPH]) for start in starts)
