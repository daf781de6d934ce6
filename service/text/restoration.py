"""Put protected spans, tags and spellings back into a translation.

A translation is a row of cells: pieces of it that come, by the alignment, from a place in the source. A stand-in that
is in the translation once gives way to its span. One that is missing is set behind the cell of what stood before it,
and one that came twice stays once; both are reported.

Tags keep their tree: what was inside an element stays inside, neighbours stay neighbours. An element takes the run of
cells with the most that come from its text and the fewest that do not; runs of neighbours do not overlap, the largest
chooses first. A tag without partner, or whose partner is in another sentence, goes where most cells are on the side of
it where they were. So tags are always nested as they were, each of them once, whatever the alignment says.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from service.datatypes import AlignmentLink, Span
from service.text.blocks import Block, Piece, Role
from service.text.segmentation import Joined

_GAP_COST = 0.6
"""What a cell from elsewhere costs an element that takes it, in cells of its own."""

_WORD = re.compile(r"\w+|[^\w\s]")
_NO_SPACE_AFTER = frozenset("([{<\"'„“‚‘«»-/")
_NO_SPACE_BEFORE = frozenset(")]}>\"'”’“»,.;:!?-/")
_CONTEXT_CHARACTERS = 10
"""What must follow a bare `<` as in the source: there it begins no tag, in a title for instance."""

_REFERENCE_RUN = re.compile(r"[A-Za-z0-9#;]{1,40}")
"""What a character reference can be made of, and more than the longest has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A piece of a restored translation."""

    text: str = ""
    raw: Span | None = None
    """A range of the message to be copied instead of `text`."""

    source: Span | None = None
    """What in the message it comes from; None: nothing."""

    weight: float = 1.0
    """Of the link between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """A protected span that did not come back by itself."""

    piece: Piece
    action: str
    """What was done, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A translation with everything in its place."""

    items: tuple[Item, ...]
    repairs: tuple[Repair, ...]


@dataclass(slots=True, kw_only=True)
class _Cell:
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


def restore(block: Block, target: str, links: Sequence[AlignmentLink] | None) -> Restored:
    """Return the translation of a block with its pieces put back.

    `links` say which piece of `target` comes from which piece of the block's text, ordered by target; None: nobody
    knows, and words are taken to be in the order of the source.
    """
    if links is None and not block.pieces and not block.escapes:
        return Restored(items=(Item(text=target),), repairs=())
    cells, repairs = _cells(block, target, links if links is not None else _even_links(block.text, target))
    writer = _Writer(block, target)
    for cell in _arrange(block, cells):
        writer.add(cell)
    writer.end()
    return Restored(items=tuple(writer.items), repairs=tuple(repairs))


def forced_prefix(block: Block, target: str, links: Sequence[AlignmentLink] | None) -> str | None:
    """Return the start of a translation up to the last missing stand-in, with all of them at their places.

    Empty if none is missing but some came twice; None if there is nothing to repair.
    """
    cells, repairs = _cells(block, target, links if links is not None else _even_links(block.text, target))
    if not repairs:
        return None
    places = [index for index, cell in enumerate(cells) if cell.is_missing]
    text, position = "", 0
    for cell in cells[: places[-1] + 1] if places else ():
        text += target[position : cell.start]
        if cell.is_missing and cell.piece is not None:
            stand_in = block.text[cell.piece.start : cell.piece.end].strip()
            text = text.rstrip() + " " * bool(text.strip()) + stand_in
        text += "" if cell.is_removed else target[cell.start : cell.end]
        position = cell.end
    return text


