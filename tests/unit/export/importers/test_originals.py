import importlib.util
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from dragoman_export.data.reader import Pair
from dragoman_export.errors import ImportFormatError
from dragoman_export.evaluation.translation import BundleTextModel
from dragoman_export.evaluation.verification import score_exported
from dragoman_export.importers.reference_models.checks import check_original, open_original, search_exported
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.tiny_bundle import SENTENCES

_PAIRS = [Pair(source=SENTENCES[i], target=SENTENCES[i + 3], location="") for i in range(3)]


@pytest.fixture
def bundle(fp32_bundle: Path) -> Bundle:
    return open_bundle(fp32_bundle)


class _Played:
    def __init__(self, model: BundleTextModel, *, narrows_beam: bool) -> None:
        self.narrows_beam = narrows_beam
        self.model = model
        self.searches: list[SearchConfig] = []

    def encode(self, source: str) -> list[int]:
        return self.model.tokenizer.encode_pair(source, "")[0]

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        return np.concatenate(list(score_exported(self.model.graph, [(list(source_ids), list(target_ids))])))

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        self.searches.append(search)
        return search_exported(self.model.graph, source_ids, search)


@pytest.fixture
def model(bundle: Bundle) -> BundleTextModel:
    graph = OnnxStepModel(bundle, RuntimeSettings(precision="fp32"))
    return BundleTextModel.of(graph, open_tokenizer(bundle), bundle.manifest)


def test_equal_searches_are_compared_by_beam(model: BundleTextModel) -> None:
    original = _Played(model, narrows_beam=False)

    checks = list(check_original(original, model, _PAIRS, beam_size=3))

    assert [check.claim.removesuffix(" = original") for check in checks] == ["token ids", "ONNX fp32", "beam 3"]
    assert all(check.holds for check in checks)
    assert {(search.beam_size, search.min_target_tokens) for search in original.searches} == {(3, 0)}


def test_narrowing_beams_are_compared_by_greedy_and_fixed_length(model: BundleTextModel) -> None:
    original = _Played(model, narrows_beam=True)
    lengths = [len(model.tokenizer.encode_pair("", pair.target)[1]) - 1 for pair in _PAIRS]

    checks = list(check_original(original, model, _PAIRS, beam_size=3))

    assert [check.claim for check in checks[2:]] == ["greedy = original", "beam 3, length given = original"]
    assert all(check.holds for check in checks)
    greedy, given = original.searches[:3], original.searches[3:]
    assert {(search.beam_size, search.min_target_tokens) for search in greedy} == {(1, 0)}
    assert {search.beam_size for search in given} == {3}
    assert [(search.min_target_tokens, search.max_target_tokens) for search in given] == [(n, n) for n in lengths]


class _Different(_Played):
    def encode(self, source: str) -> list[int]:
        return super().encode(source)[1:]

    def score(self, source_ids: Sequence[int], target_ids: Sequence[int]) -> FloatArray:
        return super().score(source_ids, target_ids) - 1

    def search(self, source_ids: Sequence[int], search: SearchConfig) -> list[int]:
        found = super().search(source_ids, search)
        return found if search.beam_size == 1 else found[1:]


def test_differences_are_counted(model: BundleTextModel) -> None:
    checks = list(check_original(_Different(model, narrows_beam=True), model, _PAIRS, beam_size=2))

    assert [check.measured for check in checks] == [3, pytest.approx(1), 0, 3]


@pytest.mark.parametrize(
    ("files", "content", "message"),
    [
        (["model.pt"], {"opt": Namespace(), "vocab": {}}, "pip install .*--no-deps OpenNMT-py .*named 'onmt'"),
        (["config.json", "vocab.json", "model.00.safetensors"], None, "pip install .*--no-deps eole .*named 'eole'"),
        (["checkpoint_best.pt", "dict.en.txt", "dict.de.txt"], None, "fairseq"),
        (["model.pt"], {"model": {}, "cfg": {}}, "has no opt and vocab"),
    ],
    ids=["onmt", "eole", "fairseq", "other"],
)
def test_missing_or_unsupported_library_is_named(
    bundle: Bundle, tmp_path: Path, files: list[str], content: object, message: str, request: pytest.FixtureRequest
) -> None:
    library = request.node.callspec.id
    if library in ("onmt", "eole") and importlib.util.find_spec(library):
        pytest.skip(f"{library} is installed")
    for name in files:
        (tmp_path / name).write_text("{}", encoding="utf-8")
    if content is not None:
        torch.save(content, tmp_path / "model.pt")

    with pytest.raises(ImportFormatError, match=message):
        open_original(tmp_path / "model.pt" if content else tmp_path, bundle, open_tokenizer(bundle))
