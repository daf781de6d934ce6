"""Tag projection: places the tags of a source in its translation.

Tags keep their tree: children of an element stay inside it, siblings stay siblings. An element encloses the run of
chunks with the most that come from its text and the fewest that do not. Runs of siblings do not overlap; the largest
is placed first. A tag without partner, or with its partner in another sentence, goes where most chunks are on the same
side of it as in the source. Whatever the alignment is, each tag occurs once and nesting is preserved.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dragoman_service.text.placeholders.placement import AlignedChunk, insertion_index
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit

_GAP_COST = 0.6  # cost of a foreign chunk inside an element, in chunks of the element


@dataclass(slots=True, kw_only=True, eq=False)
class _Element:
    opening: int  # index of its opening tag among the codes, or of its only tag
    closing: int  # index of its closing tag; -1 if it is one tag
    start: int
    end: int
    children: "list[_Element]" = field(default_factory=list)


_Order = Iterator[AlignedChunk | int]
"""Chunks, and tags by their index among the codes, in the order of the translation."""


def project_tags(unit: TextUnit, chunks: Sequence[AlignedChunk]) -> _Order:
    """Yield the chunks of a translation with the tags of its source in between."""
    roots, unpaired = _tree(unit.codes)
    low = first = 0
    for index, num_roots in unpaired:
        position = _split_position(chunks, unit.codes[index].start, low)
        yield from _project_elements(chunks, roots[first:num_roots], low, position)
        yield index
        low, first = position, num_roots
    yield from _project_elements(chunks, roots[first:], low, len(chunks))


def _tree(codes: Sequence[InlineCode]) -> tuple[list[_Element], list[tuple[int, int]]]:
    # The top-level elements, and the tags whose partner is elsewhere with the number of elements before each.
    roots: list[_Element] = []
    unpaired: list[tuple[int, int]] = []
    stack: list[_Element] = []
    for index, code in enumerate(codes):
        siblings = stack[-1].children if stack else roots
        if code.kind is CodeKind.OPENING and code.partner >= 0:
            end = codes[code.partner].start
            stack.append(_Element(opening=index, closing=code.partner, start=code.start, end=end))
            siblings.append(stack[-1])
        elif code.kind is CodeKind.CLOSING and code.partner >= 0:
            stack.pop()
        elif code.kind in {CodeKind.OPENING, CodeKind.CLOSING}:
            unpaired.append((index, len(roots)))
        elif code.kind is CodeKind.STANDALONE:
            siblings.append(_Element(opening=index, closing=-1, start=code.start, end=code.start))
    return roots, unpaired


def _split_position(chunks: Sequence[AlignedChunk], position: int, low: int) -> int:
    # The boundary from `low` on with the fewest chunks on the wrong side of a position in the source.
    cost = best_cost = sum(chunk.source_position < position for chunk in chunks[low:])
    best = low
    for index in range(low, len(chunks)):
        cost += 1 if chunks[index].source_position >= position else -1
        if cost <= best_cost:
            best, best_cost = index + 1, cost
    return best


def _project_elements(chunks: Sequence[AlignedChunk], elements: Sequence[_Element], low: int, high: int) -> _Order:
    runs = _runs(chunks, elements, low, high)
    taken = sorted((runs[id(element)], element.start) for element in elements if id(element) in runs)
    placed = []
    boundaries: dict[int, int] = {}  # many tags may be at one position
    for number, element in enumerate(elements):
        run = runs.get(id(element))
        if run is None:
            if element.start not in boundaries:
                boundaries[element.start] = insertion_index(chunks, element.start, low, high)
            boundary = _outside_runs(boundaries[element.start], element, taken)
            run = boundary, boundary
        placed.append((*run, number))
    for begin, end, number in sorted(placed):
        element = elements[number]
        yield from chunks[low:begin]
        yield element.opening
        if element.closing >= 0:
            yield from _project_elements(chunks, element.children, begin, end)
            yield element.closing
        low = end
    yield from chunks[low:high]


_Run = tuple[int, int]


def _runs(chunks: Sequence[AlignedChunk], elements: Sequence[_Element], low: int, high: int) -> dict[int, _Run]:
    # The run of chunks of each element, by its id. Elements without translated text have none.
    sizes: list[tuple[int, _Element]] = []
    for element in elements:
        if element.start == element.end:
            continue
        size = sum(element.start <= chunk.source_position < element.end for chunk in chunks[low:high])
        if size:
            sizes.append((size, element))
    runs: dict[int, _Run] = {}
    is_taken = [False] * (high - low)
    for _, element in sorted(sizes, key=lambda pair: -pair[0]):
        run = _best_run(chunks, element, low, is_taken)
        if run is not None:
            runs[id(element)] = run
            is_taken[run[0] - low : run[1] - low] = [True] * (run[1] - run[0])
    return runs


def _best_run(chunks: Sequence[AlignedChunk], element: _Element, low: int, is_taken: Sequence[bool]) -> _Run | None:
    # The run of free chunks with the most of the element and the fewest others.
    best: tuple[float, int, int] | None = None
    score, begin = 0.0, low
    for index, taken in enumerate(is_taken, start=low):
        is_own = element.start <= chunks[index].source_position < element.end
        score += 1 if is_own else -_GAP_COST
        if taken or score < 0:
            score, begin = 0.0, index + 1
        elif is_own and (best is None or score > best[0]):
            best = score, begin, index + 1
    return None if best is None else best[1:]


def _outside_runs(boundary: int, element: _Element, taken: Sequence[tuple[_Run, int]]) -> int:
    # Moves a boundary out of the runs of siblings, each given with its start in the source.
    number = bisect_left(taken, boundary, key=lambda pair: pair[0][0]) - 1
    if number < 0 or taken[number][0][1] <= boundary:
        return boundary
    (begin, end), start = taken[number]
    return begin if element.start <= start else end
