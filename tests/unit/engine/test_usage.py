import threading
import time
from itertools import count

from service.engine.core import Usage


def test_the_first_answer_is_all_that_was_taken_so_far() -> None:
    usage = Usage(lambda: 0, lambda: 7.5)

    assert usage.untold_cpu_s() == 7.5


def test_each_further_answer_is_what_was_taken_since() -> None:
    readings = iter([1.0, 1.5, 4.0])
    usage = Usage(lambda: 0, lambda: next(readings))

    assert [usage.untold_cpu_s() for _ in range(3)] == [1.0, 0.5, 2.5]


def test_what_several_threads_are_told_adds_up() -> None:
    ticks = count(1)
    usage = Usage(lambda: 0, lambda: float(next(ticks)))
    told: list[float] = []
    threads = [threading.Thread(target=lambda: told.extend(usage.untold_cpu_s() for _ in range(500))) for _ in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(told) == len(told) == 2000
    assert min(told) == 1.0


def test_caches_are_asked_each_time() -> None:
    sizes = iter([10, 20])
    usage = Usage(lambda: next(sizes))

    assert [usage.cache_bytes(), usage.cache_bytes()] == [10, 20]


def test_by_default_it_is_the_time_of_this_process() -> None:
    before_s = time.process_time()

    told_s = Usage(lambda: 0).untold_cpu_s()

    assert before_s <= told_s <= time.process_time()
