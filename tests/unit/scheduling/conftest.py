"""Schedulers over gated models, stopped at the end of the test."""

from collections.abc import Callable, Iterator

import pytest

from tests.unit.scheduling.scheduler_bench import Bench


@pytest.fixture
def make_bench() -> Iterator[Callable[..., Bench]]:
    """Return a function that makes benches."""
    benches: list[Bench] = []

    def make(*arguments: object, **options: object) -> Bench:
        benches.append(Bench(*arguments, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield make
    for bench in benches:
        bench.stop()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    """Return a started bench with room for one segment in its batch and three in its queue."""
    return make_bench(max_batch_segments=1, max_queue_segments=3).start()
