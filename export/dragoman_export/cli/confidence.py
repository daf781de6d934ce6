"""`dragoman export confidence`: adds a model of the probability that a sentence is translated well.

The model translates held-out text. A logistic regression on half of the lines learns which translations are good, by
chrF against their references and without hard violations of invariants; translations of meaningless sources are
negative examples. Large domains do not dominate. The other half measures the result by domain: AUC compared with the
raw score, and calibration; and the rank of the meaningless sentences.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sacrebleu.metrics.chrf import CHRF

from dragoman_export.bundle_extension import add_confidence
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.formats import kind_of
from dragoman_export.data.reader import Pair, read_lines, read_pairs
from dragoman_export.errors import CorpusError, SettingError
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.translation import BundleTextModel, translate_each
from dragoman_service.bundle.manifest import Confidence, ConfidenceWeights
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.confidence import FEATURES, log_ratio, probability

_MIN_SENTENCES: Final = 100
_NUM_BINS: Final = 10
_REGULARIZATION: Final = 1.0  # of standardized weights, in examples
# Known sign of the weight of a feature. It also bounds the confidence of texts that are unlike those of the fit.
_SIGNS: Final = {
    "mean_log_prob": 1,
    "min_log_prob": 1,
    "length_ratio": -1,
    "fragmentation": -1,
    "source_fragmentation": -1,
    "copied_words": -1,
    "defect": -1,
    "mean_probability": 1,
    "log_prob_by_length": 1,
    "shortness": -1,
    "hard_violations": -1,
    "soft_violations": -1,
}
_HARD: Final = FEATURES.index("hard_violations")
_NUM_DOMAIN_COLUMNS: Final = 3
_NUM_MEANINGLESS: Final = 500  # meaningless sentences per method
# Total weight of the meaningless sentences in the fit, relative to all others. With four times the weight, their AUC
# is up to 0.01 better, and the AUC of news, which the fit does not contain, is up to 0.01 worse.
_MEANINGLESS_SHARE: Final = 0.05
_NUM_ROUNDS: Final = 30
_CHRF: Final = CHRF()

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", "output")
    data_help = "source<TAB>reference lines used neither for training nor for scores; a third column is the domain"
    add_shared(parser, "data", help=data_help)
    add_shared(parser, "limit", help="use the first N lines of each file only")
    parser.add_argument("--good-chrf", type=float, default=40.0, metavar="X", help="chrF of a good translation (40)")
    add_shared(parser, "beam")
    add_shared(parser, "batch-size", default=32)
    add_shared(parser, "threads")
    parser.add_argument("--diagram", type=Path, metavar="FILE", help="write the reliability diagram, such as PNG")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sentences:
    # Translated sentences and their scores.
    features: Floats  # [N, F]
    raw: Floats  # [N] scores of the search
    chrf: Floats  # [N], against the references

    def are_good(self, good_chrf: float) -> Flags:
        """Return whether each translation is good: close to the reference, without hard violations."""
        are_good: Flags = (self.chrf >= good_chrf) & (self.features[:, _HARD] == 0)
        return are_good

    def where(self, chosen: Flags) -> "_Sentences":
        return _Sentences(features=self.features[chosen], raw=self.raw[chosen], chrf=self.chrf[chosen])


def run(args: argparse.Namespace) -> int:
    """Fit, write the bundle, and print the quality of the confidence on the held-out half."""
    if not 0 < args.good_chrf < 100:
        raise SettingError("--good-chrf", args.good_chrf, "above 0, below 100")
    files = {f"{path.parent.name}/{path.name}": read_domains(path, args.limit) for path in args.data}
    pairs = [pair for domains in files.values() for group in domains.values() for pair in group]
    usual = float(np.mean([log_ratio(pair.source, pair.target) for pair in pairs]))
    broken = _with_meaningless_sources(pairs)
    with open_text_model([args.bundle], RuntimeSettings(num_intra_op_threads=args.threads)) as (model, _):
        sets = {
            name: {domain: _translated(model, group, args, usual) for domain, group in domains.items()}
            for name, domains in files.items()
        }
        meaningless = {way: _translated(model, group, args, usual) for way, group in broken.items()}
    meaningless = {way: each.where(each.chrf < args.good_chrf) for way, each in meaningless.items()}
    halves = [_half(each, 0) for domains in sets.values() for each in domains.values()]
    learned = _joined(halves)
    good = learned.are_good(args.good_chrf)
    if len(good) < _MIN_SENTENCES or good.all() or not good.any():
        raise CorpusError(f"cannot fit a confidence: {good.sum()} of {len(good)} translations are good")
    weights, bias = fit_confidence(
        learned.features,
        good,
        _joined([_half(each, 0) for each in meaningless.values()]).features,
        counts=domain_weights([len(half.raw) for half in halves]),
    )
    confidence = Confidence(
        weights=ConfidenceWeights(**dict(zip(FEATURES, weights.tolist(), strict=True))),
        bias=bias,
        usual_log_ratio=usual,
        good_chrf=args.good_chrf,
        data=f"every other line of {', '.join(files)}",
    )
    manifest = add_confidence(args.bundle, args.output, confidence)
    print(f"{args.output}: {manifest.name}/{manifest.version} with a confidence fitted on {len(good):,} sentences")
    held_out = {
        f"{name} {domain}".rstrip(): _half(each, 1)
        for name, domains in sets.items()
        for domain, each in domains.items()
    }
    all_sets = {**held_out, "all": _joined(list(held_out.values()))}
    _report(all_sets, {way: _half(each, 1) for way, each in meaningless.items()}, confidence, args.diagram)
    return 0


def read_domains(path: Path, limit: int | None) -> dict[str, list[Pair]]:
    """Return the first pairs of a file by domain, which is the third column of a TSV file; "" if there is none.

    CorpusError if a line is malformed, or only some lines have a domain.
    """
    first = next(read_lines(path), b"") if kind_of(path) is None and path.is_file() else b""
    if first.count(b"\t") + 1 != _NUM_DOMAIN_COLUMNS:
        return {"": list(read_pairs([path], limit))}
    domains: dict[str, list[Pair]] = {}
    for number, line in enumerate(islice(read_lines(path), limit), start=1):
        location = f"{path}:{number}"
        try:
            columns = line.decode().split("\t")
        except UnicodeDecodeError as error:
            raise CorpusError(f"{location}: not UTF-8: {error.reason} at byte {error.start}") from error
        if len(columns) != _NUM_DOMAIN_COLUMNS:
            raise CorpusError(f"{location}: {len(columns)} columns, expected {_NUM_DOMAIN_COLUMNS}")
        source, target, domain = (column.strip() for column in columns)
        if not (source and target and domain):
            raise CorpusError(f"{location}: empty column")
        domains.setdefault(domain, []).append(Pair(source=source, target=target, location=location))
    return domains


def domain_weights(sizes: Sequence[int]) -> Floats:
    """Return the weight of each sentence [sum(sizes)]: 1 / sqrt(size of its domain), scaled to 1 on average."""
    weights = np.repeat([1 / math.sqrt(max(1, size)) for size in sizes], sizes)
    return weights / weights.mean() if len(weights) else weights


def _report(
    sets: dict[str, _Sentences], meaningless: dict[str, _Sentences], confidence: Confidence, diagram: Path | None
) -> None:
    # `sets` includes all sentences as `all`.
    print("held out: sentences, share of good ones, AUC of the raw score, AUC of the confidence, calibration error")
    graded = {
        name: (_confidences(confidence, each), each.are_good(confidence.good_chrf)) for name, each in sets.items()
    }
    for name, (scores, good) in graded.items():
        areas = f"{area_under_curve(sets[name].raw, good):.3f} {area_under_curve(scores, good):.3f}"
        if len(good):
            print(f"  {name:40} {len(good):6,} {good.mean():.2f} {areas} {calibration_error(scores, good):.3f}")
    scores, good = graded["all"]
    bins = reliability(scores, good)
    for predicted, actual, count in bins:
        print(f"  confidence {predicted:.2f} on average: {actual:.2f} of {count:,} are good")
    print("meaningless: sentences, AUC against good ones, AUC against all")
    for way, each in meaningless.items():
        bad = _confidences(confidence, each)
        ranks = (
            area_under_curve(np.concatenate((bad, better)), np.arange(len(bad) + len(better)) >= len(bad))
            for better in (scores[good], scores)
        )
        print(f"  {way:32} {len(bad):6,} {' '.join(f'{rank:.3f}' for rank in ranks)}")
    if diagram:
        _reliability_diagram(bins, confidence.good_chrf).savefig(diagram, dpi=110)


def fit_confidence(
    features: Floats, good: Flags, meaningless: Floats, *, counts: Floats | None = None
) -> tuple[Floats, float]:
    """Return weights [F] and bias that rank meaningless sentences low and are calibrated on the others.

    Features with the wrong sign, by chance for rare features, get weight zero. `features` [N, F], `good` [N] and
    `counts` [N], the weights of the examples, are of translations, `meaningless` [P, F] of translations of meaningless
    sentences. Without `counts`, all translations have weight 1.
    """
    counts = np.ones(len(features)) if counts is None else counts
    inputs, labels = np.concatenate((features, meaningless)), np.append(good, np.zeros(len(meaningless), dtype=bool))
    share = _MEANINGLESS_SHARE * counts.sum() / max(1, len(meaningless))
    all_counts = np.append(counts, np.full(len(meaningless), share))
    kept = np.ones(len(FEATURES), dtype=bool)
    while True:
        weights = np.zeros(len(FEATURES))
        weights[kept], bias = fit_logistic(inputs[:, kept], labels, all_counts)
        is_wrong = np.array([weights[at] * _SIGNS.get(name, 0) < 0 for at, name in enumerate(FEATURES)])
        if not is_wrong.any():
            break
        kept &= ~is_wrong
    (scale,), shift = fit_logistic((features @ weights + bias)[:, np.newaxis], good, counts)
    return weights * scale, float(bias * scale + shift)


def fit_logistic(features: Floats, good: Flags, counts: Floats) -> tuple[Floats, float]:
    """Return weights [F] and bias of the logistic regression, by Newton's method on standardized features.

    `counts` [N] are the weights of the examples [N, F]; both values of `good` [N] occur.
    """
    mean, spread = features.mean(axis=0), features.std(axis=0) + 1e-9
    inputs = np.column_stack(((features - mean) / spread, np.ones(len(features))))
    penalty = np.append(np.full(features.shape[1], _REGULARIZATION), 0.0)
    solution = np.zeros(inputs.shape[1])
    for _ in range(_NUM_ROUNDS):
        predicted = 1 / (1 + np.exp(-np.clip(inputs @ solution, -30, 30)))
        gradient = inputs.T @ (counts * (predicted - good)) + penalty * solution
        variances = counts * predicted * (1 - predicted)
        curvature = (inputs * variances[:, np.newaxis]).T @ inputs + np.diag(penalty + 1e-9)
        solution -= np.linalg.solve(curvature, gradient)
    weights = solution[:-1] / spread
    return weights, float(solution[-1] - weights @ mean)


def area_under_curve(scores: Floats, good: Flags) -> float:
    """Return the area under the ROC curve of scores [N]: the probability that a good one is above a bad one."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    num_good, num_bad = int(good.sum()), int((~good).sum())
    if not num_good or not num_bad:
        return float("nan")
    return float((ranks[good].sum() - num_good * (num_good + 1) / 2) / (num_good * num_bad))


