"""The bundled model, converted from int8 to floats, against its int8 graphs and against fp32."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from dragoman_export.bundle_extension import add_precision
from dragoman_export.evaluation.translation import BundleTextModel, translate_texts
from dragoman_export.evaluation.verification import agreement, score_exported
from dragoman_service.bundle.files import open_bundle
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer

_MODELS = Path(__file__).parents[2] / "deploy" / "models" / "dragoman_models"
_SENTENCES = (
    "The weather is nice today.",
    "Where is the train station?",
    "A man is sitting on a bench and reading a newspaper.",
    "Two dogs are playing in the snow.",
    "She opened the window because it was too warm in the room.",
    "The children are learning to ride a bicycle.",
    "Please send me the report before Friday.",
    "He has lived in this town for twenty years.",
)
# largest difference of a log-probability: a logit of 8 to 16 in 16-bit floats is off by up to 0.004, and those of all
# layers before it add up; measured: 0.015
_HALF_TOLERANCE = 0.03
# share of target tokens at which the most likely token is the same; int8 activations, which floats do not round, change
# the others. Measured on 104 other sentences: 99.05 %
_MIN_AGREEMENT = 0.95


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, BundleTextModel]:
    """Return the bundled model by precision."""
    directory = tmp_path_factory.mktemp("converted")
    add_precision(_MODELS / "en-de" / "1", directory / "fp32", "fp32")
    add_precision(directory / "fp32", directory / "fp16", "fp16")
    bundle = open_bundle(directory / "fp16")
    tokenizer = open_tokenizer(bundle)
    return {
        name: BundleTextModel.of(
            OnnxStepModel(bundle, RuntimeSettings(device="cpu", precision=name)), tokenizer, bundle.manifest
        )
        for name in bundle.manifest.precisions
    }


def _pairs(model: BundleTextModel) -> list[tuple[list[int], list[int]]]:
    run = translate_texts(model, _SENTENCES, beam_size=1, batch_size=8, shows_progress=False)
    return [model.tokenizer.encode_pair(*pair) for pair in zip(_SENTENCES, run.texts, strict=True)]


def test_log_probabilities_of_fp16_are_close_to_fp32(models: Mapping[str, BundleTextModel]) -> None:
    pairs = _pairs(models["fp32"])

    exact, half = (np.stack(list(score_exported(models[name].graph, pairs))) for name in ("fp32", "fp16"))

    assert np.abs(exact - half).max() <= _HALF_TOLERANCE


def test_fp16_made_from_int8_predicts_nearly_the_same_tokens(models: Mapping[str, BundleTextModel]) -> None:
    share, num_tokens = agreement(models["int8"].graph, models["fp16"].graph, _pairs(models["int8"]))

    assert num_tokens > 50
    assert share >= _MIN_AGREEMENT
