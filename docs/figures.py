"""Insert tables of measured figures into the pages, and find figures that were typed.

A page names a block in a comment, and docs/generate.py writes it between that comment and the next one:

    <!-- =calls -->
    ...
    <!-- / -->

A name is one of `BLOCKS` or `TABLES` with its arguments.
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
MODELS = ("base", "shipped")
OTHER_SYSTEMS = ("ctranslate2", "transformers", "onnxruntime")
SERVERS = {
    "servers": "bundled model",
    "servers-avx2": "bundled model, both limited to AVX2",
    "servers-neighbour": "bundled model, and another process that uses half of a core",
    "servers-base": "Transformer-base",
}
_PAIR = {"ratio": "{ratio:.2f}", "ours": "{ours:,.0f}", "theirs": "{theirs:,.0f}"}
TABLES: Mapping[str, Mapping[str, str]] = {  # columns by section; a row has its `name` and the figures below it
    "engine": {"model, case, threads, system": "{name}", **_PAIR},
    "limits": {
        "model": "{name}",
        "products of 16 segments, GMAC/s": "{products_gmacs_per_s:.0f}",
        "share of the peak": "{share_of_peak:.0%}",
        "weights read in a step of one segment, GB/s": "{lone_gb_per_s:.1f}",
        "read of 256 MiB, GB/s": "{read_gb_per_s:.1f}",
    },
    "calls": {"callers": "{name}", "CPU time per call, ms": "{cpu_ms:.2f}", "calls/s": "{calls_per_s:.0f}"},
    "memory": {
        "models": "{name}",
        "after the start, MiB": "{idle_mib:.0f}",
        "with 32 callers, 20 sentences per call, MiB": "{busy_mib:.0f}",
        "time until the server is ready, s": "{ready_s:.1f}",
    },
    "complexity": {
        "length": "{name}",
        "self-attention": "{self_attention_ms:.1f}",
        "recurrent": "{recurrent_ms:.1f}",
        "convolution": "{convolution_ms:.1f}",
        "feed-forward": "{feed_forward_ms:.1f}",
    },
    "signals": {
        "load, % of the capacity": "{name}",
        "waiting work": "{queue_decode_cost:,.1f}",
        "waiting segments": "{queue_wait_s_per_s:,.1f}",
        "segments in batches": "{live_segments:,.1f}",
        "rejected calls/s": "{rejected_per_s:,.1f}",
    },
    "datasets": {
        "processes": "{name}",
        "rows/s": "{rows_per_s:,.0f}",
        "rows/s of the engine alone": "{engine_rows_per_s:,.0f}",
        "ratio": "{ratio:.2f}",
    },
    "overload": {
        "offered calls/s": "{offered_per_s:.0f}",
        "offered": "{offered:,}",
        "rejected": "{rejected:,}",
        "rejected after, ms at p50 and p99": "{rejected_ms[p50_ms]:.1f} and {rejected_ms[p99_ms]:.1f}",
        "accepted but late": "{late}",
        "answered in time / capacity": "{goodput:.2f}",
        "growth of memory, MiB": "{rss_growth_mb:.1f}",
    },
    "quality": {
        "test set": "{name}",
        "pairs": "{pairs:,}",
        "BLEU": "{BLEU:.2f}",
        "chrF": "{chrF:.2f}",
        "signature": "`{signature}`",
    },
    "spans": {
        "sentences": "{sentences}",
        "spans": "{spans}",
        "preserved by the model, %": "{preserved:.2f}",
        "by a second search, %": "{redecoded:.2f}",
        "inserted with a warning, %": "{inserted:.2f}",
    },
    "robustness": {
        "change": "{name}",
        "sentences": "{sentences:,}",
        "chrF unchanged": "{unchanged_chrf:.1f}",
        "chrF changed": "{chrf:.1f}",
        "repeated words": "{repetitions:.1%}",
        "copies of the source": "{copies:.1%}",
        "preserved spans": "{preserved:.1%}",
    },
    "integrity": {
        "kind": "{name}",
        "texts": "{cases:,}",
        "intact": "{intact:,}",
        "without a warning": "{silent:,}",
    },
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
    name, *arguments = match["name"].split()
    value = BLOCKS[name](*arguments) if name in BLOCKS else figures_table(name, *arguments)
    if "\n" in value:
        value = f"\n\n{value.rstrip()}\n\n"
    return f"<!-- ={match['name']} -->{value}<!-- / -->"


def _look_up(name: str) -> Any:
    section, *path = name.split(".")
    value = FIGURES[section]["values"]
    for part in path:
        value = value[part]
    return value


def origin(*sections: str) -> str:
    """Return date, commit, machine and versions of sections that were measured together."""
    known = [FIGURES[section] for section in sections]
    first = known[0]
    dates = " and ".join(dict.fromkeys(one["date"][:10] for one in known))
    commits = " and ".join(dict.fromkeys(one["commit"] for one in known))
    sets = ", ".join(
        name for name in ("amx_int8", "avx512_vnni", "avx_vnni", "avx2") if name in first["instruction_sets"]
    )
    pgo = "with" if first["python_has_pgo"] else "without"
    machine = f"{first['cpu']} ({sets}), {first['cores']} cores, Python {first['python']} {pgo} PGO"
    return f"{dates}, commit {commits}, {machine}"


def commands(*sections: str) -> str:
    """Return a block with the commands of sections, and the versions of other systems."""
    versions = ", ".join(f"{name} {FIGURES['engine']['versions'][name]}" for name in OTHER_SYSTEMS)
    lines = [f"# {versions}", *(FIGURES[section]["command"] for section in sections)]
    return "```sh\n" + "".join(f"{line}\n" for line in lines) + "```\n"


class _Unknown:
    """A figure that was not measured."""

    def __format__(self, _: str) -> str:
        return ""


def figures_table(path: str, kind: str = "") -> str:
    """Return the figures at a path as a table of a kind, by default the first part of the path."""
    columns = TABLES[kind or path.partition(".")[0]]
    found = _look_up(path)
    rows = {name: figures for name, figures in found.items() if isinstance(figures, Mapping)}
    if "{name}" not in columns.values():  # one row
        rows = {path: found}
    if kind == "limits":
        rows = {name: cases["limits"] for name, cases in rows.items()}
    elif kind == "engine":
        rows = {
            f"{m}, {key.replace('-', ', ')}": pair for m in rows for key, pair in rows[m].items() if key != "limits"
        }
    ordered = sorted(rows.items(), key=lambda row: (row[0] == "all", int(row[0]) if row[0].isdigit() else 0, row[0]))
    cells = []
    for name, figures in ordered:
        known = {key: _Unknown() if value is None else value for key, value in figures.items()}
        cells.append([template.format(name=name, **known) for template in columns.values()])
    return table([*columns], cells)


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


def result_line(section: str) -> str:
    """Return the figures of the result line of a stress scenario."""
    return "`" + " ".join(f"{name}={value}" for name, value in FIGURES[section]["values"].items()) + "`"


def examples(model: str) -> str:
    """Return random test pairs with the translations of a bundled model."""
    pairs = FIGURES["examples"]["values"][model]
    texts = ("".join(f"{kind:12} {pair[kind]}\n" for kind in ("source", "reference", "translation")) for pair in pairs)
    return "```text\n" + "\n".join(texts) + "```\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; columns of figures are aligned to the right."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    columns = [[row[index] for row in rows if row[index]] for index in range(len(header))]
    rule = ["---:" if all(cell.lstrip("+-")[:1].isdigit() for cell in cells) else "---" for cells in columns]
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, rule, *rows)) + "\n"


def machines_table() -> str:
    """Return replicas of two cores, calls per second and memory of machines, by the formula of sizing.md."""
    per_replica = min(_look_up("servers.capacity.ours"), 0.7 * 1000 / _look_up("calls.32.cpu_ms"))
    rows = []
    for cores in (16, 64):
        replicas = cores // 2
        memory_gib = replicas * _look_up("memory.both.busy_mib") / 1024
        rows.append((str(cores), str(replicas), f"{replicas * per_replica:,.0f}", f"{memory_gib:.1f}"))
    return table(("cores", "replicas", "calls/s", "memory, GiB"), rows)


BLOCKS: Mapping[str, Callable[..., str]] = {
    "origin": origin,
    "commands": commands,
    "readme-table": readme_table,
    "servers-table": servers_table,
    "result-line": result_line,
    "examples": examples,
    "machines-table": machines_table,
}
