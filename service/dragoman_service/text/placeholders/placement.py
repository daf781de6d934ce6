"""A translation as aligned chunks: ranges of it and the positions in the source that they come from.

The output of a placeholder is the chunk of its protected span. If the placeholder is missing, the chunk is inserted
after that of the text before it in the source; if it occurs twice, one is removed. Both are repairs.
"""

import enum
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.placeholders.masking import placeholder_ranges
from dragoman_service.text.placeholders.text_units import ALIGNED_KINDS, CodeKind, InlineCode, TextUnit

_MARKS = frozenset(".:!?,;")
_WORD = re.compile(r"\w+|[^\w\s]")


class RepairAction(enum.Enum):
    """Repair of a protected span; the value is part of the warning."""

    REMOVED = "duplicated in the output; extra copy removed"
    INSERTED = "missing from the output; re-inserted by alignment"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A protected span whose placeholder did not occur exactly once in the output."""

    code: InlineCode
    action: RepairAction


@dataclass(slots=True, kw_only=True)
class AlignedChunk:
    """Range of the translation and the range of the text unit that it comes from."""

    start: int
    end: int
    source: Span
    weight: float = 1.0
    code: InlineCode | None = None  # its protected span
    is_removed: bool = False  # a duplicate that is not written
    is_missing: bool = False  # inserted: the translation does not contain it
    word_position: int | None = None  # source position of its word; None: that of the chunk

    @property
    def source_position(self) -> int:
        """Position in the text unit that decides which tags enclose the chunk."""
        return self.source.start if self.word_position is None else self.word_position


def align_chunks(
    unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None
) -> tuple[list[AlignedChunk], list[Repair]]:
    """Return the chunks of a translation in order, exactly one for each placeholder, and the repairs.

    Without links, the words are assumed to be in the order of the source.
    """
    links = _monotonic_links(unit.text, target) if links is None else links
    codes = [code for code in unit.codes if code.kind is CodeKind.PLACEHOLDER]
    best, duplicates = _find_placeholders(unit, target, links)
    fixed = sorted((*best, *duplicates), key=lambda chunk: chunk.start)
    edges = [code.start for code in unit.codes if code.kind in ALIGNED_KINDS or code.kind is CodeKind.PLACEHOLDER]
    chunks = _merge(fixed, _split_copies(links, unit.text, target, edges))
    repairs = [Repair(code=chunk.code, action=RepairAction.REMOVED) for chunk in duplicates if chunk.code]
    present = {id(chunk.code) for chunk in best}
    for code in codes:
        if id(code) not in present:
            index = insertion_index(chunks, code.start, 0, len(chunks))
            position = chunks[index - 1].end if index else 0
            chunk = AlignedChunk(start=position, end=position, source=code.span, code=code, is_missing=True)
            chunks.insert(index, chunk)
            repairs.append(Repair(code=code, action=RepairAction.INSERTED))
    _unite_words(chunks, unit.text, target)
    return chunks, repairs


def insertion_index(chunks: Sequence[AlignedChunk], position: int, low: int, high: int) -> int:
    """Return the boundary from `low` to `high` for text from a source position.

    That is after the chunk of the text before it in the source, or else before that of the text after it.
    """
    before, after = -1, -1
    for index in range(low, high):
        start = chunks[index].source_position
        if start < position and (before < 0 or start >= chunks[before].source_position):
            before = index
        if start >= position and (after < 0 or start < chunks[after].source_position):
            after = index
    if before >= 0:
        return before + 1
    return after if after >= 0 else low


def _unite_words(chunks: Sequence[AlignedChunk], text: str, target: str) -> None:
    # All chunks of a word get one source position, so that no tag divides it: that of its most
    # important chunk, which is not an ending. Copied words may be divided.
    first = 0
    for index in range(1, len(chunks) + 1):
        if index < len(chunks) and _is_within_word(chunks[index - 1], chunks[index], target):
            continue
        word = chunks[first:index]
        if any(text[chunk.source.start : chunk.source.end] != target[chunk.start : chunk.end] for chunk in word):
            position = max(word, key=lambda chunk: chunk.weight * (chunk.end - chunk.start)).source.start
            for chunk in word:
                chunk.word_position = position
        first = index


def _is_within_word(before: AlignedChunk, chunk: AlignedChunk, target: str) -> bool:
    if before.code or chunk.code or before.end != chunk.start:
        return False
    return target[chunk.start - 1].isalnum() and target[chunk.start].isalnum()


def _find_placeholders(
    unit: TextUnit, target: str, links: Sequence[AlignmentLink]
) -> tuple[list[AlignedChunk], list[AlignedChunk]]:
    # The best occurrence of each placeholder in a translation (by the weight of the link to itself), and duplicates.
    occurrences: dict[int, list[AlignedChunk]] = {}
    for code, span in placeholder_ranges(unit, target):
        placeholder = unit.text[code.start : code.end]
        is_joined = placeholder.startswith(" ") or _has_added_space(unit, code, target, span.start)
        start = span.start - (is_joined and target[span.start - 1 : span.start] == " ")
        end = span.end + (placeholder.endswith(" ") and target[span.end : span.end + 1] == " ")
        chunk = AlignedChunk(start=start, end=end, source=code.span, code=code)
        occurrences.setdefault(code.start, []).append(chunk)
    chosen, duplicates = [], []
    for chunks in occurrences.values():
        best = max(range(len(chunks)), key=lambda index: _weight_of_copy(chunks[index], links))
        chosen.append(chunks.pop(best))
        for chunk in chunks:
            chunk.start -= chunk.start > 0 and target[chunk.start - 1] == " "
            chunk.is_removed = True
        duplicates += chunks
    return chosen, duplicates


def _has_added_space(unit: TextUnit, code: InlineCode, target: str, start: int) -> bool:
    # Whether a space is before a closing mark that touches punctuation in the source: `*Note:*` as `*Hinweis: *`.
    before, before_space = unit.text[code.start - 1 : code.start], target[start - 2 : start - 1]
    return code.start > 0 and start > 1 and before in _MARKS and before_space in _MARKS


def _weight_of_copy(chunk: AlignedChunk, links: Sequence[AlignmentLink]) -> float:
    # Weight of the link from a placeholder in the translation to the same placeholder in the source.
    first = bisect_right(links, chunk.start, key=lambda link: link.target.end)
    weight = 0.0
    for link in links[first:]:
        if link.target.start >= chunk.end:
            break
        if chunk.source.start < link.source.end and link.source.start < chunk.source.end:
            weight = max(weight, link.weight)
    return weight


def _split_copies(
    links: Iterable[AlignmentLink], text: str, target: str, edges: Sequence[int]
) -> Iterator[AlignmentLink]:
    # Links of copied text are split at the tags within it.
    for link in links:
        source, copied = link.source, link.target
        first, last = bisect_left(edges, source.start + 1), bisect_left(edges, source.end)
        if first == last or text[source.start : source.end] != target[copied.start : copied.end]:
            yield link
            continue
        cuts = sorted({source.start, *edges[first:last], source.end})
        for start, end in pairwise(cuts):
            span = Span(start=start, end=end)
            yield AlignmentLink(source=span, target=span.shifted(copied.start - source.start), weight=link.weight)


def _merge(fixed: Sequence[AlignedChunk], links: Iterable[AlignmentLink]) -> list[AlignedChunk]:
    # Chunks of links and placeholders in order. Placeholders take precedence over links.
    chunks: list[AlignedChunk] = []
    number = 0
    for link in links:
        start, end = link.target.start, link.target.end
        while number < len(fixed) and fixed[number].start < end:
            placeholder = fixed[number]
            if start < placeholder.start:
                chunks.append(AlignedChunk(start=start, end=placeholder.start, source=link.source, weight=link.weight))
            if not chunks or chunks[-1] is not placeholder:
                chunks.append(placeholder)
            start = max(start, placeholder.end)
            if placeholder.end > end:
                break
            number += 1
        if start < end:
            chunks.append(AlignedChunk(start=start, end=end, source=link.source, weight=link.weight))
    chunks += [chunk for chunk in fixed[number:] if not chunks or chunks[-1] is not chunk]
    return chunks


def _monotonic_links(text: str, target: str) -> list[AlignmentLink]:
    sources, targets = ([Span(start=m.start(), end=m.end()) for m in _WORD.finditer(side)] for side in (text, target))
    if not sources:
        return []
    return [
        AlignmentLink(source=sources[index * len(sources) // len(targets)], target=span, weight=0.0)
        for index, span in enumerate(targets)
    ]
