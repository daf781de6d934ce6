"""`dragoman export shortlist`: adds a shortlist of likely target tokens to a bundle."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from dragoman_export.bundle_extension import add_shortlist
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.lexicon import TokenPair
from dragoman_export.data.reader import read_pairs
from dragoman_export.data.shortlist import make_shortlist
from dragoman_export.errors import CorpusError, SettingError
from dragoman_service.bundle.files import open_bundle
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer

_SAMPLE: Final = 1_000  # sources for the statistics of the lists


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", "output")
    add_shared(parser, "data", help="source<TAB>target lines: training text, or sources and their translations")
    sentences_help = "most lines used, spread evenly (1,000,000)"
    parser.add_argument("--sentences", type=int, default=1_000_000, metavar="N", help=sentences_help)
    mean_help = "target tokens per list, on average over the text (512)"
    parser.add_argument("--mean-size", type=int, default=512, metavar="N", help=mean_help)
    max_help = "most target tokens per list (4 times the average)"
    parser.add_argument("--max-size", type=int, metavar="N", help=max_help)
    held_out_help = "source<TAB>target lines for the coverage of target tokens"
    parser.add_argument("--held-out", type=Path, nargs="+", default=(), metavar="TSV", help=held_out_help)


def run(args: argparse.Namespace) -> int:
    """Write the bundle and print statistics of its shortlist."""
    max_size = 4 * args.mean_size if args.max_size is None else args.max_size
    for flag, value in (("--sentences", args.sentences), ("--mean-size", args.mean_size), ("--max-size", max_size)):
        if value < 1:
            raise SettingError(flag, value, "at least 1")
    bundle = open_bundle(args.bundle)
    tokenizer = open_tokenizer(bundle)
    pairs = _encoded(args.data, tokenizer, most=args.sentences)
    held_out = _encoded(args.held_out, tokenizer) if args.held_out else []
    try:
        shortlist = make_shortlist(pairs, tokenizer, mean_size=args.mean_size, max_size=max_size)
    except ValueError as error:
        raise CorpusError(f"cannot learn a shortlist: {error}") from error
    manifest = add_shortlist(args.bundle, args.output, shortlist)
    size = len(shortlist.to_bytes())
    print(f"{args.output}: {manifest.name}/{manifest.version} with a shortlist of {size:,} bytes")
    print(f"  text      {_sizes([shortlist.of(source) for source, _ in pairs[:: -(-len(pairs) // _SAMPLE)]])}")
    if held_out:
        lists = [shortlist.of(source) for source, _ in held_out]
        held = [np.isin(target, listed) for (_, target), listed in zip(held_out, lists, strict=True)]
        tokens, targets = np.concatenate(held).mean(), np.mean([one.all() for one in held])
        print(f"  held out  {_sizes(lists)}")
        print(f"  coverage  {tokens:.2%} of the target tokens, {targets:.2%} of the targets completely")
    return 0


def _encoded(paths: Sequence[Path], tokenizer: SentencePieceTokenizer, *, most: int | None = None) -> list[TokenPair]:
    # at most `most` pairs, spread evenly
    pairs = read_pairs(paths, None)
    chosen = pairs[:: -(-len(pairs) // (most or len(pairs)))]
    return [(tokenizer.encode(pair.source), tokenizer.encode_target(pair.target)) for pair in chosen]


def _sizes(lists: Sequence[NDArray[np.int32]]) -> str:
    sizes = [len(listed) for listed in lists]
    low, median, high = np.percentile(sizes, (5, 50, 95))
    return f"{np.mean(sizes):.0f} tokens per list on average, median {median:.0f}, 90 % from {low:.0f} to {high:.0f}"
