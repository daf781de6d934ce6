"""Check the English of comments, docstrings, messages and Markdown against `prose.toml`; exit 1 if a pattern occurs."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

CONFIG = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PATTERNS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in CONFIG["patterns"].items()]
ANY_PATTERN = re.compile("|".join(CONFIG["patterns"]), re.IGNORECASE)
STARTS = [(re.compile(pattern), advice) for pattern, advice in CONFIG["docstring_starts"].items()]
MIN_WORDS = 4  # shorter strings are names and keys

LITERALS = re.compile(
    r"""
    (?P<comment>\#[^\n]*)
    | [rbfu]{0,2}\"{3}(?:[^\\"]|\\.|\"(?!\"{2}))*\"{3}
    | [rbfu]{0,2}'{3}(?:[^\\']|\\.|'(?!'{2}))*'{3}
    | (?:[rbfu]{0,2}(?:"(?:[^\\"\n]|\\.)*"|'(?:[^\\'\n]|\\.)*')\s*(?!\"{3}))+
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
QUOTES = re.compile(r"""\b[rbfu]{1,2}(?=["'])|["']+|\\.""", re.IGNORECASE)

Passage = tuple[int, str, bool]
"""First line, text, whether the text is a docstring."""


def python_passages(source: str) -> Iterator[Passage]:
    """Yield the comments and the strings of at least `MIN_WORDS` words; adjacent strings are one."""
    line, end = 1, 0
    for match in LITERALS.finditer(source):
        line, end = line + source.count("\n", end, match.start()), match.start()
        text = match[0]
        if match["comment"]:
            yield line, text.lstrip("#! "), False
        elif len(text.split()) >= MIN_WORDS:
            is_first = not source[source.rfind("\n", 0, end) + 1 : end].strip()
            yield line, QUOTES.sub("", text), is_first and text.startswith(('"""', 'r"""'))


def markdown_passages(source: str) -> Iterator[Passage]:
    """Yield the lines outside code blocks."""
    is_code = False
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.startswith("    "):
            yield number, line, False


def findings(passage: Passage) -> Iterator[str]:
    """Yield a line number and a description for each match."""
    first, text, is_docstring = passage
    prose = re.sub(r"`[^`]*`|\{[^{}]*\}", lambda code: "x" * len(code[0]), text)
    for pattern, advice in PATTERNS if ANY_PATTERN.search(prose) else ():
        for match in pattern.finditer(prose):
            line = first + text.count("\n", 0, match.start())
            yield f"{line}: '{match[0]}': write: {advice}"
    for pattern, advice in STARTS if is_docstring else ():
        if match := pattern.match(text.lstrip().partition("\n")[0]):
            yield f"{first}: '{match[0][:40]}': {advice}"


def main() -> int:
    """Check the tracked files, or those given as arguments."""
    command = ["git", "ls-files", "*.py", "*.md"]
    names = sys.argv[1:] or subprocess.check_output(command, text=True).split("\n")  # noqa: S603
    count = 0
    for name in filter(None, names):
        if any(fnmatch.fnmatch(name, excluded) for excluded in CONFIG["excluded"]) or "_pb2" in name:
            continue
        source = Path(name).read_text(encoding="utf-8")
        passages = python_passages(source) if name.endswith(".py") else markdown_passages(source)
        for passage in passages:
            for finding in findings(passage):
                count += 1
                print(f"{name}:{finding}")
    if count:
        print(f"{count} passages to reword, see .ci/prose.toml", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
