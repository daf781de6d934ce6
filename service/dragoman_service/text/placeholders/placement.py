"""A translation as a row of cells: pieces of it that come, by the alignment, from a place in the source.

A stand-in that is in the translation once is the cell of its span. One that is missing gets a cell behind that of what
stood before it, and of one that came twice the second is removed; both are repairs.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.placeholders.blocks import Block, Piece, Role

_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A protected span that did not come back by itself."""

    piece: Piece
    action: str
    """What was done, for people."""


@dataclass(slots=True, kw_only=True)
class AlignedChunk:
    """A piece of the translation and the place in the block that it comes from."""

    start: int
    end: int
    source: Span
    weight: float = 1.0
    piece: Piece | None = None
    """The protected span that it is."""

    is_removed: bool = False
    """Whether nothing is written of it: the span is elsewhere."""

    is_missing: bool = False
    """Whether it is in the source only: this is where it belongs."""

    place: int = -1
    """What its source counts as where tags are placed; -1: its start."""

    @property
    def origin(self) -> int:
        """Where in the block it comes from."""
        return self.source.start if self.place < 0 else self.place


def find_cells(
    block: Block, target: str, links: Sequence[AlignmentLink] | None
) -> tuple[list[AlignedChunk], list[Repair]]:
    """Return the cells of a translation in order, one of them for each stand-in, and what had to be repaired.

    Without links words are taken to be in the order of the source.
    """
    links = _even_links(block.text, target) if links is None else links
    pieces = [piece for piece in block.pieces if piece.role is Role.STAND_IN]
    found, repeated = _find_stand_ins(block.text, pieces, target, links)
    cells = [AlignedChunk(start=start, end=end, source=_span(piece), piece=piece) for piece, start, end in found]
    removed = [
        AlignedChunk(start=start, end=end, source=_span(piece), piece=piece, is_removed=True)
        for piece, start, end in repeated
    ]
    fixed = sorted((*cells, *removed), key=lambda cell: cell.start)
    edges = [piece.start for piece in block.pieces if piece.role is not Role.SPELLING]
    merged = _merge(fixed, _split_copies(links, block.text, target, edges))
    repairs = [Repair(piece=piece, action="came twice, the second was removed") for piece, _, _ in repeated]
    present = {id(piece) for piece, _, _ in found}
    for piece in pieces:
        if id(piece) not in present:
            merged.insert(*_missing(merged, piece))
            repairs.append(Repair(piece=piece, action="was lost, and was inserted where its neighbours are"))
    _unite_words(merged, block.text, target)
    return merged, repairs


def _unite_words(cells: Sequence[AlignedChunk], text: str, target: str) -> None:
    """Let all cells of a word come from one place, so that no tag parts it; words that were copied are parted."""
    first = 0
    for index in range(1, len(cells) + 1):
        if index < len(cells) and _is_within_word(cells[index - 1], cells[index], target):
            continue
        word = cells[first:index]
        if any(text[cell.source.start : cell.source.end] != target[cell.start : cell.end] for cell in word):
            place = max(word, key=lambda cell: cell.weight).source.start
            for cell in word:
                cell.place = place
        first = index


def _is_within_word(before: AlignedChunk, cell: AlignedChunk, target: str) -> bool:
    if before.piece or cell.piece or before.end != cell.start:
        return False
    return target[cell.start - 1].isalnum() and target[cell.start].isalnum()


def _find_stand_ins(
    text: str, pieces: Sequence[Piece], target: str, links: Sequence[AlignmentLink]
) -> tuple[list[tuple[Piece, int, int]], list[tuple[Piece, int, int]]]:
    """Return where stand-ins are in a translation: each once, best where it comes from itself, and all others."""
    if not pieces:
        return [], []
    by_text = {text[piece.start : piece.end].strip(): piece for piece in pieces}
    own_texts = [re.escape(one) for one in sorted(by_text, key=lambda one: -len(one))]
    numbers = "|".join(one for one in own_texts if one.isdigit()) or "(?!)"
    placeholders = "|".join(one for one in own_texts if not one.isdigit()) or "(?!)"
    found: dict[str, list[tuple[Piece, int, int]]] = {}
    # models write two numbers in a row, too; part of a longer number is no stand-in
    for run in re.finditer(rf"(?:{placeholders})|(?<!\d)(?:{numbers})+(?!\d)", target):
        for match in re.finditer(rf"{placeholders}|{numbers}", run[0]):
            piece = by_text[match[0]]
            start, end = run.start() + match.start(), run.start() + match.end()
            own = text[piece.start : piece.end]
            start -= own.startswith(" ") and target[:start].endswith(" ")
            end += own.endswith(" ") and target[end:].startswith(" ")
            found.setdefault(match[0], []).append((piece, start, end))
    chosen, others = [], []
    for places in found.values():
        best = max(range(len(places)), key=lambda index: _comes_from_itself(places[index], links))
        chosen.append(places.pop(best))
        others += [(piece, start - (start > 0 and target[start - 1] == " "), end) for piece, start, end in places]
    return chosen, others


