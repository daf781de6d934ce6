"""Imported models compared with Hugging Face transformers and CTranslate2: token ids, log-probabilities, searches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctranslate2.specs import common_spec

from dragoman_export.__main__ import main
from dragoman_export.data.reader import Pair
from dragoman_export.evaluation.translation import BundleTextModel
from dragoman_export.evaluation.verification import score_at_once, score_exported
from dragoman_export.importers.portable import PortableModel
from dragoman_export.importers.reference_models.checks import check_original, open_original, search_exported
from dragoman_export.importers.reference_models.ctranslate2 import CTranslate2Original
from dragoman_export.importers.reference_models.huggingface import HuggingFaceOriginal
from dragoman_export.importers.reference_models.original import Original
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.ctranslate2_models import convert_huggingface, save_spec
from tests.foreign_models import SOURCES, save_bart, save_m2m100, save_marian, save_mbart50, save_nllb
from tests.tiny_bundle import SENTENCES

# largest difference of a log-probability: float32 sums in another order
_LOG_PROB_TOLERANCE = 1e-4
_SHORTEST, _LONGEST = 6, 40

_GELU, _SWISH = common_spec.Activation.GELU, common_spec.Activation.SWISH
# keys that the converter reads, in the spelling of older versions of transformers
_MBART: dict[str, Any] = {
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), True),
    "tokenizer_class": "MBart50Tokenizer",
}
_NLLB_TAGS = "--source-tag eng_Latn --target-tag deu_Latn"
_SOME_LANGUAGES = "--source-languages en,fr --target-languages"


@dataclass(frozen=True)
class _Case:
    save: Callable[[Path], Any]
    flags: str = ""
    pair: tuple[str, str] = ("en", "de")  # compared languages of a multilingual model
    system: str = "huggingface"


def _converted(save: Callable[..., Any], flags: str = "", pair: tuple[str, str] = ("en", "de"), **how: Any) -> _Case:
    return _Case(partial(convert_huggingface, save=save, **how), flags, pair, "ctranslate2")


def _spec(flags: str = "", **options: Any) -> _Case:
    return _Case(partial(save_spec, **options), flags, system="ctranslate2")


_HUGGING_FACE = {
    "bart": _Case(save_bart),
    "marian": _Case(save_marian),
    "m2m100": _Case(save_m2m100, "--source-tag en --target-tag de"),
    "nllb": _Case(save_nllb, _NLLB_TAGS),
    "mbart50": _Case(save_mbart50, "--source-tag en_XX --target-tag de_DE"),
    "marian with two vocabularies": _Case(partial(save_marian, is_separate=True, seed=7)),
    "marian with separate tables": _Case(
        partial(save_marian, tie_word_embeddings=False, activation_function="relu", scale_embedding=False, seed=6)
    ),
    "marian to a language": _Case(partial(save_marian, tags=(">>deu<<", ">>fra<<")), "--target-tag >>fra<<"),
    "marian to all languages": _Case(partial(save_marian, tags=(">>fra<<", ">>deu<<"))),
    "m2m100 of all languages": _Case(save_m2m100),
    "mbart50 of some languages": _Case(save_mbart50, f"{_SOME_LANGUAGES} de"),
}
_CTRANSLATE2 = {
    "opennmt": _spec(tied="all"),
    "marian": _converted(save_marian),
    "marian int8": _converted(save_marian, quantization="int8"),
    "marian in halves": _converted(save_marian, quantization="int8_float16"),
    "nllb": _converted(save_nllb, _NLLB_TAGS, eos=-2.0),
    "nllb of all languages": _converted(save_nllb, pair=("fr", "en"), eos=-2.0),
    "m2m100 of all languages": _converted(partial(save_m2m100, seed=4), pair=("de", "zh"), eos=1.0),
    "mbart50 of some languages": _converted(
        partial(save_mbart50, seed=5, **_MBART), f"{_SOME_LANGUAGES} en_XX,de_DE", ("fr", "en"), eos=3.0
    ),
    "marian to all languages": _converted(
        partial(save_marian, tags=(">>deu<<", ">>fra<<")), "--source-languages en", ("en", "fr")
    ),
    "two vocabularies": _spec(is_separate=True, config={"add_source_eos": True, "add_source_bos": True}),
    "two vocabularies, one table for targets": _spec(is_separate=True, tied="decoder"),
    "post-norm, swish, learned": _spec(
        pre_norm=False, activation=_SWISH, layernorm_embedding=True, learned=True, eos=3.0
    ),
    "gelu without last norm": _spec(activation=_GELU, no_final_norm=True, scale=0.1, eos=10.0),
    "gated, rms": _spec(rms_norm=True, activation=_SWISH, ffn_glu=True),
    "multi-query": _spec(multi_query_attention=True),
    "grouped queries": _spec(kv_heads=2, eos=5.5),
    "rotary positions in pairs": _spec(rotary={"rotary_dim": 0}),
    "rotary positions in halves, grouped queries": _spec(
        rotary={"rotary_dim": 4, "rotary_interleave": False}, num_heads_kv=2, eos=7.0
    ),
    "epsilon, eos as start": _spec(
        "--source-eos yes", config={"layer_norm_epsilon": 1e-2, "decoder_start_token": "</s>"}, seed=7, eos=4.0
    ),
    "int16": _spec(quantization="int16", tied="all"),
    "bfloat16": _spec(quantization="bfloat16", learned=True, eos=1.0),
    "version 5": _spec(version=5, quantization="int8", tied="all", config={"add_source_eos": True}),
    "version 3": _spec(version=3, quantization="int16", tied="decoder", config={"decoder_start_token": "</s>"}),
    "version 2": _spec(version=2),
}


@dataclass(frozen=True)
class _Imported:
    original: Original
    portable: PortableModel
    model: BundleTextModel

    def search(self, beam_size: int, **limits: Any) -> SearchConfig:
        prefix = self.model.tokenizer.target_prefix
        return SearchConfig(beam_size=beam_size, length_penalty=0.0, target_prefix=prefix, **limits)


def _export(directory: Path, system: str, flags: str, *more: str) -> Bundle:
    portable, bundle = directory / "portable", directory / "models" / "tiny" / "1"
    imported = ["import", str(directory / "original"), "--from", system, "--output", str(portable), *flags.split()]
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    assert main(imported) == 0
    assert main(["bundle", "--checkpoint", str(portable), "--output", str(bundle), *named, *more]) == 0
    return open_bundle(bundle)


@pytest.fixture(scope="module")
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    case: _Case = request.param
    directory = tmp_path_factory.mktemp("case")
    case.save(directory / "original")
    sizes = ("--max-source-tokens", "64", "--max-target-tokens", "64")
    bundle = _export(directory, case.system, case.flags, "--precisions", "fp32", *sizes)
    tokenizer = open_tokenizer(bundle).for_pair(*case.pair)
    graph = OnnxStepModel(bundle, RuntimeSettings(precision="fp32"))
    original = open_original(directory / "original", bundle, tokenizer)
    model = BundleTextModel.of(graph, tokenizer, bundle.manifest)
    return _Imported(original=original, portable=PortableModel.open(directory / "portable"), model=model)


def _cases(**systems: dict[str, _Case]) -> pytest.MarkDecorator:
    cases = [pytest.param(case, id=f"{system} {name}") for system in systems for name, case in systems[system].items()]
    return pytest.mark.parametrize("imported", cases, indirect=True)


@_cases(huggingface=_HUGGING_FACE, ctranslate2=_CTRANSLATE2)
def test_token_ids_and_log_probs_equal_the_original(imported: _Imported) -> None:
    pairs = [Pair(source=text, target=text, location="") for text in SOURCES]

    ids, log_probs, *_ = check_original(imported.original, imported.model, pairs, beam_size=1)

    assert ids.measured == 0
    assert log_probs.measured <= _LOG_PROB_TOLERANCE
    assert log_probs.detail.endswith(f"of {len(pairs)} sentences")


@_cases(huggingface=_HUGGING_FACE)
def test_portable_network_has_the_log_probs_of_the_original(imported: _Imported) -> None:
    pairs = [imported.model.tokenizer.encode_pair(text, text) for text in SOURCES]

    scored = list(score_at_once(imported.portable.load(), pairs))

    for row, (source, target) in enumerate(pairs):
        steps = np.stack([step[row] for step in scored[: len(target)]])
        np.testing.assert_allclose(steps, imported.original.score(source, target), rtol=0, atol=_LOG_PROB_TOLERANCE)


@_cases(huggingface=_HUGGING_FACE)
def test_target_tokenization_equals_the_original(imported: _Imported) -> None:
    original, tokenizer = imported.original, imported.model.tokenizer
    assert isinstance(original, HuggingFaceOriginal)
    prefix = tokenizer.target_prefix
    for text in SOURCES:
        ids = original.encode_target(text)

        assert [*prefix, *tokenizer.encode_target(text), ids[-1]] == ids
        words = [token_id for token_id in ids if token_id not in (*prefix, tokenizer.unk_id)]
        assert tokenizer.decode([*prefix, *words]).strip() == original.decode(words).strip()


@pytest.mark.parametrize("beam_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@_cases(huggingface=_HUGGING_FACE)
def test_searches_equal_hugging_face(imported: _Imported, beam_size: int) -> None:
    original, model = imported.original, imported.model
    search = imported.search(beam_size, min_target_tokens=_SHORTEST, max_target_tokens=_LONGEST)
    sources = [original.encode(text) for text in SOURCES]

    actual = [search_exported(model.graph, source, search) for source in sources]

    assert actual == [original.search(source, search) for source in sources]
    assert len({tuple(ids) for ids in actual}) > 1
    assert any(ids[-1] == model.tokenizer.eos_id for ids in actual)


@_cases(ctranslate2=_CTRANSLATE2)
def test_searches_equal_ctranslate2(imported: _Imported) -> None:
    original, tokenizer = imported.original, imported.model.tokenizer
    ended = set()
    for beam_size in (1, 4):
        search = imported.search(beam_size, max_target_tokens=30)
        for source in map(original.encode, SOURCES):
            actual, expected = search_exported(imported.model.graph, source, search), original.search(source, search)

            # This search prefers finished to truncated targets; CTranslate2 with several beams ends directly after a
            # tag only if no other token is likelier.
            is_cut_off = actual[-1] == tokenizer.eos_id != expected[-1]
            is_empty = beam_size > 1 and actual == [*tokenizer.target_prefix, tokenizer.eos_id] != actual[-1:]
            assert actual == expected or is_cut_off or is_empty
            ended |= {tuple(actual)} if actual == expected and actual[-1] == tokenizer.eos_id else set()
    assert len(ended) > 1


_VOCABULARY, _WIDTH = 8_001, 512
# weight of the last normalisation: spreads logits, because random ones of this width hardly differ
_SHARPNESS = 5.0

# Largest mean error of log-probabilities in int8, divided by that of CTranslate2's: both round weights and activations
# to 8 bits; the graphs by scales measured before (here on eight sentences only), CTranslate2 by the range of each row.
_MOST_INT8_ERROR = 1.2


def _save_opus(directory: Path) -> None:
    missing = _VOCABULARY - save_marian(directory.parent / "small").config.vocab_size
    sizes: dict[str, Any] = {f"{stack}_ffn_dim": 4 * _WIDTH for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_attention_heads": 8 for stack in ("encoder", "decoder")}
    tags = [f"filler{index}" for index in range(missing)]
    model = save_marian(directory, tags=tags, d_model=_WIDTH, init_std=_WIDTH**-0.5, **sizes)
    assert model.config.vocab_size == _VOCABULARY
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(_SHARPNESS)
    model.save_pretrained(directory)


@pytest.mark.slow
def test_opus_mt_shape_equals_ctranslate2_in_float32_and_int8(tmp_path: Path) -> None:
    convert_huggingface(tmp_path / "original", _save_opus, eos=_SHARPNESS)
    (tmp_path / "text.tsv").write_text("".join(f"{text}\t{text}\n" for text in SENTENCES), encoding="utf-8")
    text = ("--precisions", "fp32,int8", "--calibration", str(tmp_path / "text.tsv"))
    bundle = _export(tmp_path, "ctranslate2", "", *text)
    tokenizer, spm = open_tokenizer(bundle), tmp_path / "original" / "source.spm"
    fp32, int8 = (OnnxStepModel(bundle, RuntimeSettings(precision=name)) for name in ("fp32", "int8"))
    original, original_int8 = (
        CTranslate2Original(spm.parent, tokenizer, spm, compute_type=name) for name in ("float32", "int8")
    )
    pairs = [tokenizer.encode_pair(text, text) for text in SOURCES]

    for beam_size in (1, 4):
        search = SearchConfig(beam_size=beam_size, length_penalty=0.0, max_target_tokens=12)
        actual = [search_exported(fp32, source, search) for source, _ in pairs]
        assert actual == [original.search(source, search) for source, _ in pairs]
        assert len({tuple(ids) for ids in actual}) > 1
    exact = _log_probs(fp32, pairs)
    expected, expected_int8 = (
        np.concatenate([each.score(*pair) for pair in pairs]) for each in (original, original_int8)
    )
    np.testing.assert_allclose(exact, expected, rtol=0, atol=_LOG_PROB_TOLERANCE)
    assert 0 < np.abs(_log_probs(int8, pairs) - exact).mean() < _MOST_INT8_ERROR * np.abs(expected_int8 - exact).mean()


def _log_probs(graph: OnnxStepModel, pairs: Sequence[tuple[list[int], list[int]]]) -> FloatArray:
    steps = [np.concatenate(list(score_exported(graph, [pair])))[range(len(pair[1])), pair[1]] for pair in pairs]
    return np.concatenate(steps)
