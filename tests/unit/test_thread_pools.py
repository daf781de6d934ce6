import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from service.threads import started_pool

NAME = "tests-pool"


def running(name: str = NAME) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


@pytest.mark.parametrize("number", [1, 5])
def test_all_threads_of_a_pool_run_before_there_is_work_and_no_work_adds_one(number: int) -> None:
    with started_pool(number, name=NAME) as pool:
        assert running() == number

        assert list(pool.map(lambda x: x + 1, range(100))) == list(range(1, 101))
        assert running() == number
    assert running() == 0


def test_a_system_that_starts_no_more_threads_is_an_error_and_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    submit = ThreadPoolExecutor.submit

    def submit_twice(pool: ThreadPoolExecutor, *work: Any) -> Any:
        if running() == 2:
            raise RuntimeError("can't start new thread")
        return submit(pool, *work)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", submit_twice)

    with pytest.raises(RuntimeError, match="can't start"):
        started_pool(3, name=NAME)

    assert running() == 0
