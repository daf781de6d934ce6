"""Insert measured figures into the pages, and find figures that were typed.

A page names a figure in a comment, and docs/generate.py writes the value between it and the next comment:

    The capacity is <!-- =servers.capacity.ours -->356<!-- / --> calls per second.

A name is a path in docs/figures.json without `values`, or one of `BLOCKS` with its arguments. A format such as `.1f`
can follow.
"""

import json
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[1]
FIGURES: Mapping[str, Any] = json.loads((CHECKOUT / "docs" / "figures.json").read_text("utf-8"))
LIMITS: Mapping[str, Sequence[str]] = tomllib.loads((CHECKOUT / "docs" / "limits.toml").read_text("utf-8"))
"""Figures that are settings, limits or examples, by page; they are typed."""

PAGES = sorted(
    path
    for path in (
        *CHECKOUT.glob("*.md"),
        *(CHECKOUT / "deploy" / "models" / "dragoman_models").rglob("*.md"),
        *(CHECKOUT / "docs").rglob("*.md"),
    )
    if path.parent.name != "reference" and path.name != "CHANGELOG.md"
)
INSERTED = re.compile(r"<!-- =(?P<name>[^>]*?) -->(?P<value>.*?)<!-- / -->", re.DOTALL)
UNITS = (
    r"(?:ms|us|µs|[MG]i?B(?:/s)?|GMAC/s|BLEU|chrF|times)\b"
    r"|(?:calls|requests|tokens|sentences|segments|texts)(?:/s\b| (?:per|a) second\b)"
)
TYPED = re.compile(rf"(?<![\w.,-])\d[\d.,]*(?: (?:and|to|or|instead of) \d[\d.,]*)?\s(?:{UNITS})")
CODE = re.compile(r"^ *```.*?^ *```|`[^`\n]*`", re.DOTALL | re.MULTILINE)

AUTOSCALER = CHECKOUT / "deploy" / "kubernetes" / "components" / "autoscaling-keda" / "scaled-object.yaml"
DERIVED = {  # targets of the autoscaler: geometric means of a signal at 60 and 90 % of the capacity
    "waiting-work": "queue_decode_cost",
    "waiting-seconds": "queue_wait_s_per_s",
    "running-segments": "live_segments",
}
SIDES = ("ratio", "ours", "theirs")
MODELS = {"base": "Transformer-base", "shipped": "bundled"}
ENGINE_CASES = {
    "one": "one sentence at a time",
    "many8": "8 at once",
    "many32": "32 at once",
    "many": "real sentences, all at once",
}
SYSTEMS = {"ctranslate2": "CTranslate2 int8", "transformers": "Transformers fp32"}
SERVERS = {
    "servers": "bundled model",
    "servers-avx2": "bundled model, both limited to AVX2",
    "servers-neighbour": "bundled model, and another process that uses half of a core",
    "servers-base": "Transformer-base",
}
SCENARIOS = {  # figures of the result line
    "soak": {
        "calls": "calls",
        "swaps": "model swaps",
        "unanswered": "unanswered",
        "errors": "errors",
        "threads_left": "threads left",
    },
    "chaos": {"faults": "faults", "held": "handled"},
    "bad-inputs": {
        "inputs": "inputs",
        "kinds": "kinds",
        "internal": "internal errors",
        "hangs": "hangs",
        "lost": "lost calls",
    },
}
WEAK_LOSS = 3.0  # of chrF, from which a change counts as a weakness
WEAK_SHARE = 0.01
TEST_SETS = {
    "tatoeba": "tatoeba-test-v2021-08-07",
    "documentation": "software documentation",
    "development": "development set, held out from the ManyThings.org pack",
    "news": "newstest2013, long news sentences; no training data of this kind",
}


def rendered_pages() -> dict[Path, str]:
    """Return the text of each page with the present figures; raises KeyError for an unknown name."""
    return {page: insert_figures(page.read_text("utf-8")) for page in PAGES}


