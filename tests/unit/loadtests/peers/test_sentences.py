import gzip
from pathlib import Path

import pytest

from loadtests.peers.sentences import sample, sentence_sets


def test_a_sample_is_taken_at_even_distances() -> None:
    assert sample(range(10), 3) == [0, 3, 6]
    assert sample(range(2), 3) == [0, 1]


def test_test_sets_come_with_references(tmp_path: Path) -> None:
    path = tmp_path / "tatoeba-en-de" / "test.tsv.gz"
    path.parent.mkdir()
    path.write_bytes(gzip.compress(b"one\teins\ntwo\tzwei\n"))

    (found,) = sentence_sets(tmp_path, size=5)

    assert (found.name, found.texts, found.references) == ("tatoeba", ("one", "two"), ("eins", "zwei"))


def test_without_data_the_documents_of_the_repository_are_translated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAGOMAN_DATA", raising=False)

    (found,) = sentence_sets(None, size=20)

    assert found.name == "documents"
    assert len(found.texts) == 20
    assert not found.references
