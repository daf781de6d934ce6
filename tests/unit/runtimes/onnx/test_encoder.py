from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.runtimes.onnx.encoder import ON_GPU, group_by_length

MOST_TOKENS, MOST_APART, RUN_TOKENS = 192, 16, 10


def groups_of(lengths: Sequence[int]) -> list[list[int]]:
    """Return the lengths of each group."""
    array = np.array(lengths, dtype=np.int32)
    groups = list(group_by_length(array))
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    return [array[group].tolist() for group in groups]


def is_allowed(group: Sequence[int]) -> bool:
    is_small = len(group) * max(group) <= MOST_TOKENS and max(group) - min(group) < MOST_APART
    return is_small or len(group) == 1


def cost(groups: Sequence[Sequence[int]]) -> int:
    return sum(RUN_TOKENS + len(group) * max(group) for group in groups)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=70))
def test_groups_have_similar_lengths_and_bounded_size(lengths: list[int]) -> None:
    assert all(map(is_allowed, groups_of(lengths)))


@given(st.lists(st.integers(1, 70), min_size=1, max_size=8))
def test_grouping_has_minimum_cost(lengths: list[int]) -> None:
    ordered = sorted(lengths)
    inner = range(1, len(ordered))
    cuts = [(0, *chosen, len(ordered)) for count in range(len(ordered)) for chosen in combinations(inner, count)]
    ways = [[ordered[begin:end] for begin, end in pairwise(cut)] for cut in cuts]

    assert cost(groups_of(lengths)) == min(cost(groups) for groups in ways if all(map(is_allowed, groups)))


def test_gpu_grouping_prefers_padding_to_runs() -> None:
    lengths = np.array([5, 60, 8, 31, 12, 9] * 3, dtype=np.int32)
    long = np.full(40, 500, dtype=np.int32)

    assert len(list(group_by_length(lengths, ON_GPU))) == 1
    assert [len(group) for group in group_by_length(long, ON_GPU)] == [8] * 5
