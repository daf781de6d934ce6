"""Accelerators of labels: a `&` or `_` marks the letter that a user presses to choose a menu item or button.

    &File    St&art    Save &As...    _Open    Datei(&D)

A label is short. Names such as `AT&T` and identifiers such as `snake_case` have no accelerator.
"""

import re
from collections.abc import Callable, Iterator

from dragoman_service.datatypes import Span

_MAX_CHARACTERS = 100
_MAX_WORDS = 4
_MAX_FIRST_PART = 3  # letters before `_`; more are rather a word of an identifier

_WORD = re.compile(r"\S{1,100}+")
_CELL_END = re.compile(r"\t|\\t")  # a keyboard shortcut follows, as in `&Open\tCtrl+O`
_LETTER = r"[^\W\d_]"
_OPENING = r"(?:^|(?<=[\s(\[\"'„“«‹>/-]))"
_CLOSING = r"(?=$|[\s)\]\"'”“»›.…:?!,/\\<-])"
_ENTITY = r"&(?:#\w{1,8}+|[A-Za-z]\w{0,31}+);|&(?:amp|lt|gt|quot|apos|nbsp)\b"

# A mark at the start of a word, within a word, or before a single capital or digit in parentheses.
_AMPERSAND = re.compile(
    rf"{_OPENING}&(?={_LETTER}{{2,40}}+{_CLOSING})"
    rf"|{_OPENING}(?P<before>{_LETTER}{{1,40}}+)&(?P<after>{_LETTER}{{1,40}}+){_CLOSING}"
    r"|(?<=\()&(?=[A-Z0-9]\))"
    rf"|^&(?=\d\s{_LETTER})"
)
_UNDERSCORE = re.compile(
    rf"{_OPENING}_(?P<word>{_LETTER}{{2,40}}+){_CLOSING}"
    rf"|{_OPENING}(?P<before>{_LETTER}{{1,40}}+)_(?P<after>{_LETTER}{{1,40}}+){_CLOSING}"
    r"|(?<=\()_(?=[A-Z0-9]\))"
)

# Labels of two letters; other pairs, as in `R&b`, are initials.
_SHORT_WORDS = frozenset(("by", "do", "go", "ja", "no", "ok", "on", "to", "up", "an", "zu"))

# `Drag&Drop` and `Copy&paste` are two words; `My_file` is an identifier.
# fmt: off
_SECOND_WORDS = frozenset((
    "answer", "answers", "bass", "breakfast", "breathe", "butter", "cash", "chips", "cons", "conditions", "drop",
    "dry", "easy", "exchange", "field", "gas", "go", "learn", "out", "paste", "play", "potatoes", "print", "replace",
    "rescue", "retweet", "ride", "roll", "run", "safety", "save", "send", "services", "share", "soul", "supply",
    "tear", "und", "white", "win",
))
_FIRST_PARTS = frozenset((
    "add", "all", "any", "api", "can", "db", "del", "end", "get", "has", "id", "in", "ini", "is", "key", "log", "map",
    "max", "min", "my", "new", "no", "not", "num", "of", "off", "old", "on", "pre", "raw", "row", "run", "set", "sub",
    "sum", "tag", "tmp", "to", "top", "url", "usr", "use", "var", "xml",
))
# fmt: on


def is_label(text: str) -> bool:
    """Return whether a text is a label: one line of at most four words without a final full stop."""
    text = text.strip()
    if not text or len(text) > _MAX_CHARACTERS or len(text.splitlines()) > 1:
        return False
    label = _CELL_END.split(text, maxsplit=1)[0]
    if label.endswith(".") and not label.endswith("..."):
        return False
    return len(_WORD.findall(label)) <= _MAX_WORDS and "=" not in label and "://" not in label


def find_accelerator(text: str, is_word: Callable[[str], bool]) -> Span | None:
    """Return the position of the mark of a label; None if the text has none or several.

    Args:
        text: any text.
        is_word: whether a word is known. `_` after four letters or more is a mark only within a known word.
    """
    if not is_label(text):
        return None
    hidden = re.sub(_ENTITY, lambda match: " " * len(match[0]), text).replace("&&", "  ")
    marks = [*_ampersands(hidden), *(_underscores(hidden, is_word) if hidden.count("_") == 1 else ())]
    return Span(start=marks[0], end=marks[0] + 1) if len(marks) == 1 else None


def find_doubled_ampersands(text: str) -> list[Span]:
    """Return the positions of each `&&`, which is a `&` in a label."""
    if not is_label(text):
        return []
    return [Span(start=match.start(), end=match.end()) for match in re.finditer(r"(?<!&)&&(?!&)", text)]


def accelerator_position(letter: str, target: str) -> int:
    """Return where to mark a letter: at the start of the first word with this letter, else of the first word."""
    starts = [
        index for index, char in enumerate(target) if char.isalnum() and not (index and target[index - 1].isalnum())
    ]
    folded = letter.casefold()
    return next((index for index in starts if target[index].casefold() == folded), next(iter(starts), 0))


def _ampersands(text: str) -> Iterator[int]:
    for match in _AMPERSAND.finditer(text):
        before, after = match["before"], match["after"]
        if before is None or _is_marked_within(before, after, text):
            yield match.start() + len(before or "")


def _is_marked_within(before: str, after: str, text: str) -> bool:
    if after.lower() in _SECOND_WORDS or not text.strip()[:1].isupper():
        return False
    if after.islower():
        is_word = len(before) + len(after) > 2 or (before + after).lower() in _SHORT_WORDS
        return is_word and not (len(before) > 1 and before.isupper())
    return text.isupper() and len(after) > 2  # `E&XIT`, but not `AT&T`


def _underscores(text: str, is_word: Callable[[str], bool]) -> Iterator[int]:
    for match in _UNDERSCORE.finditer(text):
        word, before, after = match["word"], match["before"], match["after"]
        if word is not None:
            # A single word in lower case is rather an identifier.
            if word[0].isupper() or len(_WORD.findall(text)) > 1:
                yield match.start()
        elif before is None:
            yield match.start()
        elif _is_one_word(before, after, is_word) or _is_short_start(before, after):
            yield match.start() + len(before)


def _is_short_start(before: str, after: str) -> bool:
    is_short = len(before) <= _MAX_FIRST_PART and before.lower() not in _FIRST_PARTS
    return is_short and before[0].isupper() and after.islower()


def _is_one_word(before: str, after: str, is_word: Callable[[str], bool]) -> bool:
    # `Such_en` and `Searc_h`, but not `Web_site`.
    word = before + after
    if not after.islower() or not (is_word(word) or is_word(word.lower())):
        return False
    return not is_word(after) or (len(after) == 1 and not is_word(before))
