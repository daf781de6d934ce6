"""Invariant of language: the target does not copy the source."""

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.text.invariants.violations import Texts, Violation

# Lower-case words that are not a part of a name, identifier, path or template.
_TRANSLATABLE = re.compile(r"(?<![\w@#$%&/\\.:_~+=<>{}\[\]'’-])[^\W\d_A-Z]{2,64}+(?![\w@#$%/\\_~+=<>{}\[\]'’-]|[.:]\w)")
_CODE = re.compile(r"`[^`\n]{1,500}+`")
_MIN_COPIED_WORDS, _MIN_COPIED_SHARE = 3, 0.6
_MIN_ADJACENT_SHARE = 0.5  # of the pairs of neighbours among the copied words
_MAX_SHORT_WORDS = 3
_SHORT_WORD = re.compile(r"[^\W\d_]{2}")

# fmt: off
_FUNCTION_WORDS = {
    "en": frozenset((
        "the", "of", "and", "to", "is", "are", "that", "it", "with", "for", "as", "be", "on", "by", "this", "have",
        "has", "had", "not", "you", "he", "she", "they", "we", "from", "or", "at", "which", "do", "does", "can",
        "your", "my", "their", "there", "what", "when", "how", "if", "been", "would", "could", "should", "about",
    )),
    "de": frozenset((
        "der", "das", "und", "ist", "den", "dem", "des", "nicht", "ein", "eine", "einen", "einem", "einer", "ich", "du",
        "er", "sie", "es", "wir", "ihr", "mit", "sich", "auf", "für", "von", "zu", "im", "auch", "bei", "oder", "wie",
        "wird", "wurde", "sind", "kann", "dass", "aus", "nach", "keine", "kein", "wovon", "zum", "zur", "dir", "mir",
    )),
}
# fmt: on


def find_untranslated(texts: Texts) -> Iterator[Violation]:
    """Yield a violation if the target copies most lower-case words of the source, in their order.

    Names, paths and versions are not lower-case words. A source that is already in the target language is copied
    correctly; this is detected for English and German.
    """
    source_language = primary_language(texts.source_language)
    target_language = primary_language(texts.target_language)
    if source_language == target_language:
        return
    new = _TRANSLATABLE.findall(texts.target)
    if len(new) < _MIN_COPIED_WORDS:
        return
    old = _TRANSLATABLE.findall(texts.source)
    if len(old) < _MIN_COPIED_WORDS or len(set(old) & set(new)) < _MIN_COPIED_WORDS - 1:
        return
    if "`" in texts.source:
        old, new = (_TRANSLATABLE.findall(_CODE.sub("`", text)) for text in (texts.source, texts.target))
    copied = Counter(old) & Counter(new)
    num_copied = copied.total()
    if num_copied < _MIN_COPIED_WORDS or num_copied < _MIN_COPIED_SHARE * max(len(old), len(new)):
        return
    num_adjacent = (Counter(pairwise(old)) & Counter(pairwise(new))).total()
    if num_adjacent < _MIN_ADJACENT_SHARE * (num_copied - 1):
        return
    if _num_function_words(copied, target_language) > _num_function_words(copied, source_language):
        return
    yield Violation(
        kind=WarningKind.UNTRANSLATED,
        detail=f"{num_copied} of {len(old)} words are copied",
        source=Span(start=0, end=len(texts.source)),
        target=Span(start=0, end=len(texts.target)),
    )


def is_short_copy(source: str, target: str) -> bool:
    """Return whether a text of one to three words is copied, in any case.

    This is not a violation, because words such as `Computer` are the same in both languages.
    """
    words = source.split(None, _MAX_SHORT_WORDS)
    if not words or len(words) > _MAX_SHORT_WORDS or not _SHORT_WORD.search(source):
        return False
    return words == target.split() or source.strip().casefold() == target.strip().casefold()


def _num_function_words(words: Counter[str], language: str) -> int:
    known = _FUNCTION_WORDS.get(language, frozenset())
    return sum(number for word, number in words.items() if word in known)
