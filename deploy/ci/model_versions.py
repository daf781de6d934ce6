"""The model that ships, brought to a server under another version as an operator does: hidden first, then renamed."""

import json
import shutil
from pathlib import Path
from typing import Final

MODELS: Final = Path(__file__).resolve().parents[1] / "models"
"""What ships."""

MODEL: Final = "en-de"


def bring_version(models: Path, version: str, *, is_broken: bool = False) -> None:
    """Let a version appear in a directory of models; if it is broken, its weights lack their end."""
    family = models / MODEL
    hidden = family / f".{version}"
    shutil.copytree(MODELS / MODEL / "1", hidden)
    manifest = json.loads((hidden / "manifest.json").read_text(encoding="utf-8"))
    (hidden / "manifest.json").write_text(json.dumps({**manifest, "version": version}), encoding="utf-8")
    if is_broken:
        weights = next(hidden.glob("weights.*.bin"))
        weights.write_bytes(weights.read_bytes()[:-1])
    hidden.rename(family / version)
