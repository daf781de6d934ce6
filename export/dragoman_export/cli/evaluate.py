"""`dragoman export evaluate`: scores the translations of a bundle, of a server, or of a file.

A bundle translates as the service does, so scores apply to served translations.
"""

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any

from pydantic import TypeAdapter
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest
from tqdm import tqdm

from dragoman.client import TranslationClient
from dragoman.client.credentials import TlsOptions
from dragoman.client.errors import DragomanError
from dragoman.client.request import DecodingOptions
from dragoman.client.results import TranslationResult
from dragoman.option_ranges import option_range
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.formats import split_languages
from dragoman_export.data.reader import Pair, ParallelFiles, read_corpus
from dragoman_export.errors import CorpusError, ExportError, SettingError
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.integrity.cases import DIRECTIONS, KINDS, generate
from dragoman_export.evaluation.integrity.measure import IntegrityRow, measure, table, translate_cases, with_totals
from dragoman_export.evaluation.report import NUM_RESAMPLES, comet_score, copies, html_page, html_table, repetitions
from dragoman_export.evaluation.robustness import change_lines, changed, measure_changes
from dragoman_export.evaluation.spans import count_spans, span_lines, with_inserted_spans, with_own_spans
from dragoman_export.evaluation.test_sets import PublicTestSet, find_test_set, named_test_set
from dragoman_export.evaluation.translation import DEFAULT_LENGTH_PENALTY, TranslationRun, translate_texts
from dragoman_service.bundle.manifest import Score
from dragoman_service.runtimes.settings import RuntimeSettings

_TIMEOUT_S = 300.0  # per call: a server may have a long queue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    system = parser.add_mutually_exclusive_group(required=True)
    bundle_help = "bundle, checkpoint or run folder; several form an ensemble"
    system.add_argument("--bundle", type=Path, nargs="+", metavar="PATH", help=bundle_help)
    system.add_argument("--target", metavar="HOST:PORT", help="server")
    system.add_argument("--translations", type=Path, metavar="FILE", help="translations to score, one per line")
    data_help = "pairs, in a format of `train --train`; files that name languages, as FILE@en,de, give a table of pairs"
    add_shared(parser, "data", help=f"{data_help}; optional with --integrity", required=False, default=[])
    add_shared(parser, "limit", help="use the first N lines only; with languages, the first N of each pair")
    add_shared(parser, "beam")
    alpha_help = "larger values favour longer translations, 0: none (%(default)s)"
    parser.add_argument(
        "--length-penalty", type=float, default=DEFAULT_LENGTH_PENALTY, metavar="ALPHA", help=alpha_help
    )
    add_shared(parser, "batch-size")
    against_help = "translations of another system, one per line: compare by paired bootstrap"
    parser.add_argument("--against", type=Path, metavar="FILE", help=against_help)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the translations, one per line")
    html_help = "write a page with sources, references and translations, with --against of both systems side by side"
    parser.add_argument("--html", type=Path, metavar="FILE", help=html_help)
    comet_help = "also score with this command, such as /opt/comet/bin/comet-score; it gets the flags -s, -t and -r"
    parser.add_argument("--comet", metavar="COMMAND", help=comet_help)
    parser.add_argument("--scores", type=Path, metavar="JSON", help="write the scores for `bundle --scores-from`")
    bundle = parser.add_argument_group("with --bundle")
    add_shared(bundle, "precision")
    bundle.add_argument("--shortlist", action="store_true", help="use the shortlist of the bundle")
    add_shared(bundle, "threads")
    integrity_help = "translate generated texts, and count those whose numbers, names, symbols and markup are preserved"
    bundle.add_argument("--integrity", action="store_true", help=integrity_help)
    bundle.add_argument("--integrity-cases", type=int, default=5000, metavar="N", help="generated texts (%(default)s)")
    spans_help = "translate sentences with protected spans, inserted ones or their own, and count the preserved spans"
    bundle.add_argument("--spans", choices=("inserted", "own"), help=spans_help)
    robustness_help = "also score translations of the sentences with capitals, typos, tags, numbers and other changes"
    bundle.add_argument("--robustness", action="store_true", help=robustness_help)
    sample_help = "sentences of --spans, and of each change of --robustness (%(default)s)"
    bundle.add_argument("--sample", type=int, default=500, metavar="N", help=sample_help)
    bundle.add_argument("--seed", type=int, default=1, metavar="N", help="of generated texts and samples (%(default)s)")
    server = parser.add_argument_group("with --target")
    server.add_argument("--source-language", metavar="TAG", help="such as en (source of the server's only pair)")
    server.add_argument("--target-language", metavar="TAG", help="such as de (target of the server's only pair)")
    server.add_argument("--model", default="", help="name, name/version or name@label (model of the pair)")
    server.add_argument("--callers", type=int, default=4, metavar="N", help="concurrent requests (4)")
    server.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the API key")
    server.add_argument("--ca-file", type=Path, metavar="PEM", help="trusted certificates; enables TLS")


