"""`translate`: ask a running server."""

import argparse
import sys
from typing import Any

from dragoman.client import TranslationClient
from dragoman.requests import DecodingOptions, SamplingOptions
from dragoman.results import AlignmentLink, Translation

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
    parser.add_argument(
        "--no-repeat-ngram-size", type=int, metavar="N", help="no run of N tokens occurs twice in a sentence (0: off)"
    )
    parser.add_argument("--target-prefix", metavar="TEXT", help="what each translation starts with")
    parser.add_argument(
        "--alignment", action="store_true", help="print which piece comes from which, one line each, below"
    )
    _add_sampling_flags(parser)
    parser.set_defaults(run=run)


def _add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    sampling = parser.add_argument_group("drawing tokens at random instead of searching, with any of these")
    sampling.add_argument("--temperature", type=float, metavar="X", help="below 1 prefers likely tokens (1)")
    sampling.add_argument("--top-k", type=int, metavar="N", help="among the N likeliest only; default: all")
    sampling.add_argument("--top-p", type=float, metavar="P", help="among the likeliest that add up to P only (1)")
    sampling.add_argument("--seed", type=int, metavar="N", help="the same one draws the same; default: a new one")


def run(arguments: argparse.Namespace) -> int:
    """Translate and print; return the exit code."""
    texts = arguments.texts or [line.removesuffix("\n") for line in sys.stdin]
    options = _options(arguments)

    def translate(client: TranslationClient) -> None:
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[start : start + _BATCH_TEXTS]
            result = client.translate(
                batch,
                source_language=arguments.source_language,
                target_language=arguments.target_language,
                model=arguments.model,
                options=options,
            )
            for text, translation in zip(batch, result, strict=True):
                _print(text, translation, with_scores=arguments.num_hypotheses is not None)

    return call(arguments, translate)


def _options(arguments: argparse.Namespace) -> DecodingOptions:
    sampling = SamplingOptions(
        temperature=arguments.temperature, top_k=arguments.top_k, top_p=arguments.top_p, seed=arguments.seed
    )
    return DecodingOptions(
        beam_size=arguments.beam_size,
        num_hypotheses=arguments.num_hypotheses,
        no_repeat_ngram_size=arguments.no_repeat_ngram_size,
        sampling=None if sampling == SamplingOptions() else sampling,
        target_prefix=arguments.target_prefix,
        return_alignment=arguments.alignment or None,
    )


def _print(text: str, translation: Translation, *, with_scores: bool) -> None:
    for hypothesis in translation.hypotheses:
        print(f"{hypothesis.score:.4f}\t{hypothesis.text}" if with_scores else hypothesis.text)
        for link in hypothesis.alignment:
            print(_link_line(text, hypothesis.text, link))
    for warning in translation.warnings:
        print(f"dragoman: {warning.kind.name}: {warning.message}", file=sys.stderr)


def _link_line(text: str, target: str, link: AlignmentLink) -> str:
    source_piece = text[link.source.start : link.source.end]
    return f"  {target[link.target.start : link.target.end]}\t{source_piece}\t{link.weight:.2f}"
