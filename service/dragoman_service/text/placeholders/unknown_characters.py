"""Characters that a model cannot spell, and runs of symbols, as protected spans.

A tokenizer encodes unknown characters in bytes or as the unknown token, and the model returns other characters for
them. A word with such a letter is protected as a whole, and so is a run of such symbols with the symbols they touch.
Emoji sequences stay together. Models rarely keep operators such as `->` and marks such as `**`, even if they can spell
them.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.spans import ProtectedSpan, add_matches
from dragoman_service.text.segmentation import Check, never_ends

# Replace characters that are not spelled: letters, digits and marks; symbols; joiners of emoji; brackets.
_LETTER, _SYMBOL, _JOINER, _BRACKET = "\ue000", "\ue001", "\ue002", "\ue003"
_SYMBOLS = _SYMBOL + _JOINER + _BRACKET
_EMOJI_JOINERS = frozenset("\u200d\u20e3\ufe0e\ufe0f")
# Letters of scripts without spaces between words, where a run of letters is not a word.
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff]")

# ASCII symbols that stay with an unknown symbol they touch: `->`, `>=`, `+/-`.
_GLUED = r"[-=+*/#~&@^_|<>$%]"
_RUN = re.compile(
    rf"(?:[0-9#*](?={_JOINER}))?(?:{_GLUED}{{0,8}}+[{_SYMBOLS}]++)++{_GLUED}{{0,8}}+"
    rf"(?:\w{{1,2}}[{_SYMBOLS}]++|(?<={_SYMBOL})\w(?!\w))?"  # `[x]`, `∃z`
    rf"|[\w{_LETTER}]++(?:['’\-‐][\w{_LETTER}]++)*+"
)
_REPLACED = re.compile(f"[{_LETTER}{_SYMBOLS}]")
_MARK = re.compile(
    r"\[[ xX]\]"  # boxes of a list
    r"|\\\""  # escaped quotation marks
    r"|(?<![\w|])\|[A-Za-z_][\w.-]{0,40}+\|(?![\w|])"  # substitutions of reStructuredText
    r"|(?<![^\s(])(?!-{2,3}(?!-))[-+*/=<>~|&#^]{2,8}+(?![^\s.,;:!?)])"  # operators, but not dashes
    r"|(?<!\w)[A-Z]{1,5}&[A-Z]{1,5}(?!\w)"  # `AT&T`, `R&D`
    r"|(?<=\w)[ \xa0]?…(?=[ \xa0]?\w)"  # ellipses within a sentence
    r"|!={1,2}+|:=|(?<![^\s(])::(?=\s)"
    r"|(?<![\w*_~=])[*_~=]{1,3}+(?=[^\s*_~=.,;:!?)])|(?<=[\w.,:;!?)\"'])[*_~=]{1,3}+(?![\w*_~=])"  # emphasis
)
_MARK_CHARACTER = re.compile(r"[-+*_~=<>|&#^/\[\\…]|::")
_FIRST_NAME = re.compile(r"\b(?P<name>[A-Z][a-zäöüß]{2,11}) \Z")
# At the start of a text, line, list item, sentence or quotation, or after another capital or a word that no noun
# follows without an article.
_FIRST_NAME_OR_NOUN = re.compile(
    r"(?:(?:\A|\n)(?:[-+] |\d{1,3}[.)] )?|[.!?:*•–—] |[(\[„“\"»]"
    r"|\b(?!(?:D(?:er|ie|as|en|em|es)|(?:Ein|[DKMS]ein|Ihr|Unser|Dies|Jed)\w{0,2}) )[A-ZÄÖÜ]\w{1,20} "
    r"|\b(?:und|von|mit|bei|für|an|heißt|hieß|ist|war) )" + _FIRST_NAME.pattern
)
_MAX_FIRST_NAME = 36
_LINE = re.compile(r"[^\n]++\n?|\n")

_NEVER_JOINED = frozenset((ProtectedKind.TAG, ProtectedKind.PLURAL))


class UnknownCharacterFinder:
    """Finds the characters that a model cannot spell, outside of other spans, and joins them with spans they touch."""

    def __init__(
        self,
        spells: Callable[[str], bool],
        known: set[str] | None = None,
        *,
        is_foreign: Callable[[str], bool] | None = None,
        is_word: Callable[[str], bool] | None = None,
        capitalizes_nouns: bool = True,
    ) -> None:
        """Take the test of a tokenizer, see `SentencePieceTokenizer.spells`, and the set of spelled characters.

        The set grows with the characters that are found to be spelled. A letter for which `is_foreign` returns True
        marks its word as a name, unless the word is in lower case: `Björk`, but not `café`. A word before a name is a
        part of it if `is_word` does not know it: `Agnieszka Wójcik`, but not `Nachbar Wójcik`. If the language
        `capitalizes_nouns`, only the word before it shows that it is not another noun.
        """
        self._spells = spells
        self._is_foreign = is_foreign or (lambda _: False)
        self._is_word = is_word or (lambda _: True)
        self._first_name = _FIRST_NAME_OR_NOUN if capitalizes_nouns else _FIRST_NAME
        self._known = set() if known is None else known

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the runs of unknown characters between them, in order."""
        unknown: dict[int, str] = {}
        foreign: set[str] = set()
        for char in set(text).difference(self._known):
            if not self._spells(char):
                unknown[ord(char)] = _replacement(char)
            elif self._is_foreign(char):
                foreign.add(char)
                unknown[ord(char)] = _replacement(char)
            else:
                self._known.add(char)
        has_marks = _MARK_CHARACTER.search(text) is not None
        if not unknown and not has_marks:
            return list(spans)
        marked = text.translate(unknown)

        def is_loanword(word: str) -> bool:
            return word.islower() and all(char in foreign or ord(char) not in unknown for char in word)

        def find(_: str, begin: int, end: int) -> Iterator[ProtectedSpan]:
            runs = [*(_runs(marked, begin, end, check) if unknown else ())]
            if foreign:
                runs = [span for span in runs if not is_loanword(text[span.start : span.end])]
            runs = [self._with_first_name(span, text, begin) for span in runs]
            if has_marks:
                runs += _marks(text, begin, end, check)
            return (ProtectedSpan(span=span, kind=None) for span in _united(runs))

        found = add_matches(spans, text, find, check)
        given = set(map(id, spans))
        return list(_joined(found, text, lambda each: id(each) not in given))

    def _with_first_name(self, span: Span, text: str, begin: int) -> Span:
        match = self._first_name.search(text, max(begin, span.start - _MAX_FIRST_NAME), span.start)
        if match is None or not text[span.start].isupper():
            return span
        is_known = any(map(self._is_word, (match["name"], match["name"].lower())))
        return span if is_known else Span(start=match.start("name"), end=span.end)


