import subprocess
import sys

from dragoman_service.processes.call_count import SharedCallCount

LOCK_AND_EXIT = "import fcntl, os, sys; fcntl.lockf(int(sys.argv[1]), fcntl.LOCK_EX); os.kill(os.getpid(), 9)"


def test_limit_holds_for_all_processes_together() -> None:
    own = SharedCallCount.create(3)
    others = [SharedCallCount(own.descriptor, index) for index in (1, 2)]

    assert [count.take(3) for count in (own, *others, own, *others)] == [0, 1, 2, 3, 3, 3]
    others[0].release()
    assert [own.take(3), others[1].take(3)] == [2, 3]


def test_calls_of_an_ended_process_are_released() -> None:
    own = SharedCallCount.create(2)
    other = SharedCallCount(own.descriptor, 1)
    assert [other.take(2), other.take(2), own.take(2)] == [0, 1, 2]

    own.clear(1)

    assert [own.take(2), own.take(2), own.take(2)] == [0, 1, 2]


def test_lock_of_a_killed_process_is_released() -> None:
    own = SharedCallCount.create(2)
    command = [sys.executable, "-c", LOCK_AND_EXIT, str(own.descriptor)]
    assert subprocess.run(command, pass_fds=(own.descriptor,), check=False).returncode == -9

    assert own.take(1) == 0