_TestSets = Mapping[Path, PublicTestSet | None]  # of each file


@dataclass(frozen=True, slots=True, kw_only=True)
class _Translated:
    texts: tuple[str, ...]
    report: tuple[str, ...] = ()  # lines about speed and warnings
    precision: str = ""
    data_suffix: str = ""


def run(args: argparse.Namespace) -> int:
    """Translate, score and print."""
    _check(args)
    listed = _score_data(args) if args.data else []
    if args.integrity:
        listed += _score_integrity(args)
    if args.spans or args.robustness:
        _measure_samples(args)
    if args.scores:
        args.scores.write_bytes(TypeAdapter(list[Score]).dump_json(listed, indent=2) + b"\n")
    return 0


def _score_data(args: argparse.Namespace) -> list[Score]:
    # Translates the sources of the data, prints and returns the scores.
    pairs, test_sets = _read_data(args)
    references = [pair.target for pair in pairs]
    other = _read_lines(args.against, len(pairs)) if args.against else None
    translated = _translate(args, pairs)
    if args.output:
        lines = [" ".join(text.splitlines()) for text in translated.texts]
        args.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    for one in filter(None, test_sets.values()):
        print(f"test set {one.name} {one.languages}: {one.citation}")
    groups = _by_languages(pairs)
    scores = {
        languages: _scores(args, translated, pairs, languages, groups[languages], test_sets=test_sets)
        for languages in groups
    }
    for rows in zip(*scores.values(), strict=True):  # of one metric
        print(*_table(dict(zip(scores, rows, strict=True))), sep="\n")
    bleu: Any = BLEU().corpus_score(translated.texts, [references])
    ratio = bleu.sys_len / max(bleu.ref_len, 1)
    print(f"length ratio {ratio:.3f}: {bleu.sys_len:,} words, {bleu.ref_len:,} in the references")
    sources = [pair.source for pair in pairs]
    print(*_odd_translations(sources, translated.texts, references), sep="\n")
    if args.comet:
        print(f"COMET {comet_score(args.comet, sources, translated.texts, references):.4f}  {args.comet}")
    if args.html:
        args.html.write_text(
            _page(_name(args, args.data, test_sets), sources, references, translated.texts, other), encoding="utf-8"
        )
    for line in (*translated.report, *_compared(translated.texts, other, references)):
        print(line)
    return list(itertools.chain(*scores.values()))


def _measure_samples(args: argparse.Namespace) -> None:
    # Translates samples of the data with protected spans or changes, and prints the measures.
    pairs, _ = _read_data(args)
    if any(pair.languages for pair in pairs):
        raise SettingError("--data", args.data[0], "files without languages, with --spans or --robustness")
    sizes = {"beam_size": args.beam, "batch_size": args.batch_size}
    with open_text_model(args.bundle, _runtime_settings(args)) as (model, _):
        if args.spans:
            sources = [pair.source for pair in pairs]
            Random(args.seed).shuffle(sources)  # noqa: S311
            found = with_own_spans(sources) if args.spans == "own" else with_inserted_spans(sources, seed=args.seed)
            if not (sentences := list(itertools.islice(found, args.sample))):
                raise CorpusError("--data has no sentence for --spans")
            print(*span_lines(count_spans(model, sentences, **sizes)), sep="\n")
        if args.robustness:
            cases = changed(pairs, limit=args.sample, seed=args.seed)
            print(*change_lines(measure_changes(model, cases, **sizes)), sep="\n")


def _runtime_settings(args: argparse.Namespace) -> RuntimeSettings:
    return RuntimeSettings(precision=args.precision, num_intra_op_threads=args.threads, shortlist=args.shortlist)


