"""Translates generated cases with the text pipeline of the service, and counts the intact translations."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dragoman_export.evaluation.integrity.checks import Case, check_case, checked
from dragoman_export.evaluation.translation import BundleTextModel, translate_each
from dragoman_service.text.pipeline import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The translation of a case."""

    text: str
    warnings: tuple[str, ...] = ()  # names of the kinds
    num_second_searches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityRow:
    """Counts of the cases of a kind and a language pair."""

    kind: str
    source_language: str
    target_language: str
    num_cases: int
    num_intact: int
    num_silent: int  # without a warning, although a checked property is damaged
    num_warnings: int
    num_second_searches: int

    @property
    def intact_percent(self) -> float:
        """Share of intact cases, from 0 to 100."""
        return 100 * self.num_intact / max(self.num_cases, 1)


def translate_cases(model: BundleTextModel, cases: Sequence[Case], *, beam_size: int, batch_size: int) -> list[Answer]:
    """Translate cases of the language pair of a model as the service does with default options."""
    answers: dict[int, Answer] = {}
    for text_format in dict.fromkeys(case.format for case in cases):
        indices = [index for index, case in enumerate(cases) if case.format is text_format]
        outcomes = translate_each(
            model,
            [cases[index].source for index in indices],
            beam_size=beam_size,
            batch_size=batch_size,
            text_format=text_format,
        )
        answers.update(zip(indices, map(_answer, outcomes), strict=True))
    return [answers[index] for index in range(len(cases))]


def _answer(outcome: Outcome) -> Answer:
    (translation,) = outcome.translations
    num_by_worker = sum(attempt.result.degeneration is not None for attempt in outcome.first)
    return Answer(
        text=translation.hypotheses[0].text,
        warnings=tuple(warning.kind.name for warning in translation.warnings),
        num_second_searches=outcome.num_second + num_by_worker,
    )


def measure(cases: Sequence[Case], answers: Sequence[Answer]) -> list[IntegrityRow]:
    """Return a row for each kind and language pair, in the order of their first cases."""
    rows: dict[tuple[str, str, str], Counter[str]] = {}
    for case, answer in zip(cases, answers, strict=True):
        counts = rows.setdefault((case.kind, case.source_language, case.target_language), Counter())
        is_intact = not check_case(case, answer.text)
        is_silent = not is_intact and not answer.warnings and bool(check_case(checked(case), answer.text))
        counts.update(
            num_cases=1,
            num_intact=is_intact,
            num_silent=is_silent,
            num_warnings=len(answer.warnings),
            num_second_searches=answer.num_second_searches,
        )
    return [
        IntegrityRow(
            kind=kind,
            source_language=source,
            target_language=target,
            num_cases=counts["num_cases"],
            num_intact=counts["num_intact"],
            num_silent=counts["num_silent"],
            num_warnings=counts["num_warnings"],
            num_second_searches=counts["num_second_searches"],
        )
        for (kind, source, target), counts in rows.items()
    ]


def total(rows: Sequence[IntegrityRow], source_language: str, target_language: str) -> IntegrityRow:
    """Return the sums of the rows of a language pair, as the kind `all`."""
    own = [row for row in rows if (row.source_language, row.target_language) == (source_language, target_language)]
    return IntegrityRow(
        kind="all",
        source_language=source_language,
        target_language=target_language,
        num_cases=sum(row.num_cases for row in own),
        num_intact=sum(row.num_intact for row in own),
        num_silent=sum(row.num_silent for row in own),
        num_warnings=sum(row.num_warnings for row in own),
        num_second_searches=sum(row.num_second_searches for row in own),
    )


def with_totals(rows: Sequence[IntegrityRow]) -> list[IntegrityRow]:
    """Return the rows and, after them, a total for each language pair."""
    pairs = dict.fromkeys((row.source_language, row.target_language) for row in rows)
    return [*rows, *(total(rows, *pair) for pair in pairs)]


def table(rows: Iterable[IntegrityRow]) -> list[str]:
    """Return the lines of a table with a header."""
    header = f"{'kind':20} {'direction':9} {'cases':>7} {'intact':>15} {'silent':>7} {'warnings':>8} {'searches':>8}"
    return [header, *map(_line, rows)]


def _line(row: IntegrityRow) -> str:
    direction = f"{row.source_language}-{row.target_language}"
    intact = f"{row.num_intact:,} {row.intact_percent:6.1f}%"
    counts = f"{row.num_silent:7,} {row.num_warnings:8,} {row.num_second_searches:8,}"
    return f"{row.kind:20} {direction:9} {row.num_cases:7,} {intact:>15} {counts}"
