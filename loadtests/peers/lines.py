"""The lines that are printed: one for each figure, words and `name=value` pairs that a script can read."""

from collections.abc import Mapping

from loadtests.peers.comparison import Duel, Measurement


def line(kind: str, fields: Mapping[str, object]) -> str:
    """Return `kind name=value ...`; fields that are None are left out."""
    return " ".join([kind, *(f"{name}={value}" for name, value in fields.items() if value is not None)])


def duel_line(duel: Duel) -> str:
    """Return what a duel came to."""
    ours, theirs = duel.ours, duel.theirs
    case = duel.case
    is_lone, is_timed = case.call_size == 1, case.kind != "agreement"
    return line(
        "bench",
        {
            "model": case.model,
            "case": case.name,
            "threads": duel.num_threads,
            "vs": theirs.settings.name,
            "ratio": f"{duel.ratio:.2f}" if is_timed else None,
            "ours": ours.settings.setup,
            "best": theirs.settings.setup,
            "tokens_per_s": f"{ours.tokens_per_s:.0f}" if is_timed else None,
            "theirs": f"{theirs.tokens_per_s:.0f}" if is_timed else None,
            "p50_ms": _milliseconds(ours.latency_p50_s, theirs.latency_p50_s) if is_lone else None,
            "p95_ms": _milliseconds(ours.latency_p95_s, theirs.latency_p95_s) if is_lone else None,
            "ms_per_token": _growth(ours, theirs) if case.kind == "growth" else None,
            "bleu": None if ours.bleu is None else f"{ours.bleu:.2f}",
            "bleu_delta": None if duel.bleu_delta is None else f"{duel.bleu_delta:z.2f}",
            "identical": f"{duel.identical:.2f}" if case.has_meaning else None,
        },
    )


def _growth(ours: Measurement, theirs: Measurement) -> str:
    return f"{1000 / ours.tokens_per_s:.2f}/{1000 / theirs.tokens_per_s:.2f}"


def _milliseconds(ours_s: float, theirs_s: float) -> str:
    return f"{1000 * ours_s:.0f}/{1000 * theirs_s:.0f}"
