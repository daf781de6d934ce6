"""What came of two servers under the same load: every run, the ratios that count, lines, JSON and a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtests.capacity import Capacity, Run
from loadtests.peers.sentences import bleu, share_of_equal
from loadtests.peers.systems import Peer
from loadtests.report import figures_line, rounded

RESULTS_NAME: Final = "load.json"
PICTURE_NAME: Final = "load.png"

MAX_LATENCY_RATIO: Final = 0.6
"""Target: our latency by theirs, at the same rate, p50 and p95 alike."""

MIN_CAPACITY_RATIO: Final = 1.5
"""Target: our capacity by theirs, at the same objective."""

_MIN_BLEU: Final = 50.0
"""Rounding to int8, which each system does in its own way, changes a word or more of a third of the sentences (78 BLEU
between both on test sets, for the model that ships), and of more where it is unsure: 60 to 67 BLEU on sentences that
are nothing like what it was trained on."""
_MAX_TOKENS_APART: Final = 0.1
"""A server that says a tenth more has a tenth more to do."""
_KIND: Final = "peers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One set-up of the other server while its best was sought."""

    settings: str
    runs: tuple[Run, ...]
    """At several rates."""

    closed_loop_per_s: float | None = None
    """Calls a second that callers who wait got answered; None: not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """Both at one rate, in turn, again and again."""

    load: float
    """As a share of the other's capacity."""

    rate_per_s: float
    ours: tuple[Run, ...]
    theirs: tuple[Run, ...]

    @property
    def p50_ratio(self) -> float:
        """Our median latency by theirs, each the median of its repetitions; below 1 if ours is less."""
        return _middle(self.ours, "p50_ms") / _middle(self.theirs, "p50_ms")

    @property
    def p95_ratio(self) -> float:
        """As `p50_ratio`."""
        return _middle(self.ours, "p95_ms") / _middle(self.theirs, "p95_ms")


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Whether both do the same work."""

    num_texts: int
    identical: float
    """Share of the texts to which both say the same."""

    bleu: float | None
    """Of ours, with theirs for references; None: what is said has no meaning."""

    tokens_ratio: float
    """Our target tokens by theirs."""

    @property
    def holds(self) -> bool:
        """Whether their speed may be compared."""
        return (self.bleu is None or self.bleu >= _MIN_BLEU) and abs(self.tokens_ratio - 1) <= _MAX_TOKENS_APART


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything measured of one other system on one model."""

    model: str
    peer: Peer
    objective: str
    settings: str
    """Of the other server, the best of the trials."""

    trials: tuple[Trial, ...]
    agreement: Agreement
    our_capacity: Capacity
    their_capacity: Capacity
    points: tuple[LoadPoint, ...]

    @property
    def capacity_ratio(self) -> float:
        """Our capacity by theirs; above 1 if ours is more."""
        return self.our_capacity.per_s / self.their_capacity.per_s

    def reached(self, point: LoadPoint) -> dict[str, bool]:
        """Return each target and whether it was reached."""
        return {
            "p50": point.p50_ratio <= MAX_LATENCY_RATIO,
            "p95": point.p95_ratio <= MAX_LATENCY_RATIO,
            "capacity": self.capacity_ratio >= MIN_CAPACITY_RATIO,
        }

    def runs(self) -> list[Run]:
        """Return every run that counts: those of the capacity searches and of the load points, of both systems."""
        probes = (*self.our_capacity.probes, *self.their_capacity.probes)
        points = (run for point in self.points for run in (*point.ours, *point.theirs))
        return [*(probe.run for probe in probes), *points]

    def lines(self) -> Iterator[str]:
        """Yield how far both agree, what their capacities are, and a line for each load."""
        names = {"vs": self.peer, "model": self.model}
        agreement, runs = self.agreement, self.runs()
        yield figures_line(
            _KIND,
            {
                "agreement": "yes" if agreement.holds else "NO",
                **names,
                "identical": f"{agreement.identical:.2f}",
                "bleu": None if agreement.bleu is None else f"{agreement.bleu:.1f}",
                "tokens_ratio": f"{agreement.tokens_ratio:.3f}",
                "texts": agreement.num_texts,
            },
        )
        yield figures_line(
            _KIND,
            {
                "capacity_ratio": f"{self.capacity_ratio:.2f}",
                **names,
                "slo": self.objective,
                "ours_per_s": f"{self.our_capacity.per_s:.1f}",
                "theirs_per_s": f"{self.their_capacity.per_s:.1f}",
                "settings": self.settings,
                "runs": len(runs),
                "lagged_runs": sum(run.summary.generator_lagged for run in runs),
            },
        )
        yield from (self._point_line(point, names) for point in self.points)

    def _point_line(self, point: LoadPoint, names: dict[str, str]) -> str:
        sides = {"ours": point.ours, "theirs": point.theirs}
        middles = {
            f"{side}_{name}": rounded(_middle(runs, name))
            for name in ("p50_ms", "p95_ms")
            for side, runs in sides.items()
        }
        reached = (f"{name}:{'reached' if is_so else 'missed'}" for name, is_so in self.reached(point).items())
        return figures_line(
            _KIND,
            {
                "load": f"{point.load:.0%}",
                **names,
                "p50_ratio": f"{point.p50_ratio:.2f}",
                "p95_ratio": f"{point.p95_ratio:.2f}",
                "capacity_ratio": f"{self.capacity_ratio:.2f}",
                **middles,
                "rate": f"{point.rate_per_s:.1f}",
                "repetitions": len(point.ours),
                "targets": ",".join(reached),
            },
        )


