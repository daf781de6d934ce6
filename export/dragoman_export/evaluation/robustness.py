"""Scores translations of changed test sentences.

Each change applies to a seeded sample of the pairs that permit it. The unchanged sentences of the same sample are
scored for comparison.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from random import Random
from typing import Final

from sacrebleu.metrics.chrf import CHRF

from dragoman_export.data.augmentation import AugmentationConfig, augment
from dragoman_export.data.reader import Pair
from dragoman_export.errors import CorpusError
from dragoman_export.evaluation.report import copies, repetitions
from dragoman_export.evaluation.spans import SPANS
from dragoman_export.evaluation.translation import BundleTextModel, TranslationRun, translate_texts

UNITS: Final = ("km", "kg", "°C", "GB", "ms", "km/h", "%")
_NUM_JOINED: Final = 6  # sentences of a very long sentence
_WORDS_PER_TYPO: Final = 5
_MARK: Final = re.compile(r"(?P<end>[.!?]?)$")
_RESERVED: Final = re.compile(r"⟦\d+⟧|⟪(?P<closing>/?)\d+⟫")
_SWAPPED: Final = re.compile(r"(?<=[^\W\d_])([^\W\d_])(?!\1)[^\W\d_](?=[^\W\d_])")  # inner letters that differ
_LITERAL: Final = re.compile(r"[`@\\<{%]|://")  # text that must not change
_WORD: Final = re.compile(r"\b[^\W\d_]{4,}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A changed source."""

    source: str
    reference: str
    unchanged: tuple[Pair, ...]
    spans: tuple[str, ...] = ()  # parts of the source that a translation must preserve
    has_reference: bool = True  # False: the reference is unknown and empty


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Measures of the translations of one change; shares are from 0 to 1."""

    sentences: int
    unchanged_chrf: float
    chrf: float | None  # without the spans; None without references
    repetitions: float  # share of translations with words three times in a row
    copies: float  # share of translations that equal their source but not the reference
    preserved: float | None  # share of the spans that the model preserved without repair; None without spans


def _placeholders(pairs: Iterable[Pair], random: Random) -> Iterator[Case]:
    # names, numbers and literal text that occur on both sides, replaced by placeholders and addresses
    spans = cycle(SPANS)
    for pair in pairs:
        texts = augment(pair.source, pair.target, AugmentationConfig(placeholders=1.0), random)
        marks = {mark[0]: next(spans) for mark in _RESERVED.finditer(texts[0])}
        if marks:
            source, reference = (_RESERVED.sub(lambda mark: marks[mark[0]], text) for text in texts)  # noqa: B023
            yield Case(source=source, reference=reference, unchanged=(pair,), spans=tuple(marks.values()))


def _tags(pairs: Iterable[Pair], random: Random) -> Iterator[Case]:
    for pair in pairs:
        texts = augment(pair.source, pair.target, AugmentationConfig(tags=1.0), random)
        source, reference = (_RESERVED.sub(r"<\g<closing>b>", text) for text in texts)
        if source != pair.source:
            yield Case(source=source, reference=reference, unchanged=(pair,), spans=("<b>", "</b>"))


def _capitals(pairs: Iterable[Pair], _: Random) -> Iterator[Case]:
    for pair in pairs:
        if not _LITERAL.search(pair.source):
            yield Case(source=pair.source.upper(), reference=pair.target.upper(), unchanged=(pair,))


def _full_stops(pairs: Iterable[Pair], _: Random) -> Iterator[Case]:
    for pair in pairs:
        if pair.source[-1:] == pair.target[-1:] == ".":
            yield Case(source=pair.source[:-1], reference=pair.target[:-1], unchanged=(pair,))


def _typos(pairs: Iterable[Pair], random: Random) -> Iterator[Case]:
    for pair in pairs:
        letters, places = list(pair.source), [match.start() for match in _SWAPPED.finditer(pair.source)]
        if places and not _LITERAL.search(pair.source):
            num_typos = 1 + len(pair.source.split()) // _WORDS_PER_TYPO
            for place in random.sample(places, min(num_typos, len(places))):
                letters[place], letters[place + 1] = letters[place + 1], letters[place]
            yield Case(source="".join(letters), reference=pair.target, unchanged=(pair,))


def _quantities(pairs: Iterable[Pair], random: Random) -> Iterator[Case]:
    for pair, unit in zip(pairs, cycle(UNITS), strict=False):
        span = f"{random.randrange(2, 10_000)} {unit}"
        source, reference = (_MARK.sub(rf" ({span})\g<end>", text, count=1) for text in (pair.source, pair.target))
        yield Case(source=source, reference=reference, unchanged=(pair,), spans=(span,))


def _single_words(pairs: Iterable[Pair], random: Random) -> Iterator[Case]:
    # not the first word, which may have a capital, and not words that the reference also has, such as names
    seen: set[str] = set()
    for pair in pairs:
        target = set(_WORD.findall(pair.target.casefold()))
        words = [word for word in _WORD.findall(pair.source, 1) if word.casefold() not in target | seen]
        if words:
            word = random.choice(words)
            seen.add(word.casefold())
            yield Case(source=word, reference="", unchanged=(pair,), has_reference=False)


def _long_sentences(pairs: Iterable[Pair], _: Random) -> Iterator[Case]:
    rest = iter(pairs)
    while len(joined := tuple(islice(rest, _NUM_JOINED))) == _NUM_JOINED:
        source, reference = (
            ", ".join(text.rstrip(".!?") for text in texts) + "."
            for texts in ([pair.source for pair in joined], [pair.target for pair in joined])
        )
        yield Case(source=source, reference=reference, unchanged=joined)


def _other_language(pairs: Iterable[Pair], _: Random) -> Iterator[Case]:
    for pair in pairs:
        yield Case(source=pair.target, reference=pair.target, unchanged=(pair,))


CHANGES: Final[Mapping[str, Callable[[Iterable[Pair], Random], Iterator[Case]]]] = {
    "placeholders": _placeholders,
    "tags": _tags,
    "all capitals": _capitals,
    "without full stop": _full_stops,
    "typos": _typos,
    "numbers with units": _quantities,
    "single words": _single_words,
    "very long sentences": _long_sentences,
    "text in the target language": _other_language,
}


def changed(pairs: Sequence[Pair], *, limit: int, seed: int) -> dict[str, list[Case]]:
    """Return at most `limit` sentences for each change, the same for the same seed."""
    cases = {}
    for name, change in CHANGES.items():
        random = Random(f"{seed} {name}")  # noqa: S311
        sample = random.sample(pairs, len(pairs))
        num_cases = -(-limit // _NUM_JOINED) if change is _long_sentences else limit
        cases[name] = list(islice(change(sample, random), num_cases))
        if not cases[name]:
            raise CorpusError(f"--data has no pair that permits the change: {name}")
    return cases


def measure_changes(
    model: BundleTextModel, cases: Mapping[str, Sequence[Case]], *, beam_size: int, batch_size: int
) -> dict[str, Outcome]:
    """Translate the unchanged and the changed sources; return the measures by change."""

    def translated(sources: Sequence[str]) -> TranslationRun:
        return translate_texts(model, sources, beam_size=beam_size, batch_size=batch_size)

    pairs = list(dict.fromkeys(pair for changed in cases.values() for case in changed for pair in case.unchanged))
    unchanged = dict(zip(pairs, translated([pair.source for pair in pairs]).texts, strict=True))
    return {
        name: _outcome(changed, translated([case.source for case in changed]), unchanged)
        for name, changed in cases.items()
    }


def change_lines(outcomes: Mapping[str, Outcome]) -> Iterator[str]:
    """Yield the measures as lines of a table."""
    yield f"{'change':28} {'sentences':>9} {'unchanged':>9} {'chrF':>6} repeated copied preserved"
    for change, outcome in outcomes.items():
        chrf = "" if outcome.chrf is None else f"{outcome.chrf:.2f}"
        preserved = "" if outcome.preserved is None else f"{outcome.preserved:.2%}"
        shares = f"{outcome.repetitions:8.2%} {outcome.copies:6.2%}"
        yield f"{change:28} {outcome.sentences:9,} {outcome.unchanged_chrf:9.2f} {chrf:>6} {shares} {preserved:>9}"


def _outcome(cases: Sequence[Case], run: TranslationRun, unchanged: Mapping[Pair, str]) -> Outcome:
    sources, references = [case.source for case in cases], [case.reference for case in cases]
    pairs = [pair for case in cases for pair in case.unchanged]
    num_spans = sum(len(case.spans) for case in cases)
    num_present = sum(
        min(text.count(span), case.spans.count(span))
        for case, text in zip(cases, run.texts, strict=True)
        for span in set(case.spans)
    )
    plain = [_without(case.spans, text) for case, text in zip(cases, run.texts, strict=True)]
    plain_references = [_without(case.spans, case.reference) for case in cases]
    return Outcome(
        sentences=len(cases),
        unchanged_chrf=_chrf([unchanged[pair] for pair in pairs], [pair.target for pair in pairs]),
        chrf=_chrf(plain, plain_references) if cases[0].has_reference else None,
        repetitions=len(repetitions(run.texts, references)) / len(cases),
        copies=len(copies(sources, run.texts, references)) / len(cases),
        preserved=max(num_present - run.num_lost_placeholders, 0) / num_spans if num_spans else None,
    )


def _chrf(texts: Sequence[str], references: Sequence[str]) -> float:
    return float(CHRF().corpus_score(texts, [references]).score)


def _without(spans: Iterable[str], text: str) -> str:
    for span in spans:
        text = text.replace(span, "")
    return text
