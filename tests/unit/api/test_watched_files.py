from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from service.api.tls import WatchedFiles
from service.errors import ConfigError

SETTING = "section.file"


class Number:
    """Made of a file that holds a number."""

    def __init__(self, path: Path) -> None:
        self.num_failures = 0
        self.num_made = 0
        self.files = WatchedFiles({SETTING: path}, self._make, fail=self._fail)

    def _make(self, contents: Mapping[str, bytes]) -> int:
        self.num_made += 1
        if not contents[SETTING].isdigit():
            raise ConfigError(SETTING, "file", "a number")
        if contents[SETTING] == b"0":
            raise ZeroDivisionError
        return int(contents[SETTING])

    def _fail(self) -> None:
        self.num_failures += 1


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "number"
    path.write_bytes(b"1")
    return path


def test_a_change_is_found_and_an_unchanged_file_is_left_alone(path: Path) -> None:
    number = Number(path)
    number.files.refresh()
    assert (number.files.value, number.num_made) == (1, 1)

    path.write_bytes(b"2")
    number.files.refresh()

    assert (number.files.value, number.num_made) == (2, 2)


@pytest.mark.parametrize("content", [b"x", b"0", None])
def test_a_bad_change_is_tried_once_and_keeps_the_value(path: Path, content: bytes | None) -> None:
    number = Number(path)

    path.unlink() if content is None else path.write_bytes(content)
    with capture_logs() as records:
        number.files.refresh()
        number.files.refresh()

    assert (number.files.value, number.num_failures) == (1, 1)
    assert [record["event"] for record in records][-1].startswith("changed files are no good")


def test_after_a_bad_change_a_good_one_counts(path: Path) -> None:
    number = Number(path)
    path.write_bytes(b"x")
    number.files.refresh()

    path.write_bytes(b"1")
    number.files.refresh()

    assert (number.files.value, number.num_made, number.num_failures) == (1, 3, 1)


def test_a_file_that_is_no_good_at_first_is_an_error(path: Path) -> None:
    path.write_bytes(b"x")

    with pytest.raises(ConfigError, match="expected a number"):
        Number(path)


def test_a_file_that_is_not_there_at_first_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'section.file' is '.*missing': expected a readable file \(No such file"):
        Number(tmp_path / "missing")