def agreement_of(
    ours: Sequence[pb.TranslateResponse], theirs: Sequence[pb.TranslateResponse], *, has_meaning: bool
) -> Agreement:
    """Compare the answers of both servers to the same requests, in order, at least one.

    Args:
        ours: of our server.
        theirs: of the other one.
        has_meaning: whether texts can be compared word by word.
    """
    our_texts, their_texts = (
        [translation.hypotheses[0].text for answer in answers for translation in answer.translations]
        for answers in (ours, theirs)
    )
    our_tokens, their_tokens = (sum(answer.num_target_tokens for answer in answers) for answers in (ours, theirs))
    return Agreement(
        num_texts=len(our_texts),
        identical=share_of_equal(our_texts, their_texts),
        bleu=bleu(our_texts, their_texts) if has_meaning else None,
        tokens_ratio=our_tokens / max(1, their_tokens),
    )


def trial_line(trial: Trial, *, peer: str, model: str) -> str:
    """Return what a set-up of the other server came to."""
    return figures_line(
        _KIND,
        {
            "trial": trial.settings,
            "vs": peer,
            "model": model,
            "closed_loop_per_s": None if trial.closed_loop_per_s is None else f"{trial.closed_loop_per_s:.1f}",
            "p95_ms": "/".join(f"{run.p95_ms:.1f}" for run in trial.runs) or None,
            "rate": "/".join(f"{run.rate_per_s:.1f}" for run in trial.runs) or None,
        },
    )


def record_of(comparisons: Sequence[Comparison], machine: dict[str, Any], command: str) -> dict[str, Any]:
    """Return everything measured as JSON-ready values."""
    return {
        "machine": machine,
        "command": command,
        "targets": {"max_latency_ratio": MAX_LATENCY_RATIO, "min_capacity_ratio": MIN_CAPACITY_RATIO},
        "comparisons": [_as_json(comparison) for comparison in comparisons],
    }


def _as_json(comparison: Comparison) -> dict[str, Any]:
    fields = asdict(comparison)
    for point, values in zip(comparison.points, fields["points"], strict=True):
        ratios = {"p50_ratio": point.p50_ratio, "p95_ratio": point.p95_ratio}
        values |= {**ratios, "reached": comparison.reached(point)}
    return {**fields, "capacity_ratio": comparison.capacity_ratio, "agrees": comparison.agreement.holds}


def picture(comparisons: Sequence[Comparison]) -> Figure:
    """Draw p50 above, p95 below, a column for each other system and model; at least one."""
    figure = Figure(figsize=(1 + 4.5 * len(comparisons), 7), layout="constrained")
    axes = figure.subplots(2, len(comparisons), sharex="col", squeeze=False)
    for column, one in enumerate(comparisons):
        for row, name in enumerate(("p50_ms", "p95_ms")):
            _draw(axes[row][column], one, name)
        axes[0][column].set_title(f"{one.model} model, against {one.peer} {one.settings}", fontsize="medium")
        axes[1][column].set_xlabel(f"load, % of {one.peer}'s capacity ({one.their_capacity.per_s:.1f} calls/s)")
    axes[0][0].legend(fontsize="small")
    return figure


def _draw(axes: Axes, comparison: Comparison, name: str) -> None:
    """Draw one figure of both over the load: medians with all repetitions, probes of the searches small."""
    points, unit_per_s = comparison.points, comparison.their_capacity.per_s / 100
    loads = [100 * point.load for point in points]
    for label, colour, sides, capacity in (
        ("ours", "tab:blue", [point.ours for point in points], comparison.our_capacity),
        (comparison.peer, "tab:orange", [point.theirs for point in points], comparison.their_capacity),
    ):
        axes.plot(loads, [_middle(runs, name) for runs in sides], marker="o", color=colour, label=label)
        held = [probe.run for probe in capacity.probes if not probe.broken]
        measured = [run for runs in sides for run in runs]
        for shown, alpha, marker in ((measured, 1.0, "o"), (held, 0.4, "x")):
            rates = [run.rate_per_s / unit_per_s for run in shown]
            axes.scatter(rates, [getattr(run, name) for run in shown], s=8, color=colour, alpha=alpha, marker=marker)
        axes.axvline(capacity.per_s / unit_per_s, color=colour, linestyle="--", linewidth=1)
    targets = [MAX_LATENCY_RATIO * _middle(point.theirs, name) for point in points]
    axes.axvline(100 * MIN_CAPACITY_RATIO, color="black", linestyle=":", linewidth=1, label="target for ours")
    axes.plot(loads, targets, marker="_", markersize=14, color="black", linestyle=":", linewidth=1)
    axes.set(yscale="log", xlim=(0, None), ylabel=f"{name.removesuffix('_ms')}, ms")


def _middle(runs: Sequence[Run], figure: str) -> float:
    return float(median(getattr(run, figure) for run in runs))
