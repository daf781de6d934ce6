"""Interface of reference models, and loading of their libraries."""

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
    """An imported model run by its own library."""

    narrows_beam: bool  # whether finished hypotheses reduce the beam; searches are then comparable only while none ends

    def encode(self, source: str) -> list[int]:
        """Return all token ids of a source, as the bundle numbers them."""

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        """Return the log-probabilities [T, V] of every step of a target, or [T] of its tokens alone."""

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        """Return the best target, EOS last if it ends; only sizes and limits of `search` apply."""


def load_modules(*names: str, install: str) -> list[Any]:
    """Import modules of a library; ImportFormatError with the arguments of `pip install` if one is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about optional packages
            return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise ImportFormatError(f"the original library is not installed: pip install {install} ({error})") from error


@contextmanager
def loading(library: str, path: Path) -> Iterator[None]:
    """Convert errors of a library into ImportFormatError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (OSError, ValueError, RuntimeError, AssertionError, AttributeError, KeyError) as error:
        raise ImportFormatError(f"{library} cannot load {path}: {error}") from error
