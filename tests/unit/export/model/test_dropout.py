import pytest
import torch

from export.model.dropout import Dropout

NUMBERS = 1_000_000
FOUR_SIGMA = 4 * (0.1 * 0.9 / NUMBERS) ** 0.5
"""Four standard deviations of the share that is dropped."""


def test_the_wanted_share_is_dropped_and_the_mean_stays() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.1)(torch.ones(NUMBERS))

    share = float((dropped == 0).double().mean())
    assert share == pytest.approx(26 / 256, abs=FOUR_SIGMA)  # 0.1 rounded to 256ths
    assert float(dropped.double().mean()) == pytest.approx(1.0, abs=2 * FOUR_SIGMA)


def test_what_is_kept_is_scaled_alike() -> None:
    dropped = Dropout(0.5)(torch.ones(3, 5, 7))

    assert set(dropped.flatten().tolist()) == {0.0, 2.0}


def test_neighbours_are_dropped_independently() -> None:
    torch.manual_seed(1)

    dropped = Dropout(0.5)(torch.ones(NUMBERS)) == 0

    both = float((dropped[1:] & dropped[:-1]).double().mean())
    assert both == pytest.approx(0.25, abs=0.002)


@pytest.mark.parametrize("dropout", [Dropout(0.0), Dropout(0.5).eval()])
def test_nothing_is_dropped_at_probability_0_or_outside_training(dropout: Dropout) -> None:
    states = torch.randn(100)

    assert dropout(states) is states


def test_the_same_seed_drops_the_same() -> None:
    dropout, states = Dropout(0.3), torch.randn(1000)

    results = []
    for _ in range(2):
        torch.manual_seed(7)
        results.append(dropout(states))

    assert torch.equal(*results)


def test_the_type_stays_under_autocast() -> None:
    assert Dropout(0.3)(torch.ones(9, dtype=torch.bfloat16)).dtype == torch.bfloat16