def reliability(scores: Floats, good: Flags) -> list[tuple[float, float, int]]:
    """Return mean confidence, share of good sentences and count of each non-empty tenth of the range."""
    bins = np.minimum((scores * _NUM_BINS).astype(int), _NUM_BINS - 1)
    return [
        (float(scores[bins == each].mean()), float(good[bins == each].mean()), int((bins == each).sum()))
        for each in np.unique(bins)
    ]


def calibration_error(scores: Floats, good: Flags) -> float:
    """Return the mean difference of confidence and share of good sentences over the bins of `reliability`."""
    differences = (count * abs(predicted - actual) for predicted, actual, count in reliability(scores, good))
    return sum(differences) / len(good)


def _translated(model: BundleTextModel, pairs: Sequence[Pair], args: argparse.Namespace, usual: float) -> _Sentences:
    # Translates the lines that consist of one sentence.
    sources = [pair.source for pair in pairs]
    outcomes = translate_each(model, sources, beam_size=args.beam, batch_size=args.batch_size)
    features: list[tuple[float, ...]] = []
    raw, scores = [], []
    for pair, outcome in zip(pairs, outcomes, strict=True):
        if len(outcome.chosen) == 1:
            features.append(outcome.pipeline.features(outcome.chosen, usual))
            raw.append(outcome.chosen[0].best.hypothesis.score)
            text = outcome.translations[0].hypotheses[0].text
            scores.append(_CHRF.sentence_score(text, [pair.target]).score)
    return _Sentences(features=np.array(features).reshape(-1, len(FEATURES)), raw=np.array(raw), chrf=np.array(scores))


