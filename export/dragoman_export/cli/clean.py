"""`dragoman export clean`: drops pairs of parallel text that a model should not learn from, and reports why."""

import argparse
import gzip
import itertools
import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from tqdm import tqdm

from dragoman_export.cli.flags import add_shared
from dragoman_export.data.cleaning import REASONS, CleaningRules, SeenText, can_detect_languages, reasons_of
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles, map_chunks, read_corpus
from dragoman_export.errors import CorpusError, SettingError
from dragoman_export.evaluation.report import html_page, html_table
from dragoman_export.training.checkpoint import write_atomically

_PAIRS_OF_A_CHUNK: Final = 2000
_CHUNKS_AHEAD: Final = 4  # per process
_DEFAULTS: Final = CleaningRules()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "data")
    add_shared(
        parser,
        "output",
        metavar="TSV",
        help="kept lines in order, gzip if it ends with .gz; reports are written next to it",
    )
    add = parser.add_argument
    languages_help = "BCP-47 tag; with both, sides in another language are dropped (not checked)"
    add("--source-language", metavar="TAG", help=languages_help)
    add("--target-language", metavar="TAG", help="see --source-language")
    held_out_help = "dev and test sets: pairs with a side in them are dropped"
    add("--held-out", type=Path, nargs="+", default=[], metavar="FILE", help=held_out_help)
    add("--max-words", type=int, default=_DEFAULTS.max_words, metavar="N", help="of a side (%(default)s)")
    ratio_help = "of the characters of both sides (%(default)s)"
    add("--max-ratio", type=float, default=_DEFAULTS.max_ratio, metavar="R", help=ratio_help)
    copied_help = "of a pair with equal sides (%(default)s)"
    add("--max-copied-words", type=int, default=_DEFAULTS.max_copied_words, metavar="N", help=copied_help)
    label_help = "share of the pairs of at most three words a side to keep, such as menu entries (%(default)s)"
    add("--label-share", type=float, default=_DEFAULTS.label_share, metavar="SHARE", help=label_help)
    scores_help = "similarity of each line of the data, one number per line, from a tool of your choice"
    add("--scores", type=Path, metavar="FILE", help=scores_help)
    add("--min-score", type=float, metavar="S", help="lowest score of a kept pair, with --scores")
    add(
        "--max-malformed",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="largest share of malformed lines (%(default)s)",
    )
    add("--examples", type=int, default=20, metavar="N", help="kept and dropped examples per reason (%(default)s)")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N", help="(all cores)")


def run(args: argparse.Namespace) -> int:
    """Write the kept pairs and the reports.

    Raises:
        SettingError: if a flag is invalid.
        CorpusError: if the output exists, or text or scores cannot be read.
    """
    rules = _rules(args)
    if args.output.exists():
        raise CorpusError(f"{args.output} already exists")
    pairs = PairFiles.scan([ParallelFiles(source=path) for path in args.data], max_malformed=args.max_malformed)
    held_out = (
        read_corpus([ParallelFiles(source=path) for path in args.held_out], max_malformed=0.0)
        if args.held_out
        else None
    )
    seen = SeenText(held_out.pairs if held_out else ())
    scores = _scores(args.scores, pairs.num_pairs) if args.scores else itertools.repeat(math.inf)
    counts, examples = Counter[str](), _Examples(args.examples)
    part = args.output.with_name(f".{args.output.name}.part")
    with (
        part.open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if args.output.suffix == ".gz" else nullcontext(raw) as file,
        ProcessPoolExecutor(args.processes) as pool,
        tqdm(total=pairs.num_pairs, unit="pair") as progress,
    ):
        for (pair, reason), score in zip(_checked(pairs, rules, pool, args.processes), scores, strict=False):
            is_unlike = args.min_score is not None and score < args.min_score
            state = reason or ("score" if is_unlike else None) or seen.reason(pair) or "kept"
            counts[state] += 1
            examples.add(state, pair)
            if state == "kept":
                file.write(f"{pair.source}\t{pair.target}\n".encode())
            progress.update()
    part.replace(args.output)
    report = {
        "data": [str(path) for path in args.data],
        "pairs": pairs.num_pairs,
        "malformed": len(pairs.malformed),
        "kept": counts["kept"],
        "dropped": {reason: counts[reason] for reason in REASONS},
        "examples": examples.chosen,
    }
    base = args.output.with_name(args.output.name.removesuffix(".gz").removesuffix(".tsv"))
    write_atomically(base.with_suffix(".json"), (json.dumps(report, ensure_ascii=False, indent=2) + "\n").encode())
    write_atomically(base.with_suffix(".html"), _page(report).encode())
    for reason in REASONS:
        print(f"{counts[reason]:>12,} dropped: {reason} ({REASONS[reason]})")
    print(f"{len(pairs.malformed):>12,} malformed lines")
    print(f"{counts['kept']:>12,} of {pairs.num_pairs:,} pairs kept: {args.output}, report {base.with_suffix('.html')}")
    return 0


