"""Where the files of a model compared lie; imports no library of any system."""

from dataclasses import dataclass
from pathlib import Path

from service.bundle import Bundle, open_bundle


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """Where the files of one model lie."""

    directory: Path

    @property
    def bundle_path(self) -> Path:
        """Our bundle, at both precisions."""
        return self.directory / "bundle"

    @property
    def ctranslate2_path(self) -> Path:
        """The same weights as CTranslate2 stores them."""
        return self.directory / "ctranslate2"

    def open(self) -> Bundle:
        """Return the bundle."""
        return open_bundle(self.bundle_path)
