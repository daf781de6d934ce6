"""Checks whether translations preserve what they must: numbers, names, symbols, placeholders, markup, white space.

The checks are independent of `dragoman_service.text.invariants`, so that they do not share its mistakes. They are
stricter than a reader: a case has one source, for which the preserved parts are known in advance.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from dragoman_export.evaluation.integrity.values import Kept
from dragoman_service.request import TextFormat

# Words and characters that models write for characters that they do not have.
GARBAGE: Final = (
    "POWERSHELL", "PowerShell", "EntityFramework", "WinRM", "VHD", "declspec", "printf", "PasswordRecovery", "UWP",
    "DbContext", "\N{REPLACEMENT CHARACTER}", "⟦", "⟧", "⟪", "⟫", "<unk>", "<s>", "</s>", "<pad>",
)  # fmt: skip

_SYMBOL_CATEGORIES: Final = frozenset({"Sc", "Sk", "Sm", "So", "Co", "Cn"})
_ASCII_SYMBOLS: Final = frozenset(r"[]{}@#\_*|<>")
# Words that a translation may replace by a symbol.
_SPELLED: Final = (
    ("%", ("prozent", "percent", "per cent")),
    ("$", ("dollar", "usd")),
    ("€", ("euro", "eur")),
    ("£", ("pfund", "pound", "gbp")),
    ("¥", ("yen", "jpy")),
    ("+", ("plus",)),
    ("°", ("grad", "degree")),
)
_DOUBLE_QUOTES: Final = frozenset('"“”„‟«»「」')
_FINAL_MARKS: Final = frozenset(".!?…,:;")
_AS_HYPHEN: Final = str.maketrans("–—−", "---")  # languages differ in their dashes
_PLAIN_WORD: Final = re.compile(r"[A-Za-zÄÖÜäöüß][a-zäöüß]+")
_ENTITY: Final = re.compile(r"&(?:#\w{1,8}|\w{1,32});")
_TAG: Final = re.compile(r"<(?P<closing>/?)(?P<name>[A-Za-z][\w:.-]{0,63}+)(?P<attributes>[^<>]{0,1000}+)>")
_VOID: Final = frozenset({"br", "hr", "img", "wbr", "input"})
_PLACEHOLDER_TAGS: Final = frozenset({"x", "ph"})
_ESCAPED: Final = re.compile(r"\\(?:[nrt'\"\\]|u[0-9a-fA-F]{4})|['\"\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A text, and what its translation must preserve."""

    kind: str  # one of `cases.KINDS`
    source: str
    source_language: str
    target_language: str
    format: TextFormat = TextFormat.PLAIN
    keep: tuple[Kept, ...] = ()  # each occurs as often as in the source; of several forms, all together
    never: tuple[str, ...] = GARBAGE  # not more often in the translation than in the source
    has_letters: bool = True  # the translation has a letter or a digit
    is_translated: bool = False  # the translation differs from the source in more than capitals
    has_ending: bool = False  # the translation ends with the same marks; a dash for a hyphen is allowed
    is_in_capitals: bool = False  # the translation has no lower-case letter outside of `keep`
    has_escapes: bool = False  # quotation marks are escaped as in the source, and backslashes are complete escapes


def checked(case: Case) -> Case:
    """Return a case without the kept words that the service does not check.

    These are words in plain letters, which can be a common word: `Steinbeck`, or a word of the target language.
    """
    return replace(case, keep=tuple(kept for kept in case.keep if not isinstance(kept, str) or not _is_plain(kept)))


def _is_plain(word: str) -> bool:
    return _PLAIN_WORD.fullmatch(word) is not None


def check_case(case: Case, answer: str) -> list[str]:
    """Return a description of each damage; an empty list if the answer is intact."""
    is_markup = case.format in {TextFormat.HTML, TextFormat.XML}
    source, target = (html.unescape(case.source), html.unescape(answer)) if is_markup else (case.source, answer)
    problems = list(_lost_parts(case, answer, source, target))
    problems += [f"{text!r} appears" for text in case.never if target.count(text) > source.count(text)]
    problems += _new_symbols(source, target)
    problems += _changed_digits(source, target)
    num_quotes, num_target_quotes = (sum(map(_DOUBLE_QUOTES.__contains__, text)) for text in (source, target))
    if num_quotes != num_target_quotes:
        problems.append(f"{num_target_quotes} quotation marks instead of {num_quotes}")
    if case.has_letters and not any(map(str.isalnum, _TAG.sub("", target) if is_markup else target)):
        problems.append("no letter or digit")
    if case.is_translated and target.strip().casefold() == source.strip().casefold():
        problems.append("copy of the source")
    endings = [_ending(_TAG.sub("", text) if is_markup else text) for text in (source, target)]
    if case.has_ending and endings[0] != endings[1]:
        problems.append(f"ends with {endings[1]!r} instead of {endings[0]!r}")
    if case.is_in_capitals and (small := [each for each in _without(case.keep, target) if each.islower()]):
        problems.append(f"lower-case letters {''.join(small[:20])!r}")
    if case.has_escapes:
        problems += _incomplete_escapes(source, target)
    if is_markup:
        problems += _damaged_markup(case.source, answer)
    return problems


