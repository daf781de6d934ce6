"""The commands that export a run folder as a bundle, verify and evaluate it."""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.evaluation.verification import Check
from dragoman_export.importers.bundle import read_roundings
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_export.training.checkpoint import load_checkpoint, save_checkpoint
from dragoman_service.bundle.files import file_entry, load_manifest, open_bundle
from tests.tiny_bundle import SENTENCES, tiny_model, tiny_vocabulary

_ROW_SCALES = "warning: one scale per row of int8 activations"
_LIMITS = ("--max-source-tokens", "60", "--max-target-tokens", "60")


def _save(path: Path, *, seed: int = 1, step: int = 7) -> None:
    model = tiny_model(len(tiny_vocabulary()), seed=seed)
    torch.save({"model": model.state_dict(), "model_config": model.config.to_dict(), "step": step}, path)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    _save(folder / "checkpoints" / "best.pt", seed=3)  # its translations hardly depend on the precision
    (folder / "vocabulary.model").write_bytes(tiny_vocabulary().model)
    _record_text(folder, train=["/data/tatoeba/train.tsv.gz"], dev=["/data/tatoeba/dev.tsv.gz"])
    return folder


def _record_text(folder: Path, *, train: list[str], dev: list[str]) -> None:
    data = {"train": [train], "dev": [dev], "max_malformed": 0.001}
    (folder / "config.json").write_text(json.dumps({"training": {"max_tokens": 60}, "data": data}), encoding="utf-8")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    half = len(SENTENCES) // 2
    lines = [f"{source}\t{target}\n" for source, target in zip(SENTENCES[:half], SENTENCES[half:], strict=True)]
    path = tmp_path / "test.tsv.gz"
    path.write_bytes(gzip.compress("".join(lines).encode()))
    return path


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "bundle"


def _bundle(run: Path, output: Path, *flags: str) -> int:
    languages = ["--source-language", "en", "--target-language", "de"]
    named = ["--checkpoint", str(run), "--output", str(output), "--name", "en-de", "--version", "1"]
    return main(["bundle", *named, *languages, *flags])


def _verify(bundle: Path, run: Path, data: Path) -> int:
    return main(["verify", "--bundle", str(bundle), "--checkpoint", str(run), "--data", str(data)])


def test_bundle_has_provenance(run_folder: Path, bundle: Path) -> None:
    assert _bundle(run_folder, bundle, "--licence", "CC-BY-4.0", "--attribution", "Tatoeba") == 0

    manifest = open_bundle(bundle).manifest
    assert (manifest.licence, manifest.attribution) == ("CC-BY-4.0", "Tatoeba")
    assert (manifest.limits.max_source_tokens, manifest.default_precision) == (60, "int8")
    assert manifest.provenance.training_step == 7
    assert manifest.provenance.training_data == ("tatoeba/train.tsv.gz",)
    assert manifest.provenance.checkpoint_sha256 == file_entry(run_folder / "checkpoints" / "best.pt").sha256


@pytest.mark.parametrize(("place", "is_warned"), [("en-de/1", False), ("en-de/2", True), ("bundle", True)])
def test_directory_unsuitable_for_the_service_causes_a_warning(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, is_warned: bool
) -> None:
    assert _bundle(run_folder, tmp_path / place, "--precisions", "fp32") == 0

    message = capsys.readouterr().err
    assert ("warning: the service loads this bundle only from a directory en-de/1, not from" in message) is is_warned


