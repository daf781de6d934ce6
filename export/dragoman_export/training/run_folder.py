"""The folder of a training run: settings, vocabulary, checkpoints, log and curves."""

import json
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

from dragoman_export.errors import RunFolderError
from dragoman_export.training.checkpoint import BEST_NAME, list_checkpoints, write_atomically


class RunFolder:
    """Paths and small files of the folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.imported = path / "imported.pt"
        self.best = self.checkpoints / BEST_NAME
        self.vocabulary = path / "vocabulary.model"
        self.tokenizer = path / "tokenizer"
        self.lexicon = path / "lexicon.json"
        self.log = path / "log.jsonl"
        self.curves = path / "curves.png"
        self._settings = path / "config.json"

    def create(self) -> None:
        """Create the folder for a new run; RunFolderError if it contains checkpoints, or cannot be created."""
        if list_checkpoints(self.checkpoints):
            raise RunFolderError(f"{self.path} contains checkpoints; continue with --resume or choose another --output")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"cannot create {self.checkpoints}: {error.strerror}") from error
        self.log.unlink(missing_ok=True)  # left by a run without checkpoints

    def last_checkpoint(self) -> Path:
        """Return the newest numbered checkpoint; RunFolderError if there is none."""
        checkpoints = list_checkpoints(self.checkpoints)
        if not checkpoints:
            raise RunFolderError(f"{self.checkpoints} contains no checkpoint to resume from")
        return checkpoints[-1]

    def write_settings(self, settings: dict[str, Any]) -> None:
        """Write config.json."""
        write_atomically(self._settings, (json.dumps(settings, indent=2) + "\n").encode())

    def write_environment(self, facts: dict[str, Any]) -> None:
        """Write environment.json: what a repetition of the run needs, in addition to the settings."""
        write_atomically(self.path / "environment.json", (json.dumps(facts, indent=2) + "\n").encode())

    def read_settings(self) -> dict[str, Any]:
        """Read config.json; RunFolderError if it is missing or damaged."""
        try:
            settings: dict[str, Any] = json.loads(self._settings.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise RunFolderError(f"cannot read {self._settings}: {error}") from error
        return settings

    def append(self, event: str, **fields: Any) -> None:
        """Append one record to the log, with the time in seconds since 1970."""
        record = {"event": event, "time_s": round(time.time(), 3), **fields}
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if "loss" in fields:  # figures of a step or an evaluation, for TensorBoard
            for name, value in fields.items():
                if name != "step" and value is not None:
                    self._events.add_scalar(f"{event}/{name}", value, fields["step"])
        if event == "stop":
            self._events.close()

    @cached_property
    def _events(self) -> SummaryWriter:
        # Writes the event files of TensorBoard, at least every ten seconds.
        return SummaryWriter(str(self.path / "tensorboard"), flush_secs=10)