def _confidences(confidence: Confidence, sentences: _Sentences) -> Floats:
    return np.array([probability(confidence, values) for values in sentences.features.tolist()])


def _half(sentences: _Sentences, first: int) -> _Sentences:
    # every other sentence, from the first (0) or the second (1)
    return sentences.where(np.arange(len(sentences.raw)) % 2 == first)


def _joined(sets: Sequence[_Sentences]) -> _Sentences:
    return _Sentences(
        features=np.concatenate([each.features for each in sets]),
        raw=np.concatenate([each.raw for each in sets]),
        chrf=np.concatenate([each.chrf for each in sets]),
    )


def _with_meaningless_sources(pairs: Sequence[Pair]) -> dict[str, list[Pair]]:
    # Returns lines with meaningless sources, by method.
    random = np.random.default_rng(len(pairs))
    chosen = pairs[:: max(1, len(pairs) // _NUM_MEANINGLESS)][:_NUM_MEANINGLESS]
    words = [word for pair in pairs for word in pair.source.split()]

    def shuffled(word: str) -> str:
        return "".join(random.permutation(list(word)).tolist())

    def broken(pair: Pair, break_words: Callable[[list[str]], Iterable[str]]) -> Pair:
        return replace(pair, source=" ".join(break_words(pair.source.split())))

    def drawn(own: list[str]) -> list[str]:
        return [words[index] for index in random.integers(len(words), size=len(own))]

    return {
        "letters of words shuffled": [broken(pair, lambda own: map(shuffled, own)) for pair in chosen],
        "words of other lines": [broken(pair, drawn) for pair in chosen],
    }


def _reliability_diagram(bins: Sequence[tuple[float, float, int]], good_chrf: float) -> Figure:
    figure = Figure(figsize=(5, 4.2), layout="constrained")
    axes = figure.add_subplot(xlabel="confidence", ylabel=f"share with chrF of {good_chrf:g} or more")
    axes.plot((0, 1), (0, 1), color="0.7", linewidth=1)
    predicted, actual, counts = zip(*bins, strict=True)
    axes.plot(predicted, actual, color="#2f6f68", zorder=2)
    axes.scatter(predicted, actual, s=np.sqrt(counts) * 6, color="#2f6f68", zorder=3)
    for at in range(len(bins)):
        axes.annotate(f"{counts[at]:,}", (predicted[at], actual[at]), (6, -10), textcoords="offset points", fontsize=8)
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return figure
