"""A model of invented languages, from `train` to a server that translates each of their pairs."""

import asyncio
import codecs
import itertools
import json
import string
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
import sacrebleu

from dragoman_export.__main__ import main
from dragoman_export.trained_model import TrainedModel
from dragoman_service.bundle.files import open_bundle
from tests.integration.running_server import running_server
from tests.unit.export.tiny_training import make_pairs

_LETTERS = string.ascii_lowercase
_SHIFTED = str.maketrans(_LETTERS, _LETTERS[5:] + _LETTERS[:5])

# sentences of the first language in each language
LANGUAGES: dict[str, Callable[[str], str]] = {
    "en": str,
    "de": lambda text: " ".join(reversed(text.split())),
    "fr": lambda text: codecs.encode(text, "rot13"),
    "it": lambda text: text.translate(_SHIFTED),
}
SEEN = [("en", "de"), ("en", "fr"), ("en", "it"), ("de", "en"), ("fr", "en"), ("it", "en"), ("fr", "it"), ("it", "fr")]
PAIRS = list(itertools.permutations(LANGUAGES, 2))
TRAINING = (
    *("--preset", "tiny", "--vocabulary-size", "330", "--optimizer", "muon", "--muon-lr", "0.01", "--dropout", "0"),
    *("--max-steps", "400", "--cooldown-steps", "200", "--warmup-steps", "50", "--no-bf16", "--threads", "1"),
    *("--eval-interval", "400", "--checkpoint-interval", "400", "--bleu-sentences", "8", "--concatenate", "0.1"),
    *("--temperature", "5"),
)
MARGIN = 20.0  # chrF; copies have from 0 to 45, trained pairs from 70 to 95, other pairs from 50 to 65


def write_text(directory: Path, pairs: list[tuple[str, str]], count: int, *, seed: int) -> list[str]:
    """Write `count` sentences of each pair, half of them without English; return the files with their languages."""
    directory.mkdir()
    files = []
    for number, (source, target) in enumerate(pairs):
        size = count if "en" in (source, target) else count // 2
        sentences = [text for text, _ in make_pairs(size, seed=seed + number)]
        path = directory / f"{source}-{target}.tsv"
        path.write_text("".join(f"{LANGUAGES[source](each)}\t{LANGUAGES[target](each)}\n" for each in sentences))
        files.append(f"{path}@{source},{target}")
    return files


def copied_chrf(path: Path) -> float:
    sources, targets = zip(*(line.split("\t") for line in path.read_text().splitlines()), strict=True)
    return float(sacrebleu.corpus_chrf(sources, [targets]).score)


@pytest.mark.slow
async def test_server_translates_every_pair_of_a_trained_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = write_text(tmp_path / "train", SEEN, 800, seed=0)
    dev = write_text(tmp_path / "dev", SEEN, 10, seed=100)
    test = write_text(tmp_path / "test", PAIRS, 40, seed=200)
    run, models, scores = tmp_path / "run", tmp_path / "models", tmp_path / "scores.json"
    bundle = models / "many" / "1"

    assert main(["train", "--output", str(run), "--train", *train, "--dev", *dev, *TRAINING]) == 0
    named = ["--name", "many", "--version", "1", "--precisions", "int8"]
    assert main(["bundle", "--checkpoint", str(run), "--output", str(bundle), *named]) == 0
    async with running_server(models) as server:
        evaluate = ["evaluate", "--target", server.target, "--data", *test, "--scores", str(scores)]
        assert await asyncio.to_thread(main, evaluate) == 0
        with pytest.raises(grpc.RpcError) as rejected:
            await server.translate("red", source_language="en", target_language="es")

    assert rejected.value.code() == grpc.StatusCode.NOT_FOUND
    assert set(open_bundle(bundle).manifest.languages().pairs_served()) == set(PAIRS)
    measured = {each["data"]: each["value"] for each in json.loads(scores.read_text()) if each["metric"] == "chrF"}
    assert len(measured) == len(PAIRS)
    for source, target in PAIRS:
        path = tmp_path / "test" / f"{source}-{target}.tsv"
        assert measured[f"test/{path.name}@{source},{target}"] > copied_chrf(path) + MARGIN, (source, target)

    capsys.readouterr()
    assert main(["evaluate", "--bundle", str(run), "--limit", "2", "--data", *test[:4]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines if line.startswith("    ")] == [["de", "en", "fr", "it"]] * 3
    assert [len(line.split()) for line in lines if line.startswith(("en ", "de "))] == [5, 5] * 3
    assert any(line.startswith("8 texts, ") for line in lines)

    more = ["train", "--initialize-from", str(bundle), "--preset", "tiny", "--max-steps", "1", "--output"]
    assert main([*more, str(tmp_path / "more"), "--train", *train[:2], "--dev", dev[0]]) == 0
    of_pairs = TrainedModel.find(tmp_path / "more").languages
    assert of_pairs == open_bundle(bundle).manifest.tokenization.languages
    assert main([*more, str(tmp_path / "none"), "--train", train[0].split("@")[0], "--dev", dev[0].split("@")[0]]) == 1
    assert "expected languages, as FILE@en,de, for a multilingual model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["a.tsv@de,en"], "--data is 'de to en': expected a language pair of the model"),
        (["a.tsv@en,de", "a.tsv"], "languages, as FILE@en,de, of all files or none"),
        (["a.tsv@en,e"], "languages are 'en' and 'e': expected two BCP-47 tags"),
    ],
)
def test_unsupported_languages_are_rejected(
    files: list[str], message: str, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.tsv").write_text("A man sleeps.\tEin Mann schläft.\n")
    data = [str(tmp_path / name) for name in files]

    assert main(["evaluate", "--bundle", str(tiny_model / "tiny" / "1"), "--data", *data]) == 1

    assert message in capsys.readouterr().err


def test_command_of_one_pair_rejects_languages(
    tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "shortlist",
        "--bundle",
        str(tiny_model / "tiny" / "1"),
        "--output",
        str(tmp_path),
        "--data",
        "a.tsv@en,de",
    ]

    assert main(command) == 1

    assert "--data is 'a.tsv@en,de': expected a file without languages" in capsys.readouterr().err
