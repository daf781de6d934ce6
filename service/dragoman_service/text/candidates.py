"""The text of a hypothesis: quotation marks and ending corrected, protected spans restored, invariants checked."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate, takewhile

from dragoman_service.datatypes import AlignmentLink, Hypothesis, SegmentResult, Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.text.casing import capitalized_like, capitals
from dragoman_service.text.endings import corrected_ending
from dragoman_service.text.invariants.checks import find_violations
from dragoman_service.text.invariants.copied_tokens import find_changed_names_of_lists
from dragoman_service.text.invariants.untranslated import find_untranslated, is_short_copy
from dragoman_service.text.invariants.violations import HARD_KINDS, MASK, Texts, Violation
from dragoman_service.text.placeholders.counts import with_english_ordinals, with_separated_counts
from dragoman_service.text.placeholders.masking import masked, masked_target
from dragoman_service.text.placeholders.placement import Repair
from dragoman_service.text.placeholders.restoration import Fragment, restore
from dragoman_service.text.planning import is_ordinary
from dragoman_service.text.plans import TextPart
from dragoman_service.text.punctuation import restored_quotes, without_added_comma
from dragoman_service.text.quotation import missing_marks

_VISIBLE = re.compile(r"\S")
_MAX_SHOWN_CHARACTERS = 80
_WORD = re.compile(rf"[\w{MASK}]++")
_MAX_COMPARED_CHARACTERS = 64

_Edit = tuple[str, int, int, int, int]  # as `SequenceMatcher.get_opcodes` returns it


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A hypothesis of a part as text."""

    hypothesis: Hypothesis
    decoded: str  # what the model wrote, with placeholders
    fragments: tuple[Fragment, ...]
    violations: tuple[Violation, ...]  # spans in the text of the part, and in its translation
    links: Sequence[AlignmentLink] | None  # of a part without codes; None: unknown
    is_copied_label: bool  # a label of up to three words, without codes but the mark of an accelerator, is copied

    @property
    def text(self) -> str:
        """The translation of a part without codes."""
        return "".join(fragment.text for fragment in self.fragments)

    @property
    def num_hard(self) -> int:
        """Violations that make a translation unusable; a translation that is cut off counts as one."""
        return sum(each.kind in HARD_KINDS for each in self.violations) + (not self.hypothesis.is_finished)

    @property
    def kinds(self) -> frozenset[WarningKind]:
        """Kinds of the violations."""
        return frozenset(each.kind for each in self.violations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A search of a part, and its hypotheses as texts."""

    text: str  # the text of the request that contains the part
    source: str  # the text of the part
    part: TextPart
    result: SegmentResult
    candidates: tuple[Candidate, ...]  # best first
    is_skipped: bool = False  # whether a second search was needed, but has no result

    @property
    def best(self) -> Candidate:
        """The best candidate."""
        return self.candidates[0]


Chosen = tuple[Attempt, Candidate]
"""An attempt, and one of its candidates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateReader:
    """Turns hypotheses of a language pair into candidates."""

    source_language: str
    target_language: str
    spells: Callable[[str], bool]
    is_word: Callable[[str], bool]
    is_compared: bool = True  # whether translations are compared with their sources
    keeps_start: bool = False  # whether the caller has fixed the start of translations

    def read(
        self, source: str, part: TextPart, hypothesis: Hypothesis, target: str, links: Sequence[AlignmentLink] | None
    ) -> Candidate:
        """Return the candidate of a hypothesis.

        Args:
            source: the text of the part.
            part: the part.
            hypothesis: the hypothesis.
            target: its text, with placeholders.
            links: links from the model text of the part to `target`; None: unknown.
        """
        decoded = target
        is_copied_label = _is_copied_label(part, target)
        if part.unit is None and not part.model_text.is_recased and self._is_final(source, part, target):
            return Candidate(
                hypothesis=hypothesis,
                decoded=decoded,
                fragments=tuple(_linked(target, links or (), part.span.start)),
                violations=self._copies(source, target),
                links=links,
                is_copied_label=is_copied_label,
            )
        target, links = self._corrected(source, part, hypothesis, target, links)
        if part.unit is None:
            text, links = self._cased(part, target, links)
            violations = self._violations(source, text)
            return Candidate(
                hypothesis=hypothesis,
                decoded=decoded,
                fragments=tuple(_linked(text, links or (), part.span.start)),
                violations=violations,
                links=links,
                is_copied_label=is_copied_label,
            )
        restored = restore(part.unit, target, links)
        fragments = restored.fragments
        if part.model_text.is_from_capitals:
            fragments = tuple(map(self._in_capitals, fragments))
        lost = (_lost(repair, source, part.span.start) for repair in restored.repairs)
        found = self._violations(_masked_source(source, part), "".join(map(_visible, fragments)))
        return Candidate(
            hypothesis=hypothesis,
            decoded=decoded,
            fragments=fragments,
            violations=(*lost, *found),
            links=None,
            is_copied_label=is_copied_label,
        )

    def _is_final(self, source: str, part: TextPart, target: str) -> bool:
        # Whether source and target are ordinary, and the target needs no correction of its start and its end.
        has_ending = source[-1:] == target[-1:] and source[-2:-1].isalnum() and target[-2:-1].isalnum()
        return (
            has_ending
            and (target[0].isupper() or not source[0].isupper())
            and (part.model_text.is_ordinary or is_ordinary(source))
            and is_ordinary(target)
            and (source.isascii() or all(map(self.spells, set(source))))
        )

    def _copies(self, source: str, target: str) -> tuple[Violation, ...]:
        # The violations of an ordinary target: of a list of names, and a copy of the source.
        if not self.is_compared or set(source.split()).isdisjoint(target.split()):
            return ()
        texts = self._texts(source, target)
        return (*find_changed_names_of_lists(texts), *find_untranslated(texts))

    def _corrected(
        self, source: str, part: TextPart, hypothesis: Hypothesis, target: str, links: Sequence[AlignmentLink] | None
    ) -> tuple[str, Sequence[AlignmentLink] | None]:
        read, visible = (masked(part.unit), masked_target(part.unit, target)) if part.unit else (source, target)
        marks = missing_marks(part.unit.text if part.unit else source, target)
        corrected = with_separated_counts(read, _changed(visible, marks))
        if primary_language(self.target_language) == "en":
            corrected = with_english_ordinals(corrected)
        corrected = without_added_comma(read, corrected)
        if hypothesis.is_finished:
            languages = {"source_language": self.source_language, "target_language": self.target_language}
            corrected = corrected_ending(read, corrected, **languages)
        corrected = restored_quotes(read, corrected, target_language=self.target_language)
        is_sentence = part.begins_sentence and " " in read.strip()
        if part.model_text.is_recased or (is_sentence and not self.keeps_start):
            corrected = capitalized_like(read, corrected, language=self.target_language)
        if corrected == visible:
            return target, links
        edits = list(_edits(visible, corrected))
        pieces = (target[i:j] if kind == "equal" else corrected[k:n] for kind, i, j, k, n in edits)
        if links is not None:
            links = _moved(links, _positions(edits, len(visible)))
        return "".join(pieces), links

    def _cased(
        self, part: TextPart, target: str, links: Sequence[AlignmentLink] | None
    ) -> tuple[str, Sequence[AlignmentLink] | None]:
        if not part.model_text.is_from_capitals:
            return target, links
        if links is not None:
            lengths = (len(capitals(char, language=self.target_language)) for char in target)
            links = _moved(links, list(accumulate(lengths, initial=0)))
        return capitals(target, language=self.target_language), links

    def _in_capitals(self, fragment: Fragment) -> Fragment:
        if not fragment.is_model_text:
            return fragment
        return replace(fragment, text=capitals(fragment.text, language=self.target_language))

    def _violations(self, source: str, target: str) -> tuple[Violation, ...]:
        return tuple(find_violations(self._texts(source, target))) if self.is_compared else ()

    def _texts(self, source: str, target: str) -> Texts:
        return Texts(
            source=source,
            target=target,
            source_language=self.source_language,
            target_language=self.target_language,
            spells=self.spells,
            is_word=self.is_word,
        )


def _is_copied_label(part: TextPart, target: str) -> bool:
    source = part.model_text.text
    may_be_copy = source[:1].casefold() == target[:1].casefold() and (part.unit is None or part.unit.is_label)
    return may_be_copy and is_short_copy(source, target)


def _changed(text: str, changes: Sequence[tuple[Span, str]]) -> str:
    pieces: list[str] = []
    position = 0
    for span, new in changes:
        pieces += (text[position : span.start], new)
        position = span.end
    return "".join((*pieces, text[position:]))


def _edits(old: str, new: str) -> Iterator[_Edit]:
    # Corrections change the case of words and the characters between words, so both texts have the same words.
    words, new_words = ([match.span() for match in _WORD.finditer(text)] for text in (old, new))
    if len(words) != len(new_words):
        words, new_words = [], []
    end = new_end = 0
    for word, new_word in zip((*words, (len(old),) * 2), (*new_words, (len(new),) * 2), strict=True):
        for start, stop, new_start, new_stop in (
            (end, word[0], new_end, new_word[0]),
            (*word, *new_word),
        ):
            for kind, i, j, k, n in _short_edits(old[start:stop], new[new_start:new_stop]):
                yield kind, start + i, start + j, new_start + k, new_start + n
        end, new_end = word[1], new_word[1]


def _short_edits(old: str, new: str) -> Sequence[_Edit]:
    # Long texts are not compared in detail, because that takes quadratic time.
    if old == new:
        return [("equal", 0, len(old), 0, len(new))]
    if max(len(old), len(new)) <= _MAX_COMPARED_CHARACTERS:
        return SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    first = _num_common(old, new)
    last = _num_common(old[first:][::-1], new[first:][::-1])
    end, new_end = len(old) - last, len(new) - last
    return [
        ("equal", 0, first, 0, first),
        ("replace", first, end, first, new_end),
        ("equal", end, len(old), new_end, len(new)),
    ]


def _num_common(first: str, second: str) -> int:
    # Length of the common start.
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _positions(edits: Sequence[_Edit], length: int) -> list[int]:
    # For each position of a text, the position after the edits.
    positions = [0] * (length + 1)
    for kind, start, end, new_start, new_end in edits:
        for index in range(start, end):
            positions[index] = new_start + (index - start if kind == "equal" else 0)
        positions[end] = new_end
    return positions


def _moved(links: Sequence[AlignmentLink], positions: Sequence[int]) -> list[AlignmentLink]:
    moved = (
        replace(link, target=Span(start=positions[link.target.start], end=positions[link.target.end])) for link in links
    )
    return [link for link in moved if link.target.start < link.target.end]


def _linked(text: str, links: Sequence[AlignmentLink], start: int) -> Iterator[Fragment]:
    # A translation without codes, with its links, for a text whose other parts have codes. `start` is the position of
    # the part.
    position = 0
    for link in links:
        if position < link.target.start:
            yield Fragment(text=text[position : link.target.start], is_model_text=True)
        own, position = text[link.target.start : link.target.end], link.target.end
        yield Fragment(text=own, source=link.source.shifted(start), weight=link.weight, is_model_text=True)
    if position < len(text):
        yield Fragment(text=text[position:], is_model_text=True)


def _masked_source(source: str, part: TextPart) -> str:
    pieces: list[str] = []
    position = part.span.start
    for code in part.unit.codes if part.unit else ():
        start, end = code.source.start, code.source.end
        if start >= position:
            pieces += (source[position - part.span.start : start - part.span.start], MASK * (end - start))
            position = end
    return "".join((*pieces, source[position - part.span.start :]))


def _visible(fragment: Fragment) -> str:
    if fragment.copied is not None:
        return MASK * (fragment.copied.end - fragment.copied.start)
    return fragment.text if fragment.is_model_text else _VISIBLE.sub(MASK, fragment.text)


def _lost(repair: Repair, source: str, start: int) -> Violation:
    span = repair.code.source.shifted(-start)
    shown = source[span.start : span.end][:_MAX_SHOWN_CHARACTERS]
    return Violation(
        kind=WarningKind.PLACEHOLDER_LOST, detail=f"{shown!r} {repair.action.value}", source=span, target=None
    )
