"""Ordinary texts: words with the usual punctuation between them.

No rule of `placeholders`, `casing`, `punctuation` and `invariants` applies to them, except for abbreviations and for
copies of the source. Most sentences are ordinary, so they take a short path.
"""

import re

_SPECIAL = re.compile(
    r"[^A-Za-zäöüÄÖÜß ,.!?;:'-]"
    r"|[A-ZÄÖÜ][A-ZÄÖÜ.]|[a-zäöüß][A-ZÄÖÜ]"  # acronyms, initials, inner capitals
    r"|[.!?;:,][^ ]|(?:^| )[-.,!?;:' ]|''|-(?![A-Za-zäöüÄÖÜß])"
)
_MAX_CHARACTERS = 4_096  # of one call of `re`, which holds the global interpreter lock (GIL)


def is_ordinary(text: str) -> bool:
    """Return whether a text is ordinary."""
    return len(text) <= _MAX_CHARACTERS and not _SPECIAL.search(text) and not text.isupper()
