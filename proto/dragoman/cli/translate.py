"""`translate`: texts, one document or files, by a running server."""

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any

from dragoman.cli.target import add_target_flags, call
from dragoman.client import TranslationClient
from dragoman.client.request import DecodingOptions, RequestSettings, SamplingOptions
from dragoman.client.results import Translation, TranslationWarning
from dragoman.documents.file_translator import Outcome, Plan, plan_files, translate_file
from dragoman.documents.formats import FORMATS, ReadOptions

_BATCH_TEXTS = 64  # of standard input per call; a server takes 128 at most
_DOCUMENT_TIMEOUT_S = 600.0
_DETECTED = "auto"


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "translate",
        help="translate texts or files with a running server",
        description="Translates each argument, or else each line of standard input, and prints one line for each; "
        "with several hypotheses, one line for each of them, with its score before it. Input is UTF-8.",
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="a text; none: the lines of standard input")
    parser.add_argument(
        "--document", metavar="FILE", help="translate one long text instead, from a file or standard input (-)"
    )
    files = parser.add_argument_group(
        "files", "Translates files and keeps what is no text in them; run again, it goes on where it was ended."
    )
    files.add_argument(
        "--input", nargs="+", type=Path, metavar="FILE", help=f"files to translate: {', '.join(FORMATS)}"
    )
    files.add_argument("--output", type=Path, metavar="FILE|DIR", help="where the translation of --input goes")
    files.add_argument(
        "--retranslate", action="store_true", help="translate what a catalogue has translations for, too"
    )
    files.add_argument("--dry-run", action="store_true", help="only count what there is to translate")
    add_target_flags(parser)
    parser.add_argument(
        "--source-language", default="en", metavar="TAG", help="BCP-47 tag (%(default)s); auto: detected by the server"
    )
    parser.add_argument("--target-language", default="de", metavar="TAG", help="BCP-47 tag (%(default)s)")
    parser.add_argument(
        "--pivot-languages",
        default=[],
        type=lambda tags: tags.split(","),
        metavar="TAG,TAG",
        help="what may be translated through if no model translates directly; of texts only",
    )
    parser.add_argument(
        "--model", default="", metavar="NAME[/VERSION|@LABEL]", help="default: that of the language pair"
    )
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
    sampling = parser.add_argument_group("drawing tokens at random instead of searching, with any of these")
    sampling.add_argument("--temperature", type=float, metavar="X", help="below 1 prefers likely tokens (1)")
    sampling.add_argument("--top-k", type=int, metavar="N", help="among the N likeliest only; default: all")
    sampling.add_argument("--top-p", type=float, metavar="P", help="among the likeliest that add up to P only (1)")
    sampling.add_argument("--seed", type=int, metavar="N", help="the same one draws the same; default: a new one")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate and print; return the exit code."""
    try:
        _check_pivots(arguments)
        if arguments.input or arguments.output:
            plans = _plans(arguments)
            if arguments.dry_run:
                return _print_counts(plans)
            return call(arguments, TranslationClient, lambda client: _translate_files(client, plans, arguments))
        use = _document_use(arguments) if arguments.document else _texts_use(arguments)
    except (OSError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    if arguments.document and arguments.timeout is None:
        arguments.timeout = _DOCUMENT_TIMEOUT_S
    return call(arguments, TranslationClient, use)


def _check_pivots(arguments: argparse.Namespace) -> None:
    if arguments.pivot_languages and (arguments.document or arguments.input):
        raise ValueError("--pivot-languages is for texts, not for --document or --input")


def _texts_use(arguments: argparse.Namespace) -> Callable[[TranslationClient], None]:
    texts = _checked(arguments.texts) or _lines(_standard_input())
    request = _request(arguments)

    def translate(client: TranslationClient) -> None:
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[start : start + _BATCH_TEXTS]
            result = client.translate(batch, pivot_languages=arguments.pivot_languages, **request)
            if result.pivot is not None:
                pivot = result.pivot
                print(
                    f"dragoman: through {pivot.language}, by {pivot.model_name}/{pivot.model_version}", file=sys.stderr
                )
            for text, translation in zip(batch, result, strict=True):
                _print(text, translation, with_scores=arguments.num_hypotheses is not None)

    return translate


def _document_use(arguments: argparse.Namespace) -> Callable[[TranslationClient], None]:
    if arguments.texts or arguments.alignment or arguments.num_hypotheses is not None:
        raise ValueError("--document takes no TEXT, --alignment or --num-hypotheses")
    name = arguments.document
    text = _standard_input() if name == "-" else _decoded(Path(name).read_bytes(), name)
    request = _request(arguments)

    def translate(client: TranslationClient) -> None:
        last = ""
        for sentence in client.translate_document(text, **request):
            print(sentence.text, end="", flush=True)
            _print_warnings(sentence.warnings)
            last = sentence.text or last
        if not last.endswith("\n"):
            print()

    return translate


def _plans(arguments: argparse.Namespace) -> list[Plan]:
    if arguments.texts or arguments.document or arguments.alignment or arguments.num_hypotheses is not None:
        raise ValueError("--input takes no TEXT, --document, --alignment or --num-hypotheses")
    if not (arguments.input and arguments.output):
        raise ValueError("--input and --output go together")
    options = ReadOptions(target_language=arguments.target_language, retranslates=arguments.retranslate)
    return plan_files(arguments.input, arguments.output, options)


def _print_counts(plans: Iterable[Plan]) -> int:
    for plan in plans:
        counts = f"{len(plan.content.segments)} segments, {plan.num_characters} characters"
        print(f"{plan.source}: {counts}, {plan.content.num_kept} translated already")
    return 0


def _translate_files(client: TranslationClient, plans: Iterable[Plan], arguments: argparse.Namespace) -> int:
    has_failed = False
    for plan in plans:
        with _progress_bar(plan) as progress:
            outcome = translate_file(client, plan, _request(arguments), progress=progress, timeout_s=arguments.timeout)
        _print_outcome(plan, outcome)
        has_failed |= bool(outcome.failures)
    return int(has_failed)


def _progress_bar(plan: Plan) -> Any:
    """A bar with the time that is left, where standard error is a terminal."""
    bar = import_module("tqdm").tqdm
    return bar(total=plan.num_characters, desc=plan.source.name, unit=" characters", unit_scale=True, disable=None)


def _print_outcome(plan: Plan, outcome: Outcome) -> None:
    for segment, warning in outcome.warnings:
        print(f"dragoman: {plan.source}, {segment.place}: {warning}", file=sys.stderr)
    for failure in outcome.failures:
        print(f"dragoman: {plan.source}, {failure.segment.place}: not translated: {failure.reason}", file=sys.stderr)
    num_segments = len(plan.content.segments)
    print(f"{plan.output}: {num_segments - len(outcome.failures)} of {num_segments} segments translated")


def _request(arguments: argparse.Namespace) -> RequestSettings:
    return {
        "source_language": "" if arguments.source_language == _DETECTED else arguments.source_language,
        "target_language": arguments.target_language,
        "model": arguments.model,
        "options": _options(arguments),
    }


def _standard_input() -> str:
    return _decoded(sys.stdin.buffer.read(), "standard input")


def _decoded(content: bytes, name: str) -> str:
    """Return text; ValueError with the place of the first byte that is not UTF-8."""
    try:
        return content.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{name} is not UTF-8: byte 0x{content[error.start]:02x} in line {line}") from None


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _checked(texts: list[str]) -> list[str]:
    """Return arguments; ValueError if one is not UTF-8, which Python reads without saying so."""
    for number, text in enumerate(texts, start=1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"TEXT {number} is not UTF-8") from None
    return texts


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
            source_piece = text[link.source.start : link.source.end]
            print(f"  {hypothesis.text[link.target.start : link.target.end]}\t{source_piece}\t{link.weight:.2f}")
    _print_warnings(translation.warnings)


def _print_warnings(warnings: Iterable[TranslationWarning]) -> None:
    for warning in warnings:
        print(f"dragoman: {warning.kind.name}: {warning.message}", file=sys.stderr)
