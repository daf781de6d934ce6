import os
import threading

import pytest

from loadtests.footprint import footprint

NO_PROCESS = 2**22 + 1  # above the largest number that Linux gives


def test_one_more_thread_and_one_more_file_are_seen() -> None:
    is_over = threading.Event()
    before = footprint(os.getpid())
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    reading, writing = os.pipe()

    after = footprint(os.getpid())

    is_over.set()
    thread.join()
    os.close(reading)
    os.close(writing)
    assert after.num_threads == before.num_threads + 1
    assert after.num_fds == before.num_fds + 2
    assert after.rss_mb > 1


def test_a_process_that_has_ended_has_none() -> None:
    with pytest.raises(OSError, match=str(NO_PROCESS)):
        footprint(NO_PROCESS)
