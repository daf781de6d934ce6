import gzip
from itertools import islice
from pathlib import Path

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.peers.sentences import made_up_sentences, real_sentences, sample, sentence_sets, share_of_equal, workload


def test_samples_are_taken_at_even_distances_and_equal_places_are_counted() -> None:
    assert sample(range(10), 3) == [0, 3, 6]
    assert sample(range(2), 3) == [0, 1]
    assert share_of_equal([(1,), (2, 3), (4,), (5,)], [(1,), (2,), (4,), (5,)]) == 0.75


def test_test_sets_come_with_references(tmp_path: Path) -> None:
    path = tmp_path / "tatoeba-en-de" / "test.tsv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"one\teins\ntwo\tzwei\n"))

    (found,) = sentence_sets(tmp_path, size=5)

    assert (found.name, found.texts, found.references) == ("tatoeba", ("one", "two"), ("eins", "zwei"))


def test_without_data_the_built_in_sentences_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)

    (found,) = sentence_sets(None, size=20)
    sentences = real_sentences(None)

    assert (found.name, len(found.texts), found.references) == ("built-in", 20, ())
    assert len(sentences) > 50
    assert not any("\n" in sentence for sentence in sentences)


_SENTENCES = ["Two dogs are playing in the snow.", "Nobody knew."]


def _requests(model: str, directory: Path, count: int) -> list[pb.TranslateRequest]:
    calls = workload(model, _SENTENCES, directory=directory).calls(seed=1)
    return [pb.TranslateRequest.FromString(call.messages[0]) for call in islice(calls, count)]


def test_a_call_is_one_sentence_searched_as_far_as_the_others_do(tmp_path: Path) -> None:
    for request in _requests("shipped", tmp_path, 20):
        assert len(request.texts) == 1
        assert request.texts[0] in _SENTENCES
        assert request.options == pb.DecodingOptions(early_stopping=True)


def test_made_up_sentences_are_as_long_as_real_ones_and_not_searched_for_repetitions(tmp_path: Path) -> None:
    (request,) = _requests("base", tmp_path, 1)
    made_up = made_up_sentences(_SENTENCES)

    assert [len(text.split()) for text in made_up] == [8, 3]
    assert made_up == made_up_sentences(_SENTENCES)
    assert request.texts[0] in made_up
    assert request.options == pb.DecodingOptions(early_stopping=True, repetition_guard=False)
