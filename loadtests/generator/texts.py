"""English texts by length, from test sets or from the built-in sentences."""

import enum
import gzip
import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

DATA_VARIABLE: Final = "LOADTESTS_DATA"  # environment variable with the directory of the test sets

_TEST_SETS: Final = (Path("tatoeba-en-de/test.tsv.gz"), Path("newstest2013-en-de/test.tsv.gz"))
_BUILT_IN_PATH: Final = Path(__file__).with_name("sentences.txt")
BUILT_IN: Final = tuple(_BUILT_IN_PATH.read_text(encoding="utf-8").splitlines())  # after the first 24: documents
SENTENCES: Final = BUILT_IN[:24]  # unrelated sentences of different lengths

_MAX_SENTENCES: Final = 3000  # of each test set, in document order
_SENTENCES_PER_PARAGRAPH: Final = 4  # of a document


class Profile(enum.Enum):
    """Length of the texts."""

    CHAT = "chat"  # one sentence of fewer than 45 characters
    SENTENCE = "sentence"  # one sentence of 45 to 300 characters
    PARAGRAPH = "paragraph"  # consecutive sentences, slightly more than 400 characters
    DOCUMENT = "document"  # consecutive paragraphs, slightly more than 3,000 characters
    MIXED = "mixed"  # of 20 texts, 10 chat, 6 sentence, 3 paragraph, 1 document
    LINES = "lines"  # lines of a file


_SENTENCE_CHARACTERS: Final = {Profile.CHAT: range(1, 45), Profile.SENTENCE: range(45, 301)}
_MIN_CHARACTERS: Final = {Profile.PARAGRAPH: 400, Profile.DOCUMENT: 3000}
_MIXED: Final = {Profile.CHAT: 10, Profile.SENTENCE: 6, Profile.PARAGRAPH: 3, Profile.DOCUMENT: 1}


class Texts:
    """A source of texts.

    Args:
        sentences: in document order.
        origin: name of the source for reports.
        lines: the texts of `Profile.LINES`.

    Raises:
        ValueError: unless there are both short and long sentences.
    """

    def __init__(self, sentences: Sequence[str], *, origin: str, lines: Sequence[str] = ()) -> None:
        self.origin = origin
        self._sentences = sentences
        self._by_profile = {
            profile: [sentence for sentence in sentences if len(sentence) in lengths]
            for profile, lengths in _SENTENCE_CHARACTERS.items()
        }
        if not all(self._by_profile.values()):
            raise ValueError(f"{origin}: needs sentences below 45 characters and sentences of 45 to 300 characters")
        self._by_profile[Profile.LINES] = list(lines)

    def draw(self, profile: Profile, generator: random.Random) -> tuple[Profile, str]:
        """Return a text and its profile, which is a part of the mixture for `MIXED`."""
        if profile is Profile.MIXED:
            (profile,) = generator.choices(list(_MIXED), list(_MIXED.values()))
        if profile in self._by_profile:
            return profile, generator.choice(self._by_profile[profile])
        run, num_characters = list[str](), -1
        for index in itertools.count(generator.randrange(len(self._sentences))):
            run.append(self._sentences[index % len(self._sentences)])
            num_characters += len(run[-1]) + 1
            if num_characters >= _MIN_CHARACTERS[profile]:
                break
        size = _SENTENCES_PER_PARAGRAPH if profile is Profile.DOCUMENT else len(run)
        return profile, "\n\n".join(" ".join(run[start : start + size]) for start in range(0, len(run), size))


def sample(generator: random.Random, size: int) -> Sequence[str]:
    """Draw sentences with replacement."""
    return generator.choices(SENTENCES, k=size)


def read_texts(directory: Path | None = None, *, lines: Path | None = None) -> Texts:
    """Return the test sets of a directory, the lines of a file, or the built-in sentences.

    The directory defaults to the value of LOADTESTS_DATA. It contains `tatoeba-en-de/test.tsv.gz` or
    `newstest2013-en-de/test.tsv.gz` with tab-separated columns, English first.

    Raises:
        ValueError: if the given directory has no test set, or the file no line.
        OSError: if a file cannot be read.
    """
    if lines is not None:
        texts = [line for line in lines.read_text(encoding="utf-8").splitlines() if line.strip()]
        if not texts:
            raise ValueError(f"{lines}: is empty; expected one text per line")
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