def typed_figures() -> Iterator[str]:
    """Yield the place of each figure with a unit of speed, memory or quality that is neither inserted nor a limit."""
    for page in PAGES:
        name = str(page.relative_to(CHECKOUT))
        for line, figure in typed_in(page.read_text("utf-8")):
            if name != "docs/benchmarks/archive.md" and figure not in LIMITS.get(name, ()):
                yield f"{name}:{line}: {figure!r}"


def typed_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each figure outside code and inserted figures."""
    for hidden in (CODE, INSERTED):
        text = hidden.sub(lambda match: re.sub(r"[^\n]", "x", match[0]), text)
    for figure in TYPED.finditer(text):
        yield text.count("\n", 0, figure.start()) + 1, " ".join(figure[0].split())


def insert_figures(text: str) -> str:
    """Return a page with the present figures; raises KeyError for an unknown name."""
    return INSERTED.sub(_insert, text)


def autoscaler_warnings() -> Iterator[str]:
    """Yield a sentence for each target of the autoscaler that differs from its measured value by more than 25 %."""
    triggers = yaml.safe_load(AUTOSCALER.read_text("utf-8"))["spec"]["triggers"]
    targets = {trigger["name"]: float(trigger["metadata"]["threshold"]) for trigger in triggers}
    for name, signal in DERIVED.items():
        measured = math.sqrt(math.prod(_look_up(f"signals.{load}.{signal}") for load in (60, 90)))
        if not 0.75 <= targets[name] / measured <= 1.25:
            yield f"the target of {name} is {targets[name]:g}, but {signal} is {measured:.3g}"


def _insert(match: re.Match[str]) -> str:
    name, *options = match["name"].split()
    value = BLOCKS[name](*options) if name in BLOCKS else shown(_look_up(name), *options)
    if "\n" in value:
        value = f"\n\n{value.rstrip()}\n\n"
    return f"<!-- ={match['name']} -->{value}<!-- / -->"


def _look_up(name: str) -> Any:
    section, *path = name.split(".")
    value = FIGURES[section]["values"]
    for part in path:
        value = value[part]
    return value


def shown(value: Any, form: str = "") -> str:
    """Return a figure as text: two decimals below 10, none above."""
    if isinstance(value, float):
        return format(value, form or (".2f" if abs(value) < 10 else ",.0f"))
    return format(value, form or ",") if isinstance(value, int) else str(value)


def origin(*sections: str) -> str:
    """Return date, commit, machine and versions of sections that were measured together."""
    known = [FIGURES[section] for section in sections]
    first = known[0]
    dates = " and ".join(dict.fromkeys(one["date"][:10] for one in known))
    commits = " and ".join(dict.fromkeys(one["commit"] for one in known))
    sets = ", ".join(name for name in ("avx512_vnni", "avx_vnni", "avx2") if name in first["instruction_sets"])
    pgo = "with" if first["python_has_pgo"] else "without"
    machine = f"{first['cpu']} ({sets}), {first['cores']} cores, Python {first['python']} {pgo} PGO"
    return f"{dates}, commit {commits}, {machine}"


def commands(*sections: str) -> str:
    """Return a block with the commands of sections."""
    return "```sh\n" + "".join(f"{FIGURES[section]['command']}\n" for section in sections) + "```\n"


def version(package: str) -> str:
    """Return the version of a package in the measurement of the engine."""
    return f"{package} {FIGURES['engine']['versions'][package]}"


def engine_table() -> str:
    """Return the comparison of engines, with the instruction sets of the CPU and with AVX2 only."""
    rows = []
    limited = FIGURES["engine-avx2"]["values"]
    for model, cases in FIGURES["engine"]["values"].items():
        for key, pair in cases.items():
            if key == "limits":
                continue
            case, threads, system = key.split("-")
            title = ENGINE_CASES.get(case, ENGINE_CASES["many"])
            unit = "ms" if case == "one" else "tokens/s"
            figures = [
                f"{each['ratio']:.2f} ({each['ours']:,.0f} and {each['theirs']:,.0f} {unit})"
                for each in (pair, limited[model][key])
            ]
            rows.append((MODELS[model], title, threads, SYSTEMS[system], *figures))
    titles = [*MODELS.values(), *ENGINE_CASES.values()]
    rows.sort(key=lambda row: (titles.index(row[0]), titles.index(row[1])))
    return table(("model", "case", "threads", "against", "ratio", "ratio with AVX2"), rows)


def readme_table() -> str:
    """Return the comparison with CTranslate2 in four rows."""
    engines = [FIGURES["engine"]["values"][model] for model in MODELS]
    many = [
        max(
            (key for key in cases if re.fullmatch(r"many\d+-2-ctranslate2", key)),
            key=lambda key: int(key[4:].partition("-")[0]),
        )
        for cases in engines
    ]
    loads = [FIGURES[section]["values"] for section in ("servers-base", "servers")]
    rows = {
        "engine, many sentences at once, tokens/s": [cases[key] for cases, key in zip(engines, many, strict=True)],
        "engine, one sentence at a time, one thread, ms": [cases["one-1-ctranslate2"] for cases in engines],
        "server, capacity at the same SLO, calls/s": [values["capacity"] for values in loads],
        "server, p95 at 60 % of CTranslate2's capacity, ms": [inverse(values["p95-60"]) for values in loads],
    }
    cells = [(title, *map(sides, pairs)) for title, pairs in rows.items()]
    return table(("speed relative to CTranslate2", "Transformer-base (random weights)", "bundled model (en-de)"), cells)


def inverse(pair: Mapping[str, float]) -> dict[str, float]:
    """Return a pair of latencies with the ratio of speeds."""
    return {**pair, "ratio": 1 / pair["ratio"]}


def limits_table() -> str:
    """Return how close the engine is to the limits of the CPU."""
    columns = [FIGURES[section]["values"][model]["limits"] for section in ("engine", "engine-avx2") for model in MODELS]
    rows = [
        (title, *(f"{factor * column[name]:.{digits}f}" for column in columns))
        for title, name, factor, digits in (
            ("products of 16 segments, GMAC/s", "products_gmacs_per_s", 1, 0),
            ("share of the peak, %", "share_of_peak", 100, 0),
            ("weights read in a step of one segment, GB/s", "lone_gb_per_s", 1, 1),
            ("read of 256 MiB, GB/s", "read_gb_per_s", 1, 1),
        )
    ]
    titles = [f"{title}{suffix}" for suffix in ("", ", AVX2") for title in MODELS.values()]
    return table(("limits of the CPU", *titles), rows)


def servers_table() -> str:
    """Return the comparison of servers."""
    rows = []
    for section, title in SERVERS.items():
        values = FIGURES[section]["values"]
        for load in (load for load in (30, 60, 90) if f"p50-{load}" in values):
            kinds = (sides(values[f"{kind}-{load}"]) for kind in ("p50", "p95", "cpu"))
            rows.append((title, sides(values["capacity"]), f"{load} %", *kinds))
    return table(("model and machine", "capacity, calls/s", "load", "p50, ms", "p95, ms", "CPU per call, ms"), rows)


def sides(pair: Mapping[str, float]) -> str:
    """Return `ratio (ours and theirs)`."""
    ratio, *values = (pair[name] for name in SIDES)
    return f"{ratio:.2f} ({' and '.join(f'{value:,.0f}' for value in values)})"


def overload_table() -> str:
    """Return the figures of ten times the capacity."""
    values = FIGURES["overload"]["values"]
    rejected = values["rejected_ms"]
    rows = [
        ("offered calls per second", f"{values['offered_per_s']:.0f}"),
        ("rejected calls", f"{values['rejected']:,} of {values['offered']:,}"),
        ("time to a rejection, p50 and p99", f"{rejected['p50_ms']:.1f} and {rejected['p99_ms']:.1f} ms"),
        ("accepted calls that missed their deadline", str(values["late"])),
        ("calls answered in time, relative to the capacity", f"{values['goodput']:.2f}"),
        ("growth of the server's memory", f"{values['rss_growth_mb']:.1f} MiB"),
    ]
    return table(("figure", "value"), rows)


def scenario_line(section: str) -> str:
    """Return the main figures of a stress scenario."""
    values = FIGURES[section]["values"]
    return ", ".join(f"{values[name]:,} {title}" for name, title in SCENARIOS[section].items())


def memory_table() -> str:
    """Return memory and time of a start with one and with both bundled models."""
    both, one = (FIGURES["memory"]["values"][name] for name in ("both", "one"))
    rows = [
        (title, f"{both[name]:.{digits}f}", f"{one[name]:.{digits}f}")
        for title, name, digits in (
            ("resident memory after the start, MiB", "idle_mib", 0),
            ("resident memory with 32 callers, 20 sentences per call, MiB", "busy_mib", 0),
            ("time until the server is ready, s", "ready_s", 1),
        )
    ]
    return table(("", "both models", "`en-de` only"), rows)


def calls_table() -> str:
    """Return the CPU time of the server per call."""
    values = FIGURES["calls"]["values"]
    rows = [
        (callers, f"{values[callers]['cpu_ms']:.2f}", f"{values[callers]['calls_per_s']:.0f}")
        for callers in sorted(values, key=int)
    ]
    return table(("callers", "CPU time per call, ms", "calls/s"), rows)


def complexity_table() -> str:
    """Return the times of layers by length."""
    values = {int(length): times for length, times in FIGURES["complexity"]["values"].items() if length.isdigit()}
    names = [*values[min(values)]]
    rows = [(f"{length:,}", *(f"{values[length][name]:.1f}" for name in names)) for length in sorted(values)]
    return table(("length", *(name.removesuffix("_ms").replace("_", "-") for name in names)), rows)


def signals_table() -> str:
    """Return the mean signals of the autoscaler at shares of the capacity."""
    values = FIGURES["signals"]["values"]
    names = ("queue_decode_cost", "queue_wait_s_per_s", "live_segments", "rejected_per_s")
    rows = [
        (f"{int(load) / 100:g}", *(shown(float(signals[name]), ",.1f") for name in names))
        for load, signals in values.items()
        if load != "capacity"
    ]
    rows.sort(key=lambda row: float(row[0]))
    header = ("load / capacity", "waiting work", "waiting segments", "segments in batches", "rejected calls/s")
    return table(header, rows)


def quality_table(model: str) -> str:
    """Return the scores of a bundled model."""
    rows = [
        (
            f"{title} ({scores['pairs']:,} pairs)",
            f"{scores['BLEU']:.2f}",
            f"{scores['chrF']:.2f}",
            f"`{scores['signature']}`",
        )
        for name, title in TEST_SETS.items()
        for scores in (FIGURES["quality"]["values"][model][name],)
    ]
    return table(("test set", "BLEU", "chrF", "signature"), rows)


def examples(model: str) -> str:
    """Return random test pairs with the translations of a bundled model."""
    pairs = FIGURES["examples"]["values"][model]
    texts = ("".join(f"{kind:12} {pair[kind]}\n" for kind in ("source", "reference", "translation")) for pair in pairs)
    return "```text\n" + "\n".join(texts) + "```\n"


def robustness_table(model: str) -> str:
    """Return the measures of a bundled model on changed sentences, the largest loss of chrF first."""
    rows = [
        (
            f"{change} ({outcome['sentences']:,})",
            f"{outcome['unchanged_chrf']:.1f}",
            "" if outcome["chrf"] is None else f"{outcome['chrf']:.1f}",
            *(percent(outcome[share]) for share in ("repetitions", "copies", "preserved")),
        )
        for change, outcome in outcomes(model).items()
    ]
    header = ("change (sentences)", "chrF unchanged", "chrF changed", "repeated, %", "copied, %", "preserved, %")
    return table(header, rows)


def integrity_table(*models: str) -> str:
    """Return the share of generated texts that stay intact, and the number damaged without a warning, by kind."""
    values = [FIGURES["integrity"]["values"][model] for model in models]
    rows = [
        (
            kind,
            f"{sum(counts[kind]['cases'] for counts in values):,}",
            *(percent(counts[kind]["intact"] / counts[kind]["cases"]) for counts in values),
            *(f"{counts[kind]['silent']:,}" for counts in values),
        )
        for kind in sorted(values[0], key=lambda kind: (kind == "all", kind))
    ]
    header = (
        "kind",
        "texts",
        *(f"intact, {model}, %" for model in models),
        *(f"without a warning, {model}" for model in models),
    )
    return table(header, rows)


def weaknesses(model: str) -> str:
    """Return the changes that affect a bundled model most, as a list."""
    lines = []
    for change, outcome in outcomes(model).items():
        shares = {
            "repeated words": outcome["repetitions"],
            "copies of the source": outcome["copies"],
            "lost spans": 0 if outcome["preserved"] is None else 1 - outcome["preserved"],
        }
        measures = [f"{chrf_loss(outcome):.1f} less chrF"] if chrf_loss(outcome) >= WEAK_LOSS else []
        measures += [f"{percent(share)} % {kind}" for kind, share in shares.items() if share >= WEAK_SHARE]
        if measures:
            lines.append(f"- {change}: {', '.join(measures)}\n")
    return "".join(lines)


def outcomes(model: str) -> dict[str, Mapping[str, Any]]:
    """Return the measures of a bundled model by change, the largest loss of chrF first."""
    values = FIGURES["robustness"]["values"][model]
    return dict(sorted(values.items(), key=lambda item: chrf_loss(item[1]), reverse=True))


def chrf_loss(outcome: Mapping[str, Any]) -> float:
    """Return how much lower chrF is than for the unchanged sentences; minus infinity without references."""
    return -math.inf if outcome["chrf"] is None else outcome["unchanged_chrf"] - outcome["chrf"]


def percent(share: float | None) -> str:
    """Return a share as a percentage; empty if it is unknown."""
    return "" if share is None else f"{100 * share:.1f}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns of figures are aligned to the right."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    columns = [[row[index] for row in rows if row[index]] for index in range(len(header))]
    rule = ["---:" if all(cell.lstrip("+-")[:1].isdigit() for cell in cells) else "---" for cells in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows)) + "\n"


def replicas_for(peak: str) -> str:
    """Return the replicas of Transformer-base for a peak in calls per second, by the formula of sizing.md."""
    return str(math.ceil(float(peak) / (0.6 * _look_up("servers-base.capacity.ours"))) + 1)


def capacity_per_core(servers: str) -> str:
    """Return the calls per second of one replica, per core."""
    return f"{_look_up(f'{servers}.capacity.ours') / FIGURES[servers]['cores']:.0f}"


def machines_table() -> str:
    """Return replicas of two cores, calls per second and memory of machines, by the formula of sizing.md."""
    per_replica = min(_look_up("servers.capacity.ours"), 0.7 * 1000 / _look_up("calls.32.cpu_ms"))
    rows = []
    for cores in (16, 64):
        replicas = cores // 2
        memory_gib = replicas * _look_up("memory.both.busy_mib") / 1024
        rows.append((str(cores), str(replicas), f"{replicas * per_replica:,.0f}", f"{memory_gib:.1f}"))
    return table(("cores", "replicas", "calls/s", "memory, GiB"), rows)


def cost(load: str) -> str:
    """Return the cost of a million characters in the example of sizing.md."""
    return f"{0.10 * 1e6 / (_look_up('servers-base.capacity.ours') * 0.6 * float(load) * 60 * 3600):.4f}"


BLOCKS: Mapping[str, Callable[..., str]] = {
    "origin": origin,
    "commands": commands,
    "version": version,
    "engine-table": engine_table,
    "limits-table": limits_table,
    "readme-table": readme_table,
    "servers-table": servers_table,
    "overload-table": overload_table,
    "scenario": scenario_line,
    "memory-table": memory_table,
    "calls-table": calls_table,
    "complexity-table": complexity_table,
    "signals-table": signals_table,
    "quality-table": quality_table,
    "examples": examples,
    "robustness-table": robustness_table,
    "integrity-table": integrity_table,
    "weaknesses": weaknesses,
    "replicas-for": replicas_for,
    "capacity-per-core": capacity_per_core,
    "machines-table": machines_table,
    "cost": cost,
}
