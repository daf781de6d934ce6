"""Augments pairs of sentences with placeholders, tags, other case and variations, which parallel text rarely contains.

    pair       See `main.c` of Tom's "old" files.    Siehe `main.c` aus Toms „alten“ Dateien.
    augmented  See ⟦1⟧ of Tom's "⟪4⟫old⟪/4⟫" files   Siehe ⟦1⟧ aus Toms „⟪4⟫alten⟪/4⟫“ Dateien

Placeholders and tags are reserved pieces of the vocabulary. Each epoch draws new augmentations.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from random import Random

from dragoman_export.data.aligned_spans import (
    END,
    WORD,
    Aligned,
    by_spelling,
    common_end,
    copied_words,
    replaced,
    translated_words,
)
from dragoman_export.data.lexicon import Translations, learn_translations
from dragoman_export.data.variation import (
    single_word,
    with_ending,
    with_names,
    with_numbers,
    with_other_quotation_marks,
    with_symbols,
)
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.placeholders.patterns import compile_protection, is_placeholder_tag

PLACEHOLDERS = tuple(f"⟦{number}⟧" for number in range(1, 17))  # pieces for spans that are equal on both sides
# pairs of pieces around spans that translate each other
TAGS = tuple((f"⟪{number}⟫", f"⟪/{number}⟫") for number in range(1, 9))
_PROTECTED_SHARE = 0.9  # share of pairs with code or addresses in which these are replaced
_CHOSEN_SHARE = 0.7  # share of the names and numbers of a pair that are replaced
_MAX_WORDS = 2  # words of a pair that are replaced because they translate each other
_MAX_WORD_SHARE = 0.01  # largest share of sentences with a replaced word; more frequent words are mostly function words
_LEXICON_PAIRS = 200_000  # pairs from which translations are learned, spread over the text
_PROTECTION = compile_protection(ProtectionOptions(), ())
_MARK = re.compile(r"⟦\d+⟧")
_QUOTED = re.compile(r"[\"“„»«]([^\"“”„»«]+)[\"“”«»]|\(([^()]+)\)")
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
    # see `dragoman_export.data.variation`
    numbers: float = 0.0
    names: float = 0.0
    symbols: float = 0.0
    endings: float = 0.0
    quotation_marks: float = 0.0
    single_words: float = 0.0

    @property
    def is_on(self) -> bool:
        """True if any augmentation is enabled."""
        return any(getattr(self, name) for name in self.__slots__)

    @property
    def has_placeholders(self) -> bool:
        """True if placeholders are inserted."""
        return any((self.placeholders, self.placeholder_words))

    @property
    def needs_lexicon(self) -> bool:
        """True if words and their translations are replaced or chosen."""
        return any((self.placeholder_words, self.single_words))

    @property
    def reserved(self) -> tuple[str, ...]:
        """Pieces that the vocabulary must contain."""
        placeholders = PLACEHOLDERS if self.has_placeholders else ()
        return (*placeholders, *chain(*TAGS)) if self.tags else placeholders


def augment(
    source: str, target: str, config: AugmentationConfig, random: Random, translations: Translations | None = None
) -> tuple[str, str]:
    """Return an augmented pair; advances `random`. `translations` are those of `translations_of`."""
    source, target = _with_variations(source, target, config, random, translations or {})
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
    if random.random() < config.full_stops and common_end(source, target):
        source, target = source[:-1], target[:-1]
    if _is_drawn(config.symbols, random):
        source, target = with_symbols(source, target, random)
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
    words = [(WORD.findall(source.lower()), WORD.findall(target.lower())) for source, target in chosen]
    return learn_translations(words, max_share=_MAX_WORD_SHARE)


def _is_drawn(share: float, random: Random) -> bool:
    # A share of 0 draws nothing, so that runs without an augmentation do not depend on it.
    return share > 0 and random.random() < share


def _with_variations(
    source: str, target: str, config: AugmentationConfig, random: Random, translations: Translations
) -> tuple[str, str]:
    if _is_drawn(config.single_words, random):
        return single_word(source, target, random, translations)
    for share, vary in ((config.numbers, with_numbers), (config.names, with_names), (config.endings, with_ending)):
        if _is_drawn(share, random):
            source, target = vary(source, target, random)
    if _is_drawn(config.quotation_marks, random):
        source = with_other_quotation_marks(source)
    return source, target


def _with_placeholders(
    source: str, target: str, config: AugmentationConfig, random: Random, translations: Translations
) -> tuple[str, str]:
    chosen: list[Aligned] = []
    protected = _protected_copies(source, target)
    if config.placeholders:
        chosen = protected if random.random() < _PROTECTED_SHARE else []
        if random.random() < config.placeholders:
            words = [span for span in copied_words(source, target) if not _overlaps(span, protected)]
            chosen = chosen + [span for span in words if random.random() < _CHOSEN_SHARE]
    if random.random() < config.placeholder_words:
        hidden = [*chosen, *protected]
        words = [span for span in translated_words(source, target, translations) if not _overlaps(span, hidden)]
        chosen = chosen + random.sample(words, min(len(words), random.randint(1, _MAX_WORDS)))
    chosen = sorted(chosen)[: len(PLACEHOLDERS)]
    # The server numbers placeholders from 1; random numbers make the model learn all of them.
    numbers = range(len(chosen)) if random.random() < 1 / 2 else random.sample(range(len(PLACEHOLDERS)), len(chosen))
    pieces = [PLACEHOLDERS[number] for number in numbers]
    return (
        replaced(source, [span.source for span in chosen], pieces),
        replaced(target, [span.target for span in chosen], pieces),
    )


def _overlaps(span: Aligned, others: Sequence[Aligned]) -> bool:
    return any(span[side][0] < other[side][1] and other[side][0] < span[side][1] for other in others for side in (0, 1))


def _protected_copies(source: str, target: str) -> list[Aligned]:
    # Code, addresses and other spans protected by default that occur equally often on both sides.
    sides = []
    for text in (source, target):
        spans = [
            (each.span.start, each.span.end)
            for each in _PROTECTION.find(text)
            if each.kind is not ProtectedKind.TAG or is_placeholder_tag(text[each.span.start : each.span.end])
        ]
        sides.append(by_spelling(text, spans))
    return [
        Aligned(*places)
        for spelling, spans in sides[0].items()
        if len(sides[1].get(spelling, ())) == len(spans)
        for places in zip(spans, sides[1][spelling], strict=True)
    ]


def _with_tags(source: str, target: str, random: Random) -> tuple[str, str]:
    ends = [match.start() if (match := END.search(text)) else len(text) for text in (source, target)]
    places = {match[0]: match.span() for match in _MARK.finditer(target)}
    marks = [Aligned(match.span(), places[match[0]]) for match in _MARK.finditer(source) if match[0] in places]
    candidates = [*copied_words(source, target), *marks, Aligned((0, ends[0]), (0, ends[1]))]
    quoted = [list(_QUOTED.finditer(text)) for text in (source, target)]
    if len(quoted[0]) == len(quoted[1]):
        candidates += [
            Aligned(left.span(left.lastindex or 0), right.span(right.lastindex or 0))
            for left, right in zip(*quoted, strict=True)
        ]
    chosen = random.choice(candidates)
    opening, closing = random.choice(TAGS)
    return tuple(  # type: ignore[return-value]
        text[:start] + opening + text[start:end] + closing + text[end:]
        for text, (start, end) in zip((source, target), chosen, strict=True)
    )
