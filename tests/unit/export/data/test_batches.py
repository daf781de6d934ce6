import dataclasses
from collections import Counter
from collections.abc import Sequence

from dragoman_export.data.batches import (
    BatchingConfig,
    CorpusPart,
    EncodedCorpus,
    Epoch,
    TokenBlock,
    TokenLists,
    make_batch,
)
from tests.unit.export.tiny_training import tiny_vocabulary


def make_corpus(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> EncodedCorpus:
    return EncodedCorpus(
        sources=TokenLists([source for source, _ in pairs]), targets=TokenLists([target for _, target in pairs])
    )


def block(*lists: Sequence[int]) -> TokenBlock:
    return TokenBlock.of(lists)


def test_batch_is_padded_and_its_decoder_input_shifted() -> None:
    batch = make_batch(block([5, 6, 2], [7, 2]), block([8, 2], [9, 10, 11, 2]))

    assert batch.source_ids.tolist() == [[5, 6, 2], [7, 2, 0]]
    assert batch.source_mask is not None
    assert batch.source_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.target_ids.tolist() == [[1, 8, 2, 0], [1, 9, 10, 11]]
    assert batch.labels.tolist() == [8, 2, 9, 10, 11, 2]
    assert batch.label_positions.tolist() == [0, 1, 4, 5, 6, 7]
    assert make_batch(block([2], [2]), block([2], [2])).source_mask is None


def all_sources(epoch: Epoch) -> list[list[int]]:
    return [row for index in range(len(epoch)) for row in epoch.batch(index).source_ids.tolist()]


def test_joined_pairs_equal_joined_texts() -> None:
    vocabulary, texts = tiny_vocabulary(), ["red house", "BLUE 12 €", "cat"]
    corpus = make_corpus([(ids, ids) for ids in vocabulary.encode(texts)])

    epoch = Epoch(corpus, BatchingConfig(batch_tokens=1, max_tokens=99, concatenate=0.99), 0)

    rows = all_sources(epoch)
    assert len(rows) < len(texts)
    assert vocabulary.encode(vocabulary.decode(rows)) == rows


def test_share_of_joined_examples() -> None:
    corpus = make_corpus([([number + 3, 2], [2]) for number in range(4000)])
    config = BatchingConfig(batch_tokens=100, max_tokens=9, concatenate=0.25)

    epoch = Epoch(corpus, config, 0)

    lengths = [len([token for token in row if token > 2]) for row in all_sources(epoch)]
    assert abs(sum(length > 1 for length in lengths) / len(lengths) - 0.25) < 0.01


def test_pairs_too_long_together_are_not_joined() -> None:
    corpus = make_corpus([([5, 6, 7, 2], [5, 2])] * 20)

    epoch = Epoch(corpus, BatchingConfig(batch_tokens=50, max_tokens=6, concatenate=0.9), 0)

    assert all_sources(epoch) == [[5, 6, 7, 2]] * 20


def test_copies_of_a_pair_are_separate_examples() -> None:
    corpus = make_corpus([([number + 3, 2], [number + 3, 2]) for number in range(6)])
    weighted = dataclasses.replace(corpus, parts=(CorpusPart(4, 0.5), CorpusPart(2, 3.0)))
    config = BatchingConfig(batch_tokens=10, max_tokens=9)

    epochs = [Epoch(weighted, config, number) for number in (0, 0, 1)]

    assert all_sources(epochs[0]) == all_sources(epochs[1])
    counted = [Counter(row[0] - 3 for row in all_sources(epoch)) for epoch in epochs[1:]]
    assert counted[0] + counted[1] == Counter({0: 1, 1: 1, 2: 1, 3: 1, 4: 6, 5: 6})
    assert [len(each) for each in counted] == [4, 4]
    assert epochs[0].num_target_tokens == 2 * 8


def test_joined_pairs_have_one_language_and_one_prefix() -> None:
    corpus = make_corpus([([number + 100, 2], [number + 100, 2]) for number in range(300)])
    parts = tuple(CorpusPart(100, 1.0, ("en", language), (token,)) for language, token in (("de", 5), ("fr", 6)))
    same = CorpusPart(100, 1.0, ("en", "de"), (5,))
    config = BatchingConfig(batch_tokens=50, max_tokens=4, concatenate=0.5)

    rows = all_sources(Epoch(dataclasses.replace(corpus, parts=(*parts, same)), config, 0))

    of_language = {5: {*range(100, 200), *range(300, 400)}, 6: set(range(200, 300))}
    texts = [[token for token in row[1:] if token > 2] for row in rows]
    assert all(set(text) <= of_language[row[0]] for row, text in zip(rows, texts, strict=True))
    assert sorted(token for text in texts for token in text) == list(range(100, 400))
    assert max(map(len, rows)) == 4  # with prefix and EOS
    assert any(min(text) < 200 and max(text) >= 300 for text in texts)  # two files of one pair