def _comes_from_itself(place: tuple[Piece, int, int], links: Sequence[AlignmentLink]) -> float:
    """Return how surely what stands at a place of the translation comes from the stand-in that it is."""
    piece, start, end = place
    first = bisect_right(links, start, key=lambda link: link.target.end)
    weight = 0.0
    for link in links[first:]:
        if link.target.start >= end:
            break
        if piece.start < link.source.end and link.source.start < piece.end:
            weight = max(weight, link.weight)
    return weight


def _split_copies(
    links: Iterable[AlignmentLink], text: str, target: str, edges: Sequence[int]
) -> Iterator[AlignmentLink]:
    """Yield links, those of copied pieces in several where a tag stands within the piece."""
    for link in links:
        source, own = link.source, link.target
        first, last = bisect_left(edges, source.start + 1), bisect_left(edges, source.end)
        if first == last or text[source.start : source.end] != target[own.start : own.end]:
            yield link
            continue
        cuts = sorted({source.start, *edges[first:last], source.end})
        by = own.start - source.start
        for start, end in pairwise(cuts):
            span = Span(start=start, end=end)
            yield AlignmentLink(source=span, target=span.shifted(by), weight=link.weight)


def _merge(fixed: Sequence[AlignedChunk], links: Iterable[AlignmentLink]) -> list[AlignedChunk]:
    """Return the cells of links and stand-ins in order; a link gives way to a stand-in."""
    cells: list[AlignedChunk] = []
    number = 0
    for link in links:
        start, end = link.target.start, link.target.end
        while number < len(fixed) and fixed[number].start < end:
            stand_in = fixed[number]
            if start < stand_in.start:
                cells.append(AlignedChunk(start=start, end=stand_in.start, source=link.source, weight=link.weight))
            if not cells or cells[-1] is not stand_in:
                cells.append(stand_in)
            start = max(start, stand_in.end)
            if stand_in.end > end:
                break
            number += 1
        if start < end:
            cells.append(AlignedChunk(start=start, end=end, source=link.source, weight=link.weight))
    cells += [cell for cell in fixed[number:] if not cells or cells[-1] is not cell]
    return cells


def _missing(cells: Sequence[AlignedChunk], piece: Piece) -> tuple[int, AlignedChunk]:
    """Return where a missing stand-in belongs: behind what stood before it, else before what stood behind it."""
    place = anchor(cells, piece.start, 0, len(cells))
    position = cells[place - 1].end if place else 0
    return place, AlignedChunk(start=position, end=position, source=_span(piece), piece=piece, is_missing=True)


def anchor(cells: Sequence[AlignedChunk], position: int, low: int, high: int) -> int:
    """Return the boundary, between `low` and `high`, where something from a place in the source belongs."""
    before, after = -1, -1
    for index in range(low, high):
        start = cells[index].origin
        if start < position and (before < 0 or start >= cells[before].origin):
            before = index
        if start >= position and (after < 0 or start < cells[after].origin):
            after = index
    if before >= 0:
        return before + 1
    return after if after >= 0 else low


def _span(piece: Piece) -> Span:
    return Span(start=piece.start, end=piece.end)


def _even_links(text: str, target: str) -> list[AlignmentLink]:
    """Link words as if they were in the same order, evenly spread."""
    sources, targets = ([Span(start=m.start(), end=m.end()) for m in _WORD.finditer(one)] for one in (text, target))
    if not sources:
        return []
    return [
        AlignmentLink(source=sources[index * len(sources) // len(targets)], target=span, weight=0.0)
        for index, span in enumerate(targets)
    ]
