"""`translate`: ask a running server."""

import argparse
import sys
from typing import Any

from dragoman.client import TranslationClient
from dragoman.requests import DecodingOptions
from dragoman.results import Translation

from service.cli.target import add_target_flags, call

_BATCH_TEXTS = 64  # of standard input per call; a server takes 128 at most


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "translate",
        help="translate texts by a running server",
        description="Translates each argument, or else each line of standard input, and prints one line for each; "
        "with several hypotheses, one line for each of them, with its score before it.",
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; none: the lines of standard input")
    add_target_flags(parser)
    parser.add_argument("--source-language", default="en", metavar="TAG", help="BCP-47 tag (%(default)s)")
    parser.add_argument("--target-language", default="de", metavar="TAG", help="BCP-47 tag (%(default)s)")
    parser.add_argument("--model", default="", metavar="NAME[/VERSION]", help="default: that of the language pair")
    parser.add_argument(
        "--beam-size", type=int, metavar="N", help="live hypotheses; 1 is greedy; default: the server's"
    )
    parser.add_argument("--num-hypotheses", type=int, metavar="N", help="translations of each text (1)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate and print; return the exit code."""
    texts = arguments.texts or [line.removesuffix("\n") for line in sys.stdin]
    options = DecodingOptions(beam_size=arguments.beam_size, num_hypotheses=arguments.num_hypotheses)

    def translate(client: TranslationClient) -> None:
        for start in range(0, len(texts), _BATCH_TEXTS):
            result = client.translate(
                texts[start : start + _BATCH_TEXTS],
                source_language=arguments.source_language,
                target_language=arguments.target_language,
                model=arguments.model,
                options=options,
            )
            for translation in result:
                _print(translation, with_scores=arguments.num_hypotheses is not None)

    return call(arguments, translate)


def _print(translation: Translation, *, with_scores: bool) -> None:
    for hypothesis in translation.hypotheses:
        print(f"{hypothesis.score:.4f}\t{hypothesis.text}" if with_scores else hypothesis.text)
    for warning in translation.warnings:
        print(f"dragoman: {warning.kind.name}: {warning.message}", file=sys.stderr)
