"""What a library has to do with its own model to be compared with."""

import importlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from dragoman_export.errors import ImportFormatError
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.datatypes import SearchConfig


class Original(Protocol):
    """A model by its own library, which searches by our rules where the two differ."""

    narrows_beam: bool
    """Whether a hypothesis that ends takes the place of one that would live with us: beams find the same targets only
    while none ends."""

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, by our numbers."""

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a given target, or [T] of its tokens alone."""

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; of the search only sizes and limits are obeyed."""


def load_modules(*names: str, install: str) -> list[Any]:
    """Return modules of a library; ImportFormatError says how to install what is missing (arguments of pip)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that would do what no translation needs
            return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ImportFormatError(
            f"to compare with the original, install what runs it: pip install {install} ({error})"
        ) from error


@contextmanager
def loading(library: str, path: Path) -> Iterator[None]:
    """Tell in one line what a library raises about a model: ImportFormatError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, ValueError, RuntimeError, AssertionError, AttributeError, KeyError) as error:
        raise ImportFormatError(f"{library} cannot load {path}: {error}") from error