def _cells(block: Block, target: str, links: Sequence[AlignmentLink]) -> tuple[list[_Cell], list[Repair]]:
    """Return the cells of a translation in order, one of them for each stand-in, and what had to be repaired."""
    pieces = [piece for piece in block.pieces if piece.role is Role.STAND_IN]
    found, repeated = _find_stand_ins(block.text, pieces, target, links)
    cells = [_Cell(start=start, end=end, source=_span(piece), piece=piece) for piece, start, end in found]
    removed = [
        _Cell(start=start, end=end, source=_span(piece), piece=piece, is_removed=True) for piece, start, end in repeated
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


def _unite_words(cells: Sequence[_Cell], text: str, target: str) -> None:
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


def _is_within_word(before: _Cell, cell: _Cell, target: str) -> bool:
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


def _merge(fixed: Sequence[_Cell], links: Iterable[AlignmentLink]) -> list[_Cell]:
    """Return the cells of links and stand-ins in order; a link gives way to a stand-in."""
    cells: list[_Cell] = []
    number = 0
    for link in links:
        start, end = link.target.start, link.target.end
        while number < len(fixed) and fixed[number].start < end:
            stand_in = fixed[number]
            if start < stand_in.start:
                cells.append(_Cell(start=start, end=stand_in.start, source=link.source, weight=link.weight))
            if not cells or cells[-1] is not stand_in:
                cells.append(stand_in)
            start = max(start, stand_in.end)
            if stand_in.end > end:
                break
            number += 1
        if start < end:
            cells.append(_Cell(start=start, end=end, source=link.source, weight=link.weight))
    cells += [cell for cell in fixed[number:] if not cells or cells[-1] is not cell]
    return cells


def _missing(cells: Sequence[_Cell], piece: Piece) -> tuple[int, _Cell]:
    """Return where a missing stand-in belongs: behind what stood before it, else before what stood behind it."""
    place = _anchor(cells, piece.start, 0, len(cells))
    position = cells[place - 1].end if place else 0
    return place, _Cell(start=position, end=position, source=_span(piece), piece=piece, is_missing=True)


def _anchor(cells: Sequence[_Cell], position: int, low: int, high: int) -> int:
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


_Order = Iterator[_Cell | int]
"""Cells, and tags by their indices among the pieces, as they follow each other in the translation."""


def _arrange(block: Block, cells: Sequence[_Cell]) -> _Order:
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


def _split_place(cells: Sequence[_Cell], position: int, low: int) -> int:
    """Return the boundary from `low` on with the fewest cells on the wrong side of a place in the source."""
    cost = best_cost = sum(cell.origin < position for cell in cells[low:])
    best = low
    for index in range(low, len(cells)):
        cost += 1 if cells[index].origin >= position else -1
        if cost <= best_cost:
            best, best_cost = index + 1, cost
    return best


def _arrange_nodes(cells: Sequence[_Cell], nodes: Sequence[_Node], low: int, high: int) -> _Order:
    """Yield cells `low` to `high` with elements and their children among them."""
    runs = _runs(cells, nodes, low, high)
    taken = sorted((runs[id(node)], node.start) for node in nodes if id(node) in runs)
    placed = []
    for number, node in enumerate(nodes):
        run = runs.get(id(node))
        if run is None:
            place = _out_of_runs(_anchor(cells, node.start, low, high), node, taken)
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


def _runs(cells: Sequence[_Cell], nodes: Sequence[_Node], low: int, high: int) -> dict[int, _Run]:
    """Return the run of cells of each element by its id; none for those that nothing comes from."""
    own: list[tuple[int, _Node]] = []
    for node in nodes:
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


def _best_run(cells: Sequence[_Cell], node: _Node, low: int, is_taken: Sequence[bool]) -> _Run | None:
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


class _Writer:
    """Writes a translation item by item."""

    def __init__(self, block: Block, target: str) -> None:
        self.items: list[Item] = []
        self._block = block
        self._target = target
        self._spellings = _Spellings(block)
        self._position = 0
        """How much of the target is written."""
        self._gap_start = 0
        self._in_doubt: list[tuple[int, str]] = []
        """Items whose last characters depend on what follows them, and these (`_Spellings.tail_in_doubt`)."""
        self._tags: list[int] = []
        """Met since the last cell."""

    def add(self, cell: _Cell | int) -> None:
        """Write the next cell; or remember a tag, by its index, until it is known what it stands beside."""
        if isinstance(cell, int):
            self._tags.append(cell)
            return
        self._write_gap(cell.start)
        self._write_cell(cell)
        self._position = cell.end

    def end(self) -> None:
        """Write what is left."""
        self._write_gap(len(self._target))
        for index, tail in self._in_doubt:
            if self._is_cut_off_by_tag(index, tail):
                item = self.items[index]
                text = item.text.removesuffix(self._spellings.escaped(tail)) + tail
                self.items[index] = replace(item, text=text)

    def _is_cut_off_by_tag(self, index: int, tail: str) -> bool:
        """Whether a tag follows before the characters that an item ends in could mean anything."""
        for following in range(index + 1, len(self.items)):
            item = self.items[following]
            if item.raw is not None:
                return item.source is None
            tail += item.text
            if not _is_open_ended(tail):
                return False
        return False

    def _write_gap(self, end: int) -> None:
        """Write what is between two cells: white space, each tag at the place in it where it was in the source."""
        self._gap_start = self._position
        for piece in (self._block.pieces[index] for index in self._tags):
            place = self._place_in_gap(piece, end)
            self._write_text(self._position, place)
            self.items.append(Item(raw=piece.source))
            self._position = place
        self._write_text(self._position, end)
        self._tags.clear()
        self._position = end

    def _place_in_gap(self, tag: Piece, end: int) -> int:
        text, begin = self._block.text, self._position
        before = text[max(0, tag.start - (end - self._gap_start)) : tag.start]
        num_spaces = len(before) - len(before.rstrip())
        if text[tag.start : tag.start + 1].isspace():
            return max(begin, min(self._gap_start + num_spaces, end))
        return begin if tag.role is Role.CLOSING and not num_spaces else end

    def _write_cell(self, cell: _Cell) -> None:
        source = self._block.source_of(cell.source)
        if cell.piece is None:
            self._write_text(cell.start, cell.end, source=source, weight=cell.weight)
        elif not cell.is_removed:
            is_missing = cell.is_missing or self._is_run_together(cell)
            before, after = self._target[: cell.start][-1:], self._target[cell.end : cell.end + 1]
            if is_missing and before and not (before.isspace() or before in _NO_SPACE_AFTER):
                self.items.append(Item(text=" "))
            if cell.piece.target is None:
                self.items.append(Item(raw=cell.piece.source, source=source))
            else:
                self.items.append(Item(text=self._spellings.escaped(cell.piece.target), source=source))
            if is_missing and after and not (after.isspace() or after in _NO_SPACE_BEFORE):
                self.items.append(Item(text=" "))

    def _is_run_together(self, cell: _Cell) -> bool:
        """Whether a stand-in follows another directly, but not in the source."""
        start = cell.piece.start if cell.piece else 0
        return self._target[: cell.start][-1:].isdigit() and self._block.text[start - 1 : start].isspace()

    def _write_text(self, start: int, end: int, *, source: Span | None = None, weight: float = 1.0) -> None:
        """Write a range of the target, in the spelling of the source where it has one."""
        for text, raw in self._spellings.spelled(self._target, start, end):
            self.items.append(Item(text=text, raw=raw, source=source, weight=weight))
        if start < end and self._spellings.tail_in_doubt:
            self._in_doubt.append((len(self.items) - 1, self._spellings.tail_in_doubt))


class _Spellings:
    """How characters are spelled in the source, first come, first served; and how else if they mean markup."""

    def __init__(self, block: Block) -> None:
        special = {_character(block.text[piece.start]) for piece in block.pieces if piece.role is Role.SPELLING}
        self._escapes = {
            char: html.escape(char) if html.escape(char) != char else f"'{char}'" for char in block.escapes
        }
        self._special = special | set(self._escapes)
        self._known: dict[str, Iterator[Span | str]] = {}
        self.tail_in_doubt = ""
        """Last characters written, if the first of them stands for itself in the source and was escaped for what
        follows them."""
        if self._special:
            self._known = {char: iter(spans) for char, spans in self._occurrences(block).items()}

    def _occurrences(self, block: Block) -> dict[str, list[Span | str]]:
        """Return how each occurrence of a special character is spelled; if as it is, what follows it."""
        known: dict[str, list[Span | str]] = {char: [] for char in self._special}
        position = 0
        for piece in block.pieces:
            self._note(known, block, position, piece.start)
            if piece.role is Role.SPELLING:
                known[_character(block.text[piece.start])].append(piece.source)
            position = piece.end
        self._note(known, block, position, len(block.text))
        return known

    def _note(self, known: dict[str, list[Span | str]], block: Block, start: int, end: int) -> None:
        for index in range(start, end):
            char = _character(block.text[index])
            if char == "&" and char in self._special:
                known[char].append(_after_ampersand(block, index + 1))
            elif char in self._special:
                known[char].append(block.text[index + 1 : min(end, index + 1 + _CONTEXT_CHARACTERS)])

    def spelled(self, target: str, start: int, end: int) -> Iterator[tuple[str, Span | None]]:
        """Yield a range of the target in pieces: text, or a range of the message instead."""
        if not self._special:
            if start < end:
                yield target[start:end], None
            return
        plain: list[str] = []
        self.tail_in_doubt = ""
        for index in range(start, end):
            char = target[index]
            if _character(char) not in self._special:
                plain.append(char)
                continue
            raw = next(self._known[_character(char)], _UNKNOWN)
            self.tail_in_doubt = ""
            if isinstance(raw, str) and _is_safe(target, index, raw):
                plain.append(char)
            elif isinstance(raw, str) or raw is _UNKNOWN:
                plain.append(self.escaped(char))
                if isinstance(raw, str) and _is_open_ended(target[index:end]):
                    self.tail_in_doubt = target[index:end]
            else:
                if plain:
                    yield "".join(plain), None
                plain.clear()
                yield "", raw
        if plain:
            yield "".join(plain), None

    def escaped(self, text: str) -> str:
        """Return a text as it is written in this markup."""
        return "".join(self._escapes.get(char, char) for char in text) if self._escapes else text


_UNKNOWN = Span(start=-1, end=-1)


def _character(char: str) -> str:
    return " " if char.isspace() else char


def _after_ampersand(block: Block, start: int) -> str:
    """Return what might be read as a reference with a `&` that stands for itself; what is never written if tags do."""
    run = _reference_run(block.text, start)
    index = bisect_left(block.pieces, start, key=lambda piece: piece.start)
    while index < len(block.pieces) and block.pieces[index].start < start + len(run):
        if block.pieces[index].role is not Role.STAND_IN:
            return "\0"
        index += 1
    return run


def _reference_run(text: str, start: int) -> str:
    match = _REFERENCE_RUN.match(text, start)
    return match[0] if match else ""


def _is_safe(text: str, index: int, followed_by: str) -> bool:
    """Whether a character of markup that stands for itself in the source, before other text, can do so here."""
    if text[index] == "&":
        run = _reference_run(text, index + 1)
        return run == followed_by or html.unescape(f"&{run}") == f"&{run}"
    if followed_by and text[index + 1 : index + 1 + len(followed_by)] == followed_by:
        return True
    following = text[index + 1 : index + 2]
    return text[index] != "<" or not ((following.isascii() and following.isalpha()) or following in {"/", "!", "?"})


def _is_open_ended(tail: str) -> bool:
    """Whether what follows decides what a character of markup means that a text ends in, or ends soon after."""
    return len(tail) == 1 or (tail[0] == "&" and _reference_run(tail, 1) == tail[1:] and html.unescape(tail) == tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled(Joined):
    """A text put together again, and what in it comes from where."""

    links: tuple[AlignmentLink, ...]
    """Ordered by target."""


class Assembler:
    """Puts a message together from its restored parts; everything else is copied.

    A part may lie within another, in a range that the other copies.
    """

    def __init__(self, text: str, fixed: Sequence[tuple[Span, str]], *, separator: str) -> None:
        """Take the message and what in it is replaced; `separator` is set between two parts that touch."""
        self._text = text
        self._fixed = [(span, (Item(text=target),)) for span, target in fixed]
        self._separator = separator

    def assemble(self, spans: Sequence[Span], parts: Sequence[Sequence[Item]]) -> Assembled:
        """Return the text; `spans` say where the parts are in the message."""
        numbered = [(span, items, number) for number, (span, items) in enumerate(zip(spans, parts, strict=True))]
        replaced = [*numbered, *((span, items, -1) for span, items in self._fixed)]
        return _Assembly(self._text, replaced, self._separator).run(len(spans))


class _Assembly:
    """One text while it is put together."""

    def __init__(self, text: str, replaced: Sequence[tuple[Span, Sequence[Item], int]], separator: str) -> None:
        self._text = text
        self._separator = separator
        self._replaced = sorted(replaced, key=lambda one: (one[0].start, -one[0].end))
        self._starts = [span.start for span, _, _ in self._replaced]
        self._written: list[str] = []
        self._length = 0
        self._spans: dict[int, Span] = {}
        self._links: list[AlignmentLink] = []
        self._being_written = set[int]()

    def run(self, num_parts: int) -> Assembled:
        self._copy(Span(start=0, end=len(self._text)), separator=self._separator)
        spans = tuple(self._spans[number] for number in range(num_parts))
        links = sorted(self._links, key=lambda link: link.target.start)
        return Assembled(text="".join(self._written), spans=spans, links=tuple(links))

    def _copy(self, span: Span, *, separator: str = "") -> None:
        """Write a range of the message with all that is replaced in it."""
        position = span.start
        index = bisect_left(self._starts, span.start)
        is_first = True
        while index < len(self._replaced) and self._starts[index] < span.end:
            own, items, number = self._replaced[index]
            if own.end > span.end or index in self._being_written:
                index += 1
                continue
            self._write(self._text[position : own.start] or ("" if is_first else separator))
            begin = self._length
            self._being_written.add(index)
            for item in items:
                self._write_item(item)
            self._being_written.remove(index)
            if number >= 0:
                self._spans[number] = Span(start=begin, end=self._length)
            position, is_first = own.end, False
            index = bisect_left(self._starts, own.end, lo=index + 1)
        self._write(self._text[position : span.end])

    def _write_item(self, item: Item) -> None:
        begin = self._length
        if item.raw is None:
            self._write(item.text)
        else:
            self._copy(item.raw)
        if item.source is not None and begin < self._length:
            target = Span(start=begin, end=self._length)
            self._links.append(AlignmentLink(source=item.source, target=target, weight=item.weight))

    def _write(self, text: str) -> None:
        self._written.append(text)
        self._length += len(text)
