"""Invariants of form: punctuation at the end, white space and capitals."""

import re
from collections.abc import Iterator

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.text.invariants.violations import MASK, Texts, Violation, quoted

_MAX_ENDING = 32  # characters at the end that are read
_EMOTICON = re.compile(r"[:;]-?[)(DP]\Z")
_WIDE = str.maketrans("。！？：；，．", ".!?:;,.")
_CLOSING = frozenset("\"'`´)]}»«›‹“”„‘’‚」』）】*_~ \t\n\r\xa0")
_PUNCTUATION = frozenset(".…!?;:,-–—。！？：；，．")
_DASHES = frozenset("-–—")
# Beginnings of sentences that are statements or questions, not imperatives. German ends imperatives with `!`.
_SUBJECT = {
    "en": re.compile(
        r"\W{0,3}(?:i|you|he|she|it|we|they|the|an?|this|that|these|those|there|my|your|his|her|its|our|their)\b", re.I
    ),
    "de": re.compile(
        r"\W{0,3}(?:ich|du|er|sie|es|wir|ihr|der|die|das|ein|eine|dies(?:er|e|es)?|mein|dein|unser|man)\b", re.I
    ),
}
_ABBREVIATION = re.compile(
    r"(?:\b[^\W\d_]|\d|[^\W_]\.[^\W_]|\b(?:etc|usw|inc|ltd|co|corp|jr|sr|dr|nr|no|bzw|ca|mr|mrs|ms|st|str|approx|min|max|mio"
    r"|mrd|tsd|pm|am|ff|evtl|ggf|vgl|bros|dept|vs|est|abb|abs|art|bd|tel|jan|feb|aug|sept?|okt|oct|nov|de[cz]))\Z",
    re.IGNORECASE,
)

_BREAK = re.compile(r"\r\n|[\n\r\x0b\x0c\x85\u2028\u2029]")
_MAY_BREAK = re.compile(r"[\t\n\r\x0b\x0c\x85\u2028\u2029]")

_CAPITAL_WORD = re.compile(r"[^\W\d_]++")
_LOWER_WORD = re.compile(r"[^\W\d_]{3,}")
_MIN_CAPITAL_LETTERS = 4  # in a source of one word; shorter ones are acronyms


def find_changed_ending(texts: Texts) -> Iterator[Violation]:
    """Yield a violation if the punctuation at the end differs, such as `…` and a full stop."""
    source, target = texts.source.rstrip(), texts.target.rstrip()
    if source[-1:] == target[-1:] and source[-2:-1].isalnum() and target[-2:-1].isalnum():
        return  # the usual case
    old_position, old = _ending(source, texts.source_language)
    new_position, new = _ending(target, texts.target_language)
    if old == new or old_position < 0 or new_position < 0:
        return
    if {old, new} <= {"", "."} and (
        _ABBREVIATION.search(source[:old_position][-8:]) or _ABBREVIATION.search(target[:new_position][-8:])
    ):
        return
    if {old, new} == {".", "!"} and not _cannot_be_imperative(texts):
        return
    yield Violation(
        kind=WarningKind.ENDING_CHANGED,
        detail=f"ends with {quoted(new) or 'a word'}, the source with {quoted(old) or 'a word'}",
        source=Span(start=old_position, end=len(source)),
        target=Span(start=new_position, end=len(target)),
    )


def find_changed_white_space(texts: Texts) -> Iterator[Violation]:
    """Yield a violation if the number of tabs or of line breaks differs."""
    if not _MAY_BREAK.search(texts.source) and not _MAY_BREAK.search(texts.target):
        return
    for name, old, new in (
        ("tabs", texts.source.count("\t"), texts.target.count("\t")),
        ("line breaks", _num_breaks(texts.source), _num_breaks(texts.target)),
    ):
        if old != new:
            detail = f"{new} {name}, {old} in the source"
            yield Violation(kind=WarningKind.WHITE_SPACE_CHANGED, detail=detail, source=None, target=None)


def find_changed_capitals(texts: Texts) -> Iterator[Violation]:
    """Yield a violation if the source is wholly in capitals and the target is not."""
    if not texts.source.isupper() or texts.target.isupper():
        return
    words = _CAPITAL_WORD.findall(texts.source)
    if len(words) < 2 and (len(words[0]) < _MIN_CAPITAL_LETTERS or any(map(str.isdigit, texts.source))):
        return
    if match := next((match for match in _LOWER_WORD.finditer(texts.target) if not _is_upper(match[0])), None):
        span = Span(start=match.start(), end=match.end())
        detail = f"{quoted(match[0])} is not in capitals"
        yield Violation(kind=WarningKind.CAPITALS_CHANGED, detail=detail, source=None, target=span)


def _ending(text: str, language: str) -> tuple[int, str]:
    # Position and normalized punctuation; -1 if the script is not covered or a mask is at the end.
    if match := _EMOTICON.search(text):
        return match.start(), match[0]
    position = len(text)
    marks: list[str] = []
    while position and len(text) - position < _MAX_ENDING:
        character = text[position - 1]
        if character in _PUNCTUATION:
            marks.append(character)
        elif character not in _CLOSING:
            break
        position -= 1
    if not position or text[position - 1] == MASK or not _is_covered(text[position - 1]):
        return -1, ""
    while position < len(text) and text[position] not in _PUNCTUATION:
        position += 1
    return position, _normalized("".join(reversed(marks)).translate(_WIDE), text[position - 1 : position], language)


def _normalized(marks: str, before: str, language: str) -> str:
    marks = marks.replace("…", "...")
    if marks and marks[-1] in _DASHES:
        return "–" if before.isspace() or len(marks) > 1 or marks != "-" else ""
    if primary_language(language) == "el":
        marks = marks.replace(";", "?")
    if any(mark in marks for mark in "!?"):
        return "".join(sorted(marks.replace(".", "").replace(",", "")))
    if "..." in marks:
        return "..."
    return marks[-1:]


def _is_covered(character: str) -> bool:
    # Latin, Greek, Cyrillic, Chinese, Japanese and Korean letters, and symbols.
    return character < "\u0530" or "\u1e00" <= character <= "\ua4cf" or character >= "\uac00"


def _cannot_be_imperative(texts: Texts) -> bool:
    source = _SUBJECT.get(primary_language(texts.source_language))
    target = _SUBJECT.get(primary_language(texts.target_language))
    return bool((source and source.match(texts.source)) or (target and target.match(texts.target)))


def _num_breaks(text: str) -> int:
    return sum(1 for _ in _BREAK.finditer(text))


def _is_upper(word: str) -> bool:
    return word.replace("ß", "").isupper() or word == "ß"
