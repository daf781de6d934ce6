import gzip
from itertools import islice
from pathlib import Path

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.peers import work
from loadtests.peers.systems import SearchOptions

_VOCABULARY = {"vocabulary_size": 100, "eos_id": 2}
_SENTENCES = ["Two dogs are playing in the snow.", "Nobody knew."]


def test_random_sources_are_the_same_in_every_run_and_end_with_eos() -> None:
    sources = work.random_sources(5, **_VOCABULARY)

    assert sources == work.random_sources(5, **_VOCABULARY)
    assert {len(source) for source in sources} == {24}
    assert all(source[-1] == 2 and min(source[:-1]) > 3 for source in sources)


def test_a_target_is_limited_by_its_source_and_by_the_model() -> None:
    search, fixed = SearchOptions(extra_target_tokens=50, max_target_tokens=256), work.fixed_length(32)

    assert [search.longest_target([(1,) * length, (1,)]) for length in (10, 300)] == [60, 256]
    assert fixed.min_target_tokens == fixed.longest_target([(1,) * 5]) == 32


def test_lone_sentences_come_one_a_call_and_the_short_mode_has_fewer_cases() -> None:
    sources = work.random_sources(100, **_VOCABULARY)
    lone, everything = work.shipped_cases("set", sources, references=("r",) * 100, mode="short")
    cases, short = ({case.name for case in work.base_cases(mode)} for mode in ("full", "short"))

    assert (lone.call_size, everything.call_size, lone.references) == (1, 100, ())
    assert set(lone.sources) <= set(sources)
    assert short < cases


def test_test_sets_are_sampled_at_even_distances_with_references(tmp_path: Path) -> None:
    path = tmp_path / "tatoeba-en-de" / "test.tsv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"".join(b"s%d\tt%d\n" % (number, number) for number in range(10))))

    assert work.sentence_sets(tmp_path, size=3) == [("tatoeba", ("s0", "s3", "s6"), ("t0", "t3", "t6"))]
    assert work.sample(range(2), 3) == [0, 1]


def test_without_data_the_built_in_sentences_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)

    ((name, texts, references),) = work.sentence_sets(None, size=20)
    sentences = work.real_sentences(None)

    assert (name, len(texts), references) == ("built-in", 20, ())
    assert len(sentences) > 50
    assert not any("\n" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("model", "texts", "options"),
    [
        ("shipped", _SENTENCES, pb.DecodingOptions(early_stopping=True)),  # as far as the others search
        ("base", work.made_up_sentences(_SENTENCES), pb.DecodingOptions(early_stopping=True, repetition_guard=False)),
    ],
)
def test_a_call_is_one_sentence(tmp_path: Path, model: str, texts: list[str], options: pb.DecodingOptions) -> None:
    calls = islice(work.workload(model, _SENTENCES, directory=tmp_path).calls(seed=1), 20)

    requests = [pb.TranslateRequest.FromString(call.messages[0]) for call in calls]
    assert {tuple(request.texts) for request in requests} == {(text,) for text in texts}
    assert all(request.options == options for request in requests)


def test_made_up_sentences_are_as_long_as_real_ones_and_equal_places_are_counted() -> None:
    assert [len(text.split()) for text in work.made_up_sentences(_SENTENCES)] == [8, 3]
    assert work.share_of_equal([(1,), (2, 3), (4,), (5,)], [(1,), (2,), (4,), (5,)]) == 0.75
