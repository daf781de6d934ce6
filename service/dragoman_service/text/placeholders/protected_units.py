"""Text units with placeholders for protected spans, which are found in their texts."""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.blocks import is_apart
from dragoman_service.text.placeholders.bracket_tags import bracket_tag_name, paired_tags
from dragoman_service.text.placeholders.counts import is_count
from dragoman_service.text.placeholders.markup_tokens import is_known
from dragoman_service.text.placeholders.masking import Placeholders, masked
from dragoman_service.text.placeholders.patterns import Protection, is_placeholder_tag, tag_name, with_number_signs
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.text_units import (
    LOWEST_PRIORITY,
    CodeKind,
    InlineCode,
    TextUnit,
    TextUnitBuilder,
)
from dragoman_service.text.segmentation import Check, never_ends

_ICU_PLURAL = re.compile(r"\{\s*+\w++\s*+,\s*+(?:plural|selectordinal)\b")
_SPACE = " \xa0"
_COUNT_CONTEXT = 40  # characters after a span that decide whether it is a count

# Tags of a plain text that end a sentence. Other names of HTML, such as `link`, are also names of components.
# fmt: off
_BREAKS = frozenset((
    "br", "p", "hr", "div", "li", "ul", "ol", "dl", "dt", "dd", "table", "tr", "td", "th", "blockquote", "h1", "h2",
    "h3", "h4", "h5", "h6",
))
_BREAKS_IN_BRACKETS = _BREAKS | {"*", "list", "quote", "center", "left", "right"}
# Tags that may divide a word.
_FORMATTING = frozenset((
    "b", "i", "u", "s", "em", "strong", "small", "big", "sub", "sup", "span", "font", "mark", "del", "ins", "strike",
    "tt", "code", "abbr", "cite", "q",
))
# fmt: on

# Kinds of the tags of blocks.
_BLOCK_KINDS = frozenset((ProtectedKind.BRACES, ProtectedKind.TEMPLATE, ProtectedKind.BRACKETS, ProtectedKind.VARIABLE))

# Priority of spans for trained placeholders, which are few.
_PRIORITIES: dict[ProtectedKind | None, int] = {None: 0, ProtectedKind.IDENTIFIER: 1, ProtectedKind.NUMBER: 2}
_INSIDE_SPANS = frozenset((CodeKind.ESCAPED, CodeKind.ACCELERATOR, CodeKind.SPACE))  # a protected span may have them


def protected_units(
    unit: TextUnit,
    protection: Protection,
    placeholders: Placeholders,
    *,
    spans: Sequence[ProtectedSpan] | None = None,
    is_plural: bool = False,
    check: Check = never_ends,
) -> list[TextUnit]:
    """Return a unit with placeholders for its protected spans, and the units inside those spans.

    Tags of plain texts become codes. Of a span that a tag divides, each part is protected if it is a span itself. In
    the messages of a plural, `#` is the number. `spans` are those that `protection` finds; None: they are found here.
    """
    spans = protection.find(unit.text, check) if spans is None else spans
    if unit.codes:
        spans = list(_undivided(unit, spans, protection, check))
    if is_plural:
        spans = with_number_signs(spans, unit.text, check)
    units = [with_placeholders(unit, spans, placeholders, check)] if spans else [unit]
    for protected in spans:
        check()
        has_number = is_plural or _ICU_PLURAL.match(unit.text, protected.span.start) is not None
        for message in protected.messages:
            is_icu = protected.kind is ProtectedKind.ICU
            escapes = "".join(dict.fromkeys(unit.escapes + "{}" * is_icu + "#" * has_number))
            inner = replace(unit.part(message, check), escapes=escapes)
            units += protected_units(inner, protection, placeholders, is_plural=has_number, check=check)
    return units


