import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests import sampler
from loadtests.sampler import CPU_SECONDS, RESIDENT_BYTES, Sample, footprint, process_tree, sampling, work_left

AT_REST = {
    'dragoman_requests_in_flight{method="GetModel"}': 0.0,
    "dragoman_queue_tokens": 0.0,
    "dragoman_queue_wait_seconds_count": 7.0,
    'dragoman_requests_total{method="Translate"}': 2.0,
    'dragoman_requests_total{method="GetModel"}': 3.0,
}


def test_gauges_of_calls_and_of_segments_that_are_not_at_rest_are_told_apart() -> None:
    calls = {'dragoman_requests_in_flight{method="Translate"}': 2.0, "dragoman_open_streams": 1.0}
    segments = {"dragoman_queue_segments": 3.0, "dragoman_queue_decode_cost": 9.0, "dragoman_batch_live_rows": 4.0}
    exposed = calls | segments | AT_REST

    assert work_left(exposed) == calls | segments
    assert [work_left(exposed, kind) for kind in (sampler.CALLS, sampler.SEGMENTS)] == [calls, segments]


def test_a_metric_is_added_up_over_its_labels() -> None:
    sample = Sample(at_s=0.0, values=AT_REST)

    assert (sample.total("dragoman_requests_total"), sample.total("dragoman_requests_total", 'method="GetModel"')) == (
        5.0,
        3.0,
    )
    assert math.isnan(sample.total("dragoman_requests"))


def test_a_server_is_looked_at_before_and_after_as_far_as_it_can_be() -> None:
    with (
        sampling(None, [os.getpid()], interval_s=60.0) as processes,
        sampling("http://127.0.0.1:1/metrics", interval_s=60.0) as silent,
        sampling(None) as nothing,
    ):
        pass

    first, last = processes
    assert 0 < first.values[CPU_SECONDS] <= last.values[CPU_SECONDS]
    assert last.values[RESIDENT_BYTES] > 2**20
    assert [sample.values for sample in silent] == [{}, {}]
    assert nothing == []
    with pytest.raises(ValueError, match="expected http"):
        sampler.scrape("file:///etc/passwd")


def test_what_a_server_exposes_of_the_processes_that_decode_is_added_to_its_own() -> None:
    memory = 'dragoman_worker_resident_memory_bytes{model="a",version="%d"}'
    exposed = {CPU_SECONDS: 2.0, RESIDENT_BYTES: 100.0, "dragoman_worker_cpu_seconds_total": 3.5}
    exposed |= {memory % 1: 20.0, memory % 2: 3.0}
    lines = [f"# TYPE {CPU_SECONDS} counter", *(f"{name} {value}" for name, value in exposed.items())]

    assert sampler.parse_metrics("\n".join(lines)) == {**exposed, CPU_SECONDS: 5.5, RESIDENT_BYTES: 123.0}


def test_a_server_is_all_its_processes() -> None:
    waiting = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    starting_it = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {waiting!r}])"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", starting_it], **pipes) as process:  # type: ignore[call-overload]
        parent, child = process.pid, int(process.stdout.readline())
        assert process_tree(parent) == [parent, child]
        assert {os.getpid(), parent, child} <= set(process_tree(os.getpid()))
        whole, part = footprint(parent), footprint(child)
        process.communicate()

    assert whole.num_fds > part.num_fds
    assert whole.num_threads == 2
    assert whole.rss_mb > part.rss_mb


def test_processes_that_have_ended_are_left_out() -> None:
    nobody = 2**22 + 1  # above the largest number that Linux gives
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it was not waited for: the kernel still lists it
        assert Path(f"/proc/{ended.pid}").exists()
        assert ended.pid in process_tree(os.getpid())
        assert footprint(os.getpid()).num_threads >= 1
    assert process_tree(nobody) == [nobody]
    with pytest.raises(OSError, match=str(nobody)):
        footprint(nobody)
