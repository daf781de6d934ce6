import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import dragoman

_PROTO = Path(dragoman.__file__).parents[1]


def test_the_public_names_come_from_the_top() -> None:
    from dragoman import DragomanError, TranslationClient  # noqa: PLC0415 - what is tested

    assert TranslationClient.__module__ == "dragoman.client"
    assert DragomanError.__module__ == "dragoman.errors"
    assert all(getattr(dragoman, name) for name in dragoman.__all__)


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dragoman' has no attribute 'Translator'"):
        _ = dragoman.Translator


def test_the_version_is_that_of_the_package() -> None:
    assert dragoman.__version__ == importlib.metadata.version("dragoman")


def test_one_module_loads_no_other() -> None:
    program = f"import sys; sys.path.insert(0, {str(_PROTO)!r}); import dragoman.enums; print(*sys.modules)"

    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "dragoman.client" not in finished.stdout.split()
