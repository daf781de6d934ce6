"""A model trained to copy placeholders restores protected text, from `train` to the response."""

from pathlib import Path

import pytest

from dragoman_export.__main__ import main
from dragoman_export.evaluation.translation import BundleTextModel, translate_texts
from dragoman_service.bundle.files import open_bundle
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer

_TEMPLATES = (
    ("take {} now", "nimm {} jetzt"),
    ("the {} is red", "das {} ist rot"),
    ("open {} with {}", "mit {1} nun {0} auf"),
    ("see {}", "siehe {}"),
)


@pytest.mark.slow
def test_trained_model_copies_unseen_placeholders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pairs = [
        tuple(side.format(f"`a{number}`", f"`b{number}`") for side in _TEMPLATES[number % len(_TEMPLATES)])
        for number in range(400)
    ]
    text = tmp_path / "text.tsv"
    text.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    run, bundle = tmp_path / "run", tmp_path / "bundle"

    train = [
        *("train", "--output", str(run), "--preset", "tiny", "--train", str(text), "--dev", str(text)),
        *("--vocabulary-size", "310", "--placeholders", "0.1", "--max-steps", "300", "--cooldown-steps", "100"),
        *("--optimizer", "muon", "--warmup-steps", "50", "--dropout", "0", "--bleu-sentences", "0", "--no-bf16"),
        *("--eval-interval", "300", "--checkpoint-interval", "300", "--threads", "1"),
    ]
    write_bundle = [
        *("bundle", "--checkpoint", str(run), "--output", str(bundle), "--name", "taught", "--version", "1"),
        *("--source-language", "en", "--target-language", "de", "--precisions", "int8"),
    ]

    assert main(train) == main(write_bundle) == 0
    opened = open_bundle(bundle)
    model = BundleTextModel.of(open_step_model(opened, RuntimeSettings()), open_tokenizer(opened), opened.manifest)
    sources = ["take {name} now", "open https://example.com/x with %s", "the `C:\\x` is red"]

    done = translate_texts(model, sources, beam_size=4, batch_size=4)

    assert opened.manifest.tokenization.placeholders == tuple(f"⟦{number}⟧" for number in range(1, 17))
    assert list(done.texts) == ["nimm {name} jetzt", "mit %s nun https://example.com/x auf", "das `C:\\x` ist rot"]
