"""Varies pairs of sentences, so that a model learns what parallel text seldom shows: to copy what stands for something.

    pair       See `main.c` of Tom's "old" files.    Siehe `main.c` aus Toms „alten“ Dateien.
    varied     See ⟦1⟧ of Tom's "⟪4⟫old⟪/4⟫" files   Siehe ⟦1⟧ aus Toms „⟪4⟫alten⟪/4⟫“ Dateien

Both kinds of marks are pieces of the vocabulary that no other text uses. What is varied is drawn anew for each epoch.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random
from typing import NamedTuple

from dragoman_export.data.lexicon import Translations, learn_translations
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.placeholders.patterns import compile_protection, is_placeholder_tag

PLACEHOLDERS = tuple(f"⟦{number}⟧" for number in range(1, 17))
"""Pieces that stand for a span which is the same on both sides."""

TAGS = tuple((f"⟪{number}⟫", f"⟪/{number}⟫") for number in range(1, 9))
"""Pairs of pieces around spans which translate each other."""

_PROTECTED_SHARE = 0.9
"""Of the pairs with code or addresses, those whose are replaced: a service that protects them hides all of them."""

_CHOSEN_SHARE = 0.7
"""Of the names and numbers of a pair, those that are replaced."""

_MAX_WORDS = 2
"""Words of a pair that are replaced because they translate each other."""

_MIN_LETTERS = 3
"""Of a word that is replaced because another translates it."""

_MAX_WORD_SHARE = 0.01
"""Of the sentences, those with such a word: rarer ones are names of things rather than grammar."""

_LEXICON_PAIRS = 200_000
"""Pairs that translations are learned from, spread over the text."""

_PROTECTION = compile_protection(ProtectionOptions(), ())
_WORD = re.compile(r"[^\W_]\w*(?:\.\w+)*")
_MARK = re.compile(r"⟦\d+⟧")
_QUOTED = re.compile(r"[\"“„»«]([^\"“”„»«]+)[\"“”«»]|\(([^()]+)\)")
_FIRST_WORDS = frozenset(
    (
        *("all", "am", "an", "also", "arm", "bald", "bin", "bring", "die", "fast", "gut", "hat", "her", "hey", "hier"),
        *("hinter", "in", "ich", "ist", "kind", "links", "man", "mit", "oder", "per", "plus", "rate", "so", "the"),
        *("war", "warm", "warum", "was", "wer", "wild", "will"),
    )
)
"""Words that begin sentences in both languages and mean something else, or are no names."""

_END = re.compile(r"(?<=[\w)\"'“”»⟧⟫])[.!?]$")
_LITERAL = re.compile(r"`|://|@|\\")
"""Where it stands something must keep its capitals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariationConfig:
    """Shares of the pairs that are varied, each from 0 to below 1."""

    placeholders: float = 0.0
    """Have names and numbers that are the same on both sides replaced by `PLACEHOLDERS`. Above 0, code and addresses
    are replaced in nine of ten pairs that have them."""

    placeholder_words: float = 0.0
    """Have one or two words that translate each other, whatever they are, replaced by `PLACEHOLDERS` on both sides."""

    tags: float = 0.0
    """Have a span between a pair of `TAGS`: something quoted, in parentheses or the same on both sides, or all."""

    capitals: float = 0.0
    """Are in capitals on both sides, or, half of them, have capitalised words in the source."""

    full_stops: float = 0.0
    """Lose the full stop, question or exclamation mark that ends both sides."""

    @property
    def is_on(self) -> bool:
        """Whether anything is varied."""
        return self.has_placeholders or any((self.tags, self.capitals, self.full_stops))

    @property
    def has_placeholders(self) -> bool:
        """Whether anything is replaced by `PLACEHOLDERS`."""
        return any((self.placeholders, self.placeholder_words))

    @property
    def reserved(self) -> tuple[str, ...]:
        """Pieces that the vocabulary must have."""
        placeholders = PLACEHOLDERS if self.has_placeholders else ()
        return (*placeholders, *chain(*TAGS)) if self.tags else placeholders


_Range = tuple[int, int]


