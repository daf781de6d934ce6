"""English sentences of the documentation, for tests that need real text without a download."""

import re
from pathlib import Path

import sentencex

_ROOT = Path(__file__).parents[1]
_MARKUP = re.compile(r"[`|*#\[\]<>]|https?:")
_NUM_WORDS = range(4, 61)


def real_sentences(count: int) -> tuple[str, ...]:
    """Return distinct sentences, the same ones for the same documentation."""
    pages = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")])
    paragraphs = [part for page in pages for part in re.split(r"\n\s*\n", page.read_text(encoding="utf-8"))]
    found = (text for part in paragraphs for text in sentencex.segment("en", " ".join(part.split())))
    distinct = dict.fromkeys(text.strip() for text in found if not _MARKUP.search(text))
    sentences = [sentence for sentence in distinct if len(sentence.split()) in _NUM_WORDS]
    assert len(sentences) >= count, f"the documentation has {len(sentences)} sentences, fewer than {count}"
    return tuple(sentences[:count])
