"""Phrases in many languages, and their detected languages."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dragoman_service.errors import InvalidFieldError
from dragoman_service.translation.language_detection import Candidates, source_languages

_PATH = Path(__file__).parent / "data" / "detection_phrases.tsv"
_NON_LATIN = {"ar", "bg", "el", "fa", "he", "hi", "hy", "ja", "ka", "ko", "ru", "sr", "th", "uk", "zh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A phrase of 2 to 8 words, or a word of a user interface."""

    language: str
    split: str  # `tune` or `held_out`; `interface` for words
    text: str

    @property
    def is_latin(self) -> bool:
        """True if the language is written in Latin letters."""
        return self.language not in _NON_LATIN


@cache
def phrases() -> tuple[Phrase, ...]:
    """Return all phrases."""
    return tuple(one for one in _rows() if one.split != "interface")


@cache
def interface_words() -> tuple[Phrase, ...]:
    """Return 100 English and 100 German words of user interfaces."""
    return tuple(one for one in _rows() if one.split == "interface")


def _rows() -> tuple[Phrase, ...]:
    rows = (line.split("\t") for line in _PATH.read_text("utf-8").splitlines())
    return tuple(Phrase(language=language, split=split, text=text) for language, split, text in rows)


def accepted_language(candidates: Candidates, served: Collection[str]) -> str | None:
    """Return the detected source language of a text; None if the text is rejected."""
    try:
        (language,) = source_languages([candidates], served)
    except InvalidFieldError:
        return None
    return language.language if language else None
