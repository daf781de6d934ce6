"""Translates lines of text with the command `dragoman translate-dataset`, from which an interrupted run continues."""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from dragoman_export.errors import ExportError
from dragoman_service.bundle.files import load_manifest

Row = Mapping[str, Any]
"""Columns of a translated line: `text`, `translation`, `warnings` and others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTranslation:
    """A run of the command with one bundle, in a directory that keeps its state."""

    directory: Path  # next to the output; to be removed at the end
    bundle: Path
    precision: str | None
    beam_size: int
    batch_size: int
    num_workers: int
    block_rows: int

    @classmethod
    def of(cls, args: argparse.Namespace, bundle: Path) -> Self:
        """Use the flags that `distill` and `backtranslate` have in common."""
        return cls(
            directory=args.output.with_name(f"{args.output.name}.parts"),
            bundle=bundle,
            precision=args.precision,
            beam_size=args.beam,
            batch_size=args.batch_size,
            num_workers=args.threads,
            block_rows=args.save_every,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that determine the translations; the run must have begun."""
        settings: dict[str, Any] = json.loads((self._output / "manifest.json").read_bytes())["settings"]
        return settings

    def run(self, lines: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
        """Translate the lines that are not translated yet; yield all lines, with None for a rejected one.

        Lines contain no line breaks. SIGINT and SIGTERM are passed on to the command, and end this process with its
        status.

        Raises:
            ExportError: if Ray is not installed or the command fails.
        """
        if find_spec("ray") is None:
            raise ExportError("`dragoman translate-dataset` needs Ray; install it: pip install 'dragoman[serve,ray]'")
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._input.open("wb") as file:
            file.writelines(f"{line}\n".encode() for line in lines)
        if status := _exit_status(self._command(), {"DRAGOMAN_RUNTIME__PRECISION": self.precision or ""}):
            if status in {128 + signal.SIGINT, 128 + signal.SIGTERM}:
                raise SystemExit(status)
            raise ExportError(
                f"`dragoman translate-dataset` exited with {status}: repeat the command to continue, or delete"
                f" {self.directory} to start again"
            )
        return self._joined()

    @property
    def _input(self) -> Path:
        return self.directory / "input.txt"

    @property
    def _output(self) -> Path:
        return self.directory / "translated"

    def _command(self) -> list[str]:
        # The command expects NAME/VERSION in a directory of models.
        manifest = load_manifest(self.bundle)
        models = self.directory / "models"
        link = models / manifest.name / manifest.version
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(self.bundle.resolve())
        flags = {
            "models": models,
            "model": f"{manifest.name}/{manifest.version}",
            "source-language": manifest.source_language,
            "target-language": manifest.target_language,
            "beam-size": self.beam_size,
            "batch-size": self.batch_size,
            "workers": self.num_workers,
            "block-rows": self.block_rows,
        }
        words = [f"--{name}={value}" for name, value in flags.items()]
        return [sys.executable, "-m", "dragoman", "translate-dataset", str(self._input), str(self._output), *words]

    def _joined(self) -> Iterator[tuple[str, Row | None]]:
        with self._input.open("rb") as file:
            for line, row in zip(file, _rows(self._output), strict=False):
                yield line.decode().removesuffix("\n"), row


def _rows(directory: Path) -> Iterator[Row | None]:
    # One for each line of the input, then None without end; parts do not contain rejected lines.
    last = 0  # number of the last line, from 1
    for part in sorted(directory.glob("part-*.jsonl"), key=lambda path: (len(path.name), path.name)):
        with part.open("rb") as file:
            for row in map(json.loads, file):
                line = int(row["row_id"].rpartition(":")[2])
                yield from itertools.repeat(None, line - last - 1)
                yield row
                last = line
    yield from itertools.repeat(None)


def _exit_status(command: list[str], environment: Mapping[str, str]) -> int:
    # As in a shell; empty variables are omitted.
    given = {name: value for name, value in environment.items() if value}
    with subprocess.Popen(command, env={**os.environ, **given}) as process:  # noqa: S603 - our own program
        before = {
            number: signal.signal(number, lambda each, _: process.send_signal(each))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            status = process.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return status if status >= 0 else 128 - status
