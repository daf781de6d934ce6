from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_export.evaluation.translation import BundleTextModel, default_search, translate_texts
from dragoman_service.bundle.files import open_bundle
from dragoman_service.request import TranslationOptions
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from dragoman_service.translation.options import search_config
from dragoman_service.translation.settings import TranslationDefaults


@pytest.fixture
def model(fp32_bundle: Path) -> BundleTextModel:
    bundle = open_bundle(fp32_bundle)
    return BundleTextModel.of(OnnxStepModel(bundle, RuntimeSettings()), open_tokenizer(bundle), bundle.manifest)


def test_texts_use_the_text_pipeline(model: BundleTextModel) -> None:
    alone = translate_texts(model, ["A man.", "Two dogs."], beam_size=2, batch_size=4)
    together = translate_texts(model, ["A man. Two dogs.", "", "  A man.\n\nTwo dogs. "], beam_size=2, batch_size=4)

    first, second = alone.texts
    assert together.texts == (f"{first} {second}", "", f"  {first}\n\n{second} ")
    assert together.num_target_tokens == 2 * alone.num_target_tokens


def test_long_sentence_is_decoded_in_parts(model: BundleTextModel) -> None:
    sentence = "A man rides a bicycle, " * 40 + "and two dogs run."

    run = translate_texts(model, [sentence], beam_size=1, batch_size=4)

    assert run.num_split == 1
    assert run.num_target_tokens > model.max_target_tokens


def test_default_search_equals_the_server() -> None:
    expected = search_config(TranslationOptions(beam_size=3), TranslationDefaults())

    # the pipeline gives each segment its own limit
    assert replace(default_search(3), max_target_tokens=expected.max_target_tokens) == expected