def _undivided(
    unit: TextUnit, spans: Sequence[ProtectedSpan], protection: Protection, check: Check
) -> Iterator[ProtectedSpan]:
    # The spans, and in place of a span that tags divide, the spans of its parts.
    codes = [code for code in unit.codes if code.kind not in _INSIDE_SPANS]
    index = 0
    for protected in spans:
        check()
        span = protected.span
        while index < len(codes) and codes[index].end <= span.start:
            index += 1
        last = index
        while last < len(codes) and codes[last].start < span.end:
            last += 1
        if last == index or protected.messages:
            yield protected
            continue
        starts = (span.start, *(code.end for code in codes[index:last]))
        ends = (*(code.start for code in codes[index:last]), span.end)
        for start, end in zip(starts, ends, strict=True):
            for part in protection.find(unit.text[start:end], check):
                if not part.messages:
                    yield replace(part, span=Span(start=start + part.span.start, end=start + part.span.end))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Accepted:
    # A protected span that no tag divides, with the codes `first` to `last` of the unit inside it.
    protected: ProtectedSpan
    text: str
    first: int
    last: int
    is_count: bool
    ends_sentence: bool
    name: str  # of a tag that marks the text up to its end tag; empty: other spans
    is_end_tag: bool
    follows_element: bool  # the tag of a new word directly after the end of another element, as in a menu of links

    @property
    def is_placeholder(self) -> bool:
        if self.ends_sentence or not self.name:
            return not self.ends_sentence
        return is_placeholder_tag(self.text) or (self.text.endswith("/>") and tag_name(self.text).isdigit())


def with_placeholders(
    unit: TextUnit, spans: Sequence[ProtectedSpan], placeholders: Placeholders, check: Check = never_ends
) -> TextUnit:
    """Return a unit with codes for protected spans of its text, which are ordered and disjoint."""
    accepted = list(_accepted(unit, spans, check))
    priorities = _priorities(unit, accepted, check)
    builder = TextUnitBuilder(start=unit.start, placeholders=placeholders.by_priority(priorities), escapes=unit.escapes)
    moved: dict[int, int] = {}
    codes, index, position = unit.codes, 0, 0
    for each in accepted:
        check()
        for number in range(index, each.first):
            check()
            position = builder.copy(unit, number, position, moved)
        span, source = each.protected.span, unit.source_of(each.protected.span)
        builder.add_text(unit.text[position : span.start])
        if each.follows_element:
            builder.add_code("", Span(start=source.start, end=source.start), CodeKind.BREAK)
        _add_span(builder, each, source)
        index, position = each.last, span.end
    for number in range(index, len(codes)):
        check()
        position = builder.copy(unit, number, position, moved)
    builder.add_text(unit.text[position:])
    built = builder.build(unit.source)
    old = {new: index for index, new in moved.items()}
    result, ranks = [], iter(priorities)
    for new, code in enumerate(built.codes):
        check()
        partner = moved.get(codes[old[new]].partner, -1) if new in old else code.partner
        priority = next(ranks) if code.kind is CodeKind.PLACEHOLDER else code.priority
        result.append(replace(code, partner=partner, priority=priority))
    return replace(built, codes=tuple(result), escaped_forms=unit.escaped_forms)


def _add_span(builder: TextUnitBuilder, span: _Accepted, source: Span) -> None:
    # Tags that mark text become codes without text.
    text = span.text
    if span.ends_sentence:
        builder.add_code("", source, CodeKind.BREAK)
    elif span.is_placeholder:
        builder.add_placeholder(source, target=span.protected.target, is_count=span.is_count)
    elif span.is_end_tag:
        builder.close_tag(span.name, source)
    elif text.endswith("/>"):
        builder.add_standalone(source)
    else:
        builder.open_tag(span.name, source)


def _accepted(unit: TextUnit, spans: Sequence[ProtectedSpan], check: Check) -> Iterator[_Accepted]:
    codes, index = unit.codes, 0
    closed = -1  # end of the last closing tag
    pairs = paired_tags(
        (unit.text[each.span.start : each.span.end] if each.kind is ProtectedKind.BRACKETS else "" for each in spans),
        check,
    )
    for number, protected in enumerate(spans):
        span = protected.span
        check()
        while index < len(codes) and codes[index].end <= span.start:
            check()
            index += 1
        last = index
        while last < len(codes) and codes[last].start < span.end and codes[last].kind in _INSIDE_SPANS:
            last += 1
        if last < len(codes) and codes[last].start < span.end and not protected.messages:
            continue
        while last < len(codes) and codes[last].start < span.end:
            last += 1
        text = unit.text[span.start : span.end]
        name, is_end_tag = "", pairs.get(number, False)
        ends_sentence, follows_element = protected.kind is ProtectedKind.PLURAL, False
        if protected.messages and protected.kind in _BLOCK_KINDS:
            ends_sentence = is_apart(unit.text, span, protected.messages[-1])
        if protected.kind is ProtectedKind.BRACKETS and not protected.messages:
            name = bracket_tag_name(text)
            ends_sentence = name.lower() in _BREAKS_IN_BRACKETS
            name = name if number in pairs else ""
        if protected.kind is ProtectedKind.TAG:
            name, is_end_tag = "" if _is_word(text, unit.text, span) else tag_name(text), text.startswith("</")
            ends_sentence = _ends_sentence(text, unit.text, span)
            is_part = tag_name(text).lower() in _FORMATTING or is_placeholder_tag(text)
            begins_word = not text.startswith("</") and unit.text[span.end : span.end + 1].isalpha()
            follows_element = closed == span.start and begins_word and not is_part
            closed = span.end if text.startswith("</") and not is_part else -1
        following = unit.text[span.end : span.end + _COUNT_CONTEXT]
        yield _Accepted(
            protected=protected,
            text=text,
            first=index,
            last=last,
            is_count=is_count(text, protected.kind, following),
            ends_sentence=ends_sentence,
            name=name,
            is_end_tag=is_end_tag,
            follows_element=follows_element,
        )
        index = last


