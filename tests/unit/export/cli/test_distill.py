"""A teacher translates the text of a run, whatever interrupts it."""

import json
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.ensemble import open_text_model
from dragoman_export.onnx_export.translation import translate_texts
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import SENTENCES, build_tiny_bundle

SOURCES = [*SENTENCES[:4], "A dog. A cat.", "Nobody knew why.", "A man rides."]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("distill") / "teacher"
    build_tiny_bundle(path, precisions=("fp32",))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{source}\treference\n" for source in SOURCES), encoding="utf-8")
    return path


def distill(teacher: Path, data: Path, *flags: str) -> int:
    text = ["--data", str(data), "--output", str(data.with_name("out.tsv"))]
    return main(["distill", "--teacher", str(teacher), *text, "--beam", "2", "--save-every", "2", *flags])


def test_the_text_is_translated_as_a_server_does(teacher: Path, data: Path) -> None:
    assert distill(teacher, data, "--threads", "2") == 0

    with open_text_model([teacher], RuntimeSettings()) as (model, _):
        expected = translate_texts(model, SOURCES, beam_size=2, batch_size=4).texts
    lines = data.with_name("out.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t") for line in lines] == [list(pair) for pair in zip(SOURCES, expected, strict=True)]
    assert not data.with_name("out.tsv.part").exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_what_was_cut_off_anywhere_goes_on_from_its_last_whole_line(
    teacher: Path, data: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(teacher, data) == 0
    output, part = data.with_name("out.tsv"), data.with_name("out.tsv.part")
    whole = output.read_bytes()
    output.unlink()
    part.write_bytes(whole[: int(share * len(whole))])
    num_left = len(SOURCES) - part.read_bytes().count(b"\n")
    capsys.readouterr()

    assert distill(teacher, data) == 0

    assert output.read_bytes() == whole
    assert f" {len(SOURCES) - num_left}/{len(SOURCES)} [" in capsys.readouterr().err  # where the bar began


@pytest.mark.parametrize(
    ("flags", "begun", "told"),
    [
        ([], "Another source.\tx\n", "out.tsv.part:1 is no translation of this text"),
        ([], "".join(f"{source}\tx\n" for source in [*SOURCES, "More."]), f"out.tsv.part:{len(SOURCES) + 1} is no"),
        (["--beam", "3"], f"{SOURCES[0]}\tx\n", "beam was 2"),
    ],
)
def test_translations_of_something_else_are_not_gone_on_with(
    teacher: Path, data: Path, flags: list[str], begun: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(teacher, data) == 0
    data.with_name("out.tsv").unlink()
    part = data.with_name("out.tsv.part")
    part.write_text(begun, encoding="utf-8")

    assert distill(teacher, data, *flags) == 1

    assert told in capsys.readouterr().err
    assert part.read_text(encoding="utf-8") == begun


def test_an_output_is_never_overwritten_and_says_what_it_is_of(teacher: Path, data: Path) -> None:
    assert distill(teacher, data) == 0

    assert distill(teacher, data) == 1
    origin = json.loads(data.with_name("out.tsv.json").read_text(encoding="utf-8"))
    assert (origin["beam"], origin["data"]) == (2, [str(data)])
