"""Fixed spans in two translations: the second must preserve what the first has inserted."""

import html
import re
from collections.abc import Sequence

from dragoman_service.datatypes import Span
from dragoman_service.request import FixedSpan

_SPACELESS = "\u2e80"  # first character of the scripts that write words without spaces (CJK)
_LETTER = rf"[^\W{_SPACELESS}-\U0010ffff]"  # of a word that spaces separate
_TAG = r"<[^<>]*+>"


def inserted_spans(
    translation: str, fixed_spans: Sequence[FixedSpan], text: str, *, is_markup: bool
) -> tuple[FixedSpan, ...]:
    """Return the ranges of a translation that contain a fixed translation, as spans that stay unchanged.

    The order of the spans can differ between text and translation, so each occurrence of a fixed translation as a whole
    word counts. `fixed_spans` are those of `text`. With `is_markup`, tags are skipped.
    """
    targets = {each.target or text[each.span.start : each.span.end] for each in fixed_spans}
    if is_markup:
        targets |= {html.escape(target, quote=False) for target in targets}
    words = [_whole_word(target) for target in sorted(targets, key=len, reverse=True) if target]
    if not words:
        return ()
    pattern = re.compile(rf"{_TAG}|(?P<word>{'|'.join(words)})" if is_markup else f"(?P<word>{'|'.join(words)})")
    return tuple(
        FixedSpan(span=Span(start=match.start(), end=match.end()), target="")
        for match in pattern.finditer(translation)
        if match["word"]
    )


def _whole_word(target: str) -> str:
    before = rf"(?<!{_LETTER})" if target[0].isalnum() and target[0] < _SPACELESS else ""
    after = rf"(?!{_LETTER})" if target[-1].isalnum() and target[-1] < _SPACELESS else ""
    return f"{before}{re.escape(target)}{after}"
