"""`dragoman export backtranslate`: makes training pairs from text of the target language (Sennrich et al. 2016).

A bundle of the opposite direction translates the text; a pair has the translation as its source and the text as its
target. A tag at the start of the source marks such pairs (tagged back-translation, Caswell et al. 2019,
arXiv:1906.06442).
"""

import argparse
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dragoman_export.bundle_writer import exporter_version
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import SEPARATORS, read_lines
from dragoman_export.data.translate_dataset import LineTranslation, Row
from dragoman_export.errors import CorpusError, SettingError
from dragoman_export.training.checkpoint import replaced, write_atomically

REASONS: Final = {
    "encoding": "not UTF-8",
    "empty": "no text",
    "rejected": "longer than limits.max_text_characters",
    "untranslated": "the translation is empty",
    "truncated": "the translation reached the limit of target tokens",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", help="bundle from the language of the text into the source language")
    add_shared(parser, "data", help="text of the target language, one sentence per line; can be compressed")
    output_help = "TRANSLATION<TAB>TEXT lines in the order of the data; a partial run in TSV.parts is continued"
    add_shared(parser, "output", metavar="TSV", help=output_help)
    parser.add_argument("--tag", metavar="WORD", help="put a tag such as <BT> before each translation (none)")
    add_shared(parser, "precision", "beam")
    add_shared(parser, "batch-size", default=64)
    add_shared(parser, "threads", help="processes with one thread each (%(default)s)")
    parser.add_argument("--save-every", type=int, default=1000, metavar="N", help="lines of a part (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Translate the remaining text, and write the pairs.

    Raises:
        SettingError: if the tag is not one word.
        CorpusError: if the output exists, or the text cannot be read.
        ExportError: if the translation fails.
    """
    if args.tag is not None and len(args.tag.split()) != 1:
        raise SettingError("--tag", args.tag, "one word without spaces")
    if args.output.exists():
        raise CorpusError(f"{args.output} already exists")
    translation = LineTranslation.of(args, args.bundle)
    counts = Counter[str]()
    prefix = f"{args.tag} " if args.tag else ""
    rows = translation.run(_texts(args.data, counts))
    with replaced(args.output) as file:
        for text, row in rows:
            source = "" if row is None else row["translation"].translate(SEPARATORS).strip()
            state = _state(source, row)
            counts[state] += 1
            if state == "kept":
                file.write(f"{prefix}{source}\t{text}\n".encode())
    report = {
        "data": [str(path) for path in args.data],
        "tag": args.tag,
        "translation": translation.settings,
        "lines": counts.total(),
        "kept": counts["kept"],
        "dropped": {reason: counts[reason] for reason in REASONS},
        "exporter": exporter_version(),
    }
    write_atomically(args.output.with_name(f"{args.output.name}.json"), (json.dumps(report, indent=2) + "\n").encode())
    shutil.rmtree(translation.directory)
    for reason, description in REASONS.items():
        print(f"{counts[reason]:>12,} dropped: {reason} ({description})")
    print(f"{counts['kept']:>12,} of {counts.total():,} lines are pairs: {args.output}")
    return 0


def _texts(paths: list[Path], counts: Counter[str]) -> Iterator[str]:
    for path in paths:
        for line in read_lines(path):
            try:
                text = line.decode().translate(SEPARATORS).strip()
            except UnicodeDecodeError:
                counts["encoding"] += 1
                continue
            if text:
                yield text
            else:
                counts["empty"] += 1


def _state(translation: str, row: Row | None) -> str:
    if row is None:
        return "rejected"
    if not translation:
        return "untranslated"
    return "truncated" if any(warning.startswith("TRUNCATED:") for warning in row["warnings"]) else "kept"
