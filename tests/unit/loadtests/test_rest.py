from loadtests.rest import held_segments, open_calls

EXPOSED = {
    'mt_requests_in_flight{method="Translate"}': 2.0,
    'mt_requests_in_flight{method="GetModel"}': 0.0,
    "mt_open_streams": 1.0,
    "mt_queue_segments": 3.0,
    "mt_queue_tokens": 0.0,
    "mt_queue_work_tokens": 9.0,
    "mt_batch_live_rows": 4.0,
    "mt_queue_wait_seconds_count": 7.0,
    "mt_requests_total": 8.0,
}


def test_gauges_of_calls_and_of_segments_that_are_not_at_rest_are_told_apart() -> None:
    assert open_calls(EXPOSED) == {'mt_requests_in_flight{method="Translate"}': 2.0, "mt_open_streams": 1.0}
    assert held_segments(EXPOSED) == {"mt_queue_segments": 3.0, "mt_queue_work_tokens": 9.0, "mt_batch_live_rows": 4.0}