def _score_integrity(args: argparse.Namespace) -> list[Score]:
    # Translates generated texts in the directions that the bundle serves, prints and returns the intact shares.
    with open_text_model(args.bundle, _runtime_settings(args)) as (model, precision):
        directions = [pair for pair in DIRECTIONS if model.languages is not None and model.languages.serves(*pair)]
        if not directions:
            expected = " or ".join(f"{source} to {target}" for source, target in DIRECTIONS)
            raise SettingError("--integrity", "given", f"a model from {expected}")
        cases = generate(args.integrity_cases, seed=args.seed, directions=directions)
        rows: list[IntegrityRow] = []
        for pair in directions:
            own = [case for case in cases if (case.source_language, case.target_language) == pair]
            answers = translate_cases(model.for_pair(*pair), own, beam_size=args.beam, batch_size=args.batch_size)
            rows += measure(own, answers)
    rows = with_totals(rows)
    print(*table(rows), sep="\n")
    return [
        Score(
            metric="intact",
            value=round(row.intact_percent, 2),
            data=f"{row.num_cases:,} generated texts, {row.kind}, {row.source_language} to {row.target_language}",
            signature=f"seed:{args.seed}|silent:{row.num_silent}",
            precision=precision,
            beam_size=args.beam,
        )
        for row in rows
    ]


def _read_data(args: argparse.Namespace) -> tuple[list[Pair], _TestSets]:
    # The pairs of all files, with languages the first of each pair of languages, and the test sets that files contain.
    by_file = {path: read_corpus([ParallelFiles(source=path)], max_malformed=0.0).pairs for path in args.data}
    test_sets = {path: _test_set(path, own) for path, own in by_file.items()}
    pairs = list(itertools.chain.from_iterable(by_file.values()))
    groups = _by_languages(pairs)
    if len(groups) > 1 and None in groups:
        raise SettingError("--data", pairs[groups[None][0]].location, "languages, as FILE@en,de, of all files or none")
    if args.source_language and None not in groups:
        raise SettingError("--source-language", args.source_language, "no value, as the files name their languages")
    chosen = sorted(index for indices in groups.values() for index in indices[: args.limit])
    return [pairs[index] for index in chosen], test_sets


def _by_languages(pairs: Sequence[Pair]) -> dict[tuple[str, str] | None, list[int]]:
    # The indices of the pairs of each pair of languages.
    groups: dict[tuple[str, str] | None, list[int]] = {}
    for index, pair in enumerate(pairs):
        groups.setdefault(pair.languages, []).append(index)
    return groups


def _scores(
    args: argparse.Namespace,
    translated: _Translated,
    pairs: Sequence[Pair],
    languages: tuple[str, str] | None,
    indices: Sequence[int],
    *,
    test_sets: _TestSets,
) -> list[Score]:
    # The scores of the pairs of some languages, one of each metric.
    texts, references = [translated.texts[index] for index in indices], [pairs[index].target for index in indices]
    paths = [path for path in args.data if split_languages(path)[1] == languages]
    whole = test_sets[paths[0]] if len(paths) == 1 and not args.limit else None
    scores = []
    for name, metric in _metrics().items():
        value = metric.corpus_score(texts, [references]).score
        scores.append(
            Score(
                metric=name,
                value=round(float(value), 2),
                data=_name(args, paths, test_sets) + translated.data_suffix + _other_penalty(args),
                signature=_signature(metric, whole),
                precision=translated.precision,
                beam_size=args.beam,
            )
        )
    return scores


def _name(args: argparse.Namespace, paths: Sequence[Path], test_sets: _TestSets) -> str:
    sets = [(path, test_sets[path]) for path in paths]
    names = ", ".join(
        f"{path.parent.name}/{path.name}" + (f" ({one.name} {one.languages})" if one else "") for path, one in sets
    )
    return f"{names}, first {args.limit} lines" if args.limit else names


def _table(scores: Mapping[tuple[str, str] | None, Score]) -> list[str]:
    # The lines of a metric: its score, or a table with a row per source and a column per target language.
    values = {languages: score.value for languages, score in scores.items() if languages}
    first = next(iter(scores.values()))
    if len(values) < 2:
        return [f"{first.metric} {first.value:.2f}  {first.signature}"]
    sources, targets = (sorted({languages[side] for languages in values}) for side in (0, 1))
    rows = [["", *targets]]
    for source in sources:
        cells = (values.get((source, target)) for target in targets)
        rows.append([source, *("-" if cell is None else f"{cell:.2f}" for cell in cells)])
    width = max(len(cell) for row in rows for cell in row)
    lines = ["  ".join([row[0].ljust(width), *(cell.rjust(width) for cell in row[1:])]) for row in rows]
    return [f"{first.metric}  {first.signature}", *lines]


