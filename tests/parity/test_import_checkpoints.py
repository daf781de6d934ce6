"""Checkpoints of fairseq and JoeyNMT, imported, against what these libraries compute (`foreign_checkpoints`)."""

import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from dragoman.v1 import translation_pb2 as pb

from export.__main__ import main
from export.graph.verify import score_at_once, score_exported
from export.importers.portable import PortableModel
from service.bundle import open_bundle
from service.datatypes import SearchConfig, Segment
from service.decoding.running_batch import RunningBatch
from service.runtime.onnx_model import OnnxStepModel
from service.runtime.settings import RuntimeSettings
from service.text.tokenizer import open_tokenizer
from tests.foreign_checkpoints import BEAM_SIZE, EXPECTED, LONGEST, SHORTEST, SYSTEMS, Said, System
from tests.foreign_models import SOURCES
from tests.integration.running_server import running_server

LOG_PROB_TOLERANCE = 1e-4
"""Largest difference of a log-probability: both add the same float32 products in other orders."""

_EXPECTED = json.loads(EXPECTED.read_text(encoding="utf-8"))


@dataclass(frozen=True)
class _Imported:
    system: System
    theirs: Path
    ours: Path
    models: Path
    expected: list[Said]

    @property
    def bundle(self) -> Path:
        return self.models / "tiny" / "1"

    def open_graph(self) -> OnnxStepModel:
        return OnnxStepModel(open_bundle(self.bundle), RuntimeSettings(precision="fp32"))


@pytest.fixture(scope="module", params=[(name, case) for name, system in SYSTEMS.items() for case in system.cases])
def imported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> _Imported:
    name, case = request.param
    directory = tmp_path_factory.mktemp(name)
    expected = [Said(**said) for said in _EXPECTED[name][case]]
    made = _Imported(SYSTEMS[name], directory / "theirs", directory / "ours", directory / "models", expected)
    SYSTEMS[name].save(made.theirs, SYSTEMS[name].cases[case])
    assert main(["import", str(made.theirs), "--from", name, "--output", str(made.ours)]) == 0
    named = ["--name", "tiny", "--version", "1", "--source-language", "en", "--target-language", "de"]
    places = ["--checkpoint", str(made.ours), "--output", str(made.bundle)]
    assert main(["bundle", *places, "--precisions", "fp32", *named]) == 0
    return made


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.filterwarnings("ignore")
def test_the_library_still_says_what_is_stored(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: its stored results are used")
    for case, options in SYSTEMS[name].cases.items():
        SYSTEMS[name].save(tmp_path / case, options)

        for found, expected in zip(SYSTEMS[name].run(tmp_path / case), _EXPECTED[name][case], strict=True):
            np.testing.assert_allclose(found.log_probs, expected["log_probs"], rtol=0, atol=LOG_PROB_TOLERANCE)
            assert found.beam == expected["beam"]


def test_log_probs_are_those_of_the_original(imported: _Imported) -> None:
    pairs = imported.system.pairs
    network = PortableModel.open(imported.ours).load()

    for scored in (score_at_once(network, pairs), score_exported(imported.open_graph(), pairs)):
        steps = list(scored)
        for row, (said, (_, target)) in enumerate(zip(imported.expected, pairs, strict=True)):
            found = [steps[place][row][token_id] for place, token_id in enumerate(target)]
            np.testing.assert_allclose(found, said.log_probs, rtol=0, atol=LOG_PROB_TOLERANCE)


def test_a_beam_search_finds_what_the_original_finds(imported: _Imported) -> None:
    graph = imported.open_graph()

    assert [_decode(graph, source) for source, _ in imported.system.pairs] == [said.beam for said in imported.expected]


@pytest.mark.parametrize("imported", [(name, next(iter(SYSTEMS[name].cases))) for name in SYSTEMS], indirect=True)
async def test_a_served_answer_has_the_tokens_that_the_original_would_read_and_find(imported: _Imported) -> None:
    tokenizer = open_tokenizer(open_bundle(imported.bundle))
    graph = imported.open_graph()
    expected = [_decode(graph, tokenizer.encode_pair(text, "")[0]) for text in SOURCES]
    options = pb.DecodingOptions(
        beam_size=BEAM_SIZE,
        min_target_tokens=SHORTEST,
        max_target_tokens=LONGEST,
        length_penalty=0.0,
        repetition_guard=False,
        split_sentences=False,
        return_tokens=True,
    )

    async with running_server(imported.models) as server:
        response = await server.translate(*SOURCES, options=options)

    found = [translation.hypotheses[0] for translation in response.translations]
    assert [list(each.tokens) for each in found] == [tokenizer.pieces(ids) for ids in expected]
    assert [each.text for each in found] == [tokenizer.decode(ids) for ids in expected]


def _decode(graph: OnnxStepModel, source_ids: list[int]) -> list[int]:
    search = SearchConfig(
        beam_size=BEAM_SIZE, length_penalty=0.0, min_target_tokens=SHORTEST, max_target_tokens=LONGEST
    )
    batch = RunningBatch(graph)
    batch.start([Segment(source_ids=tuple(source_ids), search=search)])
    while not (ended := batch.step().ended):
        pass
    return list(ended[0].hypotheses[0].token_ids)
