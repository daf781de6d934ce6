"""Output of `translate-dataset` on a disk where one call of the operating system fails. Ray is not started."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")  # not `ray`, which changes the log records of the process

from dragoman_service.dataset_translation import output
from dragoman_service.dataset_translation.files import Block, Rows
from dragoman_service.dataset_translation.settings import Columns
from tests.faulty_disk import ERRORS, FaultyDisk, each_fault, num_open_files

NUM_BLOCKS = 3
COLUMNS = Columns(
    text="text", translation="translation", input_format="jsonl", output_format="jsonl", max_characters=None
)


def run(directory: Path) -> None:
    """Write the blocks that are not completed; each has a translation and a reject."""
    with output.opened(directory, {"format": "jsonl"}, [], NUM_BLOCKS) as opened:
        for index in range(NUM_BLOCKS):
            if index in opened.manifest.blocks:
                continue
            block = Block(
                index=index,
                path="a",
                name="a",
                size_and_time=(0, 0),
                start=0,
                num_skipped=0,
                first_row=1,
                num_rows=2,
            )
            rows = Rows(ids=[f"{index}"], texts=["a"], rows=[{"text": "a"}], rejects=[])
            output.write_part(directory, block, COLUMNS, rows, [output.TranslatedRow(text="A")])
            opened.add(output.BlockResult(index=index, num_translated=1, rejects=((f"{index}b", "is bad"),)))
            opened.save()


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("error", ERRORS)
def test_run_resumes_to_the_same_output_after_a_call_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    monkeypatch.setattr("dragoman.__version__", "1")  # otherwise read from a file
    run(tmp_path / "expected")
    expected = contents(tmp_path / "expected")

    for number, disk in enumerate(each_fault(monkeypatch, ERRORS[error])):
        directory, num_open = tmp_path / str(number), num_open_files()
        has_raised = failed(disk, directory)

        assert has_raised or contents(directory) == expected
        assert num_open_files() == num_open
        assert not list(directory.glob(".tmp-*"))
        run(directory)
        assert contents(directory) == expected


def failed(disk: FaultyDisk, directory: Path) -> bool:
    with disk.active():
        try:
            run(directory)
        except OSError:
            return True
    return False


def test_directory_with_the_name_of_a_temporary_file_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / ".tmp-odd").mkdir()

    run(tmp_path)

    assert output.part_path(tmp_path, NUM_BLOCKS - 1, "jsonl").exists()