def _check(args: argparse.Namespace) -> None:
    length_penalty = option_range("options.length_penalty")
    if not length_penalty.contains(args.length_penalty):
        raise SettingError("--length-penalty", args.length_penalty, f"from {length_penalty.text}")
    if not args.data and not args.integrity:
        raise SettingError("--data", "missing", "a file, unless --integrity is given")
    for flag in ("integrity", "spans", "robustness"):
        if getattr(args, flag) and not args.bundle:
            raise SettingError(f"--{flag}", "given", "--bundle")
    if args.sample < 1:
        raise SettingError("--sample", args.sample, "at least 1")
    if args.integrity_cases < len(KINDS):
        raise SettingError("--integrity-cases", args.integrity_cases, f"at least {len(KINDS)}, one per kind")
    for flag in ("source_language", "target_language", "model"):
        if getattr(args, flag) and not args.target:
            raise SettingError(f"--{flag.replace('_', '-')}", getattr(args, flag), "no value without --target")


def _translate(args: argparse.Namespace, pairs: Sequence[Pair]) -> _Translated:
    if args.bundle:
        return _translate_with_bundle(args, pairs)
    if args.target:
        return _translate_with_server(args, pairs)
    return _Translated(texts=_read_lines(args.translations, len(pairs)))


def _odd_translations(sources: Sequence[str], texts: Sequence[str], references: Sequence[str]) -> list[str]:
    # Returns a line for each kind, with the first example.
    kinds = {
        "copies of the source": copies(sources, texts, references),
        "repetitions": repetitions(texts, references),
        "empty": [index for index, text in enumerate(texts) if not text.strip()],
    }
    return [
        f"{len(found):,} {kind} ({len(found) / len(texts):.2%})"
        + (f", first: line {found[0] + 1}: {texts[found[0]][:80]!r}" if found else "")
        for kind, found in kinds.items()
    ]


def _test_set(path: Path, pairs: Sequence[Pair]) -> PublicTestSet | None:
    found, named = find_test_set(pairs), named_test_set(path)
    if named and not (found and found.name == named.name):
        print(
            f"warning: {path} is named like {named.name}, but has other pairs than the published set", file=sys.stderr
        )
    return found


def _signature(metric: Metric, test_set: PublicTestSet | None) -> str:
    # As sacreBLEU prints it, with its names for the test set and the languages.
    signature: Any = metric.get_signature()
    if test_set:
        signature.update("test", test_set.name)
        signature.update("lang", test_set.languages)
    return str(signature)


def _page(
    data: str, sources: Sequence[str], references: Sequence[str], texts: Sequence[str], other: Sequence[str] | None
) -> str:
    # Rows of the largest difference come first.
    chrf = CHRF()
    header = ["line", "source", "reference", "own", "chrF"]
    rows: list[list[Any]] = [
        [index, source, reference, text, chrf.sentence_score(text, [reference]).score]
        for index, (source, reference, text) in enumerate(zip(sources, references, texts, strict=True), start=1)
    ]
    if other is not None:
        header += ["other", "chrF", "difference"]
        for row, text in zip(rows, other, strict=True):
            score = chrf.sentence_score(text, [row[2]]).score
            row += [text, score, row[4] - score]
        rows.sort(key=lambda row: -abs(row[-1]))
    cells = ([f"{cell:.1f}" if isinstance(cell, float) else cell for cell in row] for row in rows)
    return html_page("Translations", f"Translations of {data}", html_table(header, cells))


def _read_lines(path: Path, num_expected: int) -> tuple[str, ...]:
    try:
        lines = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {error}") from error
    if len(lines) != num_expected:
        raise CorpusError(f"{path} has {len(lines):,} lines: expected {num_expected:,}, one per source")
    return lines


def _translate_with_bundle(args: argparse.Namespace, pairs: Sequence[Pair]) -> _Translated:
    texts, runs = [""] * len(pairs), list[TranslationRun]()
    with open_text_model(args.bundle, _runtime_settings(args)) as (model, precision):
        for languages, indices in _by_languages(pairs).items():
            run = translate_texts(
                model.for_pair(*languages) if languages else model,
                [pairs[index].source for index in indices],
                beam_size=args.beam,
                batch_size=args.batch_size,
                length_penalty=args.length_penalty,
            )
            runs.append(run)
            for index, text in zip(indices, run.texts, strict=True):
                texts[index] = text
    conditions = f"with {args.threads} threads, {precision}, beam {args.beam}{_other_penalty(args)}"
    num_tokens, elapsed_s = sum(run.num_target_tokens for run in runs), sum(run.elapsed_s for run in runs)
    report = [_speed(len(pairs), num_tokens, elapsed_s, conditions)]
    if num_split := sum(run.num_split for run in runs):
        report.append(f"{num_split} sentences decoded in parts of at most {model.max_source_tokens} tokens")
    if num_truncated := sum(run.num_truncated for run in runs):
        report.append(f"{num_truncated} translations truncated at the limit of target tokens")
    suffix = ", shortlist" if args.shortlist else ""
    return _Translated(texts=tuple(texts), report=tuple(report), precision=precision, data_suffix=suffix)


