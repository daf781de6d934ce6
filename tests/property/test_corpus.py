"""Batches and vocabularies of any text."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dragoman_export.data.batches import Batch, BatchingConfig, EncodedCorpus, Epoch, TokenLists
from dragoman_export.data.vocabulary import UNK_ID
from tests.unit.export.tiny_training import tiny_vocabulary

EOS = 2
FIRST = 10

LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=40)
CONFIGS = st.builds(
    BatchingConfig,
    batch_tokens=st.integers(1, 60),
    max_tokens=st.integers(1, 30),
    concatenate=st.sampled_from([0.0, 0.1, 0.5, 0.9]),
    pool_size=st.integers(1, 50),
    seed=st.integers(0, 9),
)


def make_corpus(lengths: list[tuple[int, int]]) -> EncodedCorpus:
    """Return a corpus in which all tokens of pair i, except EOS, are FIRST + i."""
    sources, targets = (
        TokenLists([[FIRST + index] * (pair[side] - 1) + [EOS] for index, pair in enumerate(lengths)])
        for side in (0, 1)
    )
    return EncodedCorpus(sources=sources, targets=targets)


def batches_of(lengths: list[tuple[int, int]], config: BatchingConfig, epoch: int = 0) -> list[Batch]:
    planned = Epoch(make_corpus(lengths), config, epoch)
    return [planned.batch(index) for index in range(len(planned))]


@given(lengths=LENGTHS, config=CONFIGS, epoch=st.integers(0, 3))
def test_every_pair_is_in_an_epoch_once_within_the_budget(
    lengths: list[tuple[int, int]], config: BatchingConfig, epoch: int
) -> None:
    batches, again = (batches_of(lengths, config, epoch) for _ in range(2))

    learned = Counter(token for batch in batches for token in batch.labels.tolist() if token != EOS)
    assert learned == Counter({FIRST + index: target - 1 for index, (_, target) in enumerate(lengths) if target > 1})
    read = Counter(token for batch in batches for token in batch.source_ids.flatten().tolist() if token >= FIRST)
    assert read == Counter({FIRST + index: source - 1 for index, (source, _) in enumerate(lengths) if source > 1})
    for batch, same in zip(batches, again, strict=True):
        longest_side = max(batch.source_ids.numel(), batch.target_ids.numel())
        assert longest_side <= config.batch_tokens or len(batch.source_ids) == 1
        assert batch.source_ids.tolist() == same.source_ids.tolist()
        assert batch.target_ids.tolist() == same.target_ids.tolist()


@given(lengths=LENGTHS, config=CONFIGS)
def test_joined_pairs_have_the_same_order_on_both_sides(lengths: list[tuple[int, int]], config: BatchingConfig) -> None:
    long_enough = [(source + 1, target + 1) for source, target in lengths]

    for batch in batches_of(long_enough, config):
        for source, target in zip(batch.source_ids.tolist(), batch.target_ids.tolist(), strict=True):
            assert pairs_in_order(source) == pairs_in_order(target)
            assert len(pairs_in_order(source)) == 1 or source.count(EOS) <= 1


def pairs_in_order(token_ids: list[int]) -> list[int]:
    return list(dict.fromkeys(token for token in token_ids if token >= FIRST))


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁"), max_size=30))
def test_encoding_is_reversible_without_unknown_tokens(text: str) -> None:
    vocabulary = tiny_vocabulary("identity")  # others change characters; "▁" is how SentencePiece writes a space

    (token_ids,) = vocabulary.encode([text])

    assert UNK_ID not in token_ids
    assert vocabulary.decode([token_ids]) == [" ".join(word for word in text.split(" ") if word)]