def _is_word(tag: str, text: str, span: Span) -> bool:
    # Whether a tag of a plain text is an unknown empty element that no word touches: `<m id=1 />`, but not `<img/>`.
    touches_word = text[span.start - 1 : span.start].isalnum() or text[span.end : span.end + 1].isalnum()
    return tag.endswith("/>") and not touches_word and not is_known(tag_name(tag).lower())


def _ends_sentence(tag: str, text: str, span: Span) -> bool:
    # Whether a tag of a plain text ends a sentence: a line break, a block, or an unknown empty element within a word.
    name = tag_name(tag).lower()
    if name in _BREAKS:
        return True
    is_within_word = text[span.start - 1 : span.start].isalpha() and text[span.end : span.end + 1].isalpha()
    return is_within_word and tag.endswith("/>") and name not in _FORMATTING and not is_placeholder_tag(tag)


def _priorities(unit: TextUnit, accepted: Sequence[_Accepted], check: Check) -> list[int]:
    # The priority of each placeholder of the new unit, in order.
    priorities: list[int] = []
    index = 0
    for each in accepted:
        check()
        own = (code for code in unit.codes[index : each.first] if code.kind is CodeKind.PLACEHOLDER)
        priorities += (LOWEST_PRIORITY for _ in own)
        if each.is_placeholder:
            priorities.append(_PRIORITIES.get(each.protected.kind, LOWEST_PRIORITY))
        index = each.last
    priorities += (LOWEST_PRIORITY for code in unit.codes[index:] if code.kind is CodeKind.PLACEHOLDER)
    return priorities


def without_outer_symbols(unit: TextUnit, span: Span, text: str) -> Span:
    """Return a range without the protected symbols at its edges, such as `✓ ` and ` 👋`, which the model does not read.

    Args:
        unit: the unit.
        span: a range of the unit.
        text: the message.
    """
    codes = unit.codes
    start, end = span.start, span.end
    first, last = (bisect_left(codes, position, key=lambda code: code.start) for position in (start, end))
    while first < last and codes[first].start == start and _is_symbol(codes[first], text):
        stop = position = codes[first].end
        limit = codes[first + 1].start if first + 1 < last else end  # a placeholder may begin with a space
        while position < limit and unit.text[position] in _SPACE:
            position += 1
        if position in {stop, end}:
            break
        start, first = position, first + 1
    while first < last and codes[last - 1].end == end and _is_symbol(codes[last - 1], text):
        stop = position = codes[last - 1].start
        limit = codes[last - 2].end if first < last - 1 else start
        while position > limit and unit.text[position - 1] in _SPACE:
            position -= 1
        if position in {start, stop}:
            break
        end, last = position, last - 1
    return Span(start=start, end=end) if start < end else span


def _is_symbol(code: InlineCode, text: str) -> bool:
    is_copied = code.kind is CodeKind.PLACEHOLDER and code.target is None
    return is_copied and not any(map(str.isalnum, text[code.source.start : code.source.end]))


def is_unreadable(sentence: TextUnit, text: str, spells: Callable[[str], bool], check: Check = never_ends) -> bool:
    """Return whether the model cannot spell most letters of a sentence.

    Args:
        sentence: a sentence with placeholders.
        text: the message.
        spells: whether the model spells a character.
        check: called regularly.
    """
    if not sentence.has_placeholders:
        return False
    num_letters = sum(map(str.isalpha, masked(sentence, check)))
    num_unknown = 0
    for code in sentence.codes:
        check()
        if code.kind is CodeKind.PLACEHOLDER and code.target is None:  # a term is translated
            letters = list(filter(str.isalpha, text[code.source.start : code.source.end]))
            num_letters += len(letters)
            num_unknown += len(letters) - sum(map(spells, letters))
    return 2 * num_unknown > num_letters
