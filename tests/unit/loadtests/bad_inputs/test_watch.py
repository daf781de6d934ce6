from loadtests.bad_inputs.watch import log_faults


def test_errors_and_what_is_no_record_are_told() -> None:
    lines = [
        '{"event": "request", "level": "info"}',
        '{"event": "sentence splitter failed", "level": "warning"}',
        '{"event": "request failed", "level": "error"}',
        "Traceback (most recent call last):",
        "7",
    ]

    assert [fault.partition("has: ")[2] for fault in log_faults(lines)] == lines[2:]


def test_a_long_line_is_cut() -> None:
    (fault,) = log_faults(["x" * 100_000])

    assert len(fault) < 1000
