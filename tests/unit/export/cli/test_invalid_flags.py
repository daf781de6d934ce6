"""Every command rejects invalid flags with exit status 1, a message, and no file written."""

import json
from pathlib import Path

import pytest

from dragoman_export.__main__ import COMMANDS, main
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_export.training.checkpoint import checkpoint_path
from tests.tiny_bundle import SENTENCES, build_tiny_bundle, tiny_model, tiny_vocabulary
from tests.unit.export.tiny_training import save_model, store_settings

# BUNDLE, RUN and so on are replaced by the paths of `files`
_TRAIN = "train --output OUT"
_WITH_TEXT = f"{_TRAIN} --train a.tsv --dev a.tsv"
_RESUME = "train --resume --output RUN"
_SHORTLIST = "shortlist --bundle BUNDLE --output OUT --data DATA"
_TO_BUNDLE = "bundle --name en-de --version 1 --source-language en --target-language de"
_BUNDLE = f"{_TO_BUNDLE} --checkpoint CHECKPOINT --output OUT"
_KEEP = f"{_BUNDLE} --precisions int8 --keep-fp32"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Paths of two runs, three checkpoints, bundles and text; OUT does not exist."""
    folder = tmp_path_factory.mktemp("files")
    names = ("bundle", "fp32", "encoder", "run", "empty", "three", "checkpoint", "data", "out")
    paths = {name.upper(): folder / name for name in names}
    build_tiny_bundle(paths["BUNDLE"])
    build_tiny_bundle(paths["FP32"], precisions=("fp32",))
    build_tiny_bundle(paths["ENCODER"], precisions=("int8",), kept=frozenset({ProductKind.FEED_FORWARD}))
    for name in ("RUN", "EMPTY"):
        paths[name].mkdir()
    store_settings(paths["RUN"])
    for step in (1, 2, 3):
        save_model(checkpoint_path(paths["THREE"] / "checkpoints", step))
    sizes = {name: getattr(tiny_model(9).config, name) for name in ("d_model", "ffn_size")}
    save_model(paths["CHECKPOINT"] / "checkpoints" / "best.pt", vocabulary_size=len(tiny_vocabulary()), **sizes)
    (paths["CHECKPOINT"] / "vocabulary.model").write_bytes(tiny_vocabulary().model)
    (paths["CHECKPOINT"] / "config.json").write_text(json.dumps({"training": {"max_tokens": 60}}), encoding="utf-8")
    half = len(SENTENCES) // 2
    lines = [f"{source}\t{target}\n" for source, target in zip(SENTENCES[:half], SENTENCES[half:], strict=True)]
    paths["DATA"].write_text("".join(lines), encoding="utf-8")
    return paths


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("average THREE --last 0", "--last is 0: expected at least 1"),
        ("average THREE --last -1", "--last is -1: expected at least 1"),
        ("average THREE --last 20", "--last is 20: expected at most 3"),
        ("average EMPTY", "no checkpoints"),
        ("average THREE EMPTY --last 2", "--last is 2: expected no value with several runs"),
        (_TRAIN, "--train is None: expected one or more files"),
        (f"{_TRAIN} --train a.tsv", "--dev is None: expected one or more files"),
        (f"{_TRAIN} --train-source a.en", "--train-target"),
        (f"{_WITH_TEXT} --batch-tokens 0", "batch_tokens is 0: expected at least 1"),
        (f"{_WITH_TEXT} --max-malformed 2", "max_malformed is 2.0: expected from 0 to 1"),
        (
            f"{_WITH_TEXT} --positions learned --max-positions 100 --max-tokens 101",
            "max_tokens is 101: expected at most max_positions=100",
        ),
        ("train --resume --output EMPTY", "cannot read"),
        (f"{_RESUME} --d-model 128", "d_model is 64, requested 128"),
        (
            f"{_RESUME} --norm post --heads 4",
            "settings differ from the checkpoint: num_heads is 2, requested 4; norm is 'pre', requested 'post'\n",
        ),
        (f"{_RESUME} --vocabulary-size 999", "vocabulary_size is 1000, requested 999"),
        (f"{_RESUME} --optimizer muon", "optimizer is 'adam', requested 'muon'"),
        *(
            (
                f"import DATA --from {name} --output OUT --source-eos yes",
                f"--source-eos is 'yes': expected no value with --from {name}",
            )
            for name in ("fairseq", "huggingface", "marian", "opennmt", "eole")
        ),
        (f"{_RESUME} --preset tiny", "--preset is 'tiny': expected no value with --resume"),
        (f"{_RESUME} --vocabulary a.model", "--vocabulary is 'a.model': expected no value with --resume"),
        (f"{_RESUME} --normalization identity", "--normalization is 'identity': expected no value with --resume"),
        (f"{_RESUME} --dropout 0.3 --d-model 64 --optimizer adam", "absent.tsv: No such file"),  # accepted
        (f"{_RESUME} --batch-tokens 9 --max-steps 9 --max-malformed 0.5", "absent.tsv: No such file"),
        (f"{_SHORTLIST} --mean-size 0", "--mean-size is 0"),
        (f"{_SHORTLIST} --max-size 0", "--max-size is 0"),
        (f"{_SHORTLIST} --mean-size 320", "mean size 320: expected 1 to 319"),
        (f"{_SHORTLIST} --mean-size 64 --max-size 64", "mean size 64: expected 1 to 63"),
        (f"{_SHORTLIST} --sentences 0", "--sentences is 0"),
        ("upgrade --bundle BUNDLE --output OUT", "bundle already describes its int8 weights: int8"),
        ("upgrade --bundle FP32 --output OUT", "fp32 has no decoder"),
        ("upgrade --bundle ENCODER --output OUT", "encoder has no decoder"),
        ("import BUNDLE --from bundle --output OUT --source-tag de", "--source-tag is 'de': expected no value"),
        (f"{_TO_BUNDLE} --checkpoint CHECKPOINT --output BUNDLE", "already exists"),
        (
            "bundle --name a --version 1 --checkpoint CHECKPOINT --output OUT",
            "--source-language is None: expected a BCP",
        ),
        (
            "bundle --name a --version 1 --checkpoint CHECKPOINT --output OUT --source-language en",
            "--target-language is None",
        ),
        (f"{_WITH_TEXT} --weights 1 2", "--weights is '1 2': expected 1 numbers, one per training file"),
        (f"{_WITH_TEXT} --weights 2 --temperature 2", "--temperature is 2.0: expected no value with --weights"),
        (f"{_BUNDLE} --source-language English", "source_language"),
        (f"{_KEEP} encoder,softmax", "--keep-fp32 is 'encoder,softmax': expected some of vocabulary, feed-forward, "),
        (f"{_KEEP} encoder,", "--keep-fp32 is 'encoder,': expected some of vocabulary, feed-forward, "),
        (f"{_KEEP} encoder --precisions fp32,fp16", "--keep-fp32 is 'encoder': expected int8 among the precisions"),
        (f"{_BUNDLE} --row-scales --calibration DATA", "--row-scales is 'given': expected no --calibration"),
        (f"{_BUNDLE} --row-scales --precisions fp32", "--row-scales is 'given': expected int8"),
        (f"{_BUNDLE} --calibration DATA --precisions fp32", "--calibration is 'given': expected int8"),
        (f"{_BUNDLE} --calibration-sentences 0", "--calibration-sentences is 0: expected at least 1"),
        (f"{_BUNDLE} --calibration DATA --max-source-tokens 2", "no calibration sentences: all 4 pairs of"),
        (f"{_BUNDLE} --calibration /lost.tsv", "cannot read /lost.tsv"),
    ],
)
def test_invalid_flags_are_rejected(
    files: dict[str, Path], command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _snapshot(files["OUT"].parent)

    status = main([str(files.get(argument, argument)) for argument in command.split()])

    assert status == 1
    assert message in capsys.readouterr().err
    assert _snapshot(files["OUT"].parent) == before


def _snapshot(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns if path.is_file() else 0 for path in folder.rglob("*")}


def test_unknown_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["exprot"])

    assert caught.value.code == 2
    assert "invalid choice: 'exprot'" in capsys.readouterr().err


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([])

    printed = capsys.readouterr().out
    assert caught.value.code == 0
    assert printed.startswith("usage: dragoman export")
    assert {line.split()[0] for line in printed.splitlines() if line.startswith("    ")} >= COMMANDS.keys()
