"""Tags in brackets (BBCode, shortcodes) and the quotes of MediaWiki that mark the text between them."""

import re
from collections import Counter
from collections.abc import Iterable

from dragoman_service.text.segmentation import Check

_TAG = re.compile(r"\[(?P<end>/?)(?P<name>[A-Za-z][\w-]{0,63}+|\*)[^\[\]]*+\]|(?P<quotes>'{2,5})")


def bracket_tag_name(tag: str) -> str:
    """Return the name of a tag in brackets, or the quotes of MediaWiki; empty for other text."""
    match = _TAG.fullmatch(tag)
    return (match["name"] or match["quotes"]) if match else ""


def paired_tags(tags: Iterable[str], check: Check) -> dict[int, bool]:
    """Return the indices of the tags that have a partner, with True for an end tag."""
    paired: dict[int, bool] = {}
    opened: list[tuple[str, int]] = []
    num_open: Counter[str] = Counter()
    for index, tag in enumerate(tags):
        check()
        match = _TAG.fullmatch(tag) if tag else None
        if match is None:
            continue
        name = match["name"] or match["quotes"]
        is_end = bool(num_open[name]) if match["quotes"] else bool(match["end"])
        if not is_end:
            opened.append((name, index))
            num_open[name] += 1
        elif num_open[name]:
            first, last_name = -1, ""
            while last_name != name:
                last_name, first = opened.pop()
                num_open[last_name] -= 1
            paired |= {first: False, index: True}
    return paired
