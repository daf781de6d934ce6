"""`python -m export evaluate`: the BLEU of a bundle, translated as the service does: what is scored, callers get."""

import argparse
from pathlib import Path

from pydantic import TypeAdapter
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from export.corpus.reader import Pair, ParallelFiles, read_corpus
from export.graph.translation import TextModel, translate_texts
from service.bundle import Score, open_bundle
from service.runtime.native import open_step_model
from service.runtime.settings import RuntimeSettings
from service.text.tokenizer import open_tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="the model")
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>reference lines")
    parser.add_argument("--beam", type=int, default=4, metavar="K", help="live hypotheses; 1 is greedy search (4)")
    parser.add_argument("--precision", help="graphs to run (the bundle's default)")
    parser.add_argument("--limit", type=int, metavar="N", help="translate the first N lines only")
    parser.add_argument("--batch-size", type=int, default=16, metavar="B", help="sentences decoded together (16)")
    parser.add_argument("--shortlist", action="store_true", help="choose among likely tokens, see runtime.shortlist")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="CPU threads (1)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the translations, one a line")
    parser.add_argument(
        "--scores", type=Path, metavar="JSON", help="where to write the scores for `bundle --scores-from`"
    )


def run(args: argparse.Namespace) -> int:
    """Translate, score, and print both."""
    bundle = open_bundle(args.bundle)
    precision = args.precision or bundle.manifest.default_precision
    settings = RuntimeSettings(precision=precision, num_intra_op_threads=args.threads, shortlist=args.shortlist)
    graph = open_step_model(bundle, settings)
    pairs = read_pairs(args.data, args.limit)
    model = TextModel.of(graph, open_tokenizer(bundle), bundle.manifest)
    done = translate_texts(model, [pair.source for pair in pairs], beam_size=args.beam, batch_size=args.batch_size)
    if args.output:
        lines = [" ".join(text.splitlines()) for text in done.texts]
        args.output.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    scores = [
        Score(
            metric=name,
            value=round(value, 2),
            data=_name(args.data, args.limit) + (", shortlist" if args.shortlist else ""),
            signature=signature,
            precision=precision,
            beam_size=args.beam,
        )
        for name, value, signature in _measure(done.texts, [pair.target for pair in pairs])
    ]
    for score in scores:
        print(f"{score.metric} {score.value:.2f}  {score.signature}")
    print(
        f"{len(pairs):,} texts, {done.num_target_tokens:,} target tokens in {done.elapsed_s:.1f} s:"
        f" {done.tokens_per_s:,.0f} tokens/s with {args.threads} threads, {precision}, beam {args.beam}"
    )
    if done.num_split:
        print(f"{done.num_split} sentences were decoded in parts of at most {graph.limits.max_source_tokens} tokens")
    if done.num_truncated:
        print(f"{done.num_truncated} translations were cut off at the limit of target tokens")
    if args.scores:
        args.scores.write_bytes(TypeAdapter(list[Score]).dump_json(scores, indent=2) + b"\n")
    return 0


def read_pairs(paths: list[Path], limit: int | None) -> tuple[Pair, ...]:
    """Read the first pairs of TSV files, of which every line must be one; CorpusError else."""
    return read_corpus([ParallelFiles(source=path) for path in paths], max_malformed=0.0).pairs[:limit]


def _name(paths: list[Path], limit: int | None) -> str:
    """Return what a score says it was measured on."""
    names = ", ".join(f"{path.parent.name}/{path.name}" for path in paths)
    return f"{names}, first {limit} lines" if limit else names


def _measure(translations: tuple[str, ...], references: list[str]) -> list[tuple[str, float, str]]:
    """Return name, value and signature of each metric."""
    metrics = {"BLEU": BLEU(), "chrF": CHRF()}
    measured = {name: metric.corpus_score(translations, [references]) for name, metric in metrics.items()}
    return [(name, float(measured[name].score), str(metric.get_signature())) for name, metric in metrics.items()]