def _translate_with_server(args: argparse.Namespace, pairs: Sequence[Pair]) -> _Translated:
    # Several texts per call; ExportError if a call fails.
    requests = [
        (languages, indices[first : first + args.batch_size])
        for languages, indices in _by_languages(pairs).items()
        for first in range(0, len(indices), args.batch_size)
    ]
    try:
        api_key = args.api_key_file.read_text(encoding="ascii") if args.api_key_file else None
        tls = TlsOptions(ca=args.ca_file) if args.ca_file else None
        with TranslationClient(args.target, timeout_s=_TIMEOUT_S, api_key=api_key, tls=tls) as client:
            only_pair = _languages(client, args) if requests[0][0] is None else None

            def translate(request: tuple[tuple[str, str] | None, list[int]]) -> TranslationResult:
                languages, indices = request
                source, target = languages or only_pair or ("", "")
                result = client.translate(
                    [pairs[index].source for index in indices],
                    source_language=source,
                    target_language=target,
                    model=args.model,
                    options=DecodingOptions(beam_size=args.beam, length_penalty=args.length_penalty),
                )
                progress.update(len(indices))
                return result

            began_s = time.perf_counter()
            with tqdm(total=len(pairs), unit="text", leave=False) as progress, ThreadPoolExecutor(args.callers) as pool:
                results = list(pool.map(translate, requests))
            elapsed_s = time.perf_counter() - began_s
    except (DragomanError, OSError, ValueError) as error:
        raise ExportError(f"{args.target}: {error}") from error
    translations = [translation for result in results for translation in result]
    places = [index for _, indices in requests for index in indices]
    texts = [translation.text for _, translation in sorted(zip(places, translations, strict=True), key=itemgetter(0))]
    num_tokens = sum(result.num_target_tokens for result in results)
    models = sorted({f"{result.model_name}/{result.model_version}" for result in results})
    calls = f"with {args.callers} concurrent calls of {args.batch_size} texts, {', '.join(models)}"
    conditions = f"{calls}, beam {args.beam}{_other_penalty(args)}"
    report = [_speed(len(pairs), num_tokens, elapsed_s, conditions)]
    warnings = Counter(warning.kind.name for translation in translations for warning in translation.warnings)
    report += [f"{count:,} warnings {kind}" for kind, count in sorted(warnings.items())]
    return _Translated(texts=tuple(texts), report=tuple(report))


def _other_penalty(args: argparse.Namespace) -> str:
    # suffix for a length penalty other than the default
    return "" if args.length_penalty == DEFAULT_LENGTH_PENALTY else f", length penalty {args.length_penalty:g}"


def _speed(num_texts: int, num_tokens: int, elapsed_s: float, conditions: str) -> str:
    speed = f"{num_tokens / elapsed_s:,.0f} tokens/s"
    return f"{num_texts:,} texts, {num_tokens:,} target tokens in {elapsed_s:.1f} s: {speed} {conditions}"


def _languages(client: TranslationClient, args: argparse.Namespace) -> tuple[str, str]:
    # Returns the requested languages, or the only pair of the server.
    if args.source_language and args.target_language:
        return args.source_language, args.target_language
    versions = [version for model in client.list_models() for version in model.versions]
    pairs = {(pair.source_language, pair.target_language) for version in versions for pair in version.language_pairs}
    if len(pairs) == 1:
        return next(iter(pairs))
    available = ", ".join(f"{source} to {target}" for source, target in sorted(pairs)) or "none"
    raise SettingError(
        "--source-language", args.source_language, f"a pair of the server ({available}), with --target-language"
    )


def _metrics() -> dict[str, Metric]:
    return {"BLEU": BLEU(), "chrF": CHRF(), "TER": TER()}


def _compared(translations: tuple[str, ...], others: tuple[str, ...] | None, references: list[str]) -> list[str]:
    # Returns a line per metric: both scores and the p-value of their difference.
    if others is None:
        return []
    systems: list[tuple[str, Sequence[str]]] = [("other", others), ("own", translations)]
    test = PairedTest(systems, _metrics(), [references], test_type="bs", n_samples=NUM_RESAMPLES)
    results: Mapping[str, Sequence[Any]] = test()[1]
    lines = []
    for name, (their, our) in ((name, pair) for name, pair in results.items() if name != "System"):
        scores = f"{our.score:.2f} ± {our.ci:.2f} against {their.score:.2f} ± {their.ci:.2f}"
        lines.append(f"{name} {scores}: {our.score - their.score:+.2f}, p = {our.p_value:.3f}")
    return lines
