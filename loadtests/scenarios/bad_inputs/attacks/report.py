"""What the attacks came to: the table, the promises, the picture."""

from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from loadtests.report.checks import Promise, Summary, conclude
from loadtests.report.report import figure, markdown, rounded
from loadtests.scenarios.bad_inputs.attacks.results import Campaign, broken
from loadtests.scenarios.bad_inputs.attacks.watch import Seen

_HEADER: Final = ("attack", "surface", "stall ms", "p99 ms", "lost", "exchanges", "cpu ms", "growth", "end s", "")


_PROMISES: Final = {
    "stall": "no probe of /healthz waits for long under attack",
    "p99": "/healthz is answered at p99 under attack",
    "lost": "well-behaved callers lose no call under attack",
    "growth": "the work for an attack grows as its size does",
    "end": "SIGTERM ends the process under attack in time",
    "faults": "attacks are answered as expected, and the server is well afterwards",
}


def conclude_attacks(campaign: Campaign, output: Path) -> int:
    """Print the table, write `attacks.json` and `attacks.png`; return the exit code."""
    print(table(campaign), end="")
    summary = Summary(scenario="attacks", figures=figures_of(campaign), promises=promises(campaign))
    return conclude(summary, output, details=details(campaign), figure=picture(campaign))


def promises(campaign: Campaign) -> list[Promise]:
    """Return the promises, each with a sentence for every attack that broke it."""
    by_name: dict[str, list[str]] = {name: [] for name in _PROMISES}
    for result in campaign.results:
        for name, sentence in broken(result, campaign.limits).items():
            by_name[name].append(f"{result.attack.name}: {sentence}")
    found = [Promise(name=_PROMISES[name], broken=sentences) for name, sentences in by_name.items()]
    return [
        *found,
        Promise(name="servers under attack log no error", broken=campaign.server_faults),
        Promise(name="there is time for every attack", broken=campaign.skipped),
    ]


def table(campaign: Campaign) -> str:
    """Return a row for the quiet server and for each attack."""
    quiet = campaign.quiet
    first = ["(quiet)", "", *(f"{one:.0f}" for one in (quiet.stall_ms, quiet.p99_ms)), str(sum(quiet.lost.values()))]
    rows = [[*first, *["-"] * 4, ""]]
    for result in campaign.results:
        cpu_ms = 1000 * result.works[-1].cpu_s if result.works else None
        figures = (f"{result.seen.stall_ms:.0f}", f"{result.seen.p99_ms:.0f}", str(sum(result.seen.lost.values())))
        rows.append(
            [
                result.attack.name,
                result.attack.surface,
                *figures,
                str(result.sent.num_exchanges),
                rounded(cpu_ms, 0).replace("none", "-"),
                rounded(result.growth).replace("none", "-"),
                rounded(result.end_s).replace("none", "-"),
                ", ".join(broken(result, campaign.limits)),
            ]
        )
    return markdown(_HEADER, rows)


def figures_of(campaign: Campaign) -> dict[str, object]:
    """Return the figures of the last line."""
    seen = [result.seen for result in campaign.results]
    return {
        "attacks": len(campaign.results),
        "attacks_held": sum(not broken(result, campaign.limits) for result in campaign.results),
        "worst_stall_ms": rounded(max((one.stall_ms for one in seen), default=None), 0),
        "worst_health_p99_ms": rounded(max((one.p99_ms for one in seen), default=None), 0),
        "quiet_stall_ms": rounded(campaign.quiet.stall_ms, 0),
        "quiet_p99_ms": rounded(campaign.quiet.p99_ms),
        "calls_lost": sum(sum(one.lost.values()) for one in seen),
        "lag_p99_ms": rounded(max((one.lag_p99_ms for one in seen), default=None)),
        "attacks_s": rounded(campaign.elapsed_s, 0),
    }


def details(campaign: Campaign) -> dict[str, Any]:
    """Return everything for JSON."""
    return {
        "limits": asdict(campaign.limits),
        "quiet": _figures(campaign.quiet),
        "attacks": [
            {
                "name": result.attack.name,
                "surface": result.attack.surface,
                "size": result.attack.size,
                "connections": result.attack.num_connections,
                **_figures(result.seen),
                "statuses": dict(result.sent.statuses),
                "attack_s": result.sent.seconds,
                "works": [work._asdict() for work in result.works],
                "growth": result.growth,
                "end_s": result.end_s,
                "broken": dict(broken(result, campaign.limits)),
            }
            for result in campaign.results
        ],
    }


def picture(campaign: Campaign) -> Figure:
    """Draw the worst stall and p99 of `/healthz` for each attack, worst first, with the limits."""
    ordered = sorted(campaign.results, key=lambda result: -result.seen.stall_ms)
    drawn, (axes,) = figure(size=(11, max(4.0, 1.0 + 0.16 * len(ordered))))
    names = [result.attack.name for result in ordered]
    for values, label, colour in (
        ([result.seen.stall_ms for result in ordered], "worst stall", "tab:red"),
        ([result.seen.p99_ms for result in ordered], "p99 of /healthz", "tab:blue"),
    ):
        axes.plot(values, range(len(names)), ".", label=label, color=colour)
    for limit, colour in ((campaign.limits.stall_ms, "tab:red"), (campaign.limits.p99_ms, "tab:blue")):
        axes.axvline(limit, color=colour, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="milliseconds from when a probe was due to its answer")
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    return drawn


def _figures(seen: Seen) -> dict[str, Any]:
    return {
        "stall_ms": seen.stall_ms,
        "p99_ms": seen.p99_ms,
        "lag_p99_ms": seen.lag_p99_ms,
        "lost": dict(seen.lost),
        "errors": list(seen.errors),
    }