class _Aligned(NamedTuple):
    """Ranges of source and target that translate each other."""

    source: _Range
    target: _Range


def vary(
    source: str, target: str, config: VariationConfig, random: Random, translations: Translations | None = None
) -> tuple[str, str]:
    """Return a pair as a model is to see it once; `random` is advanced by this call.

    Args:
        source: a sentence.
        target: its translation.
        config: how often what is done.
        random: decides.
        translations: from `translations_of`, for `config.placeholder_words`.
    """
    if config.has_placeholders:
        source, target = _with_placeholders(source, target, config, random, translations or {})
    if random.random() < config.tags:
        source, target = _with_tags(source, target, random)
    kind = random.random()
    if kind < config.capitals and not _LITERAL.search(source + target):
        source, target = (source.upper(), target.upper()) if 2 * kind < config.capitals else (_title(source), target)
    if random.random() < config.full_stops:
        ends = _END.search(source), _END.search(target)
        if ends[0] and ends[1] and ends[0][0] == ends[1][0]:
            source, target = source[:-1], target[:-1]
    return source, target


def vary_all(
    pairs: Iterable[tuple[str, str]],
    config: VariationConfig,
    *,
    seed: int,
    epoch: int,
    translations: Translations | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield all pairs as `vary` does, the same for a seed and an epoch."""
    random = Random(f"{seed} {epoch}")  # noqa: S311
    return (vary(source, target, config, random, translations) for source, target in pairs)


def translations_of(pairs: Iterable[tuple[str, str]], *, num_pairs: int) -> Translations:
    """Learn which words of a text of so many pairs translate each other, all of them in lower case."""
    chosen = islice(pairs, 0, None, -(-num_pairs // _LEXICON_PAIRS))
    words = [(_WORD.findall(source.lower()), _WORD.findall(target.lower())) for source, target in chosen]
    return learn_translations(words, max_share=_MAX_WORD_SHARE)


def _title(text: str) -> str:
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def _with_placeholders(
    source: str, target: str, config: VariationConfig, random: Random, translations: Translations
) -> tuple[str, str]:
    chosen: list[_Aligned] = []
    protected = _protected_copies(source, target)
    if config.placeholders:
        chosen = protected if random.random() < _PROTECTED_SHARE else []
        if random.random() < config.placeholders:
            words = [span for span in _copied_words(source, target) if not _overlaps(span, protected)]
            chosen = chosen + [span for span in words if random.random() < _CHOSEN_SHARE]
    if random.random() < config.placeholder_words:
        hidden = [*chosen, *protected]
        words = [span for span in _translated_words(source, target, translations) if not _overlaps(span, hidden)]
        chosen = chosen + random.sample(words, min(len(words), random.randint(1, _MAX_WORDS)))
    chosen = sorted(chosen)[: len(PLACEHOLDERS)]
    # a service counts from 1; the others are met, too, so that all of them are learned
    numbers = range(len(chosen)) if random.random() < 1 / 2 else random.sample(range(len(PLACEHOLDERS)), len(chosen))
    pieces = [PLACEHOLDERS[number] for number in numbers]
    return (
        _replaced(source, [span.source for span in chosen], pieces),
        _replaced(target, [span.target for span in chosen], pieces),
    )


def _translated_words(source: str, target: str, translations: Translations) -> list[_Aligned]:
    """Return words that each side has once and that translate each other, and no other word of the pair."""
    sides = [_by_spelling(text, _words(text), str.lower) for text in (source, target)]
    links = [(word, other) for word in sides[0] for other in translations.get(word, ()) if other in sides[1]]
    counts = Counter(chain.from_iterable((("source", word), ("target", other)) for word, other in links))
    return [
        _Aligned(sides[0][word][0], sides[1][other][0])
        for word, other in links
        if counts["source", word] == counts["target", other] == len(sides[0][word]) == len(sides[1][other]) == 1
        and min(len(word), len(other)) >= _MIN_LETTERS
        and not _is_joined(source, *sides[0][word][0])
    ]


def _words(text: str) -> Iterator[_Range]:
    return (match.span() for match in _WORD.finditer(text))


def _replaced(text: str, spans: Sequence[_Range], pieces: Sequence[str]) -> str:
    for (start, end), piece in sorted(zip(spans, pieces, strict=True), reverse=True):
        text = text[:start] + piece + text[end:]
    return text


def _overlaps(span: _Aligned, others: Sequence[_Aligned]) -> bool:
    return any(span[side][0] < other[side][1] and other[side][0] < span[side][1] for other in others for side in (0, 1))


def _protected_copies(source: str, target: str) -> list[_Aligned]:
    """Return code, addresses and whatever else a service protects by default, where both sides have as many."""
    sides = [_by_spelling(text, _protected(text)) for text in (source, target)]
    return [
        _Aligned(*places)
        for spelling, spans in sides[0].items()
        if len(sides[1].get(spelling, ())) == len(spans)
        for places in zip(spans, sides[1][spelling], strict=True)
    ]


def _by_spelling(text: str, spans: Iterable[_Range], spelled: Callable[[str], str] = str) -> dict[str, list[_Range]]:
    places: dict[str, list[_Range]] = {}
    for start, end in spans:
        places.setdefault(spelled(text[start:end]), []).append((start, end))
    return places


def _protected(text: str) -> list[_Range]:
    return [
        (one.span.start, one.span.end)
        for one in _PROTECTION.find(text)
        if one.kind is not ProtectedKind.TAG or is_placeholder_tag(text[one.span.start : one.span.end])
    ]


def _copied_words(source: str, target: str) -> list[_Aligned]:
    """Return names, numbers and their like that each side has once; neighbours on both sides are one."""
    sides = [_by_spelling(text, _words(text)) for text in (source, target)]
    found = sorted(
        _Aligned(places[0], sides[1][word][0])
        for word, places in sides[0].items()
        if len(places) == 1 == len(sides[1].get(word, ()))
        and _is_name(word, is_first=places[0][0] == 0)
        and not _is_joined(source, *places[0])
    )
    merged: list[_Aligned] = []
    for span in found:
        between = [
            text[before[1] : own[0]]
            for text, before, own in zip((source, target), merged[-1] if merged else span, span, strict=True)
        ]
        if between == [" ", " "]:
            before = merged.pop()
            merged.append(_Aligned((before.source[0], span.source[1]), (before.target[0], span.target[1])))
        else:
            merged.append(span)
    return merged


def _is_joined(text: str, start: int, end: int) -> bool:
    return text[max(0, start - 1) : start] == "-" or text[end : end + 1] == "-"


def _is_name(word: str, *, is_first: bool) -> bool:
    """Whether a word with a digit or a capital letter is one that texts copy, and not `I` or how a sentence begins."""
    if any(map(str.isdigit, word)):
        return True
    if not any(map(str.isupper, word)) or len(word) == 1:
        return False
    if not word.istitle():
        return True
    return len(word) > 2 and not (is_first and word.lower() in _FIRST_WORDS)


def _with_tags(source: str, target: str, random: Random) -> tuple[str, str]:
    ends = [match.start() if (match := _END.search(text)) else len(text) for text in (source, target)]
    candidates = [*_copied_words(source, target), *_marks(source, target), _Aligned((0, ends[0]), (0, ends[1]))]
    quoted = [list(_QUOTED.finditer(text)) for text in (source, target)]
    if len(quoted[0]) == len(quoted[1]):
        candidates += [
            _Aligned(left.span(left.lastindex or 0), right.span(right.lastindex or 0))
            for left, right in zip(*quoted, strict=True)
        ]
    chosen = random.choice(candidates)
    opening, closing = random.choice(TAGS)
    return tuple(  # type: ignore[return-value]
        text[:start] + opening + text[start:end] + closing + text[end:]
        for text, (start, end) in zip((source, target), chosen, strict=True)
    )


def _marks(source: str, target: str) -> list[_Aligned]:
    places = {match[0]: match.span() for match in _MARK.finditer(target)}
    return [_Aligned(match.span(), places[match[0]]) for match in _MARK.finditer(source) if match[0] in places]
