"""From a run folder to a bundle that is verified and evaluated, by the commands themselves."""

import gzip
import json
import re
from pathlib import Path

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.evaluation.verification import Check
from dragoman_export.importers.bundle import read_roundings
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.files import file_entry, load_manifest, open_bundle
from tests.tiny_bundle import SENTENCES, tiny_model, tiny_vocabulary


def _save(path: Path, *, seed: int = 1, step: int = 7) -> None:
    vocabulary = tiny_vocabulary()
    model = tiny_model(len(vocabulary), seed=seed)
    torch.save({"model": model.state_dict(), "model_config": model.config.to_dict(), "step": step}, path)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    _save(folder / "checkpoints" / "best.pt")
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


def _bundle(run: Path, output: Path, *flags: str) -> int:
    languages = ["--source-language", "en", "--target-language", "de"]
    named = ["--checkpoint", str(run), "--output", str(output), "--name", "en-de", "--version", "1"]
    return main(["bundle", *named, *languages, *flags])


def _verify(bundle: Path, run: Path, data: Path) -> int:
    return main(["verify", "--bundle", str(bundle), "--checkpoint", str(run), "--data", str(data)])


def test_bundle_has_provenance(run_folder: Path, tmp_path: Path) -> None:
    status = _bundle(run_folder, tmp_path / "bundle", "--licence", "CC-BY-4.0", "--attribution", "Tatoeba")

    manifest = open_bundle(tmp_path / "bundle").manifest
    assert status == 0
    assert (manifest.licence, manifest.attribution) == ("CC-BY-4.0", "Tatoeba")
    assert manifest.limits.max_source_tokens == 60
    assert manifest.default_precision == "int8"
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