def _lost_parts(case: Case, answer: str, source: str, target: str) -> Iterator[str]:
    for kept in dict.fromkeys(case.keep):
        # Entities are compared as they are written, all other parts as they are read.
        is_entity = isinstance(kept, str) and _ENTITY.search(kept) is not None
        before, after = (case.source, answer) if is_entity else (source, target)
        forms = (kept,) if isinstance(kept, str) else kept
        expression = _expression(forms)
        num_before, num_after = len(expression.findall(before)), len(expression.findall(after))
        if num_before != num_after:
            yield f"{forms[0]!r} occurs {num_after} times instead of {num_before}"
        elif isinstance(kept, str) and _num_glued(kept, after) > _num_glued(kept, before):
            yield f"{kept!r} touches a word"


@lru_cache(maxsize=4096)
def _expression(forms: tuple[str, ...]) -> re.Pattern[str]:
    # A form that begins or ends with a digit is not a part of a longer number.
    alternatives = (
        (r"(?<!\d)(?<!\d[.,])" if form[:1].isdigit() else "")
        + re.escape(form)
        + (r"(?!\d)(?![.,]\d)" if form[-1:].isdigit() else "")
        for form in sorted(forms, key=len, reverse=True)
    )
    return re.compile("|".join(alternatives))


def _num_glued(kept: str, text: str) -> int:
    # Edges of a part without a letter or digit there, which touch a letter or digit.
    # White space and closing marks such as `[/b]` may follow a letter.
    is_open = not kept[0].isalnum() and not kept[0].isspace() and not kept.startswith(("[/", "</", "{/"))
    is_closed = not kept[-1].isalnum() and not kept[-1].isspace()
    return sum(
        (is_open and text[match.start() - 1 : match.start()].isalnum())
        + (is_closed and text[match.end() : match.end() + 1].isalnum())
        for match in _expression((kept,)).finditer(text)
    )


def _new_symbols(source: str, target: str) -> Iterator[str]:
    lowered = source.casefold()
    spelled = {symbol for symbol, words in _SPELLED if any(word in lowered for word in words)}
    added = Counter(filter(_is_symbol, target)) - Counter(filter(_is_symbol, source))
    return (f"{symbol!r} was added" for symbol in added if symbol not in spelled)


def _is_symbol(character: str) -> bool:
    return character in _ASCII_SYMBOLS or unicodedata.category(character) in _SYMBOL_CATEGORIES


def _changed_digits(source: str, target: str) -> Iterator[str]:
    before, after = (Counter(filter(str.isdecimal, text)) for text in (source, target))
    if before != after:
        missing, added = ("".join(sorted(each.elements())) for each in (before - after, after - before))
        yield f"digits {missing!r} are missing, {added!r} were added"


def _incomplete_escapes(source: str, target: str) -> Iterator[str]:
    # Of the quotation marks, only those are escaped that are escaped in the source.
    exempt = {mark for mark in "'\"" if f"\\{mark}" not in source}
    return (f"incomplete escape {each!r}" for each in _ESCAPED.findall(target) if len(each) == 1 and each not in exempt)


def _ending(text: str) -> str:
    stripped = text.rstrip().translate(_AS_HYPHEN)
    start = len(stripped)
    while start and not stripped[start - 1].isalnum() and not stripped[start - 1].isspace():
        start -= 1
    # A space in front of a dash or an emoticon is a part of the ending.
    ending = stripped[start:]
    if start and stripped[start - 1].isspace() and ending and ending[0] not in _FINAL_MARKS:
        return " " + ending
    return ending


def _without(keep: Iterable[Kept], text: str) -> str:
    for kept in keep:
        for form in (kept,) if isinstance(kept, str) else kept:
            text = text.replace(form, "")
    return text


def _damaged_markup(source: str, target: str) -> list[str]:
    problems = []
    before, after = _Markup(source), _Markup(target)
    if before.tags != after.tags:
        lost, added = before.tags - after.tags, after.tags - before.tags
        problems.append(f"lost tags {sorted(lost)}, added tags {sorted(added)}")
    if not before.nesting_errors and after.nesting_errors:
        problems.append(f"{after.nesting_errors} tags are not nested")
    problems += [f"{tag} is empty" for tag, count in before.filled.items() if after.filled[tag] < count]
    if after.num_glued > before.num_glued:
        problems.append("a placeholder element touches a word")
    return problems


class _Markup:
    """Tags of a text: how often each occurs, how they are nested, and which elements have letters or digits."""

    def __init__(self, text: str) -> None:
        self.tags: Counter[str] = Counter()
        self.filled: Counter[str] = Counter()  # elements with a letter or digit inside, by their start tag
        self.nesting_errors = 0
        self.num_glued = 0
        num_characters, position = 0, 0  # letters and digits outside of tags, before this position
        opened: list[tuple[str, str, int]] = []  # name, start tag, letters and digits before it
        for match in _TAG.finditer(text):
            num_characters += sum(map(str.isalnum, html.unescape(text[position : match.start()])))
            position = match.end()
            self.tags[match[0]] += 1
            name = match["name"].lower()
            if name in _PLACEHOLDER_TAGS:
                is_start, is_end = not match["closing"], bool(match["closing"]) or match[0].endswith("/>")
                self.num_glued += is_start and text[match.start() - 1 : match.start()].isalnum()
                self.num_glued += is_end and text[match.end() : match.end() + 1].isalnum()
            if name in _VOID or match[0].endswith("/>"):
                continue
            if not match["closing"]:
                opened.append((name, match[0], num_characters))
            elif not opened or opened[-1][0] != name:
                self.nesting_errors += 1
            else:
                _, tag, num_before = opened.pop()
                self.filled[tag] += num_characters > num_before
        self.nesting_errors += len(opened)
