"""Checkpoints of fairseq, OpenNMT-py and eole, compared with the results of these libraries."""

import importlib.util
import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from dragoman_export.__main__ import main
from dragoman_export.evaluation.verification import score_at_once, score_exported
from dragoman_export.importers.portable import PortableModel
from dragoman_export.importers.reference_models.checks import search_exported
from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import SearchConfig
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from tests.foreign_checkpoints.__main__ import EXPECTED, SYSTEMS, System
from tests.foreign_checkpoints.libraries import BEAM_SIZE, LONGEST, SHORTEST, LibraryResult
from tests.foreign_models import SOURCES

# largest difference of a log-probability: float32 sums in another order; measured 6e-6
LOG_PROB_TOLERANCE = 2e-5

_EXPECTED = json.loads(EXPECTED.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Imported:
    system: System
    original: Path
    portable: Path
    bundle: Path
    expected: list[LibraryResult]

    def open_graph(self) -> OnnxStepModel:
        return OnnxStepModel(open_bundle(self.bundle), RuntimeSettings(precision="fp32"))


@pytest.fixture(scope="module", params=[(name, case) for name, system in SYSTEMS.items() for case in system.cases])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    name, case = request.param
    directory, system = tmp_path_factory.mktemp(name), SYSTEMS[name]
    original, portable, bundle = directory / "original" / system.file, directory / "portable", directory / "tiny" / "1"
    system.save(directory / "original", system.cases[case])
    assert main(["import", str(original), "--from", name, "--output", str(portable)]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    paths = ["--checkpoint", str(portable), "--output", str(bundle)]
    assert main(["bundle", *paths, "--precisions", "fp32", *named]) == 0
    return _Imported(system, original, portable, bundle, [LibraryResult(**each) for each in _EXPECTED[name][case]])


def test_log_probs_equal_the_original(imported: _Imported) -> None:
    pairs = imported.system.pairs
    network = PortableModel.open(imported.portable).load()

    for scored in (score_at_once(network, pairs), score_exported(imported.open_graph(), pairs)):
        steps = list(scored)
        for row, (result, (_, target)) in enumerate(zip(imported.expected, pairs, strict=True)):
            actual = [steps[place][row][token_id] for place, token_id in enumerate(target)]
            np.testing.assert_allclose(actual, result.log_probs, rtol=0, atol=LOG_PROB_TOLERANCE)


def test_beam_search_equals_the_original(imported: _Imported) -> None:
    graph = imported.open_graph()
    search = SearchConfig(
        beam_size=BEAM_SIZE, length_penalty=0.0, min_target_tokens=SHORTEST, max_target_tokens=LONGEST
    )

    found = [search_exported(graph, source, search) for source, _ in imported.system.pairs]

    assert found == [result.beam for result in imported.expected]


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
    compared = ["--checkpoint", str(imported.portable), "--original", str(imported.original)]

    status = main(["verify", "--bundle", str(imported.bundle), *compared, "--data", str(tmp_path / "text.tsv")])

    message = capsys.readouterr().out
    assert status == 0
    for claim in ("token ids", "ONNX fp32", "greedy", "beam 4, length given"):
        assert re.search(rf"^{claim} = original .* yes ", message, re.MULTILINE)
