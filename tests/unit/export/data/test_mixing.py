from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_export.data.mixing import draw_copies, repeated, temperature_weights

FILES = st.lists(
    st.tuples(st.integers(0, 20), st.sampled_from([0.05, 0.25, 0.5, 1.0, 1.75, 3.0])), min_size=1, max_size=4
)


def counts(sizes: Sequence[int], weights: Sequence[float], epoch: int, seed: int = 1) -> list[int]:
    return list(map(int, draw_copies(sizes, weights, seed=seed, epoch=epoch)))


def test_whole_copies_are_in_every_epoch_and_the_rest_is_sampled() -> None:
    epochs = [counts([8, 4], [2.25, 3.0], epoch) for epoch in range(4)]

    for copies in epochs:
        assert sorted(copies[:8]) == [2] * 6 + [3] * 2
        assert copies[8:] == [3] * 4
    assert [sum(copies) for copies in zip(*epochs, strict=True)] == [9] * 8 + [12] * 4


@given(files=FILES, num_epochs=st.integers(1, 50))
def test_pairs_of_a_file_are_drawn_equally_often(files: list[tuple[int, float]], num_epochs: int) -> None:
    sizes, weights = zip(*files, strict=True)

    drawn = np.sum([draw_copies(sizes, weights, seed=1, epoch=epoch) for epoch in range(num_epochs)], axis=0)

    ends = np.cumsum([0, *sizes])
    for (size, weight), start, end in zip(files, ends, ends[1:], strict=False):
        assert np.ptp(drawn[start:end]) <= 1 if size else start == end
        assert abs(drawn[start:end].sum() - weight * size * num_epochs) < 1 + 1e-6


def test_samples_depend_on_seed_epoch_and_file() -> None:
    first = counts([40, 40], [0.5, 0.5], 0)

    assert first == counts([40, 40], [0.5, 0.5], 0)
    assert first != counts([40, 40], [0.5, 0.5], 1)
    assert first != counts([40, 40], [0.5, 0.5], 0, seed=2)
    assert first[:40] != first[40:]


def test_items_are_repeated_in_order() -> None:
    assert list(repeated("abc", np.array([2, 0, 1], np.int32))) == ["a", "a", "c"]


@pytest.mark.parametrize(("temperature", "shares"), [(1.0, [900, 100]), (2.0, [750, 250]), (1000.0, [500, 500])])
def test_temperature_changes_shares_and_keeps_the_size_of_an_epoch(temperature: float, shares: list[int]) -> None:
    weights = temperature_weights([900, 100], ["a", "b"], temperature)

    drawn = [900 * weights[0], 100 * weights[1]]
    assert drawn == pytest.approx(shares, abs=1)
    assert sum(drawn) == pytest.approx(1000)


def test_files_of_a_group_have_one_weight() -> None:
    weights = temperature_weights([600, 300, 100, 0], ["a", "a", "b", "c"], 2.0)

    assert weights == pytest.approx((750 / 900, 750 / 900, 2.5, 1.0))
