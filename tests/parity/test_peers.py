"""The systems compared with must compute what we compute, or a comparison of their speed says nothing."""

from dataclasses import replace

import pytest
import torch

from loadtests.peers import pytorch_system, shares, systems
from loadtests.peers.models import SPECIAL_IDS, network_of
from loadtests.peers.systems import ModelFiles, Output, Peer, SearchOptions, SystemSettings, Work, Workers
from loadtests.peers.work import random_sources, share_of_equal
from tests.tiny_bundle import tiny_vocabulary
from tests.unit.loadtests.peers.tiny_files import write_tiny_model

_TOLERANCE = 1e-4
"""32-bit floats added up in another order, over logits of about 10."""
_SEARCH = SearchOptions(max_target_tokens=30)
_WHOLE = random_sources(12, vocabulary_size=len(tiny_vocabulary()), eos_id=2)
_SOURCES = tuple(source[index:] for index, source in enumerate(_WHOLE))
"""Of different lengths, so that there is padding."""


@pytest.fixture(scope="module", params=["pre", "post"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return write_tiny_model(tmp_path_factory.mktemp("peers") / request.param, norm=request.param)


def _translate(files: ModelFiles, peer: Peer, search: SearchOptions, *, num_streams: int = 1) -> list[Output]:
    settings = SystemSettings(peer=peer, precision="fp32", num_streams=num_streams)
    return systems.open_system(files, settings).translate(_SOURCES, search, batch_size=5)


@pytest.mark.parametrize("peer", ["pytorch", "transformers", "ctranslate2"])
def test_all_systems_find_the_same_hypotheses_with_the_same_scores(files: ModelFiles, peer: Peer) -> None:
    if peer != "pytorch":
        pytest.importorskip(peer, reason="not installed: pip install '.[bench]'")
    suppressed = replace(_SEARCH, suppressed_tokens=SPECIAL_IDS)
    fixed = replace(_SEARCH, min_target_tokens=10, max_target_tokens=10)
    ours, theirs = (_translate(files, name, suppressed) for name in ("dragoman", peer))
    # Scores without suppressed tokens: CTranslate2 gives their probability to the others.
    expected, found = ([one.score for one in _translate(files, name, _SEARCH)] for name in ("pytorch", peer))

    # Of equally good ones either may be found.
    assert share_of_equal([one.token_ids for one in ours], [one.token_ids for one in theirs]) >= 0.9
    assert found == pytest.approx(expected, abs=10 * _TOLERANCE)  # over the 30 tokens of a target
    for name in ("dragoman", peer):
        assert {len(output.token_ids) for output in _translate(files, name, fixed)} == {10}


def test_transformers_has_the_logits_of_our_network(files: ModelFiles) -> None:
    pytest.importorskip("transformers", reason="not installed: pip install '.[bench]'")
    from loadtests.peers.transformers_system import convert  # noqa: PLC0415 - it may not be installed

    network = network_of(files)
    ours, theirs = pytorch_system.load_step_model(network), convert(network)
    ids, mask = pytorch_system.padded(_SOURCES, 0)
    targets = torch.tensor([[1, *source[:4]] for source in _SOURCES])

    with torch.inference_mode():
        expected = ours.decode(targets, ours.encode(ids, mask), mask)
        found = theirs(input_ids=ids, attention_mask=mask.long(), decoder_input_ids=targets).logits

    assert torch.allclose(found, expected, atol=_TOLERANCE)


def test_streams_and_a_process_of_its_own_give_the_same(files: ModelFiles) -> None:
    settings = SystemSettings(peer="dragoman", precision="fp32")

    with Workers(files) as workers:
        done = workers.run(settings, Work(sources=_SOURCES, search=_SEARCH, sources_per_call=1))

    for num_streams in (1, 2):
        assert list(done.outputs) == _translate(files, "dragoman", _SEARCH, num_streams=num_streams)
    assert len(done.latencies_s) == len(_SOURCES)


@pytest.mark.slow
def test_a_process_that_fails_is_an_error_and_no_endless_wait(files: ModelFiles) -> None:
    with Workers(files) as workers, pytest.raises(RuntimeError, match="pytorch-fp32"):
        workers.run(SystemSettings(peer="pytorch", precision="fp32"), Work(sources=((10**6, 2),), search=_SEARCH))


def test_the_share_outside_the_runtime_is_a_share(files: ModelFiles) -> None:
    assert 0 < shares.measure_share(files, 4, "onnxruntime") < 1
