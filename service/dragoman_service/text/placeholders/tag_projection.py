"""Where the tags of a source go in its translation.

Tags keep their tree: what was inside an element stays inside, neighbours stay neighbours. An element takes the run of
cells with the most that come from its text and the fewest that do not; runs of neighbours do not overlap, the largest
chooses first. A tag without partner, or whose partner is in another sentence, goes where most cells are on the side of
it where they were. So tags are always nested as they were, each of them once, whatever the alignment says.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dragoman_service.text.placeholders.blocks import Block, Piece, Role
from dragoman_service.text.placeholders.placement import AlignedChunk, anchor

_GAP_COST = 0.6
"""What a cell from elsewhere costs an element that takes it, in cells of its own."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Node:
    """An element, or a tag without partner."""

    opening: int
    """Index of its opening tag among the pieces, or of the tag."""

    closing: int
    """Index of its closing tag; -1 if it is one tag."""

    start: int
    end: int
    """Of what it marks in the block."""

    children: "list[_Node]" = field(default_factory=list)


_Order = Iterator[AlignedChunk | int]
"""Cells, and tags by their indices among the pieces, as they follow each other in the translation."""


def arrange(block: Block, cells: Sequence[AlignedChunk]) -> _Order:
    """Yield the cells of a translation with the tags of its source in their places."""
    roots, separators = _tree(block.pieces)
    low = first = 0
    for index, num_roots in separators:
        place = _split_place(cells, block.pieces[index].start, low)
        yield from _arrange_nodes(cells, roots[first:num_roots], low, place)
        yield index
        low, first = place, num_roots
    yield from _arrange_nodes(cells, roots[first:], low, len(cells))


def _tree(pieces: Sequence[Piece]) -> tuple[list[_Node], list[tuple[int, int]]]:
    """Return the elements that are in no other, and the tags whose partner is elsewhere.

    With each of the latter comes the number of elements before it.
    """
    roots: list[_Node] = []
    separators: list[tuple[int, int]] = []
    stack: list[_Node] = []
    for index, piece in enumerate(pieces):
        siblings = stack[-1].children if stack else roots
        if piece.role is Role.OPENING and piece.partner >= 0:
            end = pieces[piece.partner].start
            stack.append(_Node(opening=index, closing=piece.partner, start=piece.start, end=end))
            siblings.append(stack[-1])
        elif piece.role is Role.CLOSING and piece.partner >= 0:
            stack.pop()
        elif piece.role in {Role.OPENING, Role.CLOSING}:
            separators.append((index, len(roots)))
        elif piece.role is Role.POINT:
            siblings.append(_Node(opening=index, closing=-1, start=piece.start, end=piece.start))
    return roots, separators


def _split_place(cells: Sequence[AlignedChunk], position: int, low: int) -> int:
    """Return the boundary from `low` on with the fewest cells on the wrong side of a place in the source."""
    cost = best_cost = sum(cell.origin < position for cell in cells[low:])
    best = low
    for index in range(low, len(cells)):
        cost += 1 if cells[index].origin >= position else -1
        if cost <= best_cost:
            best, best_cost = index + 1, cost
    return best


def _arrange_nodes(cells: Sequence[AlignedChunk], nodes: Sequence[_Node], low: int, high: int) -> _Order:
    """Yield cells `low` to `high` with elements and their children among them."""
    runs = _runs(cells, nodes, low, high)
    taken = sorted((runs[id(node)], node.start) for node in nodes if id(node) in runs)
    placed = []
    anchors: dict[int, int] = {}  # many tags may stand at one place
    for number, node in enumerate(nodes):
        run = runs.get(id(node))
        if run is None:
            if node.start not in anchors:
                anchors[node.start] = anchor(cells, node.start, low, high)
            place = _out_of_runs(anchors[node.start], node, taken)
            run = place, place
        placed.append((*run, number))
    for begin, end, number in sorted(placed):
        node = nodes[number]
        yield from cells[low:begin]
        yield node.opening
        if node.closing >= 0:
            yield from _arrange_nodes(cells, node.children, begin, end)
            yield node.closing
        low = end
    yield from cells[low:high]


_Run = tuple[int, int]


def _runs(cells: Sequence[AlignedChunk], nodes: Sequence[_Node], low: int, high: int) -> dict[int, _Run]:
    """Return the run of cells of each element by its id; none for those that nothing comes from."""
    own: list[tuple[int, _Node]] = []
    for node in nodes:
        if node.start == node.end:
            continue
        num_own = sum(node.start <= cell.origin < node.end for cell in cells[low:high])
        if num_own:
            own.append((num_own, node))
    runs: dict[int, _Run] = {}
    is_taken = [False] * (high - low)
    for _, node in sorted(own, key=lambda pair: -pair[0]):
        run = _best_run(cells, node, low, is_taken)
        if run is not None:
            runs[id(node)] = run
            is_taken[run[0] - low : run[1] - low] = [True] * (run[1] - run[0])
    return runs


def _best_run(cells: Sequence[AlignedChunk], node: _Node, low: int, is_taken: Sequence[bool]) -> _Run | None:
    """Return the run with the most cells of an element and the fewest others, none of them taken."""
    best: tuple[float, int, int] | None = None
    score, begin = 0.0, low
    for index, taken in enumerate(is_taken, start=low):
        is_own = node.start <= cells[index].origin < node.end
        score += 1 if is_own else -_GAP_COST
        if taken or score < 0:
            score, begin = 0.0, index + 1
        elif is_own and (best is None or score > best[0]):
            best = score, begin, index + 1
    return None if best is None else best[1:]


def _out_of_runs(place: int, node: _Node, taken: Sequence[tuple[_Run, int]]) -> int:
    """Return a place in none of the runs of an element's neighbours; with each comes where it starts in the block."""
    number = bisect_left(taken, place, key=lambda pair: pair[0][0]) - 1
    if number < 0 or taken[number][0][1] <= place:
        return place
    (begin, end), start = taken[number]
    return begin if node.start <= start else end
