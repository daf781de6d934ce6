import threading

from service.models.watcher import Watcher


def test_a_refresh_that_fails_is_tried_again() -> None:
    calls = threading.Semaphore(0)

    def refresh() -> None:
        calls.release()
        raise OSError("gone")

    watcher = Watcher(refresh, interval_s=0.001)
    watcher.start()

    assert all(calls.acquire(timeout=30) for _ in range(3))
    watcher.end()
    watcher.join(30)


def test_without_an_interval_nothing_is_called() -> None:
    called = threading.Event()
    watcher = Watcher(called.set, interval_s=0)

    watcher.start()
    watcher.end()
    watcher.join(0)

    assert not called.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "watch-models"]
