"""Imported Hugging Face models compared with that library: token ids, logits, searches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman_export.__main__ import main
from dragoman_export.evaluation.verification import score_at_once, score_exported
from dragoman_export.importers.portable import PortableModel
from dragoman_export.importers.reference_models.huggingface import HuggingFaceOriginal
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from tests.foreign_models import SOURCES, save_bart, save_m2m100, save_marian, save_mbart50, save_nllb

# largest difference of a log-probability: float32 sums in another order
LOG_PROB_TOLERANCE = 1e-4
_SHORTEST, _LONGEST = 6, 40


@dataclass(frozen=True)
class _Case:
    save: Callable[..., Any]
    tags: tuple[str, ...] = ()


_CASES = {
    "bart": _Case(save_bart),
    "marian": _Case(save_marian),
    "m2m100": _Case(save_m2m100, ("--source-tag", "en", "--target-tag", "de")),
    "nllb": _Case(save_nllb, ("--source-tag", "eng_Latn", "--target-tag", "deu_Latn")),
    "mbart50": _Case(save_mbart50, ("--source-tag", "en_XX", "--target-tag", "de_DE")),
    "marian with two vocabularies": _Case(partial(save_marian, is_separate=True, seed=7)),
    "marian with tables of its own": _Case(
        partial(save_marian, tie_word_embeddings=False, activation_function="relu", scale_embedding=False, seed=6)
    ),
    "marian to many languages": _Case(partial(save_marian, tags=(">>deu<<", ">>fra<<")), ("--target-tag", ">>fra<<")),
    "marian to all its languages": _Case(partial(save_marian, tags=(">>fra<<", ">>deu<<"))),
    "m2m100 of all its languages": _Case(save_m2m100),
    "mbart50 of some of its languages": _Case(
        save_mbart50, ("--source-languages", "en,fr", "--target-languages", "de")
    ),
}


@dataclass(frozen=True)
class _Imported:
    original: HuggingFaceOriginal
    portable: PortableModel
    bundle: Bundle
    tokenizer: SentencePieceTokenizer

    @property
    def graph(self) -> OnnxStepModel:
        return OnnxStepModel(self.bundle, RuntimeSettings(precision="fp32"))

    def source_ids(self, text: str) -> list[int]:
        return self.tokenizer.encode_pair(text, "")[0]


@pytest.fixture(scope="module", params=_CASES)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    return _import(_CASES[request.param], tmp_path_factory.mktemp(request.param))


def _import(case: _Case, directory: Path) -> _Imported:
    theirs, ours, bundle = directory / "theirs", directory / "ours", directory / "models" / "tiny" / "1"
    case.save(theirs)
    assert main(["import", str(theirs), "--from", "huggingface", "--output", str(ours), *case.tags]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    made = ["bundle", "--checkpoint", str(ours), "--output", str(bundle), "--precisions", "fp32", *named]
    assert main(made) == 0
    opened = open_bundle(bundle)
    tokenizer = open_tokenizer(opened)
    return _Imported(
        original=HuggingFaceOriginal(theirs, tokenizer),
        portable=PortableModel.open(ours),
        bundle=opened,
        tokenizer=tokenizer,
    )


def test_token_ids_equal_the_original(imported: _Imported) -> None:
    for text in SOURCES:
        assert imported.source_ids(text) == imported.original.encode(text)


def test_target_tokenization_equals_the_original(imported: _Imported) -> None:
    unknown = imported.tokenizer.unk_id
    for text in SOURCES:
        ids = imported.original.encode_target(text)

        assert [*imported.tokenizer.target_prefix, *imported.tokenizer.encode_target(text), ids[-1]] == ids
        words = [token_id for token_id in ids if token_id not in (*imported.tokenizer.target_prefix, unknown)]
        theirs = imported.original.decode(words)
        assert imported.tokenizer.decode([*imported.tokenizer.target_prefix, *words]).strip() == theirs.strip()


def test_log_probs_equal_the_original(imported: _Imported) -> None:
    pairs = [imported.tokenizer.encode_pair(text, text) for text in SOURCES]
    network = imported.portable.load()

    ours, exported = list(score_at_once(network, pairs)), list(score_exported(imported.graph, pairs))

    for row, (source, target) in enumerate(pairs):
        theirs = imported.original.score(source, target)
        for actual in (ours, exported):
            steps = np.stack([step[row] for step in actual[: len(target)]])
            np.testing.assert_allclose(steps, theirs, rtol=0, atol=LOG_PROB_TOLERANCE)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_searches_equal_the_original(imported: _Imported, beam_size: int) -> None:
    search = SearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        min_target_tokens=_SHORTEST,
        max_target_tokens=_LONGEST,
        target_prefix=imported.tokenizer.target_prefix,
    )

    actual = [_decode(imported.graph, imported.source_ids(text), search) for text in SOURCES]

    assert actual == [imported.original.search(imported.source_ids(text), search) for text in SOURCES]
    assert len({tuple(ids) for ids in actual}) > 1
    assert any(ids[-1] == imported.tokenizer.eos_id for ids in actual)


def _decode(graph: OnnxStepModel, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
    batch = RunningBatch(graph)
    batch.start([Segment(source_ids=tuple(source_ids), search=search)])
    while True:
        if ended := batch.step().ended:
            return list(ended[0].hypotheses[0].token_ids)
