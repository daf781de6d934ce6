import subprocess
import sys
from pathlib import Path

import pytest

import dragoman
import dragoman.client


def test_public_names_are_importable_from_both_packages() -> None:
    for name in dragoman.client.__all__:
        assert getattr(dragoman, name) is getattr(dragoman.client, name)
    assert set(dragoman.__all__) == {"__version__", *dragoman.client.__all__}


@pytest.mark.parametrize("package", [dragoman, dragoman.client])
def test_unknown_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="Translator"):
        _ = package.Translator  # type: ignore[attr-defined]


def test_import_of_one_module_loads_no_other() -> None:
    path = Path(dragoman.__file__).parents[1]
    program = f"import sys; sys.path.insert(0, {str(path)!r}); import dragoman.client.enums; print(*sys.modules)"

    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    loaded = {name for name in finished.stdout.split() if name.partition(".")[0] in ("dragoman", "google", "grpc")}
    assert loaded == {"dragoman", "dragoman.client", "dragoman.client.enums"}
