"""`dragoman translate`: texts, one document or files, by a running server."""

import argparse
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from dragoman.cli.target import add_target_flags, call
from dragoman.client.clients import TranslationClient
from dragoman.client.enums import NumberFormat, TextFormat, WireEnum
from dragoman.client.request import DecodingOptions, RequestSettings, SamplingOptions
from dragoman.client.results import Translation, TranslationWarning
from dragoman.documents.content import decoded
from dragoman.documents.file_translator import Outcome, Plan, plan_files, translate_file
from dragoman.documents.formats import FORMATS, ReadOptions
from dragoman.option_ranges import option_range

_BATCH_TEXTS = 64  # of standard input per call; at most 128
_DOCUMENT_TIMEOUT_S = 600.0
_DETECTED = "auto"

Member = TypeVar("Member", bound=WireEnum)


def add_parser(commands: Any) -> None:
    """Add the command and its flags."""
    parser = commands.add_parser(
        "translate",
        help="translate texts or files with a running server",
        description="Translates each argument, or each line of standard input, and prints one line for each. With "
        "--num-hypotheses, prints one line for each hypothesis, after its score. Input is UTF-8.",
    )
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="text (default: the lines of standard input)")
    parser.add_argument("--document", metavar="FILE", help="translate one long text from a file or standard input (-)")
    files = parser.add_argument_group(
        "files", "Translates files and preserves everything except their text. A second run resumes the first."
    )
    files.add_argument(
        "--input", nargs="+", type=Path, metavar="FILE", help=f"files to translate: {', '.join(FORMATS)}"
    )
    files.add_argument("--output", type=Path, metavar="FILE|DIR", help="output of --input")
    files.add_argument("--retranslate", action="store_true", help="replace existing translations of catalogues")
    files.add_argument("--dry-run", action="store_true", help="only count the texts")
    add_target_flags(parser)
    parser.add_argument(
        "--source-language", default="en", metavar="TAG", help="BCP-47 tag; auto: language detection (default en)"
    )
    parser.add_argument("--target-language", default="de", metavar="TAG", help="BCP-47 tag (default de)")
    parser.add_argument(
        "--pivot-languages",
        default=[],
        type=lambda tags: tags.split(","),
        metavar="TAG,TAG",
        help="intermediate languages to try if no model translates directly; for texts only",
    )
    parser.add_argument(
        "--model", default="", metavar="NAME[/VERSION|@LABEL]", help="model (default: that of the language pair)"
    )
    _add_option(parser, "beam_size", "live hypotheses; 1 is greedy search")
    _add_option(parser, "num_hypotheses", "translations of each text")
    _add_option(parser, "no_repeat_ngram_size", "length of token sequences that must not repeat; 0 disables the rule")
    parser.add_argument("--target-prefix", metavar="TEXT", help="start of each translation")
    _add_enum(
        parser, "--format", TextFormat, "format of the texts; --input has the format of each file (default plain)"
    )
    _add_enum(
        parser,
        "--number-format",
        NumberFormat,
        "separators of protected numbers: of the target language, or as in the source (default: that of the server)",
    )
    parser.add_argument("--alignment", action="store_true", help="print the aligned parts below, one per line")
    sampling = parser.add_argument_group("sampling", "Each of these flags selects random sampling instead of search.")
    _add_option(sampling, "sampling.temperature", "values below 1 prefer likely tokens")
    _add_option(sampling, "sampling.top_k", "number of most likely tokens to sample from")
    _add_option(sampling, "sampling.top_p", "probability of the most likely tokens to sample from")
    _add_option(sampling, "sampling.seed", "seed of the random generator")
    parser.set_defaults(run=run)


def _add_option(group: Any, path: str, help_text: str) -> None:
    option = option_range(f"options.{path}")
    flag = f"--{option.name.replace('_', '-')}"
    metavar = "N" if option.type is int else "X"
    group.add_argument(flag, type=option.type, metavar=metavar, help=f"{help_text} ({option.description})")


def _add_enum(parser: Any, flag: str, kind: type[WireEnum], help_text: str) -> None:
    parser.add_argument(flag, choices=[member.name.lower().replace("_", "-") for member in kind], help=help_text)


