import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.data.translate_dataset import LineTranslation, Row
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.translation import translate_texts
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.tiny_bundle import SENTENCES

SOURCES = [*SENTENCES[:4], "A dog. A cat.", "Nobody knew why.", "A man rides."]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.tsv"
    path.write_text("".join(f"{source}\treference\n" for source in SOURCES), encoding="utf-8")
    return path


def distill(teacher: Path, data: Path, *flags: str) -> int:
    """Distil an ensemble of a bundle and itself, which translates as the bundle does but needs no Ray."""
    text = ["--data", str(data), "--output", str(data.with_name("out.tsv"))]
    teachers = [str(teacher)] if "cuda" in flags else [str(teacher)] * 2
    return main(["distill", "--teacher", *teachers, *text, "--beam", "2", "--save-every", "2", *flags])


def test_text_is_translated_as_by_a_server(fp32_bundle: Path, data: Path) -> None:
    assert distill(fp32_bundle, data, "--threads", "2") == 0
    assert distill(fp32_bundle, data) == 1  # the output exists

    with open_text_model([fp32_bundle], RuntimeSettings()) as (model, _):
        expected = translate_texts(model, SOURCES, beam_size=2, batch_size=4).texts
    lines = data.with_name("out.tsv").read_text(encoding="utf-8").splitlines()
    assert [line.split("\t") for line in lines] == [list(pair) for pair in zip(SOURCES, expected, strict=True)]
    assert not data.with_name("out.tsv.part").exists()
    origin = json.loads(data.with_name("out.tsv.json").read_text(encoding="utf-8"))
    assert (origin["beam"], origin["data"]) == (2, [str(data)])


def test_single_bundle_keeps_the_reference_of_a_rejected_text(
    fp32_bundle: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def translate(translation: LineTranslation, lines: Iterable[str]) -> Iterator[tuple[str, Row | None]]:
        translation.directory.mkdir()
        return ((line, None if line == SOURCES[0] else {"translation": line.upper()}) for line in lines)

    monkeypatch.setattr(LineTranslation, "run", translate)
    monkeypatch.setattr(LineTranslation, "settings", {})
    output = data.with_name("out.tsv")

    assert main(["distill", "--teacher", str(fp32_bundle), "--data", str(data), "--output", str(output)]) == 0

    targets = ["reference", *(source.upper() for source in SOURCES[1:])]
    lines = output.read_text(encoding="utf-8").splitlines()
    assert [tuple(line.split("\t")) for line in lines] == list(zip(SOURCES, targets, strict=True))


@pytest.mark.parametrize(
    ("flags", "message"),
    [((), "a GPU that PyTorch can use"), (("--precision", "fp32"), "no --precision instead of fp32")],
)
def test_unusable_gpu_is_rejected(
    fp32_bundle: Path,
    data: Path,
    flags: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)

    assert distill(fp32_bundle, data, "--device", "cuda", *flags) != 0

    assert message in capsys.readouterr().err


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_interrupted_output_is_continued(
    fp32_bundle: Path, data: Path, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(fp32_bundle, data) == 0
    output, part = data.with_name("out.tsv"), data.with_name("out.tsv.part")
    whole = output.read_bytes()
    output.unlink()
    part.write_bytes(whole[: int(share * len(whole))])
    num_left = len(SOURCES) - part.read_bytes().count(b"\n")
    capsys.readouterr()

    assert distill(fp32_bundle, data) == 0

    assert output.read_bytes() == whole
    assert f" {len(SOURCES) - num_left}/{len(SOURCES)} [" in capsys.readouterr().err  # where the bar began


@pytest.mark.parametrize(
    ("flags", "begun", "message"),
    [
        ([], "Another source.\tx\n", "out.tsv.part:1"),
        ([], "".join(f"{source}\tx\n" for source in [*SOURCES, "More."]), f"out.tsv.part:{len(SOURCES) + 1}"),
        (["--beam", "3"], f"{SOURCES[0]}\tx\n", "beam was 2"),
    ],
)
def test_partial_output_of_other_settings_is_rejected(
    fp32_bundle: Path, data: Path, flags: list[str], begun: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert distill(fp32_bundle, data) == 0
    data.with_name("out.tsv").unlink()
    part = data.with_name("out.tsv.part")
    part.write_text(begun, encoding="utf-8")

    assert distill(fp32_bundle, data, *flags) == 1

    assert message in capsys.readouterr().err
    assert part.read_text(encoding="utf-8") == begun
