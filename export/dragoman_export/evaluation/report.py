"""Facts about translations that scores hide, COMET by a command, and pages of HTML."""

import html
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from dragoman_export.errors import ExportError

# of the paired bootstrap (Koehn 2004, "Statistical significance tests for machine translation evaluation")
NUM_RESAMPLES = 1000

_REPEATED = re.compile(r"\b(\w[\w ,;-]{0,60}?)(?:[ ,;-]+\1\b){2,}", re.IGNORECASE)
_STYLE = (
    "body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
    "td,th{border:1px solid #ccc;padding:.3em;vertical-align:top;text-align:left}"
)
_NUMBER = re.compile(r"-?\d+\.\d+")


def copies(sources: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> list[int]:
    """Return the indices of translations that equal their source, while the reference does not."""
    rows = enumerate(zip(sources, translations, references, strict=True))
    return [index for index, (source, text, reference) in rows if text == source != reference]


def repetitions(translations: Sequence[str], references: Sequence[str]) -> list[int]:
    """Return the indices of translations that have words three times in a row, while the reference does not."""
    rows = enumerate(zip(translations, references, strict=True))
    return [index for index, (text, reference) in rows if _REPEATED.search(text) and not _REPEATED.search(reference)]


def comet_score(command: str, sources: Sequence[str], translations: Sequence[str], references: Sequence[str]) -> float:
    """Return the score of a command with the flags of `comet-score`, which can be in another environment.

    ExportError if the command cannot run, fails or prints no number.
    """
    with tempfile.TemporaryDirectory(prefix="dragoman-comet-") as directory:
        flags = []
        for flag, texts in (("-s", sources), ("-t", translations), ("-r", references)):
            path = Path(directory, f"text{flag}")
            path.write_text("".join(f"{' '.join(text.splitlines())}\n" for text in texts), encoding="utf-8")
            flags += [flag, str(path)]
        try:
            done = subprocess.run(  # noqa: S603 - the command of the user
                [*shlex.split(command), *flags, "--quiet", "--only_system"], capture_output=True, text=True, check=True
            )
        except OSError as error:
            raise ExportError(f"--comet: cannot run {command!r}: {error.strerror}") from error
        except subprocess.CalledProcessError as error:
            last = error.stderr.strip().rpartition("\n")[2]
            raise ExportError(f"--comet: {command!r} exited with {error.returncode}: {last}") from error
    if not (numbers := _NUMBER.findall(done.stdout)):
        raise ExportError(f"--comet: {command!r} printed no score: {done.stdout[-200:]!r}")
    return float(numbers[-1])


def html_table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; cells are escaped."""
    titles = "".join(f"<th>{html.escape(title)}</th>" for title in header)
    lines = ("".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) for row in rows)
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def html_page(title: str, heading: str, body: str) -> str:
    """Return a page without scripts; `body` is HTML."""
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{html.escape(heading)}</h1>{body}</html>\n"
    )
