"""The systems compared with must compute what we compute, or a comparison of their speed says nothing."""

import math
from dataclasses import replace
from typing import Literal

import pytest
import torch

from export.graph.network import Network
from loadtests.peers.cases import random_sources
from loadtests.peers.models import SPECIAL_IDS, made_up_vocabulary, network_of, write_model
from loadtests.peers.pytorch_system import load_network, padded
from loadtests.peers.sentences import share_of_equal
from loadtests.peers.shares import measure_share
from loadtests.peers.systems import ModelFiles, Output, Peer, SearchOptions, SystemSettings, TokenIds
from loadtests.peers.workers import Task, WorkerError, Workers, open_system
from service.bundle import Limits
from tests.tiny_bundle import tiny_model, tiny_vocabulary

Norm = Literal["pre", "post"]

_LOGIT_TOLERANCE = 1e-4
"""32-bit floats added up in another order, over logits of about 10."""
_SCORE_TOLERANCE = 1e-3
"""The same over the 30 tokens of a target."""
_LIMITS = Limits(max_source_tokens=64, max_target_tokens=64)
_SEARCH = SearchOptions(max_target_tokens=30)
_PEERS: tuple[Peer, ...] = ("pytorch", "transformers", "ctranslate2")


@pytest.fixture(scope="module", params=["pre", "post"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    vocabulary = tiny_vocabulary()
    network = Network.of(tiny_model(len(vocabulary), norm=request.param))
    return write_model(tmp_path_factory.mktemp("peers") / request.param, network, vocabulary, _LIMITS)


@pytest.fixture(scope="module")
def sources() -> tuple[TokenIds, ...]:
    """Of different lengths, so that there is padding."""
    whole = random_sources(12, vocabulary_size=len(tiny_vocabulary()), eos_id=2)
    return tuple(source[index:] for index, source in enumerate(whole))


def _translate(
    files: ModelFiles, peer: Peer, sources: tuple[TokenIds, ...], search: SearchOptions, *, num_streams: int = 1
) -> list[Output]:
    if peer == "ctranslate2" and not files.ctranslate2_path.exists():
        pytest.importorskip("ctranslate2", reason="CTranslate2 is not installed: pip install '.[bench]'")
        from loadtests.peers.ctranslate2_system import convert  # noqa: PLC0415 - it may not be installed

        convert(network_of(files), files.ctranslate2_path)
    if peer == "transformers":
        pytest.importorskip("transformers", reason="Transformers is not installed: pip install '.[bench]'")
    system = open_system(files, SystemSettings(peer=peer, precision="fp32", num_streams=num_streams))
    outputs = system.translate(sources, search, batch_size=5)
    system.close()
    return outputs


@pytest.mark.parametrize("peer", _PEERS)
def test_all_systems_find_the_same_hypotheses(files: ModelFiles, sources: tuple[TokenIds, ...], peer: Peer) -> None:
    search = replace(_SEARCH, suppressed_tokens=SPECIAL_IDS)

    ours = _translate(files, "dragoman", sources, search)
    theirs = _translate(files, peer, sources, search)

    assert (
        share_of_equal([one.token_ids for one in ours], [one.token_ids for one in theirs]) >= 0.9
    )  # of equally good ones either may be taken


@pytest.mark.parametrize("peer", ["transformers", "ctranslate2"])
def test_all_systems_give_a_hypothesis_the_same_score(
    files: ModelFiles, sources: tuple[TokenIds, ...], peer: Peer
) -> None:
    """Without suppressed tokens: CTranslate2 gives their probability to the others."""
    ours = _translate(files, "pytorch", sources, _SEARCH)
    theirs = _translate(files, peer, sources, _SEARCH)

    for mine, other in zip(ours, theirs, strict=True):
        assert math.isclose(mine.score, other.score, abs_tol=_SCORE_TOLERANCE)


@pytest.mark.parametrize("peer", ["dragoman", *_PEERS])
def test_a_fixed_length_is_kept_by_every_system(files: ModelFiles, sources: tuple[TokenIds, ...], peer: Peer) -> None:
    search = replace(_SEARCH, min_target_tokens=10, max_target_tokens=10)

    outputs = _translate(files, peer, sources, search)

    assert {len(output.token_ids) for output in outputs} == {10}


def test_streams_share_the_work_and_keep_the_order(files: ModelFiles, sources: tuple[TokenIds, ...]) -> None:
    assert _translate(files, "dragoman", sources, _SEARCH, num_streams=2) == _translate(
        files, "dragoman", sources, _SEARCH
    )


def test_transformers_has_the_logits_of_our_network(files: ModelFiles, sources: tuple[TokenIds, ...]) -> None:
    pytest.importorskip("transformers", reason="Transformers is not installed: pip install '.[bench]'")
    from loadtests.peers.transformers_system import convert  # noqa: PLC0415 - it may not be installed

    network = network_of(files)
    ours, theirs = load_network(network), convert(network)
    ids, mask = padded(sources, 0)
    targets = torch.tensor([[1, *source[:4]] for source in sources])

    with torch.inference_mode():
        expected = ours.decode(targets, ours.encode(ids, mask), mask)
        found = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=targets).logits

    assert torch.allclose(found, expected, atol=_LOGIT_TOLERANCE)


def test_a_worker_translates_in_its_own_process(files: ModelFiles, sources: tuple[TokenIds, ...]) -> None:
    settings = SystemSettings(peer="dragoman", precision="fp32")

    with Workers(files) as workers:
        result = workers.run(Task(settings=settings, sources=sources, search=_SEARCH, sources_per_call=1))

    assert list(result.outputs) == _translate(files, "dragoman", sources, _SEARCH)
    assert len(result.latencies_s) == len(sources)


@pytest.mark.slow
def test_a_worker_that_fails_is_an_error_and_no_endless_wait(files: ModelFiles) -> None:
    task = Task(settings=SystemSettings(peer="pytorch", precision="fp32"), sources=((10**6, 2),), search=_SEARCH)

    with Workers(files) as workers, pytest.raises(WorkerError, match="pytorch-fp32"):
        workers.run(task)


def test_the_share_outside_the_runtime_is_a_share(files: ModelFiles) -> None:
    assert 0 < measure_share(files, batch_size=4) < 1


def test_a_made_up_vocabulary_has_the_size_asked_for() -> None:
    assert len(made_up_vocabulary(500)) == 500
