from dataclasses import replace

from loadtests.peers.cases import Case, fixed_length, random_sources
from loadtests.peers.contenders import contenders
from loadtests.peers.systems import Peer, SystemSettings

_CASE = Case(
    model="base",
    name="batch32",
    sources=random_sources(32, vocabulary_size=100, eos_id=2),
    search=fixed_length(8),
)


def _contenders(case: Case, peer: Peer) -> list[SystemSettings]:
    return contenders(case, peer, "int8", max_threads=2, isas=("", "AVX2"), mode="full")


def _layouts(found: list[SystemSettings]) -> set[tuple[int, int]]:
    return {(settings.num_streams, settings.num_threads) for settings in found}


def test_a_batch_may_be_cut_for_several_streams_or_given_to_all_threads() -> None:
    found = _contenders(_CASE, "ctranslate2")

    assert _layouts(found) == {(1, 1), (1, 2), (2, 1)}
    assert {settings.batch_size for settings in found if settings.num_streams == 2} == {16, 32}


def test_many_cores_are_tried_in_powers_of_two() -> None:
    found = contenders(_CASE, "dragoman", "int8", max_threads=6, isas=("",), mode="short")

    assert _layouts(found) == {(1, 1), (1, 2), (1, 4), (1, 6), (2, 1), (2, 2), (4, 1), (6, 1)}


def test_a_lone_sentence_has_one_stream() -> None:
    assert _layouts(_contenders(replace(_CASE, sources_per_call=1), "dragoman")) == {(1, 1), (1, 2)}


def test_only_ctranslate2_is_tried_with_instruction_sets() -> None:
    assert {settings.isa for settings in _contenders(_CASE, "ctranslate2")} == {"", "AVX2"}
    assert {settings.isa for settings in _contenders(_CASE, "dragoman")} == {""}


def test_pytorch_has_one_stream() -> None:
    assert _layouts(_contenders(_CASE, "pytorch")) == {(1, 1), (1, 2)}


def test_many_sources_are_cut_into_batches() -> None:
    sources = random_sources(200, vocabulary_size=100, eos_id=2)

    found = _contenders(replace(_CASE, sources=sources), "dragoman")

    assert {settings.batch_size for settings in found} == {16, 32, 64}


def test_nothing_is_tried_where_speed_does_not_matter() -> None:
    assert len(_contenders(replace(_CASE, kind="agreement"), "ctranslate2")) == 1
