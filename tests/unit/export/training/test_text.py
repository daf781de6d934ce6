import pytest

from export.corpus.reader import Pair
from export.errors import CorpusError
from export.training.text import encode_pairs
from tests.unit.export.corpus.tiny_text import tiny_vocabulary


def make_pair(source: str, target: str, line: int) -> Pair:
    return Pair(source=source, target=target, location=f"a.tsv:{line}")


PAIRS = (make_pair("red " * 9, "RED", 1), make_pair("red", "RED", 2), make_pair("red", "RED " * 9, 3))


def test_pairs_with_too_many_tokens_on_a_side_are_left_out_reported_and_counted() -> None:
    reports: list[str] = []

    encoded = encode_pairs(PAIRS, tiny_vocabulary(), max_tokens=5, report=reports.append)

    assert encoded.pairs == (PAIRS[1],)
    assert encoded.num_too_long == 2
    assert [report.split()[0] for report in reports] == ["a.tsv:1:", "a.tsv:3:"]


def test_the_corpus_holds_the_token_ids_of_both_sides() -> None:
    vocabulary = tiny_vocabulary()

    corpus = encode_pairs(PAIRS, vocabulary, max_tokens=99, report=print).corpus

    assert [corpus.targets[index].tolist() for index in range(3)] == vocabulary.encode([pair.target for pair in PAIRS])
    assert corpus.sources.lengths.tolist() == [len(ids) for ids in vocabulary.encode([pair.source for pair in PAIRS])]


def test_text_of_which_nothing_is_left_is_refused() -> None:
    with pytest.raises(CorpusError, match="every pair has more than 1 tokens"):
        encode_pairs(PAIRS, tiny_vocabulary(), max_tokens=1, report=lambda _: None)