@pytest.mark.parametrize(
    ("flags", "claim"),
    [
        (("--precisions", "fp32,int8"), "ONNX fp32 = PyTorch"),
        (("--precisions", "fp16,int8"), "int8 is as good as fp32"),
        *(
            (("--precisions", "int8", "--calibration", "DATA", "--keep-fp32", kind), "ONNX int8, alone = in a batch")
            for kind in ProductKind
        ),
    ],
)
def test_bundle_matches_its_checkpoint(
    run_folder: Path, bundle: Path, data: Path, flags: tuple[str, ...], claim: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _bundle(run_folder, bundle, *(str(data) if flag == "DATA" else flag for flag in flags)) == 0

    status = _verify(bundle, run_folder, data)

    printed = capsys.readouterr()
    assert status == 0, printed
    assert claim in printed.out


def _accept_checksum(bundle: Path, checkpoint: Path) -> None:
    manifest = load_manifest(bundle)
    origin = manifest.provenance.model_copy(update={"checkpoint_sha256": file_entry(checkpoint).sha256})
    forged = manifest.model_copy(update={"provenance": origin}).model_dump_json()
    (bundle / "manifest.json").write_text(forged, encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "message"),
    [(lambda *_: None, "best.pt: SHA-256 is"), (_accept_checksum, "FAILED: ONNX fp32 = PyTorch: ")],
)
def test_verify_rejects_another_checkpoint(
    run_folder: Path,
    bundle: Path,
    data: Path,
    change: Callable[[Path, Path], None],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _bundle(run_folder, bundle)
    _save(run_folder / "checkpoints" / "best.pt", seed=2)
    change(bundle, run_folder / "checkpoints" / "best.pt")

    assert _verify(bundle, run_folder, data) == 1
    assert message in capsys.readouterr().err


def test_nan_fails_a_check() -> None:
    assert not Check(claim="all is well", measured=float("nan"), limit=1.0, unit="nats").holds


def test_scores_are_stored_in_the_next_bundle(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _bundle(run_folder, tmp_path / "first")
    files = ["--output", str(tmp_path / "hypotheses.txt"), "--scores", str(tmp_path / "scores.json")]

    evaluated = main(["evaluate", "--bundle", str(tmp_path / "first"), "--data", str(data), "--limit", "3", *files])
    bundled = _bundle(run_folder, tmp_path / "second", "--scores-from", str(tmp_path / "scores.json"))

    assert (evaluated, bundled) == (0, 0)
    assert "tokens/s" in capsys.readouterr().out
    assert len((tmp_path / "hypotheses.txt").read_text(encoding="utf-8").splitlines()) == 3
    scores = load_manifest(tmp_path / "second").scores
    assert [(each.metric, each.precision) for each in scores] == [("BLEU", "int8"), ("chrF", "int8"), ("TER", "int8")]
    assert scores[0].data.endswith("test.tsv.gz, first 3 lines")


def test_imported_bundle_is_exported_with_calibration(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again, measured = tmp_path / "made", tmp_path / "again", tmp_path / "measured"
    _bundle(run_folder, made, "--precisions", "fp32,int8")

    imported = main(["import", str(made), "--from", "bundle", "--precision", "fp32", "--output", str(again)])

    bundled = _bundle(again, measured, "--precisions", "fp32,int8", "--calibration", str(data), *_LIMITS)
    assert (imported, bundled) == (0, 0)
    agreement = r"int8 agrees with fp32 at (\d+\.\d\d)% of (\d+) target tokens"
    share, num_tokens = re.search(agreement, capsys.readouterr().out).groups()  # type: ignore[union-attr]
    assert 90 < float(share) <= 100
    assert int(num_tokens) == sum(len(ids) for ids in tiny_vocabulary().encode(SENTENCES[4:]))
    assert (made / "weights.fp32.bin").read_bytes() == (measured / "weights.fp32.bin").read_bytes()
    assert read_roundings(open_bundle(measured))
    assert _verify(measured, again, data) == 0


@pytest.mark.parametrize("has_levels", [True, False], ids=["with levels", "import of 0.1.0"])
def test_imported_bundle_keeps_its_scales(
    run_folder: Path, tmp_path: Path, data: Path, has_levels: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again, same = tmp_path / "made", tmp_path / "again", tmp_path / "same"
    _bundle(run_folder, made, "--precisions", "int8", "--calibration", str(data))

    imported = main(["import", str(made), "--from", "bundle", "--output", str(again)])
    if not has_levels:
        checkpoint = load_checkpoint(path := again / "imported.pt")
        pairs = {name: fixed[:2] for name, fixed in checkpoint["roundings"].items()}
        save_checkpoint(path, {**checkpoint, "roundings": pairs})

    bundled = _bundle(again, same, "--precisions", "int8", *_LIMITS)
    message = capsys.readouterr()
    assert (imported, bundled, _ROW_SCALES in message.err) == (0, 0, False)
    assert "int8 activations: fixed scales of the imported bundle" in message.out
    assert read_roundings(open_bundle(same)) == read_roundings(open_bundle(made)) != {}
    assert (made / "weights.int8.bin").read_bytes() == (same / "weights.int8.bin").read_bytes()


def _text_of(train: list[str], dev: list[str]) -> dict[str, Any]:
    return {"data": {"train": [train], "dev": [dev], "max_malformed": 0.0}}


@pytest.mark.parametrize(
    ("settings", "flags", "messages"),
    [
        (
            _text_of(["DATA"], ["/dev.tsv"]),
            [],
            ["fixed scales, calibrated on 4 sentences of DATA (training text of the run)"],
        ),
        (
            _text_of(["EN", "/train.de"], ["EN", "DE"]),
            ["--calibration-sentences", "3"],
            ["calibrated on 3 sentences of EN, DE (development text of the run)"],
        ),
        (_text_of(["DATA"], ["DATA"]), ["--row-scales"], ["one scale per row"]),
        (
            _text_of(["/a.tsv"], ["/b.tsv"]),
            [],
            [
                _ROW_SCALES,
                "missing calibration text: /a.tsv (training text of the run)\nmissing calibration text: /b.tsv (dev",
            ],
        ),
        ({}, [], [_ROW_SCALES, "give --calibration"]),
    ],
    ids=["training text", "development text", "row scales", "missing text", "no text"],
)
def test_calibration_uses_the_text_of_the_run(
    run_folder: Path,
    bundle: Path,
    data: Path,
    settings: dict[str, Any],
    flags: list[str],
    messages: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"DATA": str(data), "EN": str(data.with_name("dev.en")), "DE": str(data.with_name("dev.de"))}
    for name, lines in (("EN", SENTENCES[:4]), ("DE", SENTENCES[4:])):
        Path(paths[name]).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def placed(text: str) -> str:
        return re.sub("|".join(paths), lambda match: paths[match[0]], text)

    (run_folder / "config.json").write_text(placed(json.dumps(settings)), encoding="utf-8")

    assert _bundle(run_folder, bundle, *flags) == 0

    printed = capsys.readouterr()
    for message in messages:
        assert placed(message) in printed.out + printed.err
    assert (_ROW_SCALES in printed.err) == (_ROW_SCALES in messages)
    is_calibrated = "calibrated on" in messages[0]
    weights = open_bundle(bundle).int8_weights("int8")
    assert weights is not None
    assert weights.encoder is not None
    activations = (*weights.decoder.activations.values(), *weights.encoder.activations.values())
    assert {scale is not None for scale in activations} == {is_calibrated}
    assert bool(read_roundings(open_bundle(bundle))) == is_calibrated


def test_invalid_run_settings_are_rejected(run_folder: Path, bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run_folder / "config.json").write_text('{"data": {"train": [["a.tsv"]]}}', encoding="utf-8")

    assert _bundle(run_folder, bundle) == 1
    assert "KeyError('dev')" in capsys.readouterr().err
