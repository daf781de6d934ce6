"""Augments pairs of sentences with placeholders, tags and other case, which parallel text rarely contains.

    pair       See `main.c` of Tom's "old" files.    Siehe `main.c` aus Toms „alten“ Dateien.
    augmented  See ⟦1⟧ of Tom's "⟪4⟫old⟪/4⟫" files   Siehe ⟦1⟧ aus Toms „⟪4⟫alten⟪/4⟫“ Dateien

Placeholders and tags are reserved pieces of the vocabulary. Each epoch draws new augmentations.
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

PLACEHOLDERS = tuple(f"⟦{number}⟧" for number in range(1, 17))  # pieces for spans that are equal on both sides
# pairs of pieces around spans that translate each other
TAGS = tuple((f"⟪{number}⟫", f"⟪/{number}⟫") for number in range(1, 9))
_PROTECTED_SHARE = 0.9  # share of pairs with code or addresses in which these are replaced
_CHOSEN_SHARE = 0.7  # share of the names and numbers of a pair that are replaced
_MAX_WORDS = 2  # words of a pair that are replaced because they translate each other
_MIN_LETTERS = 3  # of a replaced word
_MAX_WORD_SHARE = 0.01  # largest share of sentences with a replaced word; more frequent words are mostly function words
_LEXICON_PAIRS = 200_000  # pairs from which translations are learned, spread over the text
_PROTECTION = compile_protection(ProtectionOptions(), ())
_WORD = re.compile(r"[^\W_]\w*(?:\.\w+)*")
_MARK = re.compile(r"⟦\d+⟧")
_QUOTED = re.compile(r"[\"“„»«]([^\"“”„»«]+)[\"“”«»]|\(([^()]+)\)")
# sentence-initial words that exist in both languages with different meanings, or are not names
_FIRST_WORDS = frozenset(
    (
        *("all", "am", "an", "also", "arm", "bald", "bin", "bring", "die", "fast", "gut", "hat", "her", "hey", "hier"),
        *("hinter", "in", "ich", "ist", "kind", "links", "man", "mit", "oder", "per", "plus", "rate", "so", "the"),
        *("war", "warm", "warum", "was", "wer", "wild", "will"),
    )
)
_END = re.compile(r"(?<=[\w)\"'“”»⟧⟫])[.!?]$")
_LITERAL = re.compile(r"`|://|@|\\")  # text that must keep its case


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentationConfig:
    """Shares of the pairs that are augmented, each from 0 to below 1."""

    # names and numbers that occur on both sides; above 0, also code and addresses in 90 % of their pairs
    placeholders: float = 0.0
    placeholder_words: float = 0.0  # one or two words that translate each other
    tags: float = 0.0  # tags around a quotation, parentheses, a copied word or the whole sentence
    capitals: float = 0.0  # upper case on both sides or, in half of them, capitalised source words
    full_stops: float = 0.0  # without the punctuation mark that ends both sides

    @property
    def is_on(self) -> bool:
        """True if any augmentation is enabled."""
        return self.has_placeholders or any((self.tags, self.capitals, self.full_stops))

    @property
    def has_placeholders(self) -> bool:
        """True if placeholders are inserted."""
        return any((self.placeholders, self.placeholder_words))

    @property
    def reserved(self) -> tuple[str, ...]:
        """Pieces that the vocabulary must contain."""
        placeholders = PLACEHOLDERS if self.has_placeholders else ()
        return (*placeholders, *chain(*TAGS)) if self.tags else placeholders


_Range = tuple[int, int]


class _Aligned(NamedTuple):
    # Ranges of source and target that translate each other.
    source: _Range
    target: _Range


def augment(
    source: str, target: str, config: AugmentationConfig, random: Random, translations: Translations | None = None
) -> tuple[str, str]:
    """Return an augmented pair; advances `random`. `translations` are those of `translations_of`."""
    if config.has_placeholders:
        source, target = _with_placeholders(source, target, config, random, translations or {})
    if random.random() < config.tags:
        source, target = _with_tags(source, target, random)
    kind = random.random()
    if kind < config.capitals and not _LITERAL.search(source + target):
        if 2 * kind < config.capitals:
            source, target = source.upper(), target.upper()
        else:
            source = " ".join(word[:1].upper() + word[1:] for word in source.split(" "))
    if random.random() < config.full_stops:
        ends = _END.search(source), _END.search(target)
        if ends[0] and ends[1] and ends[0][0] == ends[1][0]:
            source, target = source[:-1], target[:-1]
    return source, target


def augment_all(
    pairs: Iterable[tuple[str, str]],
    config: AugmentationConfig,
    *,
    seed: tuple[int, ...],
    translations: Translations | None = None,
) -> Iterator[tuple[str, str]]:
    """Yield all pairs as `augment` returns them; deterministic per seed."""
    random = Random(repr(seed))  # noqa: S311
    return (augment(source, target, config, random, translations) for source, target in pairs)


def translations_of(pairs: Iterable[tuple[str, str]], *, num_pairs: int) -> Translations:
    """Learn which lower-cased words of `num_pairs` pairs translate each other."""
    chosen = islice(pairs, 0, None, -(-num_pairs // _LEXICON_PAIRS))
    words = [(_WORD.findall(source.lower()), _WORD.findall(target.lower())) for source, target in chosen]
    return learn_translations(words, max_share=_MAX_WORD_SHARE)


def _with_placeholders(
    source: str, target: str, config: AugmentationConfig, random: Random, translations: Translations
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
    # The server numbers placeholders from 1; random numbers make the model learn all of them.
    numbers = range(len(chosen)) if random.random() < 1 / 2 else random.sample(range(len(PLACEHOLDERS)), len(chosen))
    pieces = [PLACEHOLDERS[number] for number in numbers]
    return (
        _replaced(source, [span.source for span in chosen], pieces),
        _replaced(target, [span.target for span in chosen], pieces),
    )


def _translated_words(source: str, target: str, translations: Translations) -> list[_Aligned]:
    # Words that occur once on each side and are each other's only translation in the pair.
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
    # Code, addresses and other spans protected by default that occur equally often on both sides.
    sides = []
    for text in (source, target):
        spans = [
            (each.span.start, each.span.end)
            for each in _PROTECTION.find(text)
            if each.kind is not ProtectedKind.TAG or is_placeholder_tag(text[each.span.start : each.span.end])
        ]
        sides.append(_by_spelling(text, spans))
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


def _copied_words(source: str, target: str) -> list[_Aligned]:
    # Names, numbers and similar words that occur once on each side; adjacent ones are merged.
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
    # Whether a word with a digit or a capital is usually copied, unlike `I` or the first word of a sentence.
    if any(map(str.isdigit, word)):
        return True
    if not any(map(str.isupper, word)) or len(word) == 1:
        return False
    if not word.istitle():
        return True
    return len(word) > 2 and not (is_first and word.lower() in _FIRST_WORDS)


def _with_tags(source: str, target: str, random: Random) -> tuple[str, str]:
    ends = [match.start() if (match := _END.search(text)) else len(text) for text in (source, target)]
    places = {match[0]: match.span() for match in _MARK.finditer(target)}
    marks = [_Aligned(match.span(), places[match[0]]) for match in _MARK.finditer(source) if match[0] in places]
    candidates = [*_copied_words(source, target), *marks, _Aligned((0, ends[0]), (0, ends[1]))]
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
