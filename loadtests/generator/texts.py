"""What the load tests translate: English by length, of test sets, or else of the sentences beside this file."""

import enum
import gzip
import itertools
import os
import random
from collections.abc import Sequence
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

_MAX_SENTENCES: Final = 3000  # of each test set; they are in the order of the articles, so neighbours belong together
_SENTENCES_OF_A_PARAGRAPH: Final = 4  # of a document


class Profile(enum.Enum):
    """Texts by length."""

    CHAT = "chat"  # one sentence of fewer than 45 characters
    SENTENCE = "sentence"  # one sentence of 45 to 300 characters
    PARAGRAPH = "paragraph"  # sentences that follow each other, 400 characters or a little more
    DOCUMENT = "document"  # paragraphs that follow each other, 3,000 characters or a little more
    MIXED = "mixed"  # of 20 texts, 10 of chat, 6 sentences, 3 paragraphs, 1 document
    LINES = "lines"  # the lines of a file, whatever their length


_SENTENCE_CHARACTERS: Final = {Profile.CHAT: range(1, 45), Profile.SENTENCE: range(45, 301)}
_LEAST_CHARACTERS: Final = {Profile.PARAGRAPH: 400, Profile.DOCUMENT: 3000}
_MIXED: Final = {Profile.CHAT: 10, Profile.SENTENCE: 6, Profile.PARAGRAPH: 3, Profile.DOCUMENT: 1}


class Texts:
    """Texts to draw from."""

    def __init__(self, sentences: Sequence[str], *, origin: str, lines: Sequence[str] = ()) -> None:
        """Take sentences that follow each other as in their documents, and the texts of `Profile.LINES`.

        `origin` tells people where they are from. Raises ValueError unless some sentences are short, some long.
        """
        self.origin = origin
        self._sentences = sentences
        self._whole = {
            profile: [sentence for sentence in sentences if len(sentence) in lengths]
            for profile, lengths in _SENTENCE_CHARACTERS.items()
        }
        if not all(self._whole.values()):
            raise ValueError(f"{origin}: too few sentences: there is no short one, or no long one")
        self._whole[Profile.LINES] = list(lines)

    def draw(self, profile: Profile, generator: random.Random) -> tuple[Profile, str]:
        """Return a text, and which profile it is of where the profile is a mixture; ValueError without lines."""
        if profile is Profile.MIXED:
            (profile,) = generator.choices(list(_MIXED), list(_MIXED.values()))
        if profile in self._whole:
            if not self._whole[profile]:
                raise ValueError(f"the profile {profile.value} needs a file of texts")
            return profile, generator.choice(self._whole[profile])
        run, num_characters = list[str](), -1
        for index in itertools.count(generator.randrange(len(self._sentences))):
            run.append(self._sentences[index % len(self._sentences)])
            num_characters += len(run[-1]) + 1
            if num_characters >= _LEAST_CHARACTERS[profile]:
                break
        size = _SENTENCES_OF_A_PARAGRAPH if profile is Profile.DOCUMENT else len(run)
        return profile, "\n\n".join(" ".join(run[start : start + size]) for start in range(0, len(run), size))


def sample(generator: random.Random, size: int) -> Sequence[str]:
    """Return so many of the sentences; some may occur twice."""
    return generator.choices(SENTENCES, k=size)


def read_texts(directory: Path | None = None, *, lines: Path | None = None) -> Texts:
    """Return the texts of a directory, or of a file with one in each line, or those that are built in.

    The directory, or without it the one that DRAGOMAN_DATA names, holds `tatoeba-en-de/test.tsv.gz` or
    `newstest2013-en-de/test.tsv.gz`, English first, a tab behind. Raises ValueError if the directory, named by the
    argument, has no test set, or the file no line; OSError if a file cannot be read.
    """
    if lines is not None:
        texts = [line for line in lines.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise ValueError(f"{lines}: no text in it; expected one in each line")
        return Texts(SENTENCES, origin=lines.name, lines=texts)
    named = directory or os.environ.get(DATA_VARIABLE)
    found = [Path(named, path) for path in _TEST_SETS if Path(named, path).is_file()] if named else []
    if directory is not None and not found:
        raise ValueError(f"{directory}: expected {' or '.join(map(str, _TEST_SETS))} in it")
    sentences = list[str]()
    for path in found:
        with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
            sources = (line.partition("\t")[0].strip() for line in itertools.islice(stream, _MAX_SENTENCES))
            sentences += filter(None, sources)
    origin = ", ".join(path.parent.name for path in found)
    return Texts(sentences, origin=origin) if found else Texts(BUILT_IN, origin=_BUILT_IN_PATH.name)
