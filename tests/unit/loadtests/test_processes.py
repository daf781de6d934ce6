import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from loadtests.footprint import footprint
from loadtests.processes import look_at_tree, process_tree

_WAITS = "import sys; sys.stdin.read()"
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_WAITS!r}], stdin=subprocess.PIPE)
print(child.pid, flush=True)
sys.stdin.read()
child.communicate()
"""
NO_PROCESS = 2**22 + 1  # above the largest number that Linux gives


@contextmanager
def parent_and_child() -> Iterator[tuple[int, int]]:
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate()


def test_a_tree_begins_with_its_root_and_has_all_that_it_has_started() -> None:
    with parent_and_child() as (parent, child):
        assert process_tree(parent) == [parent, child]
        assert process_tree(os.getpid())[0] == os.getpid()
        assert {parent, child} <= set(process_tree(os.getpid()))


def test_what_a_server_takes_is_that_of_all_its_processes() -> None:
    with parent_and_child() as (parent, child):
        whole, part = footprint(parent), footprint(child)

    assert whole.num_fds > part.num_fds
    assert whole.num_threads == 2
    assert whole.rss_mb > part.rss_mb


def test_a_child_that_ends_between_being_found_and_being_looked_at_is_left_out() -> None:
    def look(pid: int) -> str:
        if pid == child:
            raise ProcessLookupError(f"{pid} has ended")
        return f"looked at {pid}"

    with parent_and_child() as (parent, child):
        assert look_at_tree(parent, look) == [f"looked at {parent}"]
        with pytest.raises(ProcessLookupError):
            look_at_tree(child, look)


def test_a_server_whose_child_has_ended_and_was_not_waited_for_is_looked_at_all_the_same() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{ended.pid}").exists()
        assert ended.pid in process_tree(os.getpid())
        assert footprint(os.getpid()).num_threads >= 1


def test_of_a_process_that_has_ended_nothing_descends() -> None:
    assert process_tree(NO_PROCESS) == [NO_PROCESS]