def test_existing_bundle_is_not_overwritten(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bundle").mkdir()

    status = _bundle(run_folder, tmp_path / "bundle")

    assert status == 1
    assert "already exists" in capsys.readouterr().err
    assert not list((tmp_path / "bundle").iterdir())


def test_failed_export_leaves_no_files(run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(tmp_path.iterdir())

    status = _bundle(run_folder, tmp_path / "bundle", "--source-language", "English")

    assert status == 1
    assert "source_language" in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("precisions", ["fp32,int8", "fp16,int8", "int8"])
def test_bundle_matches_its_checkpoint(
    run_folder: Path, tmp_path: Path, data: Path, precisions: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _bundle(run_folder, tmp_path / "bundle", "--precisions", precisions)

    status = _verify(tmp_path / "bundle", run_folder, data)

    assert status == 0, capsys.readouterr()
    assert "ONNX fp32 = PyTorch" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ProductKind)
def test_bundle_with_mixed_precision_matches_its_checkpoint(
    run_folder: Path, tmp_path: Path, data: Path, kind: ProductKind, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--precisions", "int8", "--calibration", str(data), "--keep-fp32", kind)
    bundled = _bundle(run_folder, tmp_path / "bundle", *flags)

    status = _verify(tmp_path / "bundle", run_folder, data)

    assert (bundled, status) == (0, 0), capsys.readouterr()
    assert "ONNX int8, alone = in a batch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kinds", "precisions", "message"),
    [
        ("encoder,softmax", "int8", "'encoder,softmax': expected some of vocabulary, feed-forward, "),
        ("encoder,", "int8", "'encoder,': expected some of vocabulary, feed-forward, "),
        ("encoder", "fp32,fp16", "'encoder': expected int8 among the precisions"),
    ],
)
def test_invalid_mixed_precision_is_rejected(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kinds: str, precisions: str, message: str
) -> None:
    status = _bundle(run_folder, tmp_path / "bundle", "--precisions", precisions, "--keep-fp32", kinds)

    assert status == 1
    assert f"--keep-fp32 is {message}" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_verify_rejects_another_checkpoint(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _bundle(run_folder, tmp_path / "bundle")
    _save(run_folder / "checkpoints" / "best.pt", seed=2)

    status = _verify(tmp_path / "bundle", run_folder, data)

    assert status == 1
    assert "best.pt: SHA-256 is" in capsys.readouterr().err


def test_verify_detects_changed_graphs(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _bundle(run_folder, tmp_path / "bundle")
    checkpoint = run_folder / "checkpoints" / "best.pt"
    _save(checkpoint, seed=2)
    manifest = load_manifest(tmp_path / "bundle")
    origin = manifest.provenance.model_copy(update={"checkpoint_sha256": file_entry(checkpoint).sha256})
    forged = manifest.model_copy(update={"provenance": origin}).model_dump_json()
    (tmp_path / "bundle" / "manifest.json").write_text(forged, encoding="utf-8")

    status = _verify(tmp_path / "bundle", run_folder, data)

    assert status == 1
    assert "FAILED: ONNX fp32 = PyTorch: " in capsys.readouterr().err


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
    assert [(score.metric, score.precision) for score in scores] == [
        (metric, "int8") for metric in ("BLEU", "chrF", "TER")
    ]
    assert scores[0].data.endswith("test.tsv.gz, first 3 lines")


def test_imported_bundle_is_exported_with_calibration(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again, measured = tmp_path / "made", tmp_path / "again", tmp_path / "measured"
    _bundle(run_folder, made, "--precisions", "fp32,int8")

    imported = main(["import", str(made), "--from", "bundle", "--precision", "fp32", "--output", str(again)])

    limits = ("--max-source-tokens", "60", "--max-target-tokens", "60")
    bundled = _bundle(again, measured, "--precisions", "fp32,int8", "--calibration", str(data), *limits)
    assert (imported, bundled) == (0, 0)
    agreement = r"int8 agrees with fp32 at (\d+\.\d\d)% of (\d+) target tokens"
    share, num_tokens = re.search(agreement, capsys.readouterr().out).groups()  # type: ignore[union-attr]
    assert 90 < float(share) <= 100
    assert int(num_tokens) == sum(len(ids) for ids in tiny_vocabulary().encode(SENTENCES[4:]))
    assert (made / "weights.fp32.bin").read_bytes() == (measured / "weights.fp32.bin").read_bytes()
    assert read_roundings(open_bundle(measured))
    assert _verify(measured, again, data) == 0


def test_training_text_is_the_default_calibration(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record_text(run_folder, train=[str(data)], dev=["/data/dev.tsv"])

    status = _bundle(run_folder, tmp_path / "bundle")

    message = capsys.readouterr()
    assert (status, "warning: one scale" in message.err) == (0, False)
    assert f"fixed scales, calibrated on 4 sentences of {data} (training text of the run)" in message.out
    weights = open_bundle(tmp_path / "bundle").int8_weights("int8")
    assert weights is not None
    assert weights.encoder is not None
    assert None not in (*weights.decoder.activations.values(), *weights.encoder.activations.values())


def test_development_text_is_the_fallback_calibration(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [tmp_path / "dev.en", tmp_path / "dev.de"]
    for side, lines in zip(sides, (SENTENCES[:4], SENTENCES[4:]), strict=True):
        side.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    _record_text(run_folder, train=[str(sides[0]), "/data/train.de"], dev=[str(side) for side in sides])

    status = _bundle(run_folder, tmp_path / "bundle", "--calibration-sentences", "3")

    assert status == 0
    message = f"calibrated on 3 sentences of {sides[0]}, {sides[1]} (development text of the run)"
    assert message in capsys.readouterr().out
    assert read_roundings(open_bundle(tmp_path / "bundle"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"data": {"train": [["/a.tsv"]], "dev": [["/b.tsv"]], "max_malformed": 0.0}},
            "missing calibration text: /a.tsv (training text of the run)\nmissing calibration text: /b.tsv (dev",
        ),
        ({}, "give --calibration"),
    ],
)
def test_missing_calibration_text_causes_a_warning(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, object], message: str
) -> None:
    (run_folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")

    status = _bundle(run_folder, tmp_path / "bundle")

    warning = capsys.readouterr().err
    assert status == 0
    assert "warning: one scale per row of int8 activations" in warning
    assert message in warning
    assert read_roundings(open_bundle(tmp_path / "bundle")) == {}


def test_row_scales_are_used_on_request(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _record_text(run_folder, train=[str(data)], dev=[str(data)])

    status = _bundle(run_folder, tmp_path / "bundle", "--row-scales")

    message = capsys.readouterr()
    assert (status, "warning: one scale" in message.err) == (0, False)
    assert "one scale per row" in message.out
    assert read_roundings(open_bundle(tmp_path / "bundle")) == {}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--row-scales", "--calibration", "DATA"], "--row-scales is 'given': expected no --calibration"),
        (["--row-scales", "--precisions", "fp32"], "--row-scales is 'given': expected int8"),
        (["--calibration", "DATA", "--precisions", "fp32"], "--calibration is 'given': expected int8"),
        (["--calibration-sentences", "0"], "--calibration-sentences is 0: expected at least 1"),
        (["--calibration", "DATA", "--max-source-tokens", "2"], "no calibration sentences: all 4 pairs of"),
        (["--calibration", "/lost.tsv"], "cannot read /lost.tsv"),
    ],
)
def test_invalid_calibration_is_rejected(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    status = _bundle(run_folder, tmp_path / "bundle", *(str(data) if flag == "DATA" else flag for flag in flags))

    assert status == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_invalid_run_settings_are_rejected(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_folder / "config.json").write_text('{"data": {"train": [["a.tsv"]]}}', encoding="utf-8")

    status = _bundle(run_folder, tmp_path / "bundle")

    assert status == 1
    assert "KeyError('dev')" in capsys.readouterr().err


def test_imported_bundle_keeps_its_scales(
    run_folder: Path, tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, again, same = tmp_path / "made", tmp_path / "again", tmp_path / "same"
    _bundle(run_folder, made, "--precisions", "int8", "--calibration", str(data))

    imported = main(["import", str(made), "--from", "bundle", "--output", str(again)])

    bundled = _bundle(again, same, "--precisions", "int8", "--max-source-tokens", "60", "--max-target-tokens", "60")
    message = capsys.readouterr()
    assert (imported, bundled, "warning: one scale" in message.err) == (0, 0, False)
    assert "int8 activations: fixed scales of the imported bundle" in message.out
    roundings = read_roundings(open_bundle(made))
    assert read_roundings(open_bundle(same)) == roundings
    assert roundings
    assert (made / "weights.int8.bin").read_bytes() == (same / "weights.int8.bin").read_bytes()