def _rules(args: argparse.Namespace) -> CleaningRules:
    for name, value in (("max_words", args.max_words), ("examples", args.examples), ("processes", args.processes)):
        if value < 1:
            raise SettingError(f"--{name.replace('_', '-')}", value, "at least 1")
    if args.max_ratio < 1:
        raise SettingError("--max-ratio", args.max_ratio, "at least 1")
    if not 0 <= args.label_share <= 1:
        raise SettingError("--label-share", args.label_share, "from 0 to 1")
    if (args.scores is None) != (args.min_score is None):
        raise SettingError("--scores", args.scores, "a file, together with --min-score")
    tags = args.source_language, args.target_language
    if (tags[0] is None) != (tags[1] is None):
        raise SettingError("--source-language", tags[0], "a tag, together with --target-language")
    if tags[0] and not can_detect_languages():
        raise SettingError("--source-language", tags[0], "py3langid, which is not installed: pip install py3langid")
    return CleaningRules(
        max_words=args.max_words,
        max_ratio=args.max_ratio,
        max_copied_words=args.max_copied_words,
        languages=tags if tags[0] else None,
        label_share=args.label_share,
    )


def _checked(
    pairs: Iterable[Pair], rules: CleaningRules, pool: ProcessPoolExecutor, processes: int
) -> Iterator[tuple[Pair, str | None]]:
    # Yields each pair with the reason to drop it, in order.
    check, num_ahead = partial(reasons_of, rules=rules), _CHUNKS_AHEAD * processes
    for chunk, reasons in map_chunks(pool, check, pairs, size=_PAIRS_OF_A_CHUNK, num_ahead=num_ahead):
        yield from zip(chunk, reasons, strict=True)


def _scores(path: Path, num_pairs: int) -> list[float]:
    try:
        scores = [float(line) for line in path.read_text(encoding="utf-8").split()]
    except (OSError, ValueError) as error:
        raise CorpusError(f"cannot read scores {path}: {error}") from error
    if len(scores) != num_pairs:
        raise CorpusError(f"{path} has {len(scores):,} scores for {num_pairs:,} pairs")
    return scores


class _Examples:
    # A random choice of the pairs of each reason (reservoir sampling), the same for the same text.

    def __init__(self, size: int) -> None:
        self.chosen: dict[str, list[dict[str, str]]] = {}
        self._size, self._counts, self._random = size, Counter[str](), Random(1)  # noqa: S311

    def add(self, reason: str, pair: Pair) -> None:
        chosen = self.chosen.setdefault(reason, [])
        self._counts[reason] += 1
        example = {"location": pair.location, "source": pair.source, "target": pair.target}
        if len(chosen) < self._size:
            chosen.append(example)
        elif (place := self._random.randrange(self._counts[reason])) < self._size:
            chosen[place] = example


def _page(report: dict[str, Any]) -> str:
    dropped, total = report["dropped"], report["pairs"]
    rows = [*((reason, meaning, dropped[reason]) for reason, meaning in REASONS.items()), ("kept", "", report["kept"])]
    counts = html_table(
        ("state", "meaning", "pairs", "share"),
        ((state, meaning, f"{count:,}", f"{count / total:.2%}") for state, meaning, count in rows),
    )
    sections = "".join(
        f"<h2>{reason}</h2>{html_table((), (one.values() for one in examples))}"
        for reason, examples in sorted(report["examples"].items())
    )
    return html_page("Cleaned text", f"{report['kept']:,} of {total:,} pairs kept", counts + sections)
