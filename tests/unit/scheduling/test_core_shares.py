import pytest

from dragoman_service.scheduling.core_shares import CoreShares


@pytest.mark.parametrize(
    ("cores", "busy", "shares"),
    [
        pytest.param(2, [2], [2], id="one-model-uses-all-cores"),
        pytest.param(2, [2, 2], [1, 1], id="two-models"),
        pytest.param(2, [2] * 10, [1] * 10, id="more-models-than-cores"),
        pytest.param(4, [4, 4, 4], [2, 2, 2], id="no-core-stays-idle"),
        pytest.param(4, [2, 2], [2, 2], id="replicas-already-share"),
        pytest.param(2, [4], [4], id="configured-number-of-threads"),
    ],
)
def test_busy_schedulers_share_cores(cores: int, busy: list[int], shares: list[int]) -> None:
    core_shares = CoreShares(cores)
    for scheduler, num_batches in enumerate(busy):
        core_shares.set_busy(scheduler, num_batches)

    assert [core_shares.share(num_batches) for num_batches in busy] == shares


def test_idle_scheduler_returns_its_share() -> None:
    cores = CoreShares(2)
    cores.set_busy("first", 2)
    cores.set_busy("second", 2)
    cores.set_idle("second")

    assert cores.share(2) == 2