def _member(kind: type[Member], choice: str | None) -> Member | None:
    return None if choice is None else kind[choice.upper().replace("-", "_")]


def run(arguments: argparse.Namespace) -> int:
    """Translate and print; return the exit code."""
    try:
        _check_pivots(arguments)
        if arguments.input or arguments.output:
            plans = _plans(arguments)
            if arguments.dry_run:
                return _print_counts(plans)
            return call(arguments, TranslationClient, lambda client: _translate_files(client, plans, arguments))
        action = _document_action(arguments) if arguments.document else _texts_action(arguments)
    except ModuleNotFoundError as error:
        print(f"dragoman: missing module {error.name!r}: pip install 'dragoman[files]'", file=sys.stderr)
        return 2
    except (OSError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2
    if arguments.document and arguments.timeout is None:
        arguments.timeout = _DOCUMENT_TIMEOUT_S
    return call(arguments, TranslationClient, action)


def _check_pivots(arguments: argparse.Namespace) -> None:
    if arguments.pivot_languages and (arguments.document or arguments.input):
        raise ValueError("--pivot-languages is for texts, not for --document or --input")


def _texts_action(arguments: argparse.Namespace) -> Callable[[TranslationClient], None]:
    texts = _checked(arguments.texts) or _lines(_standard_input())
    request = _request(arguments)

    def translate(client: TranslationClient) -> None:
        for start in range(0, len(texts), _BATCH_TEXTS):
            batch = texts[start : start + _BATCH_TEXTS]
            result = client.translate(batch, pivot_languages=arguments.pivot_languages, **request)
            if result.pivot is not None:
                pivot = result.pivot
                model = f"{pivot.model_name}/{pivot.model_version}"
                print(f"dragoman: pivot language {pivot.language}, model {model}", file=sys.stderr)
            for text, translation in zip(batch, result, strict=True):
                _print(text, translation, with_scores=arguments.num_hypotheses is not None)

    return translate


def _document_action(arguments: argparse.Namespace) -> Callable[[TranslationClient], None]:
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
    if arguments.format is not None:
        raise ValueError("--input takes no --format: the suffix of each file decides")
    if not (arguments.input and arguments.output):
        raise ValueError("--input and --output must be given together")
    options = ReadOptions(target_language=arguments.target_language, retranslates=arguments.retranslate)
    return plan_files(arguments.input, arguments.output, options)


def _print_counts(plans: Iterable[Plan]) -> int:
    for plan in plans:
        counts = f"{len(plan.content.segments)} segments, {plan.num_characters} characters"
        print(f"{plan.source}: {counts}, {plan.content.num_kept} already translated")
    return 0


def _translate_files(client: TranslationClient, plans: Iterable[Plan], arguments: argparse.Namespace) -> int:
    has_failed = False
    for plan in plans:
        bar = import_module("tqdm").tqdm  # shown if standard error is a terminal
        options = {"desc": plan.source.name, "unit": " characters", "unit_scale": True, "disable": None}
        request, timeout_s = _request(arguments), arguments.timeout
        with bar(total=plan.num_characters, **options) as progress:
            outcome = translate_file(client, plan, request, progress=progress.update, timeout_s=timeout_s)
        _print_outcome(plan, outcome)
        has_failed |= bool(outcome.failures)
    return int(has_failed)


def _print_outcome(plan: Plan, outcome: Outcome) -> None:
    for segment, warning in outcome.warnings:
        print(f"dragoman: {plan.source}, {segment.place}: {warning}", file=sys.stderr)
    for segment, reason in outcome.failures:
        print(f"dragoman: {plan.source}, {segment.place}: not translated: {reason}", file=sys.stderr)
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
    try:
        return decoded(content).replace("\r\n", "\n")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines if lines[-1] else lines[:-1]


def _checked(texts: list[str]) -> list[str]:
    """Return arguments; ValueError if one is not UTF-8, which Python decodes to surrogates."""
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
        format=_member(TextFormat, arguments.format),
        number_format=_member(NumberFormat, arguments.number_format),
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
