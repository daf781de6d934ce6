"""Real English sentences that are there in every clone: the project's own prose."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import sentencex

_ROOT = Path(__file__).parents[1]
_FOLDERS = ("service", "export", "proto/dragoman", "loadtests")
_MARKUP = re.compile(r"[`|*#\[\]<>]|https?:")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_WORDS = range(4, 61)
"""Allowed number of words of a sentence."""


@functools.cache
def real_sentences(count: int) -> tuple[str, ...]:
    """Return distinct sentences from documentation and docstrings; always the same ones from the same tree."""
    sentences = dict.fromkeys(sentence for text in _texts() for sentence in _sentences(text))
    if len(sentences) < count:
        raise ValueError(f"the project's own text has {len(sentences)} sentences, fewer than {count}")
    return tuple(sentences)[:count]


def _sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in sentencex.segment("en", " ".join(paragraph.split())):
            if len(sentence.split()) in _WORDS and not _MARKUP.search(sentence):
                yield sentence.strip()


def _texts() -> Iterator[str]:
    for page in sorted(_ROOT.glob("*.md")):
        yield page.read_text(encoding="utf-8")
    for path in sorted(path for folder in _FOLDERS for path in (_ROOT / folder).rglob("*.py")):
        if path.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        yield from (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, _DOCUMENTED))
