import math
import os

import pytest

from loadtests.sampling import CPU_SECONDS, RESIDENT_BYTES, Sample, Sampler, parse_metrics, scrape

VALUES = {'mt_requests_total{method="Translate"}': 2.0, 'mt_requests_total{method="GetModel"}': 3.0, "mt_ready": 1.0}


def test_a_metric_is_added_up_over_its_labels() -> None:
    sample = Sample(at_s=0.0, values=VALUES)

    assert sample.total("mt_requests_total") == 5.0
    assert sample.total("mt_requests_total", 'method="GetModel"') == 3.0
    assert math.isnan(sample.total("mt_requests"))


def test_processes_are_looked_at_before_and_after() -> None:
    with Sampler(None, [os.getpid()], each_s=60.0) as sampler:
        pass

    first, last = sampler.samples
    assert 0 < first.values[CPU_SECONDS] <= last.values[CPU_SECONDS]
    assert last.values[RESIDENT_BYTES] > 2**20


def test_a_server_that_does_not_answer_leaves_gaps() -> None:
    with Sampler("http://127.0.0.1:1/metrics", each_s=60.0) as sampler:
        pass

    assert [sample.values for sample in sampler.samples] == [{}, {}]


def test_nothing_to_look_at_is_not_looked_at() -> None:
    with Sampler(None) as sampler:
        pass

    assert sampler.samples == []


def test_an_address_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="expected http"):
        scrape("file:///etc/passwd")


def test_what_a_server_exposes_of_the_processes_that_decode_is_added_to_its_own() -> None:
    exposed = (
        "# TYPE process_cpu_seconds_total counter\n"
        "process_cpu_seconds_total 2.0\n"
        "process_resident_memory_bytes 100.0\n"
        "mt_decoding_process_cpu_seconds_total 3.5\n"
        'mt_decoding_process_resident_memory_bytes{model="a",version="1"} 20.0\n'
        'mt_decoding_process_resident_memory_bytes{model="a",version="2"} 3.0\n'
    )

    values = parse_metrics(exposed)

    assert values[CPU_SECONDS] == 5.5
    assert values[RESIDENT_BYTES] == 123.0
    assert values["mt_decoding_process_cpu_seconds_total"] == 3.5


def test_a_server_without_such_processes_is_taken_as_it_is() -> None:
    assert parse_metrics("process_cpu_seconds_total 2.0\n") == {CPU_SECONDS: 2.0}
