from itertools import islice
from pathlib import Path

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.peers.under_load.workloads import made_up_sentences, real_sentences, workload

_SENTENCES = ["Two dogs are playing in the snow.", "Nobody knew."]


def _requests(model: str, directory: Path, count: int) -> list[pb.TranslateRequest]:
    calls = workload(model, _SENTENCES, directory=directory, deadline_s=5.0).calls(seed=1)
    return [pb.TranslateRequest.FromString(call.messages[0]) for call in islice(calls, count)]


def test_a_call_is_one_sentence_searched_as_far_as_the_rivals_do(tmp_path: Path) -> None:
    for request in _requests("shipped", tmp_path, 20):
        assert len(request.texts) == 1
        assert request.texts[0] in _SENTENCES
        assert request.options == pb.DecodingOptions(early_stopping=True)


def test_a_network_that_says_nothing_is_not_watched_for_saying_it_again(tmp_path: Path) -> None:
    (request,) = _requests("base", tmp_path, 1)

    assert request.options == pb.DecodingOptions(early_stopping=True, repetition_guard=False)
    assert request.texts[0] in made_up_sentences(_SENTENCES)


def test_made_up_sentences_are_as_long_as_real_ones_and_the_same_in_every_run() -> None:
    made_up = made_up_sentences(_SENTENCES)

    assert [len(text.split()) for text in made_up] == [8, 3]
    assert made_up == made_up_sentences(_SENTENCES)


def test_without_test_sets_the_documents_have_sentences_on_one_line_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)

    sentences = real_sentences(None)

    assert len(sentences) > 50
    assert not any("\n" in sentence for sentence in sentences)
