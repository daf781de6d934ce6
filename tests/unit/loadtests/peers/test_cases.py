from loadtests.peers.cases import base_cases, fixed_length, random_sources, selected, shipped_cases
from loadtests.peers.systems import SearchOptions

_VOCABULARY = {"vocabulary_size": 100, "eos_id": 2}


def test_random_sources_are_the_same_in_every_run_and_end_with_eos() -> None:
    sources = random_sources(5, **_VOCABULARY)

    assert sources == random_sources(5, **_VOCABULARY)
    assert {len(source) for source in sources} == {24}
    assert all(source[-1] == 2 and min(source[:-1]) > 3 for source in sources)


def test_a_target_is_limited_by_its_source_and_by_the_model() -> None:
    search, fixed = SearchOptions(extra_target_tokens=50, max_target_tokens=256), fixed_length(32)

    assert [search.longest_target(length) for length in (10, 300)] == [60, 256]
    assert fixed.min_target_tokens == fixed.longest_target(5) == 32


def test_cases_are_chosen_by_mode_and_by_name_or_its_beginning() -> None:
    cases, short = (base_cases(**_VOCABULARY, mode=mode) for mode in ("full", "short"))

    assert {case.name for case in short} < {case.name for case in cases}
    assert selected(cases, []) == cases
    found = [case.name for case in selected(cases, ["batch8", "length1*"])]
    assert found == ["batch8", "length10", "length100", "length150"]


def test_lone_sentences_come_one_a_call() -> None:
    sources = random_sources(100, **_VOCABULARY)
    lone, everything = shipped_cases("set", sources, references=("r",) * 100, mode="short")

    assert (lone.call_size, everything.call_size) == (1, 100)
    assert set(lone.sources) <= set(sources)
    assert not lone.references
