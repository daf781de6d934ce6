"""Imported CTranslate2 models compared with that library: token ids, log-probabilities, searches."""

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
from dragoman_export.evaluation.translation import TextModel
from dragoman_export.evaluation.verification import score_exported
from dragoman_export.importers.reference_models.checks import check_original, open_original, search_exported
from dragoman_export.importers.reference_models.ctranslate2 import CTranslate2Original
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.ctranslate2_models import convert_huggingface, save_spec
from tests.foreign_models import SOURCES, save_m2m100, save_marian, save_mbart50, save_nllb
from tests.tiny_bundle import SENTENCES

# largest difference of a log-probability: float32 sums in another order
LOG_PROB_TOLERANCE = 1e-4

_LONGEST = 30

_GELU, _SWISH = common_spec.Activation.GELU, common_spec.Activation.SWISH
# keys that the converter reads, in the spelling of older versions of transformers
_MBART: dict[str, Any] = {
    **dict.fromkeys(("normalize_before", "normalize_embedding", "add_final_layer_norm"), True),
    "tokenizer_class": "MBart50Tokenizer",
}
_NLLB = ("--source-tag", "eng_Latn", "--target-tag", "deu_Latn")


@dataclass(frozen=True)
class _Case:
    save: Callable[[Path], Any]
    flags: tuple[str, ...] = ()
    pair: tuple[str, str] = ("en", "de")  # compared languages of a multilingual model


def _spec(*flags: str, **options: Any) -> _Case:
    return _Case(partial(save_spec, **options), flags)


_CASES = {
    "opennmt": _spec(tied="all"),
    "marian": _Case(partial(convert_huggingface, save=save_marian)),
    "marian int8": _Case(partial(convert_huggingface, save=save_marian, quantization="int8")),
    "marian in halves": _Case(partial(convert_huggingface, save=save_marian, quantization="int8_float16")),
    "nllb": _Case(partial(convert_huggingface, save=save_nllb, eos=-2.0), _NLLB),
    "nllb of all its languages": _Case(partial(convert_huggingface, save=save_nllb, eos=-2.0), pair=("fr", "en")),
    "m2m100 of all its languages": _Case(
        partial(convert_huggingface, save=partial(save_m2m100, seed=4), eos=1.0), pair=("de", "zh")
    ),
    "mbart50 of some of its languages": _Case(
        partial(convert_huggingface, save=partial(save_mbart50, seed=5, **_MBART), eos=3.0),
        ("--source-languages", "en,fr", "--target-languages", "en_XX,de_DE"),
        pair=("fr", "en"),
    ),
    "marian to all its languages": _Case(
        partial(convert_huggingface, save=partial(save_marian, tags=(">>deu<<", ">>fra<<"))),
        ("--source-languages", "en"),
        pair=("en", "fr"),
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
        "--source-eos", "yes", config={"layer_norm_epsilon": 1e-2, "decoder_start_token": "</s>"}, seed=7, eos=4.0
    ),
    "int16": _spec(quantization="int16", tied="all"),
    "bfloat16": _spec(quantization="bfloat16", learned=True, eos=1.0),
    "version 5": _spec(version=5, quantization="int8", tied="all", config={"add_source_eos": True}),
    "version 3": _spec(version=3, quantization="int16", tied="decoder", config={"decoder_start_token": "</s>"}),
    "version 2": _spec(version=2),
}


@dataclass(frozen=True)
class _Imported:
    original: CTranslate2Original
    model: TextModel


