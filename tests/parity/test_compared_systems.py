"""Parity of the compared systems: a comparison of speed requires equal work."""

import random
from dataclasses import replace

import pytest
import torch

from dragoman_export.importers.bundle import read_network
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.network import Network
from dragoman_service.bundle.architecture import Limits
from loadtests.benchmarks import systems
from loadtests.benchmarks.cases import share_of_equal
from loadtests.benchmarks.interface import ModelFiles, Output, SearchOptions, SystemName, SystemSettings, Work
from loadtests.benchmarks.models import SPECIAL_IDS, write_model
from loadtests.benchmarks.systems import Workers
from tests.tiny_bundle import tiny_model, tiny_vocabulary

_TOLERANCE = 1e-4  # fp32 sums in another order, of logits around 10
_SEARCH = SearchOptions(max_target_tokens=30)
_TOKENS = random.Random(1).choices(range(4, len(tiny_vocabulary())), k=12 * 23)  # noqa: S311 - not for secrets
_SOURCES = tuple((*_TOKENS[23 * index : 23 * (index + 1)], 2)[index:] for index in range(12))  # of 12 to 24 tokens


@pytest.fixture(scope="module", params=["pre", "post"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    network = Network.of(tiny_model(len(tiny_vocabulary()), norm=request.param))
    limits = Limits(max_source_tokens=64, max_target_tokens=64)
    return write_model(tmp_path_factory.mktemp("systems") / request.param, network, tiny_vocabulary(), limits)


def _translate(files: ModelFiles, name: SystemName, search: SearchOptions, *, num_streams: int = 1) -> list[Output]:
    settings = SystemSettings(system=name, precision="fp32", num_streams=num_streams)
    return systems.open_system(files, settings).translate(_SOURCES, search, batch_size=5)


@pytest.mark.parametrize("other", ["transformers", "ctranslate2"])
def test_systems_find_equal_hypotheses_and_scores(files: ModelFiles, other: SystemName) -> None:
    pytest.importorskip(other, reason="not installed: pip install '.[bench]'")
    suppressed = replace(_SEARCH, suppressed_tokens=SPECIAL_IDS)
    fixed = replace(_SEARCH, min_target_tokens=10, max_target_tokens=10)
    ours, theirs = (_translate(files, name, suppressed) for name in ("dragoman", other))
    expected, actual = ours, theirs
    if other == "ctranslate2":  # it gives the probability of suppressed tokens to others
        expected, actual = (_translate(files, name, _SEARCH) for name in ("transformers", other))

    # ties may be broken differently
    assert share_of_equal([one.token_ids for one in ours], [one.token_ids for one in theirs]) >= 0.9
    scores = [one.score for one in expected]
    assert [one.score for one in actual] == pytest.approx(scores, abs=10 * _TOLERANCE)  # over the 30 tokens of a target
    for name in ("dragoman", other):
        assert {len(output.token_ids) for output in _translate(files, name, fixed)} == {10}


def test_transformers_has_equal_logits(files: ModelFiles) -> None:
    pytest.importorskip("transformers", reason="not installed: pip install '.[bench]'")
    from loadtests.benchmarks.system_transformers import convert, padded  # noqa: PLC0415 - it may not be installed

    network = read_network(files.open(), "fp32")
    ours, theirs = Transformer(network.config).eval(), convert(network)
    ours.load_state_dict({name: torch.tensor(weight) for name, weight in network.weights.items()})
    ids, mask = padded(_SOURCES, 0)
    targets = torch.tensor([[1, *source[:4]] for source in _SOURCES])

    with torch.inference_mode():
        expected = ours.decode(targets, ours.encode(ids, mask), mask)
        actual = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=targets).logits

    assert torch.allclose(actual, expected, atol=_TOLERANCE)


def test_streams_and_worker_process_do_not_change_outputs(files: ModelFiles) -> None:
    settings = SystemSettings(system="dragoman", precision="fp32")

    with Workers(files) as workers:
        done = workers.run(settings, Work(sources=_SOURCES, search=_SEARCH, sources_per_call=1))

    for num_streams in (1, 2):
        assert list(done.outputs) == _translate(files, "dragoman", _SEARCH, num_streams=num_streams)
    assert len(done.latencies_s) == len(_SOURCES)
