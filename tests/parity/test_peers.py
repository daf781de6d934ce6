"""The systems compared with must compute what we compute, or a comparison of their speed says nothing."""

from dataclasses import replace

import pytest
import torch

from loadtests.peers.models import SPECIAL_IDS, network_of
from loadtests.peers.pytorch_system import load_network, padded
from loadtests.peers.shares import measure_share
from loadtests.peers.systems import (
    ModelFiles,
    Output,
    Peer,
    SearchOptions,
    SystemSettings,
    TokenIds,
    Work,
    WorkerError,
    Workers,
    open_system,
)
from loadtests.peers.work import random_sources, share_of_equal
from tests.tiny_bundle import tiny_vocabulary
from tests.unit.loadtests.peers.tiny_files import write_tiny_model

_LOGIT_TOLERANCE = 1e-4
"""32-bit floats added up in another order, over logits of about 10."""
_SCORE_TOLERANCE = 1e-3
"""The same over the 30 tokens of a target."""
_SEARCH = SearchOptions(max_target_tokens=30)
_SOURCES = tuple(
    source[index:]  # of different lengths, so that there is padding
    for index, source in enumerate(random_sources(12, vocabulary_size=len(tiny_vocabulary()), eos_id=2))
)


@pytest.fixture(scope="module", params=["pre", "post"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_tiny_model(tmp_path_factory.mktemp("peers") / request.param, norm=request.param)


def _translate(files: ModelFiles, peer: Peer, search: SearchOptions, *, num_streams: int = 1) -> list[Output]:
    if peer in ("ctranslate2", "transformers"):
        pytest.importorskip(peer, reason="not installed: pip install '.[bench]'")
    system = open_system(files, SystemSettings(peer=peer, precision="fp32", num_streams=num_streams))
    return system.translate(_SOURCES, search, batch_size=5)


@pytest.mark.parametrize("peer", ["pytorch", "transformers", "ctranslate2"])
def test_all_systems_find_the_same_hypotheses_with_the_same_scores(files: ModelFiles, peer: Peer) -> None:
    suppressed = replace(_SEARCH, suppressed_tokens=SPECIAL_IDS)
    found: list[list[TokenIds]] = [
        [output.token_ids for output in _translate(files, name, suppressed)] for name in ("dragoman", peer)
    ]
    # Scores without suppressed tokens: CTranslate2 gives their probability to the others.
    scores = [[output.score for output in _translate(files, name, _SEARCH)] for name in ("pytorch", peer)]

    assert share_of_equal(*found) >= 0.9  # of equally good ones either may be taken
    assert scores[0] == pytest.approx(scores[1], abs=_SCORE_TOLERANCE)


@pytest.mark.parametrize("peer", ["dragoman", "pytorch", "transformers", "ctranslate2"])
def test_a_fixed_length_is_kept_by_every_system(files: ModelFiles, peer: Peer) -> None:
    outputs = _translate(files, peer, replace(_SEARCH, min_target_tokens=10, max_target_tokens=10))

    assert {len(output.token_ids) for output in outputs} == {10}


def test_transformers_has_the_logits_of_our_network(files: ModelFiles) -> None:
    pytest.importorskip("transformers", reason="not installed: pip install '.[bench]'")
    from loadtests.peers.transformers_system import convert  # noqa: PLC0415 - it may not be installed

    network = network_of(files)
    ours, theirs = load_network(network), convert(network)
    ids, mask = padded(_SOURCES, 0)
    targets = torch.tensor([[1, *source[:4]] for source in _SOURCES])

    with torch.inference_mode():
        expected = ours.decode(targets, ours.encode(ids, mask), mask)
        found = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=targets).logits

    assert torch.allclose(found, expected, atol=_LOGIT_TOLERANCE)


def test_streams_and_a_process_of_its_own_give_the_same(files: ModelFiles) -> None:
    settings = SystemSettings(peer="dragoman", precision="fp32")

    with Workers(files) as workers:
        done = workers.run(settings, Work(sources=_SOURCES, search=_SEARCH, sources_per_call=1))

    assert list(done.outputs) == _translate(files, "dragoman", _SEARCH)
    assert list(done.outputs) == _translate(files, "dragoman", _SEARCH, num_streams=2)
    assert len(done.latencies_s) == len(_SOURCES)


@pytest.mark.slow
def test_a_process_that_fails_is_an_error_and_no_endless_wait(files: ModelFiles) -> None:
    work = Work(sources=((10**6, 2),), search=_SEARCH)

    with Workers(files) as workers, pytest.raises(WorkerError, match="pytorch-fp32"):
        workers.run(SystemSettings(peer="pytorch", precision="fp32"), work)


def test_the_share_outside_the_runtime_is_a_share(files: ModelFiles) -> None:
    assert 0 < measure_share(files, batch_size=4) < 1