@pytest.fixture(scope="module", params=_CASES)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    case, directory = _CASES[request.param], tmp_path_factory.mktemp("case")
    theirs, ours, made = directory / "theirs", directory / "ours", directory / "models" / "tiny" / "1"
    case.save(theirs)
    assert main(["import", str(theirs), "--from", "ctranslate2", "--output", str(ours), *case.flags]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    sizes = ["--max-source-tokens", "64", "--max-target-tokens", "64"]
    places = ["--checkpoint", str(ours), "--output", str(made)]
    assert main(["bundle", *places, "--precisions", "fp32", *named, *sizes]) == 0
    bundle = open_bundle(made)
    tokenizer = open_tokenizer(bundle).for_pair(*case.pair)
    original = open_original(theirs, bundle, tokenizer)
    assert isinstance(original, CTranslate2Original)
    graph = OnnxStepModel(bundle, RuntimeSettings(precision="fp32"))
    return _Imported(original=original, model=TextModel.of(graph, tokenizer, bundle.manifest))


def test_token_ids_and_log_probs_equal_the_original(imported: _Imported) -> None:
    pairs = [Pair(source=text, target=text, location="") for text in SOURCES]

    ids, log_probs, _ = check_original(imported.original, imported.model, pairs, beam_size=1)

    assert ids.measured == 0
    assert log_probs.measured <= LOG_PROB_TOLERANCE
    assert log_probs.detail.endswith(f"of {len(pairs)} sentences")


def test_searches_equal_the_original(imported: _Imported) -> None:
    original, tokenizer = imported.original, imported.model.tokenizer
    ended = set()
    for beam_size in (1, 4):
        search = SearchConfig(
            beam_size=beam_size, length_penalty=0.0, max_target_tokens=_LONGEST, target_prefix=tokenizer.target_prefix
        )
        for source in map(original.encode, SOURCES):
            actual, expected = search_exported(imported.model.graph, source, search), original.search(source, search)

            # This search prefers finished to truncated targets; CTranslate2 with several beams ends directly after a
            # tag only if no other token is likelier.
            is_cut_off = actual[-1] == tokenizer.eos_id != expected[-1]
            is_nothing = beam_size > 1 and actual == [*tokenizer.target_prefix, tokenizer.eos_id] != actual[-1:]
            assert actual == expected or is_cut_off or is_nothing
            ended |= {tuple(actual)} if actual == expected and actual[-1] == tokenizer.eos_id else set()
    assert len(ended) > 1


_VOCABULARY = 58_101
_WIDTH = 512
# weight of the last normalisation: spreads logits, because random ones of this width hardly differ
_SHARPNESS = 5.0

# Largest mean error of log-probabilities in int8, divided by that of CTranslate2's: both round weights and activations
# to 8 bits, ours by scales measured before (on eight sentences only, here) and theirs by the range of each row.
MOST_INT8_ERROR = 1.2


def _save_opus(directory: Path) -> None:
    tags = [
        f"filler{index}" for index in range(_VOCABULARY - save_marian(directory.parent / "small").config.vocab_size)
    ]
    sizes: dict[str, Any] = {f"{stack}_ffn_dim": 4 * _WIDTH for stack in ("encoder", "decoder")}
    sizes |= {f"{stack}_attention_heads": 8 for stack in ("encoder", "decoder")}
    model = save_marian(directory, tags=tags, d_model=_WIDTH, init_std=_WIDTH**-0.5, **sizes)
    assert model.config.vocab_size == _VOCABULARY
    with torch.no_grad():
        model.model.decoder.layers[-1].final_layer_norm.weight.mul_(_SHARPNESS)
    model.save_pretrained(directory)


@pytest.mark.slow
def test_opus_mt_shape_equals_the_original_in_float32_and_int8(tmp_path: Path) -> None:
    theirs, ours, made = tmp_path / "theirs", tmp_path / "ours", tmp_path / "models" / "tiny" / "1"
    convert_huggingface(theirs, _save_opus, eos=_SHARPNESS)
    (tmp_path / "text.tsv").write_text("".join(f"{text}\t{text}\n" for text in SENTENCES), encoding="utf-8")
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    places = ["--checkpoint", str(ours), "--output", str(made), "--calibration", str(tmp_path / "text.tsv")]
    assert main(["import", str(theirs), "--from", "ctranslate2", "--output", str(ours)]) == 0
    assert main(["bundle", *places, "--precisions", "fp32,int8", *named]) == 0
    bundle = open_bundle(made)
    tokenizer = open_tokenizer(bundle)
    graphs = {name: OnnxStepModel(bundle, RuntimeSettings(precision=name)) for name in ("fp32", "int8")}
    spm = theirs / "source.spm"
    originals = {name: CTranslate2Original(theirs, tokenizer, spm, compute_type=name) for name in ("float32", "int8")}
    pairs = [tokenizer.encode_pair(text, text) for text in SOURCES]

    for beam_size in (1, 4):
        search = SearchConfig(beam_size=beam_size, length_penalty=0.0, max_target_tokens=12)
        actual = [search_exported(graphs["fp32"], source, search) for source, _ in pairs]
        assert actual == [originals["float32"].search(source, search) for source, _ in pairs]
        assert len({tuple(ids) for ids in actual}) > 1
    exact = _log_probs(graphs["fp32"], pairs)
    np.testing.assert_allclose(exact, _scores(originals["float32"], pairs), rtol=0, atol=LOG_PROB_TOLERANCE)
    own_error = np.abs(_log_probs(graphs["int8"], pairs) - exact).mean()
    assert 0 < own_error < MOST_INT8_ERROR * np.abs(_scores(originals["int8"], pairs) - exact).mean()


def _log_probs(graph: OnnxStepModel, pairs: Sequence[tuple[list[int], list[int]]]) -> FloatArray:
    steps = [np.concatenate(list(score_exported(graph, [pair])))[range(len(pair[1])), pair[1]] for pair in pairs]
    return np.concatenate(steps)


def _scores(original: CTranslate2Original, pairs: Sequence[tuple[list[int], list[int]]]) -> FloatArray:
    return np.concatenate([original.score(*pair) for pair in pairs])
