"""Rules that drop pairs of parallel text which a model should not learn from."""

import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Final

from dragoman_export.data.reader import Pair
from dragoman_service.translation.language_detection import LanguageDetector

# Reasons in the order in which they are checked; the first that applies counts.
REASONS: Final[Mapping[str, str]] = {
    "encoding": "control or replacement characters, or UTF-8 read as Latin-1",
    "too long": "a side has more words than --max-words",
    "length ratio": "one side has more than --max-ratio times the characters of the other",
    "copied": "both sides are equal and have more words than --max-copied-words",
    "markup": "tags, placeholders or backticks differ between the sides",
    "language": "a side is in another language",
    "label": "at most three words a side, and beyond --label-share",
    "score": "the similarity is below --min-score",
    "held out": "a side is in the held-out text",
    "duplicate": "the same pair occurred before",
}

_DAMAGED: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd\ufeff]|[ÃÂ][\x80-\xbf\u0152-\u2122]|â€")
_MARK: Final = re.compile(r"</?[A-Za-z][^<>]*>|\{[\w.]*\}|⟦\d+⟧|`")
_MIN_LETTERS: Final = 20  # shorter sides are not checked for their language
_MIN_CONFIDENCE: Final = 0.8  # of another language
_LABEL_WORDS: Final = 3
_SMOOTHING: Final = 8  # characters added to both sides for the ratio, so that "Yes." and "Jawohl." pass


_detector: Final = cache(LanguageDetector)  # one per process


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """Limits of the rules that need one pair only."""

    max_words: int = 200
    max_ratio: float = 2.5
    max_copied_words: int = 3
    languages: tuple[str, str] | None = None  # BCP-47 tags of source and target; None: not checked
    label_share: float = 1.0  # of the pairs of at most three words a side that are kept, chosen by their text

    def reason(self, source: str, target: str) -> str | None:
        """Return the first of `REASONS` that applies to a pair; None: it is kept so far."""
        num_words = max(len(source.split()), len(target.split()))
        shorter, longer = sorted((len(source) + _SMOOTHING, len(target) + _SMOOTHING))
        checks: tuple[tuple[str, Callable[[], object]], ...] = (
            ("encoding", lambda: _DAMAGED.search(source) or _DAMAGED.search(target)),
            ("too long", lambda: num_words > self.max_words),
            ("length ratio", lambda: longer > self.max_ratio * shorter),
            ("copied", lambda: source == target and num_words > self.max_copied_words),
            ("markup", lambda: _marks(source) != _marks(target)),
            ("language", lambda: any(map(self._is_other, (source, target), self.languages or ()))),
            ("label", lambda: num_words <= _LABEL_WORDS and _position(source, target) >= self.label_share),
        )
        return next((reason for reason, applies in checks if applies()), None)

    def _is_other(self, text: str, language: str) -> bool:
        if sum(map(str.isalpha, text)) < _MIN_LETTERS:
            return False
        best = next(iter(_detector().detect(text, self.languages or ())), None)
        return best is not None and best.language != language and best.confidence >= _MIN_CONFIDENCE


def _position(source: str, target: str) -> float:
    # A number from 0 to below 1 that depends on the text only.
    return zlib.crc32(f"{source}\t{target}".encode()) / 2**32


def can_detect_languages() -> bool:
    """Return whether the package for language detection is installed; it comes with the server."""
    return find_spec("py3langid") is not None


def reasons_of(pairs: Sequence[Pair], rules: CleaningRules) -> list[str | None]:
    """Return the result of `CleaningRules.reason` for each pair."""
    return [rules.reason(pair.source, pair.target) for pair in pairs]


class SeenText:
    """Recognises held-out sides and repeated pairs; needs about 100 bytes of memory per pair."""

    def __init__(self, held_out: Collection[Pair]) -> None:
        self._held_out = frozenset(hash(_key(side)) for pair in held_out for side in (pair.source, pair.target))
        self._seen = set[int]()

    def reason(self, pair: Pair) -> str | None:
        """Return the reason to drop a pair, and remember the pair."""
        sides = _key(pair.source), _key(pair.target)
        if any(hash(side) in self._held_out for side in sides):
            return "held out"
        key = hash(sides)
        if key in self._seen:
            return "duplicate"
        self._seen.add(key)
        return None


def _key(text: str) -> str:
    # Text that differs only in case and spaces is the same.
    return " ".join(text.casefold().split())


def _marks(text: str) -> Counter[str]:
    return Counter(_MARK.findall(text))
