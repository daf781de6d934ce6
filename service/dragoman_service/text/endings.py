"""Marks at the end of a sentence or label, in the form of the target language.

All functions are pure and take linear time.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dragoman_service.language_tags import primary_language

# Marks of a sentence in other scripts, in the form of the Latin script.
_PLAIN_MARKS = str.maketrans({
    **dict.fromkeys("。．।۔｡", "."),
    **dict.fromkeys("？؟", "?"),
    "！": "!",
    "：": ":",
    **dict.fromkeys("；؛", ";"),
    **dict.fromkeys("，、،､", ","),
})  # fmt: skip
_MARKS = frozenset(".…‥!?;:,。．।۔｡？؟！：；؛，、،､\u037e\u0387·")
_CLOSING = frozenset("\"'”’“‘»«›‹)]}」』）】》〉*~")
_DASHES = frozenset("-–—―")
_ANY_SPACE = frozenset(" \xa0\u202f\u2009")
_ELLIPSIS = re.compile(r"[…‥]{1,16}+|\.{3,16}+")
_WORD = re.compile(r"\w|\ufffc")
_TOKEN = re.compile(rf"{_ELLIPSIS.pattern}|.")
_MAX_PASSES = 4  # a second pass removes what the first one uncovers, such as the stop in `. -`
_MAX_MARKS = 16  # more are decoration
_CLOSING_OF = dict(zip('([{（【「『„“«‚‘‹"', ')]}）】」』“”»‘’›"', strict=True))
_EMOTICON = re.compile(r"[ \xa0]{0,4}(?:[:;]-?[)(]{1,4}|(?<=\s)[:;]-?[DPp])\Z")
_EMOTICON_CHARACTERS = 12
_CODE_AT_END = re.compile(r"(?:&(?:#\w{1,8}|[A-Za-z]\w{1,31});|:\w{1,64}:)\Z")  # `&amp;`, `:smile:`
_MAX_CODE_CHARACTERS = 68


def _languages(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Languages whose marks are `. ! ? : ; ,` without a space before them, except for French and Spanish.
_LATIN_MARKS = _languages(
    """
    af az be bg bs ca cs cy da de en eo es et eu fi fr ga gl he hr hu id is it ka kk ko lb lt lv mk mn ms mt nb nl nn
    no pl pt ro ru sk sl sq sr sv sw tg tk tl tr tt uk uz vi
    """
)
_CHINESE_MARKS = {".": "。", "?": "？", "!": "！", ":": "：", ";": "；", ",": "，"}
_ARABIC_MARKS = {"?": "؟", ";": "؛", ",": "،"}
_OTHER_MARKS: dict[str, Mapping[str, str]] = {
    "zh": _CHINESE_MARKS,
    "yue": _CHINESE_MARKS,
    "ja": {**_CHINESE_MARKS, ",": "、"},
    **dict.fromkeys(("ar", "ckb", "fa", "ps"), _ARABIC_MARKS),
    "ur": {**_ARABIC_MARKS, ".": "۔"},
    "el": {"?": ";", ";": "·"},
    **{language: {".": "।"} for language in ("as", "bn", "hi", "ne", "or", "pa")},
}
_WIDE_LANGUAGES = frozenset({"ja", "yue", "zh"})
_WIDE_CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff]")

# A full stop after one of these belongs to the word.
_ABBREVIATION = re.compile(
    r"(?:[^\W\d_]\.[ \xa0]?[^\W\d_]|\b(?:abb|abs|approx|ave|bd|blvd|bros|bspw|bzw|ca|chr|corp|dept|dr|etc|evtl|excl|ff"
    r"|fig|ggf|inc|incl|inkl|jh|jhd|jr|ltd|mio|mr|mrd|mrs|mwst|nr|núm|p\. ?ex|pág|prof|sog|sra?|str|tel|tsd|usf|usw|vgl"
    r"|vol|vs|zzgl|zzt|т\. ?д|т\. ?п|п|др))\Z",
    re.IGNORECASE,
)
_ABBREVIATION_CHARACTERS = 12
_ORDINAL = re.compile(r"(?<![\w.,:/])(?:\d{1,2}|[IVX]{1,5})\Z")
_ORDINAL_LANGUAGES = _languages("bs cs da de et fi hr hu is lb lv nb nn no pl sk sl sr tr")

_FRENCH_SPACE = {":": "\xa0", ";": "\u202f", "!": "\u202f", "?": "\u202f"}
_INVERTED = {"?": "¿", "!": "¡"}
_SENTENCE_START = re.compile(r"[.!?…]{1,8}+[\"'”»)]{0,4}+\s{1,8}+|\n")
_OPENING = re.compile(r"[\s\"'“”„«‹‘([{—–*-]{0,32}+")


def corrected_ending(source: str, target: str, *, source_language: str, target_language: str) -> str:
    """Return the target with the marks at the end of the source, in the form of the target language.

    The full stop of an abbreviation or an ordinal stays. A closing quotation mark or bracket is added if the source has
    it and the target has only the opening one. Spanish sentences get or lose `¿` and `¡`. The result does not change if
    it is corrected again.

    Args:
        source: a sentence or a label.
        target: its translation.
        source_language: BCP-47 tag.
        target_language: BCP-47 tag. If one of the languages has no table of marks, the target is unchanged.
    """
    if source[-1:] == target[-1:] and source[-2:-1].isalnum() and target[-2:-1].isalnum():
        return target  # the usual case
    from_subtag, to_subtag = primary_language(source_language), primary_language(target_language)
    if not _has_table(from_subtag) or not _has_table(to_subtag):
        return target
    old = _Ending.of(source, from_subtag)
    corrected = target
    for _ in range(_MAX_PASSES):
        new = _Ending.of(corrected, to_subtag)
        if old is None or new is None or (new.emoticon and not old.emoticon):
            return corrected
        before = corrected
        corrected = _EndingCorrection(old, new, from_subtag, to_subtag, target_language).result()
        if corrected == before:
            return corrected
    return target


def _has_table(subtag: str) -> bool:
    return subtag in _LATIN_MARKS or subtag in _OTHER_MARKS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """A text in parts: body, marks, closing quotation marks and brackets, marks, emoticon, white space."""

    body: str
    inner: str  # marks before the closing marks
    closing: str
    outer: str  # marks at the end; all of them without closing marks
    inner_space: str  # before `inner`
    closing_space: str
    outer_space: str
    emoticon: str  # with the space before it
    blank: str

    @classmethod
    def of(cls, text: str, subtag: str) -> "_Ending | None":
        """Split a text; None if it has no words, or too many marks."""
        rest = text.rstrip()
        blank = text[len(rest) :]
        emoticon = ""
        if match := _EMOTICON.search(rest, max(len(rest) - _EMOTICON_CHARACTERS, 0)):
            closes = match[0][-1] == ")" and rest.count("(") >= rest.count(")")
            if not closes and match.start() > 0:
                rest, emoticon = rest[: match.start()], match[0]
        rest, outer_space, outer = _split_marks(rest, subtag)
        after_closing = rest.rstrip()
        start = len(after_closing)
        while start and after_closing[start - 1] in _CLOSING and len(after_closing) - start < _MAX_MARKS:
            start -= 1
        closing = after_closing[start:]
        inner = inner_space = closing_space = ""
        if closing:
            rest = after_closing[:start].rstrip("".join(_ANY_SPACE))
            closing_space = after_closing[len(rest) : start]
            rest, inner_space, inner = _split_marks(rest, subtag)
        is_too_long = len(inner) > _MAX_MARKS or len(outer) > _MAX_MARKS
        if is_too_long or rest[-1:] in _CLOSING or not _WORD.search(rest):
            return None
        return cls(
            body=rest,
            inner=inner,
            closing=closing,
            outer=outer,
            inner_space=inner_space,
            closing_space=closing_space,
            outer_space=outer_space,
            emoticon=emoticon,
            blank=blank,
        )

    @property
    def text(self) -> str:
        """The whole text."""
        inner = self.inner_space + self.inner if self.inner else ""
        outer = self.outer_space + self.outer if self.outer else ""
        return f"{self.body}{inner}{self.closing_space}{self.closing}{outer}{self.emoticon}{self.blank}"


def _split_marks(text: str, subtag: str) -> tuple[str, str, str]:
    # Words, white space, and marks at the end.
    start = len(text)
    while start and text[start - 1] in _MARKS and len(text) - start <= _MAX_MARKS:
        if (text[start - 1] == "·" and subtag != "el") or _ends_in_code(text, start):
            break
        start -= 1
    if start == len(text) > 1 and text[-1] in _DASHES and text[-2] in _ANY_SPACE:
        start -= 1
    words = text[:start].rstrip("".join(_ANY_SPACE)) if start < len(text) else text
    return words, text[len(words) : start], text[start:]


def _ends_in_code(text: str, end: int) -> bool:
    is_possible = text[end - 1] in ":;"
    return is_possible and _CODE_AT_END.search(text, max(end - _MAX_CODE_CHARACTERS, 0), end) is not None


class _EndingCorrection:
    """Correction of the marks at the end of a target."""

    def __init__(self, old: _Ending, new: _Ending, from_subtag: str, to_subtag: str, target_language: str) -> None:
        self._old, self._new = old, new
        self._from, self._to = from_subtag, to_subtag
        self._is_canadian = target_language.lower() == "fr-ca"
        self._is_wide = to_subtag in _WIDE_LANGUAGES and _WIDE_CHARACTER.search(new.body) is not None

    def result(self) -> str:
        old, new = self._old, self._new
        if old.emoticon and not new.emoticon:
            new = self._with_emoticon(new)
        elif old.emoticon != new.emoticon:
            new = replace(new, emoticon=old.emoticon)
        if old.closing and not new.closing and (missing := self._missing_closing(new)):
            # The marks of the target belong inside or outside, as in the source.
            is_inside = bool(old.inner) and not old.outer
            inner, outer = (new.outer, "") if is_inside else ("", new.outer)
            new = replace(
                new, inner=inner, closing=missing, outer=outer, inner_space=new.outer_space if is_inside else ""
            )
        before = self._canonical(new.inner + new.outer, self._to)
        if self._canonical(old.inner + old.outer, self._from) != before:
            new = self._with_marks(new)
        if self._to == "es" and new != self._new:
            new = replace(new, body=_with_inverted(new.body, self._new.inner + self._new.outer, new.inner + new.outer))
        return new.text

    def _with_emoticon(self, new: _Ending) -> _Ending:
        # `;)` may have become `;` or `)`.
        closing = new.closing
        if closing.endswith(")") and new.body.count("(") < new.body.count(")") + closing.count(")"):
            closing = closing[:-1]
        outer = new.outer[:-1] if new.outer[-1:] in {":", ";"} and new.outer != self._old.outer else new.outer
        if not closing and new.closing:
            inner = new.inner[:-1] if new.inner[-1:] in {":", ";"} else new.inner
            outer, new = inner + outer, replace(new, inner="", outer_space=new.inner_space, closing_space="")
        return replace(new, closing=closing, outer=outer, emoticon=self._old.emoticon)

    def _missing_closing(self, new: _Ending) -> str:
        # Opening marks of the target without closing ones, from the last to the first.
        waiting: list[str] = []
        for char in new.body:
            if waiting and char == waiting[-1]:
                waiting.pop()
            elif char in _CLOSING_OF:
                waiting.append(_CLOSING_OF[char])
        missing = "".join(reversed(waiting))
        return missing if 0 < len(missing) <= len(self._old.closing) else ""

    def _with_marks(self, new: _Ending) -> _Ending:
        old = self._old
        if bool(old.closing) == bool(new.closing):
            inner_space, inner = self._corrected(
                old.inner, new.inner, space=new.inner_space, old_space=old.inner_space, is_inner=True
            )
            outer_space, outer = self._corrected(old.outer, new.outer, space=new.outer_space, old_space=old.outer_space)
            return replace(new, inner=inner, inner_space=inner_space, outer=outer, outer_space=outer_space)
        wanted, old_space = (old.outer, old.outer_space) if old.outer or not old.inner else (old.inner, old.inner_space)
        if new.inner:
            inner_space, inner = self._corrected(
                wanted, new.inner, space=new.inner_space, old_space=old_space, is_inner=True
            )
            return replace(new, inner=inner, inner_space=inner_space, outer="" if new.outer else new.outer)
        outer_space, outer = self._corrected(wanted, new.outer, space=new.outer_space, old_space=old_space)
        return replace(new, outer=outer, outer_space=outer_space)

    def _corrected(
        self, wanted: str, current: str, *, space: str, old_space: str, is_inner: bool = False
    ) -> tuple[str, str]:
        """Return the space and the marks in one place of the target."""
        is_last_word = is_inner or not self._new.closing
        own = self._own_stop(self._old.body, wanted, self._from) if is_inner or not self._old.closing else ""
        if own and wanted == ".":
            if current in {"", "."}:
                return space, current
        elif own == "abbreviation":
            wanted = wanted[1:]
        target_own = self._own_stop(self._new.body, current, self._to) if is_last_word else ""
        if target_own and wanted in {"", "."}:
            return space, current[:1]
        prefix = ""
        if target_own == "abbreviation":
            prefix, current = current[:1], current[1:]
        if self._canonical(wanted, self._from) == self._canonical(current, self._to):
            return space, prefix + current
        marks = self._rendered(wanted)
        return self._space_before(wanted, marks, prefix=prefix, old_space=old_space), prefix + marks

    @staticmethod
    def _own_stop(body: str, marks: str, subtag: str) -> str:
        if marks[:1] != "." or marks[1:2] == ".":
            return ""
        if _ABBREVIATION.search(body[-_ABBREVIATION_CHARACTERS:]):
            return "abbreviation"
        return "ordinal" if subtag in _ORDINAL_LANGUAGES and _ORDINAL.search(body[-8:]) else ""

    def _canonical(self, marks: str, subtag: str) -> str:
        # Latin marks; the spelling of an ellipsis counts unless the target has its own.
        if subtag == "el":
            marks = marks.translate({ord(";"): "?", 0x37E: "?", 0x387: ";", ord("·"): ";"})
        marks = marks.translate(_PLAIN_MARKS)
        if self._is_wide or self._from in _WIDE_LANGUAGES:
            marks = _ELLIPSIS.sub("…", marks)
        return marks if marks not in _DASHES else "-"

    def _rendered(self, marks: str) -> str:
        table = _OTHER_MARKS.get(self._to, {})
        if self._to in _WIDE_LANGUAGES and not self._is_wide:
            table = {}
        result = []
        for match in _TOKEN.finditer(self._canonical(marks, self._from)):
            mark = match[0]
            if len(mark) > 1 or mark == "…":
                is_chinese = self._is_wide and self._to != "ja"
                result.append("……" if is_chinese else "…" if self._is_wide else mark)
            elif mark == "-":
                result.append("–" if self._to == "de" and marks == "—" else marks)
            else:
                result.append(table.get(mark, mark))
        return "".join(result)

    def _space_before(self, wanted: str, marks: str, *, prefix: str, old_space: str) -> str:
        if not marks or prefix:
            return ""
        if wanted in _DASHES:
            return " "
        if self._to == "fr":
            space = _FRENCH_SPACE.get(marks[0], "")
            return "" if self._is_canadian and marks[0] != ":" else space
        return " " if old_space and _ELLIPSIS.match(wanted) and not self._is_wide else ""


def _with_inverted(body: str, before: str, after: str) -> str:
    # Adds and removes `¿` and `¡` of the last sentence.
    start = 0
    for match in _SENTENCE_START.finditer(body):
        start = match.end()
    opening = _OPENING.match(body, start)
    start = opening.end() if opening else start
    head, sentence = body[:start], body[start:]
    for mark, inverted in _INVERTED.items():
        if mark in before and mark not in after and sentence.count(inverted) == 1:
            sentence = sentence.replace(inverted, "")
    wanted = "".join(inverted for mark, inverted in _INVERTED.items() if mark in after and mark not in before)
    if wanted and not any(inverted in sentence for inverted in _INVERTED.values()):
        sentence = wanted[:1] + sentence
    return head + sentence
