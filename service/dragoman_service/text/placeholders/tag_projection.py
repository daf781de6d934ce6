"""Tag projection: places the tags of a source in its translation.

Tags keep their tree: children of an element stay inside it, siblings stay siblings. An element encloses the run of
chunks with the most that come from its text and the fewest that do not. Runs of siblings do not overlap; the largest
is placed first. A tag without partner, or with its partner in another sentence, goes where most chunks are on the same
side of it as in the source. Whatever the alignment is, each tag occurs once and nesting is preserved.

Attention is often wrong about a single word, so runs are corrected:

- An element with words gets at least one word, if its parent has enough: the nearest that no sibling needs.
- Punctuation is at the edge of a run only if it is at that edge of the element in the source.
- A run of function words moves to the content word next to it.
- A run with more words than its element in the source loses the weakly linked ones at its edges.
"""

import re
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dragoman_service.text.placeholders.masking import MASK, masked
from dragoman_service.text.placeholders.placement import AlignedChunk, insertion_index
from dragoman_service.text.placeholders.text_units import CodeKind, InlineCode, TextUnit

_GAP_COST = 0.6  # cost of a chunk inside the element that aligns outside it, in chunks of the element
_WEIGHT_GAIN = 0.2  # of a chunk of the element: of two equal runs, the one with the better links is chosen
_WEAK_SHARE = 0.75  # weight of a word, relative to the best of the element, below which it may be left outside
_SURE_WEIGHT = 0.6  # of the link of a function word that is not an article: `rot`
_NEEDED_COST = 12  # characters of distance that a better word for an element without words may be away
_MAX_FUNCTION_LETTERS = 3  # of articles and most prepositions: `die`, `the`, `of`

_WORD = re.compile(r"\w+")


@dataclass(slots=True, kw_only=True, eq=False)
class _Element:
    opening: int  # index of its opening tag among the codes, or of its only tag
    closing: int  # index of its closing tag; -1 if it is one tag
    start: int
    end: int
    children: "list[_Element]" = field(default_factory=list)
    has_symbols: bool = True  # whether its text has characters other than letters, digits and white space
    num_words: int = 0  # words that it gets at least, counting those of its children


_Order = Iterator[AlignedChunk | int]
"""Chunks, and tags by their index among the codes, in the order of the translation."""

_Run = tuple[int, int]


def project_tags(unit: TextUnit, target: str, chunks: Sequence[AlignedChunk]) -> _Order:
    """Yield the chunks of a translation with the tags of its source in between."""
    projection = _Projection(unit, target, chunks)
    roots, unpaired = _tree(unit.codes, projection.source)
    low = first = 0
    for index, num_roots in unpaired:
        position = _split_position(chunks, unit.codes[index].start, low)
        yield from projection.elements(roots[first:num_roots], low, position)
        yield index
        low, first = position, num_roots
    yield from projection.elements(roots[first:], low, len(chunks))


def _tree(codes: Sequence[InlineCode], source: str) -> tuple[list[_Element], list[tuple[int, int]]]:
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
            element = stack.pop()
            text = source[element.start : element.end]
            num_inside = sum(child.num_words for child in element.children)
            element.num_words = max(num_inside, int(any(map(str.isalnum, text))))
            element.has_symbols = any(not char.isalnum() and not char.isspace() for char in text)
        elif code.kind in {CodeKind.OPENING, CodeKind.CLOSING}:
            unpaired.append((index, len(roots)))
        elif code.kind in {CodeKind.STANDALONE, CodeKind.BREAK}:
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


