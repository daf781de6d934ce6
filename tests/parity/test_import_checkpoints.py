"""Checkpoints of fairseq, OpenNMT-py and eole, compared with the results of these libraries."""

import dataclasses
import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from dragoman_export.__main__ import main
from dragoman_export.evaluation.verification import score_at_once, score_exported
from dragoman_export.importers.portable import PortableModel, load_weights
from dragoman_export.importers.reference_models.checks import search_exported
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.foreign_checkpoints.library_results import BEAM_SIZE, LONGEST, SHORTEST, LibraryResult
from tests.foreign_checkpoints.systems import EXPECTED, SYSTEMS, System
from tests.foreign_models import SOURCES

# largest difference of a log-probability: float32 sums in another order; measured 6e-6
LOG_PROB_TOLERANCE = 2e-5

_EXPECTED = json.loads(EXPECTED.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Imported:
    system: System
    directory: Path
    ours: Path
    models: Path
    expected: list[LibraryResult]

    @property
    def theirs(self) -> Path:
        return self.directory / self.system.file

    @property
    def bundle(self) -> Path:
        return self.models / "tiny" / "1"

    def open_graph(self) -> OnnxStepModel:
        return OnnxStepModel(open_bundle(self.bundle), RuntimeSettings(precision="fp32"))


@pytest.fixture(scope="module", params=[(name, case) for name, system in SYSTEMS.items() for case in system.cases])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    name, case = request.param
    directory = tmp_path_factory.mktemp(name)
    expected = [LibraryResult(**result) for result in _EXPECTED[name][case]]
    made = _Imported(SYSTEMS[name], directory / "theirs", directory / "ours", directory / "models", expected)
    SYSTEMS[name].save(made.directory, SYSTEMS[name].cases[case])
    assert main(["import", str(made.theirs), "--from", name, "--output", str(made.ours)]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    places = ["--checkpoint", str(made.ours), "--output", str(made.bundle)]
    assert main(["bundle", *places, "--precisions", "fp32", *named]) == 0
    return made


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.filterwarnings("ignore")
def test_library_reproduces_stored_results(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(SYSTEMS[name].module) is None:
        pytest.skip(f"{name} is not installed: its stored results are used")
    for case, options in SYSTEMS[name].cases.items():
        SYSTEMS[name].save(tmp_path / case, options)

        for actual, expected in zip(SYSTEMS[name].run(tmp_path / case), _EXPECTED[name][case], strict=True):
            np.testing.assert_allclose(actual.log_probs, expected["log_probs"], rtol=0, atol=LOG_PROB_TOLERANCE)
            assert actual.beam == expected["beam"]


def test_log_probs_equal_the_original(imported: _Imported) -> None:
    pairs = imported.system.pairs
    network = PortableModel.open(imported.ours).load()

    for scored in (score_at_once(network, pairs), score_exported(imported.open_graph(), pairs)):
        steps = list(scored)
        for row, (result, (_, target)) in enumerate(zip(imported.expected, pairs, strict=True)):
            actual = [steps[place][row][token_id] for place, token_id in enumerate(target)]
            np.testing.assert_allclose(actual, result.log_probs, rtol=0, atol=LOG_PROB_TOLERANCE)


def test_beam_search_equals_the_original(imported: _Imported) -> None:
    graph = imported.open_graph()

    assert [_decode(graph, source) for source, _ in imported.system.pairs] == [
        result.beam for result in imported.expected
    ]


@dataclass(frozen=True)
class _Pitfall:
    imported: tuple[str, str]
    config: Mapping[str, Any] = field(default_factory=dict)  # changed fields of `ModelConfig`
    weights: Callable[[dict[str, Tensor]], object] = dict.copy
    source: Callable[[list[int]], list[int]] = list.copy


_FAIRSEQ_POST, _FAIRSEQ_LEARNED = ("fairseq", "post-norm, shared"), ("fairseq", "learned positions, nothing shared")
_FAIRSEQ_PRE = ("fairseq", "pre-norm, two dictionaries")
_EOLE_SINUSOIDS, _EOLE_PAIRS = (("eole", case) for case in list(SYSTEMS["eole"].cases)[:2])
_OPENNMT_HALVES, _OPENNMT_PAIRS = (("opennmt", case) for case in list(SYSTEMS["opennmt"].cases)[2:4])
_EOLE_HALVES, _EOLE_LEARNED = (("eole", case) for case in list(SYSTEMS["eole"].cases)[2:4])


def _no_biases(weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if name.endswith("bias") and "norm" not in name:
            tensor.zero_()


def _begun_at_one(weights: dict[str, Tensor]) -> None:
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.positions.weight"] = weights[f"{stack}.positions.weight"].roll(1, dims=0)


def _neighbours(weights: dict[str, Tensor], *, half: int = 4) -> None:
    for name, tensor in weights.items():
        if "self_attention.query" in name or "self_attention.key" in name:
            weights[name] = tensor.reshape(-1, 2, half, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)


def _heads_in_order(weights: dict[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if "_attention.query.weight" in name:
            weights[name] = tensor.reshape(2, 2, -1).transpose(0, 1).reshape(tensor.shape)


def _unscaled_positions(weights: dict[str, Tensor]) -> None:
    for stack in ("encoder", "decoder"):
        weights[f"{stack}.positions.weight"] = weights[f"{stack}.positions.weight"] / 4


_PITFALLS = {
    "epsilon of the norms": _Pitfall(("fairseq", "no positions, small states"), {"norm_epsilon": 1e-6}),
    "sinusoids begin at 1": _Pitfall(_FAIRSEQ_POST, {"position_offset": 1}),
    "learned positions begin at 1": _Pitfall(_FAIRSEQ_LEARNED, weights=_begun_at_one),
    "wavelengths of sinusoids": _Pitfall(_FAIRSEQ_POST, {"sinusoid_layout": "halves"}),
    "no positions": _Pitfall(_FAIRSEQ_POST, {"positions": "none", "position_offset": 0}),
    "no </s> on the source": _Pitfall(_FAIRSEQ_POST, source=lambda ids: ids[:-1]),
    "<s> on the source": _Pitfall(_FAIRSEQ_POST, source=lambda ids: [0, *ids]),
    "decoding begins with <s>": _Pitfall(_FAIRSEQ_POST, {"decoder_start_id": 0}),
    "embeddings are not scaled": _Pitfall(_FAIRSEQ_POST, {"scale_embeddings": False}),
    "pre-norm": _Pitfall(_FAIRSEQ_POST, {"norm": "pre", "final_norm": False}),
    "sinusoids start at 2 instead of 0": _Pitfall(_EOLE_SINUSOIDS, {"position_offset": 2}),
    "order of sinusoids": _Pitfall(_EOLE_SINUSOIDS, {"sinusoid_layout": "halves"}),
    "decoding starts with </s>": _Pitfall(_EOLE_SINUSOIDS, {"decoder_start_id": 3}),
    "embeddings are scaled": _Pitfall(_FAIRSEQ_PRE, {"scale_embeddings": True}),
    "another activation": _Pitfall(_FAIRSEQ_PRE, {"activation": "relu"}),
    "tied projection": _Pitfall(
        _FAIRSEQ_LEARNED, weights=lambda it: it.update({"projection.weight": it["embedding.weight"]})
    ),
    "no biases": _Pitfall(_FAIRSEQ_POST, weights=_no_biases),
    "</s> on the source": _Pitfall(_EOLE_SINUSOIDS, source=lambda ids: [*ids, 3]),
    "epsilon of RMS norms": _Pitfall(_EOLE_PAIRS, {"norm_epsilon": 1e-5}),
    "rotary pairs are neighbours": _Pitfall(_EOLE_PAIRS, weights=_neighbours),
    "rotary pairs of OpenNMT-py are neighbours": _Pitfall(_OPENNMT_PAIRS, weights=partial(_neighbours, half=2)),
    "rotary positions of OpenNMT-py, embeddings scaled": _Pitfall(_OPENNMT_HALVES, {"scale_embeddings": True}),
    "grouped heads in their order": _Pitfall(_EOLE_PAIRS, weights=_heads_in_order),
    "rotary pairs are half a head apart": _Pitfall(_EOLE_HALVES, weights=_neighbours),
    "rotary positions, embeddings not scaled": _Pitfall(_EOLE_HALVES, {"scale_embeddings": False}),
    "learned positions are not scaled": _Pitfall(_EOLE_LEARNED, weights=_unscaled_positions),
    "learned positions begin one later": _Pitfall(_EOLE_LEARNED, weights=_begun_at_one),
}


@pytest.mark.parametrize(
    ("imported", "pitfall"),
    [pytest.param(pitfall.imported, pitfall, id=name) for name, pitfall in _PITFALLS.items()],
    indirect=["imported"],
)
def test_stored_results_detect_importer_errors(imported: _Imported, pitfall: _Pitfall) -> None:
    portable = PortableModel.open(imported.ours)
    weights = {name: tensor.clone() for name, tensor in portable.load().state_dict().items()}
    pitfall.weights(weights)
    network = load_weights(dataclasses.replace(portable.config, **pitfall.config), weights, imported.ours)
    pairs = [(pitfall.source(source), target) for source, target in imported.system.pairs]

    steps = list(score_at_once(network, pairs))

    differences = [
        abs(steps[place][row][token_id] - imported.expected[row].log_probs[place])
        for row, (_, target) in enumerate(pairs)
        for place, token_id in enumerate(target)
    ]
    assert max(differences) > 10 * LOG_PROB_TOLERANCE


@pytest.mark.parametrize(
    "imported", [(name, case) for name in SYSTEMS if name != "fairseq" for case in SYSTEMS[name].cases], indirect=True
)
@pytest.mark.filterwarnings("ignore")
def test_verify_compares_with_an_installed_library(
    imported: _Imported, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec(imported.system.module) is None:
        pytest.skip(f"{imported.system.module} is not installed")
    lines = [f"{source}\t{target}\n" for source, target in itertools.pairwise(SOURCES)]
    (tmp_path / "text.tsv").write_text("".join(lines), encoding="utf-8")
    compared = ["--checkpoint", str(imported.ours), "--original", str(imported.theirs)]

    status = main(["verify", "--bundle", str(imported.bundle), *compared, "--data", str(tmp_path / "text.tsv")])

    message = capsys.readouterr().out
    assert status == 0
    for claim in ("token ids", "ONNX fp32", "greedy", "beam 4, length given"):
        assert re.search(rf"^{claim} = original .* yes ", message, re.MULTILINE)


def _decode(graph: OnnxStepModel, source_ids: list[int]) -> list[int]:
    search = SearchConfig(
        beam_size=BEAM_SIZE, length_penalty=0.0, min_target_tokens=SHORTEST, max_target_tokens=LONGEST
    )
    return search_exported(graph, source_ids, search)