def _replacement(char: str) -> str:
    if char in _EMOJI_JOINERS:
        return _JOINER
    category = unicodedata.category(char)
    if category in {"Ps", "Pe"} or char in "<>|":
        return _BRACKET
    return _LETTER if category[0] in "LMN" and not _UNSPACED.match(char) else _SYMBOL


def _runs(marked: str, begin: int, end: int, check: Check) -> Iterator[Span]:
    # In lines, because a call of `re` cannot be interrupted.
    for line in _LINE.finditer(marked, begin, end):
        check()
        for match in _RUN.finditer(marked, line.start(), line.end()):
            if _REPLACED.search(match[0]):
                yield Span(start=match.start(), end=match.end())


def _marks(text: str, begin: int, end: int, check: Check) -> Iterator[Span]:
    # The expression looks at the character after a mark.
    for line in _LINE.finditer(text, begin, end):
        check()
        for match in _MARK.finditer(text, line.start(), line.end() + 1):
            if match.end() <= line.end():
                yield Span(start=match.start(), end=match.end())


def _united(spans: Sequence[Span]) -> Iterator[Span]:
    # Ordered spans without overlaps.
    last: Span | None = None
    for span in sorted(spans, key=lambda each: each.start):
        if last is not None and span.start < last.end:
            last = Span(start=last.start, end=max(last.end, span.end))
            continue
        if last is not None:
            yield last
        last = span
    if last is not None:
        yield last


def _joined(
    spans: Iterable[ProtectedSpan], text: str, is_new: Callable[[ProtectedSpan], bool]
) -> Iterator[ProtectedSpan]:
    last: ProtectedSpan | None = None
    is_last_new = False
    for protected in spans:
        can_join = last is not None and last.span.end == protected.span.start and (is_last_new or is_new(protected))
        if last is not None and can_join and _is_joinable(last) and _is_joinable(protected):
            last = _join(last, protected, text)
            is_last_new = True
            continue
        if last is not None:
            yield last
        last, is_last_new = protected, is_new(protected)
    if last is not None:
        yield last


def _is_joinable(protected: ProtectedSpan) -> bool:
    return protected.kind not in _NEVER_JOINED and not protected.messages


def _join(first: ProtectedSpan, second: ProtectedSpan, text: str) -> ProtectedSpan:
    target = None
    if first.target is not None or second.target is not None:
        target = "".join(
            text[each.span.start : each.span.end] if each.target is None else each.target for each in (first, second)
        )
    kind = first.kind if first.kind is not None else second.kind
    return replace(first, span=Span(start=first.span.start, end=second.span.end), kind=kind, target=target)
