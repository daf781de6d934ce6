"""A soak in which everything held, to be broken in one place or another."""

from typing import Any

from loadtests.sampler import Footprint
from loadtests.stress.soak.judging import Judged, Notes
from loadtests.stress.soak.ledger import Entry
from loadtests.stress.soak.run import Idle, Observations, Sample, Settings

SETTINGS = Settings(
    duration_s=180.0,
    warm_up_s=60.0,
    calibration_s=12.0,
    num_callers=16,
    load_share=0.65,
    swap_each_s=6.0,
    sample_each_s=0.5,
    num_windows=15,
    max_growth_mb=16.0,
    seed=1,
)
ENDS = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")
COUNTED = {("Translate", status): 1 for status in ENDS}


def footprint(rss_mb: float = 250.0, *, num_threads: int = 16, num_fds: int = 14) -> Footprint:
    return Footprint(rss_mb=rss_mb, num_threads=num_threads, num_fds=num_fds)


def idle(**changed: Any) -> Idle:
    fields = {"footprint": footprint(), "open_calls": {}, "held_segments": {}, "versions": ("7",)}
    return Idle(**{**fields, **changed})


def samples(mb_per_s: float = 0.0) -> list[Sample]:
    """One a second; memory falls after the warm-up and then grows as asked."""
    return [
        Sample(
            at_s=float(second),
            footprint=footprint(500.0 if second < 60 else 250.0 + mb_per_s * second),
            num_calls=10 * second,
            num_swaps=second // 6,
        )
        for second in range(181)
    ]


def observations(**changed: Any) -> Observations:
    fields = {
        "capacity_per_s": 20.0,
        "rate_per_s": 13.0,
        "elapsed_s": 181.0,
        "samples": samples(),
        "before": idle(),
        "after": idle(),
        "counted": COUNTED,
        "num_segments_ok": 5,
        "num_segments_failed": 0,
        "num_swaps": 30,
        "num_swaps_counted": 30,
        "num_broken_versions": 1,
    }
    return Observations(**{**fields, **changed})


def notes(**changed: Any) -> Notes:
    """One call of each status; the last of them is changed."""
    found = Notes()
    for status in ENDS:
        entry = Entry(request_id=status, method="Translate", possible=frozenset({status}))
        is_last = status == ENDS[-1]
        fields = {"kind": "usual Translate", "status": status, "entries": [entry], "num_sentences": 1}
        found.add(Judged(**{**fields, **(changed if is_last else {})}))
    return found
