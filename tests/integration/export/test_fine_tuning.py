"""Imported models and bundles are trained further."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.trained_model import open_model
from dragoman_export.training.report import read_log
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.foreign_models import save_m2m100, save_marian, save_mbart50
from tests.tiny_bundle import SENTENCES, build_tiny_bundle

EXACT = (
    *("--preset", "tiny", "--no-bf16", "--dropout", "0", "--threads", "1"),
    *("--bleu-sentences", "4", "--max-tokens", "64"),
)
ROUNDING = 1e-4  # Nats a token, of float32 sums in two libraries.

MODELS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[str, ...]]] = {
    "decoding begins with padding": (save_marian, {}, ()),
    "two vocabularies": (save_marian, {"is_separate": True}, ()),
    "tags and EOS before targets": (save_m2m100, {}, ("--source-tag", "en", "--target-tag", "de")),
    "learned positions": (save_mbart50, {}, ("--source-tag", "en_XX", "--target-tag", "de_DE")),
}


def train(output: Path, text: Path, *flags: str) -> list[float]:
    """Train and return the dev loss of each evaluation."""
    files = ["--train", str(text), "--dev", str(text)]
    assert main(["train", "--output", str(output), *files, *EXACT, *flags]) == 0
    return [record["loss"] for record in read_log(output / "log.jsonl") if record["event"] == "evaluation"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_imported_model_is_fine_tuned(kind: str, tmp_path: Path) -> None:
    save, options, tags = MODELS[kind]
    original = save(tmp_path / "original", **options)
    ours, text = tmp_path / "ours", tmp_path / "own.tsv"
    assert main(["import", str(tmp_path / "original"), "--from", "huggingface", "--output", str(ours), *tags]) == 0
    (tmp_path / "sources.tsv").write_text("".join(f"{source}\tnone\n" for source in SENTENCES[:4]), encoding="utf-8")
    data = ["--data", str(tmp_path / "sources.tsv"), "--output", str(text)]
    assert main(["distill", "--teacher", str(ours), *data, "--beam", "2"]) == 0
    start = ["--initialize-from", str(ours)]

    before = train(tmp_path / "same", text, *start, "--max-steps", "1", "--lr-factor", "1e-30")
    losses = train(tmp_path / "tuned", text, *start, "--max-steps", "40", "--warmup-steps", "10", "--lr-factor", "0.3")

    assert before == pytest.approx([_mean_loss(original, ours, text)], abs=ROUNDING)
    assert losses[-1] < before[0] - 0.2
    with open_text_model([tmp_path / "tuned"], RuntimeSettings()) as (model, _):
        assert model.tokenizer.encode_pair("A man", "Ein") == open_model(ours)[1].encode_pair("A man", "Ein")


def _mean_loss(original: Any, ours: Path, text: Path) -> float:
    tokenizer, losses = open_model(ours)[1], list[torch.Tensor]()
    for line in text.read_text(encoding="utf-8").splitlines():
        source_ids, target_ids = tokenizer.encode_pair(*line.split("\t"))
        decoder_ids = torch.tensor([[tokenizer.bos_id, *target_ids[:-1]]])
        with torch.inference_mode():
            logits = original(input_ids=torch.tensor([source_ids]), decoder_input_ids=decoder_ids).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits, torch.tensor(target_ids), reduction="none"))
    return float(torch.cat(losses).mean())


def test_bundle_is_fine_tuned(tmp_path: Path) -> None:
    build_tiny_bundle(tmp_path / "bundle", precisions=("fp32",))
    text = tmp_path / "text.tsv"
    pairs = zip(SENTENCES[:4], SENTENCES[4:], strict=True)
    text.write_text("".join("\t".join(pair) + "\n" for pair in pairs), encoding="utf-8")

    losses = train(
        tmp_path / "tuned",
        text,
        *("--initialize-from", str(tmp_path / "bundle"), "--max-steps", "30", "--warmup-steps", "10"),
        *("--eval-interval", "10", "--lr-factor", "0.3"),
    )

    settings = json.loads((tmp_path / "tuned" / "config.json").read_text(encoding="utf-8"))["model"]
    assert (settings["d_model"], settings["dropout"]) == (32, 0.0)  # of the bundle, of the flag
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--concatenate", "0.1"], "concatenate is 0.1: expected 0"),
        (["--subword-sampling", "0.1"], "subword_sampling is 0.1: expected 0"),
        (["--placeholders", "0.1"], "the vocabulary lacks pieces"),
        (["--placeholder-words", "0.1"], "the vocabulary lacks pieces"),
        (["--ffn-size", "99"], "ffn_size is 24, requested 99"),
    ],
)
def test_options_unsupported_by_imported_tokenizers_are_rejected(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_marian(tmp_path / "original")
    ours = tmp_path / "ours"
    assert main(["import", str(tmp_path / "original"), "--from", "huggingface", "--output", str(ours)]) == 0
    (tmp_path / "text.tsv").write_text("A man.\tEin Mann.\n", encoding="utf-8")
    files = ["--train", str(tmp_path / "text.tsv"), "--dev", str(tmp_path / "text.tsv")]

    command = ["train", "--output", str(tmp_path / "run"), *files, *EXACT, "--initialize-from", str(ours)]

    assert main([*command, *flags]) == 1
    assert message in capsys.readouterr().err
