"""Models of Hugging Face transformers, imported, against that library: token ids, logits, searches, a served answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from export.__main__ import main
from export.graph.verify import score_at_once, score_exported
from export.importers.portable import PortableModel
from service.bundle import Bundle, open_bundle
from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import RunningBatch
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings
from service.text.tokenizer import SentencePieceTokenizer, open_tokenizer
from tests.foreign_models import SOURCES, save_m2m100, save_marian, save_mbart50, save_nllb

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")  # which ids do not depend on

LOG_PROB_TOLERANCE = 1e-4
"""Largest difference of a log-probability: both add the same float32 products in other orders."""
_SHORTEST, _LONGEST = 6, 40


@dataclass(frozen=True)
class _Case:
    save: Callable[..., Any]
    languages: dict[str, str]
    """What the original tokenizer is told."""
    tags: tuple[str, ...]
    """What the importer is told."""


_CASES = {
    "marian": _Case(save_marian, {}, ()),
    "m2m100": _Case(save_m2m100, {"src_lang": "en", "tgt_lang": "de"}, ("--source-tag", "en", "--target-tag", "de")),
    "nllb": _Case(
        save_nllb,
        {"src_lang": "eng_Latn", "tgt_lang": "deu_Latn"},
        ("--source-tag", "eng_Latn", "--target-tag", "deu_Latn"),
    ),
    "mbart50": _Case(
        save_mbart50,
        {"src_lang": "en_XX", "tgt_lang": "de_DE"},
        ("--source-tag", "en_XX", "--target-tag", "de_DE"),
    ),
}


@dataclass(frozen=True)
class _Imported:
    model: Any
    """The original."""
    original: Any
    """Its tokenizer."""
    portable: PortableModel
    bundle: Bundle
    tokenizer: SentencePieceTokenizer

    @property
    def graph(self) -> OnnxStepModel:
        return OnnxStepModel(self.bundle, RuntimeSettings(precision="fp32"))

    def source_ids(self, text: str) -> list[int]:
        return [*self.tokenizer.source_prefix, *self.tokenizer.encode(text), self.tokenizer.eos_id]

    def generate(self, text: str, *, num_beams: int) -> list[int]:
        """Return the target that the original finds, decoder start left out, by the rules that ours has."""
        never = {self.model.config.pad_token_id, self.tokenizer.unk_id}
        forced = self.tokenizer.target_prefix[0] if self.tokenizer.target_prefix else None
        generated = self.model.generate(
            torch.tensor([self.source_ids(text)]),
            num_beams=num_beams,
            min_new_tokens=_SHORTEST,
            max_new_tokens=_LONGEST,
            length_penalty=0.0,
            do_sample=False,
            bad_words_ids=[[token_id] for token_id in sorted(never)],
            renormalize_logits=False,
            forced_bos_token_id=forced,
            forced_eos_token_id=None,
        )
        ids: list[int] = generated[0, 1:].tolist()
        return ids


@pytest.fixture(scope="module", params=_CASES)
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    return _import(_CASES[request.param], tmp_path_factory.mktemp(request.param))


def _import(case: _Case, directory: Path, **options: Any) -> _Imported:
    theirs, ours, bundle = directory / "theirs", directory / "ours", directory / "models" / "tiny" / "1"
    model = case.save(theirs, **options)
    assert main(["import", str(theirs), "--from", "huggingface", "--output", str(ours), *case.tags]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    made = ["bundle", "--checkpoint", str(ours), "--output", str(bundle), "--precisions", "fp32", *named]
    assert main(made) == 0
    opened = open_bundle(bundle)
    return _Imported(
        model=model,
        original=AutoTokenizer.from_pretrained(theirs, **case.languages),
        portable=PortableModel.open(ours),
        bundle=opened,
        tokenizer=open_tokenizer(opened),
    )


def test_token_ids_are_those_of_the_original(imported: _Imported) -> None:
    for text in SOURCES:
        assert imported.source_ids(text) == imported.original(text).input_ids


def test_targets_are_encoded_and_decoded_as_by_the_original(imported: _Imported) -> None:
    unknown = imported.tokenizer.unk_id
    for text in SOURCES:
        ids = imported.original(text_target=text).input_ids

        assert [*imported.tokenizer.target_prefix, *imported.tokenizer.encode_target(text), ids[-1]] == ids
        words = [token_id for token_id in ids if token_id not in (*imported.tokenizer.target_prefix, unknown)]
        theirs = imported.original.decode(words, skip_special_tokens=True)
        assert imported.tokenizer.decode([*imported.tokenizer.target_prefix, *words]).strip() == theirs.strip()


def test_log_probs_are_those_of_the_original(imported: _Imported) -> None:
    pairs = [imported.tokenizer.encode_pair(text, text) for text in SOURCES]
    network = imported.portable.load()

    ours, exported = list(score_at_once(network, pairs)), list(score_exported(imported.graph, pairs))

    for row, (source, target) in enumerate(pairs):
        inputs = torch.tensor([[imported.tokenizer.bos_id, *target[:-1]]])
        with torch.inference_mode():
            logits = imported.model(input_ids=torch.tensor([source]), decoder_input_ids=inputs).logits
        theirs = torch.log_softmax(logits[0], dim=-1).numpy()
        for found in (ours, exported):
            steps = np.stack([step[row] for step in found[: len(target)]])
            np.testing.assert_allclose(steps, theirs, rtol=0, atol=LOG_PROB_TOLERANCE)


@pytest.mark.parametrize("beam_size", [1, 4])
def test_searches_find_what_the_original_finds(imported: _Imported, beam_size: int) -> None:
    search = SearchConfig(
        beam_size=beam_size,
        length_penalty=0.0,
        min_target_tokens=_SHORTEST,
        max_target_tokens=_LONGEST,
        target_prefix=imported.tokenizer.target_prefix,
    )

    found = [_decode(imported.graph, imported.source_ids(text), search) for text in SOURCES]

    assert found == [imported.generate(text, num_beams=beam_size) for text in SOURCES]
    assert len({tuple(ids) for ids in found}) > 1
    assert any(ids[-1] == imported.tokenizer.eos_id for ids in found)


def _decode(graph: OnnxStepModel, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
    batch = RunningBatch(graph)
    batch.start([Segment(source_ids=tuple(source_ids), search=search)])
    while True:
        if ended := batch.step().ended:
            return list(ended[0].hypotheses[0].token_ids)
