import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.threads import lower_priority

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux knows priorities of threads")


def priority_after(*niceness: int) -> int:
    """Priority of a thread of its own, once it has been lowered."""

    def lowered() -> int:
        for steps in niceness:
            lower_priority(steps)
        return own_priority()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lowered).result()


def own_priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_a_thread_is_lowered_by_so_many_steps_and_no_other_with_it() -> None:
    before = own_priority()

    assert priority_after(3) == min(before + 3, 19)
    assert own_priority() == before


def test_the_lowest_priority_is_not_passed() -> None:
    assert priority_after(15, 15) == 19


def test_no_steps_change_nothing() -> None:
    assert priority_after(0) == own_priority()