class _Projection:
    def __init__(self, unit: TextUnit, target: str, chunks: Sequence[AlignedChunk]) -> None:
        self._chunks = chunks
        self._target = target
        self.source = masked(unit).replace(MASK, "0")  # a placeholder is a word
        self._words = [match.span() for match in _WORD.finditer(self.source)]
        self._word_starts = [start for start, _ in self._words]
        self._is_word = [self._is_visible_word(chunk) for chunk in chunks]
        self._first, self._last = self._groups()
        self._best_weights: dict[int, float] = {}  # of the links of each word of the source, by its number
        for chunk in chunks:
            if not chunk.is_removed:
                number = self._word_at(chunk.source_position)
                self._best_weights[number] = max(chunk.weight, self._best_weights.get(number, 0.0))
        self._is_translated = [number in self._best_weights for number in range(len(self._words))]

    def elements(self, elements: Sequence[_Element], low: int, high: int) -> _Order:
        """Yield a range of the chunks with the tags of elements and their children."""
        runs = self._runs(elements, low, high)
        taken = sorted((runs[id(element)], element.start) for element in elements if id(element) in runs)
        placed = []
        boundaries: dict[int, int] = {}  # many tags may be at one position
        for number, element in enumerate(elements):
            run = runs.get(id(element))
            if run is None:
                if element.start not in boundaries:
                    boundaries[element.start] = insertion_index(self._chunks, element.start, low, high)
                boundary = _outside_runs(boundaries[element.start], element, taken)
                run = boundary, boundary
            placed.append((*run, number))
        for begin, end, number in sorted(placed):
            element = elements[number]
            yield from self._chunks[low:begin]
            yield element.opening
            if element.closing >= 0:
                yield from self.elements(element.children, begin, end)
                yield element.closing
            low = end
        yield from self._chunks[low:high]

    def _runs(self, elements: Sequence[_Element], low: int, high: int) -> dict[int, _Run]:
        # The run of chunks of each element, by its id. Elements without words and translated text have none.
        sizes: list[tuple[int, _Element]] = []
        for element in elements:
            if element.start == element.end:
                continue
            size = sum(self._is_own(index, element) for index in range(low, high))
            if size:
                sizes.append((size, element))
        runs = _DisjointRuns(low, high)
        for _, element in sorted(sizes, key=lambda pair: -pair[0]):
            run = self._best_run(element, runs)
            if run is not None:
                runs.put(element, run)
        self._ensure_words([element for element in elements if element.num_words], elements, runs)
        return runs.by_id

    def _ensure_words(self, needy: Sequence[_Element], elements: Sequence[_Element], runs: "_DisjointRuns") -> None:
        for element in needy:
            self._correct(element, runs)
        spare = [element for element in elements if self._has_spare_word(element, runs)]
        for element in needy:
            self._fill(element, spare, runs)
        if any(self._num_words(element, runs) < element.num_words for element in needy):
            self._share_out(needy, elements, runs)

    def _best_run(self, element: _Element, runs: "_DisjointRuns") -> _Run | None:
        # The run of free chunks with the most of the element and the fewest others.
        best: tuple[float, int, int] | None = None
        score, begin = 0.0, runs.low
        for index in range(runs.low, runs.high):
            is_own = self._is_own(index, element)
            score += 1 + _WEIGHT_GAIN * self._chunks[index].weight if is_own else -_GAP_COST
            if not runs.is_free(index) or score < 0:
                score, begin = 0.0, index + 1
            elif is_own and (best is None or score > best[0]):
                best = score, begin, index + 1
        return None if best is None else best[1:]

    def _correct(self, element: _Element, runs: "_DisjointRuns") -> None:
        run = runs.by_id.get(id(element))
        if run is None:
            return
        begin, end = self._without_punctuation(element, *run)
        if begin == end:
            runs.put(element, None)
            return
        begin, end = self._without_foreign_words(element, begin, end)
        runs.put(element, (begin, end))
        if (moved := self._content_run(element, begin, end, runs)) is not None:
            runs.put(element, moved)

    def _without_punctuation(self, element: _Element, begin: int, end: int) -> _Run:
        text = self.source[element.start : element.end].strip()
        if text[:1].isalnum():
            while begin < end and not self._is_word[begin]:
                begin += 1
        if text[-1:].isalnum():
            while begin < end and not self._is_word[end - 1]:
                end -= 1
        return begin, end

    def _without_foreign_words(self, element: _Element, begin: int, end: int) -> _Run:
        # Without words at the edges that the element hardly explains, if it has fewer words in the source.
        first, last = self._word_range(element)
        words = deque(self._words_in(begin, end))
        size = max(last - first, element.num_words)
        best = max((self._main_chunk(*word) for word in words), key=lambda chunk: chunk.weight, default=None)
        while best and len(words) > size and self._is_foreign(words[0], best, first - 1):
            words.popleft()
            begin = words[0][0]
        while best and len(words) > size and self._is_foreign(words[-1], best, last):
            words.pop()
            end = words[-1][1]
        return begin, end

    def _is_foreign(self, word: _Run, best: AlignedChunk, neighbour: int) -> bool:
        # Whether the word comes rather from a word next to the element, which has no translation, or has a weak link to
        # the same token as the best word. Both words of `usage conditions` come from `Nutzungsbedingungen`.
        chunk = self._main_chunk(*word)
        if 0 <= neighbour < len(self._words) and not self._is_translated[neighbour] and chunk.weight < best.weight:
            self._is_translated[neighbour] = True
            return True
        return chunk.source == best.source and chunk.weight < _WEAK_SHARE * best.weight

    def _content_run(self, element: _Element, begin: int, end: int, runs: "_DisjointRuns") -> _Run | None:
        # The word after or before a run of function words, if the element has a content word; None if there is none.
        words = self._words_in(begin, end)
        if not all(self._is_function_word(*word) and self._weight(*word) < _SURE_WEIGHT for word in words):
            return None
        own = self.source[element.start : element.end]
        if all(len(word) <= _MAX_FUNCTION_LETTERS for word in _WORD.findall(own)):
            return None
        first, last = self._word_range(element)
        for index in (end, begin - 1):
            if not (runs.low <= index < runs.high and self._is_word[index] and runs.is_free(index)):
                continue
            word = self._word_of(index, runs.low, runs.high)
            source = self._word_at(self._chunks[index].source_position)
            start, stop = self._words[source] if source >= 0 else (0, 0)
            if stop - start > _MAX_FUNCTION_LETTERS and not first <= source < last:
                continue
            if self._chunks[index].code is None and not self._is_function_word(*word) and runs.is_free(*word):
                return word
        return None

    def _share_out(self, needy: Sequence[_Element], elements: Sequence[_Element], runs: "_DisjointRuns") -> None:
        # If there are enough words, gives each element as many as it needs, in the order of the runs so far.
        words = self._words_in(runs.low, runs.high)
        num_needed = sum(element.num_words for element in needy)
        if num_needed > len(words):
            return
        starts = [begin for begin, _ in words]
        order = sorted(needy, key=lambda element: runs.by_id.get(id(element), (runs.high, runs.high))[0])
        wanted = [bisect_left(starts, runs.by_id.get(id(element), (runs.low, 0))[0]) for element in order]
        for element in elements:
            runs.put(element, None)
        position = 0
        for element, first in zip(order, wanted, strict=True):
            begin = max(position, min(first, len(words) - num_needed))
            position = begin + element.num_words
            num_needed -= element.num_words
            runs.put(element, (words[begin][0], words[position - 1][1]))

    def _num_words(self, element: _Element, runs: "_DisjointRuns") -> int:
        run = runs.by_id.get(id(element))
        return len(self._words_in(*run)) if run else 0

    def _has_spare_word(self, element: _Element, runs: "_DisjointRuns") -> bool:
        return self._num_words(element, runs) > max(1, element.num_words)

    def _fill(self, element: _Element, spare: list[_Element], runs: "_DisjointRuns") -> None:
        # Extends the run of an element until it has enough words. `spare` are siblings with more than they need.
        if id(element) not in runs.by_id and (word := self._nearest_word(element, spare, runs)) is not None:
            runs.put(element, word)
        while (run := runs.by_id.get(id(element))) is not None:
            if len(self._words_in(*run)) >= element.num_words:
                return
            begin, end = run
            before, after = self._free_word(begin - 1, -1, runs), self._free_word(end, 1, runs)
            if before is None and after is None:
                return
            distances = [self._distance(each, element) for each in (before, after)]
            if before is not None and distances[0] < distances[1]:
                begin = before[0]
            elif after is not None:
                end = after[1]
            runs.put(element, (begin, end))

    def _nearest_word(self, element: _Element, spare: list[_Element], runs: "_DisjointRuns") -> _Run | None:
        # The free word that comes from next to the element, or one that a sibling does not need.
        free = [index for index in range(runs.low, runs.high) if self._is_word[index] and runs.is_free(index)]
        if free:
            best = min(free, key=lambda index: (self._cost(index, element), -self._chunks[index].weight))
            word = self._word_of(best, runs.low, runs.high)
            return word if runs.is_free(*word) else (best, best + 1)
        if not spare:
            return None
        sibling = min(spare, key=lambda other: abs(other.start - element.start))
        begin, end = runs.by_id[id(sibling)]
        words = self._words_in(begin, end)
        is_before = sibling.start < element.start
        runs.put(sibling, (begin, words[-2][1]) if is_before else (words[1][0], end))
        if not self._has_spare_word(sibling, runs):
            spare.remove(sibling)
        return words[-1] if is_before else words[0]

    def _free_word(self, index: int, step: int, runs: "_DisjointRuns") -> _Run | None:
        # The first free word from a chunk on, if only free chunks are before it.
        while runs.low <= index < runs.high and runs.is_free(index):
            if self._is_word[index]:
                word = self._word_of(index, runs.low, runs.high)
                return word if runs.is_free(*word) else None
            index += step
        return None

    def _is_visible_word(self, chunk: AlignedChunk) -> bool:
        if chunk.is_removed:
            return False
        return chunk.code is not None or any(map(str.isalnum, self._target[chunk.start : chunk.end]))

    def _groups(self) -> tuple[list[int], list[int]]:
        # The first and the last chunk of the word of each chunk.
        first = list(range(len(self._chunks)))
        for index in range(1, len(first)):
            before, chunk = self._chunks[index - 1], self._chunks[index]
            if before.code or chunk.code or before.end != chunk.start:
                continue
            if self._target[chunk.start - 1].isalnum() and self._target[chunk.start].isalnum():
                first[index] = first[index - 1]
        last = list(range(len(first)))
        for index in range(len(first) - 2, -1, -1):
            if first[index + 1] == first[index]:
                last[index] = last[index + 1]
        return first, last

    def _word_of(self, index: int, low: int, high: int) -> _Run:
        return max(low, self._first[index]), min(high, self._last[index] + 1)

    def _words_in(self, begin: int, end: int) -> list[_Run]:
        words: list[_Run] = []
        index = begin
        while index < end:
            word = self._word_of(index, begin, end)
            if any(self._is_word[word[0] : word[1]]):
                words.append(word)
            index = word[1]
        return words

    def _is_own(self, index: int, element: _Element) -> bool:
        chunk = self._chunks[index]
        if chunk.is_removed or not element.start <= chunk.source_position < element.end:
            return False
        return self._is_word[index] or element.has_symbols

    def _is_function_word(self, begin: int, end: int) -> bool:
        text = self._target[self._chunks[begin].start : self._chunks[end - 1].end]
        has_code = any(chunk.code for chunk in self._chunks[begin:end])
        return not has_code and text.islower() and len(text) <= _MAX_FUNCTION_LETTERS

    def _main_chunk(self, begin: int, end: int) -> AlignedChunk:
        return max(self._chunks[begin:end], key=lambda chunk: chunk.weight)

    def _weight(self, begin: int, end: int) -> float:
        return self._main_chunk(begin, end).weight

    def _distance(self, word: _Run | None, element: _Element) -> float:
        if word is None:
            return float("inf")
        position = self._chunks[word[0]].source_position
        return max(element.start - position, position - element.end + 1, 0)

    def _cost(self, index: int, element: _Element) -> float:
        # Cost of giving a word to an element that has none; lower if another word translates its source better.
        begin, end = self._word_of(index, 0, len(self._chunks))
        is_spare = self._weight(begin, end) < self._best_weights[self._word_at(self._chunks[index].source_position)]
        is_needed = not is_spare or self._is_function_word(begin, end)
        return self._distance((begin, end), element) + _NEEDED_COST * is_needed

    def _word_at(self, position: int) -> int:
        # The number of the word of the source at a position; -1 if it is between two.
        number = bisect_right(self._word_starts, position) - 1
        return number if number >= 0 and position < self._words[number][1] else -1

    def _word_range(self, element: _Element) -> tuple[int, int]:
        first = bisect_left(self._words, element.start, key=lambda word: word[1] - 1)
        return first, max(first, bisect_left(self._word_starts, element.end))


class _DisjointRuns:
    # The runs of siblings within a range of chunks.
    def __init__(self, low: int, high: int) -> None:
        self.low, self.high = low, high
        self.by_id: dict[int, _Run] = {}
        self._is_taken = [False] * (high - low)

    def put(self, element: _Element, run: _Run | None) -> None:
        begin, end = self.by_id.pop(id(element), (self.low, self.low))
        self._is_taken[begin - self.low : end - self.low] = [False] * (end - begin)
        if run is not None:
            self.by_id[id(element)] = run
            self._is_taken[run[0] - self.low : run[1] - self.low] = [True] * (run[1] - run[0])

    def is_free(self, begin: int, end: int | None = None) -> bool:
        return not any(self._is_taken[begin - self.low : (begin + 1 if end is None else end) - self.low])


def _outside_runs(boundary: int, element: _Element, taken: Sequence[tuple[_Run, int]]) -> int:
    # Moves a boundary out of the runs of siblings, each given with its start in the source.
    number = bisect_left(taken, boundary, key=lambda pair: pair[0][0]) - 1
    if number < 0 or taken[number][0][1] <= boundary:
        return boundary
    (begin, end), start = taken[number]
    return begin if element.start <= start else end
