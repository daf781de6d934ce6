"""A soak in which everything held, to be broken in one place or another."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from loadtests.sampler import Footprint
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import Entry
from loadtests.stress.soak.run import Idle, Observations, Sample, Settings

SETTINGS = Settings(duration_s=180.0, growth_limit_mb=16.0)
ENDS = ("OK", "CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT", "NOT_FOUND")


def footprint(rss_mb: float = 250.0, *, num_threads: int = 16, num_fds: int = 14) -> Footprint:
    return Footprint(rss_mb=rss_mb, num_threads=num_threads, num_fds=num_fds)


METRICS = {
    **{f'mt_requests_total{{method="Translate",status="{status}"}}': 1.0 for status in ENDS},
    'mt_segments_total{outcome="ok"}': 5.0,
    'mt_model_swaps_total{model="m"}': 30.0,
    'mt_ready{model="m",version="7"}': 1.0,
}


def idle(*, without: str = "nothing", metrics: Mapping[str, float] | None = None, **footprint_of: int) -> Idle:
    kept = {name: value for name, value in METRICS.items() if without not in name}
    return Idle(footprint=footprint(**footprint_of), metrics={**kept, **(metrics or {})})


def samples(mb_per_s: float = 0.0) -> list[Sample]:
    """One a second; memory falls after the warm-up and then grows as asked."""
    return [
        Sample(
            at_s=float(second),
            rss_mb=500.0 if second < 60 else 250.0 + mb_per_s * second,
            threads=16,
            fds=14,
            calls=10 * second,
            swaps=second // 6,
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
        "num_swaps": 30,
        "num_broken_versions": 1,
    }
    return Observations(**{**fields, **changed})


def notes(*, last: str = ENDS[-1], **changed: Any) -> Notes:
    """One call of each status, with what is changed; the last of them may end otherwise than the server says."""
    found = Notes(num_sentences=5, **changed)
    for status, ended in zip(ENDS, (*ENDS[:-1], last), strict=True):
        entry = Entry(request_id=status, method="Translate", possible=frozenset({status}))
        found.add(Notes(ends=Counter([("usual Translate", ended)]), entries=[entry]))
    return found
