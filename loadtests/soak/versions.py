"""A directory of models in which versions of one bundle come and go, all with the same weights."""

import json
import shutil
from pathlib import Path
from typing import Final

_MANIFEST: Final = "manifest.json"


class Versions:
    """Versions of a model: copies of a bundle, each with a manifest of its own."""

    def __init__(self, models: Path, bundle: Path) -> None:
        """Use a directory of models.

        Raises:
            OSError: if the bundle cannot be read.
            ValueError: if its manifest is none.
        """
        self._bundle = bundle
        self._manifest = json.loads((bundle / _MANIFEST).read_text(encoding="utf-8"))
        self.name: str = self._manifest["name"]
        """Of the model."""

        self._family = models / self.name
        self._family.mkdir(parents=True, exist_ok=True)

    def full_name(self, version: int) -> str:
        """Return what calls name a version."""
        return f"{self.name}/{version}"

    def bring(self, version: int, *, is_broken: bool = False) -> None:
        """Let a version appear as a whole, by a rename; the weights of a broken one lack their end."""
        hidden = self._family / f".{version}"
        hidden.mkdir()
        for path in self._bundle.iterdir():
            if path.name != _MANIFEST:
                shutil.copyfile(path, hidden / path.name)
        manifest = {**self._manifest, "version": str(version)}
        (hidden / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        if is_broken:
            weights = next(hidden.glob("weights.*"))
            weights.write_bytes(weights.read_bytes()[:-1])
        hidden.rename(self._family / str(version))

    def remove(self, version: int) -> None:
        """Let a version disappear, by a rename too."""
        hidden = self._family / f".{version}-gone"
        (self._family / str(version)).rename(hidden)
        shutil.rmtree(hidden)
