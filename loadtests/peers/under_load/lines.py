"""The lines that are printed, for people and scripts."""

from collections.abc import Iterator
from statistics import median

from loadtests.capacity.search import Run
from loadtests.peers.lines import line
from loadtests.peers.under_load.results import LoadPoint, Rivalry, Trial, reached, runs_of

_KIND = "peers"


def rivalry_lines(rivalry: Rivalry) -> Iterator[str]:
    """Yield what both are able to do, how far they agree, and a line for each load."""
    yield agreement_line(rivalry)
    yield capacity_line(rivalry)
    yield from (point_line(point, rivalry) for point in rivalry.points)


def agreement_line(rivalry: Rivalry) -> str:
    """Return how far both say the same."""
    agreement = rivalry.agreement
    return line(
        _KIND,
        {
            "agreement": "yes" if agreement.holds else "NO",
            **_names(rivalry),
            "identical": f"{agreement.identical:.2f}",
            "bleu": None if agreement.bleu is None else f"{agreement.bleu:.1f}",
            "tokens_ratio": f"{agreement.tokens_ratio:.3f}",
            "texts": agreement.num_texts,
        },
    )


def capacity_line(rivalry: Rivalry) -> str:
    """Return what both bear, and in how many runs the generator itself was late: such runs say too much."""
    return line(
        _KIND,
        {
            "capacity_ratio": f"{rivalry.capacity_ratio:.2f}",
            **_names(rivalry),
            "slo": rivalry.objective,
            "ours_per_s": f"{rivalry.our_capacity.per_s:.1f}",
            "theirs_per_s": f"{rivalry.their_capacity.per_s:.1f}",
            "settings": rivalry.settings,
            "runs": len(runs_of(rivalry)),
            "lagged_runs": sum(run.summary.generator_lagged for run in runs_of(rivalry)),
        },
    )


def point_line(point: LoadPoint, rivalry: Rivalry) -> str:
    """Return what a load came to, and which targets that reaches."""
    return line(
        _KIND,
        {
            "load": f"{point.load:.0%}",
            **_names(rivalry),
            "p50_ratio": f"{point.p50_ratio:.2f}",
            "p95_ratio": f"{point.p95_ratio:.2f}",
            "capacity_ratio": f"{rivalry.capacity_ratio:.2f}",
            "ours_p50_ms": _middle(point.ours, "p50_ms"),
            "theirs_p50_ms": _middle(point.theirs, "p50_ms"),
            "ours_p95_ms": _middle(point.ours, "p95_ms"),
            "theirs_p95_ms": _middle(point.theirs, "p95_ms"),
            "rate": f"{point.rate_per_s:.1f}",
            "repetitions": len(point.ours),
            "targets": ",".join(
                f"{name}:{'reached' if is_reached else 'missed'}"
                for name, is_reached in reached(point, rivalry).items()
            ),
        },
    )


def trial_line(trial: Trial, *, peer: str, model: str) -> str:
    """Return what a set-up of the rival came to."""
    p95 = "/".join(f"{run.p95_ms:.1f}" for run in trial.runs)
    rates = "/".join(f"{run.rate_per_s:.1f}" for run in trial.runs)
    per_s = trial.closed_loop_per_s
    return line(
        _KIND,
        {
            "trial": trial.settings,
            "vs": peer,
            "model": model,
            "closed_loop_per_s": None if per_s is None else f"{per_s:.1f}",
            "p95_ms": p95 or None,
            "rate": rates or None,
        },
    )


def _names(rivalry: Rivalry) -> dict[str, str]:
    return {"vs": rivalry.peer, "model": rivalry.model}


def _middle(runs: tuple[Run, ...], figure: str) -> str:
    return f"{median(getattr(run, figure) for run in runs):.1f}"
