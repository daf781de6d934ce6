"""`dragoman export bundle`: exports the checkpoint of a run as a bundle for the service."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dragoman_export.bundle_writer import BundleDescription, exporter_version, write_bundle
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.augmentation import AugmentationConfig, augment_all
from dragoman_export.data.formats import split_columns
from dragoman_export.data.reader import ParallelFiles, read_spread
from dragoman_export.errors import BundleWriteError, CorpusError, SettingError
from dragoman_export.evaluation.verification import agreement
from dragoman_export.onnx_export.calibration import calibrate
from dragoman_export.onnx_export.network import ARITHMETICS, Network
from dragoman_export.onnx_export.quantize import ProductKind, Rounding
from dragoman_export.trained_model import TrainedModel
from dragoman_export.training.checkpoint import load_checkpoint
from dragoman_export.training.text import texts_of
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.files import file_entry, open_bundle
from dragoman_service.bundle.manifest import Provenance, Score
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import SentencePieceTokenizer

_KIND_HELP: Mapping[ProductKind, str] = {
    ProductKind.VOCABULARY: "output projection and embeddings",
    ProductKind.FEED_FORWARD: "both products",
    ProductKind.FEED_FORWARD_OUTER: "the second product",
    ProductKind.ATTENTION: "queries, keys, values and outputs of self- and cross-attention",
    ProductKind.ENCODER: "the whole graph",
    ProductKind.DECODER: "the whole graph",
}


_EXACT = "fp32"

_AGREEMENT_SENTENCES = 100  # of the calibration text, for the comparison of int8 with fp32: a few seconds
_PLACEHOLDER_SHARE = 0.25  # share of calibration pairs whose names and numbers become placeholders


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "checkpoint", "output")
    parser.add_argument("--name", required=True, help="name of the model, such as en-de")
    parser.add_argument("--version", required=True, help="version of the model, such as 1")
    for side, example in (("source", "en"), ("target", "de")):
        tag_help = f"BCP-47 tag, such as {example}; multilingual models have all their pairs (first training pair)"
        parser.add_argument(f"--{side}-language", metavar="TAG", help=tag_help)
    known = ",".join(ARITHMETICS)
    precisions_help = f"precisions; the last is the default ({known})"
    parser.add_argument("--precisions", default=known, metavar="LIST", help=precisions_help)
    calibration_help = (
        "source<TAB>target lines for the scales of int8 activations (training or development text of the run)"
    )
    parser.add_argument("--calibration", type=Path, nargs="+", metavar="TSV", help=calibration_help)
    sentences_help = "lines used, spread evenly (500)"
    parser.add_argument("--calibration-sentences", type=int, default=500, metavar="N", help=sentences_help)
    levels_help = (
        "largest integer of calibrated activations; with 127, products are faster on CPUs without VNNI, except those "
        "that would lose too much precision and use 255 (255)"
    )
    parser.add_argument("--activation-levels", type=int, choices=(127, 255), default=255, help=levels_help)
    rows_help = "no calibration: one scale per row of int8 activations, which is slower"
    parser.add_argument("--row-scales", action="store_true", help=rows_help)
    kinds = ", ".join(f"{kind} ({_KIND_HELP[kind]})" for kind in ProductKind)
    kept_help = f"products that stay in 32-bit floats in int8, separated by commas: {kinds} (none)"
    parser.add_argument("--keep-fp32", default="", metavar="LIST", help=kept_help)
    for side in ("source", "target"):
        limit_help = f"limit of {side}s, EOS included (longest training pair)"
        parser.add_argument(f"--max-{side}-tokens", type=int, metavar="N", help=limit_help)
    parser.add_argument("--licence", default="NOASSERTION", metavar="SPDX", help="licence of the model (NOASSERTION)")
    parser.add_argument("--attribution", default="", metavar="TEXT", help="required attribution")
    scores_help = "output of `evaluate --scores`"
    parser.add_argument("--scores-from", type=Path, nargs="+", default=(), metavar="JSON", help=scores_help)


def run(args: argparse.Namespace) -> int:
    """Write the bundle and print its content."""
    trained = TrainedModel.find(args.checkpoint)
    settings, longest = trained.read_settings(), trained.limits
    source_language, target_language = _pair(args, trained)
    description = BundleDescription(
        name=args.name,
        version=args.version,
        source_language=source_language,
        target_language=target_language,
        languages=trained.languages,
        limits=Limits(
            max_source_tokens=args.max_source_tokens or longest.max_source_tokens,
            max_target_tokens=args.max_target_tokens or longest.max_target_tokens,
        ),
        precisions=tuple(args.precisions.split(",")),
        provenance=_provenance(trained, settings),
        scores=tuple(score for path in args.scores_from for score in _read_scores(path)),
        licence=args.licence,
        attribution=args.attribution,
    )
    kept = _kept(args.keep_fp32, description.precisions)
    is_fixed = _wants_fixed_scales(args, description.precisions)
    text = _calibration_text(args, trained) if is_fixed else None
    model = trained.load()
    roundings: Mapping[str, Rounding] = {}
    pairs: list[tuple[list[int], list[int]]] = []
    if text is not None:
        try:
            tokenizer = trained.open_tokenizer().for_pair(source_language, target_language)
            pairs = _calibration_pairs(text, args.calibration_sentences, tokenizer, description.limits)
        except KeyError as error:
            raise BundleWriteError(f"{trained.checkpoint} does not support language {error}") from error
        roundings = calibrate(model, pairs, levels=args.activation_levels)
        print(f"int8 activations: fixed scales, calibrated on {len(pairs)} sentences of {text}")
        if num_wide := sum(rounding.levels != args.activation_levels for rounding in roundings.values()):
            print(f"  {num_wide} of {len(roundings)} products keep 255 levels, as their error with 127 is large")
    elif is_fixed:
        roundings = _imported_roundings(trained)
    network = Network.of(model, roundings, kept=kept)
    manifest = write_bundle(args.output, network, trained.read_vocabulary(), description)
    print(f"{args.output}: {manifest.name}/{manifest.version} from {trained.checkpoint}")
    if pairs and _EXACT in manifest.precisions:
        bundle = open_bundle(args.output)
        exact, int8 = (OnnxStepModel(bundle, RuntimeSettings(precision=precision)) for precision in (_EXACT, "int8"))
        share, num_tokens = agreement(exact, int8, pairs[:_AGREEMENT_SENTENCES])
        print(f"int8 agrees with {_EXACT} at {share:.2%} of {num_tokens:,} target tokens of that text")
    place = args.output.resolve()
    if (place.parent.name, place.name) != (manifest.name, manifest.version):
        print(
            f"warning: the service loads this bundle only from a directory {manifest.name}/{manifest.version}, "
            f"not from {place.parent.name}/{place.name}",
            file=sys.stderr,
        )
    sizes = {name: entry.bytes for name, entry in manifest.files.items()}
    for name, size in {**sizes, "all files": sum(sizes.values())}.items():
        print(f"  {name:24} {size:>12,} bytes")
    return 0


def _pair(args: argparse.Namespace, trained: TrainedModel) -> tuple[str, str]:
    # The given languages, or the first pair of a multilingual model.
    if args.source_language and args.target_language:
        return args.source_language, args.target_language
    if args.source_language or args.target_language or trained.first_pair is None:
        flag = "--target-language" if args.source_language else "--source-language"
        raise SettingError(flag, None, "a BCP-47 tag")
    return trained.first_pair


def _kept(text: str, precisions: tuple[str, ...]) -> frozenset[ProductKind]:
    names = frozenset(text.split(",")) if text else frozenset[str]()
    if not names <= set(ProductKind):
        raise SettingError("--keep-fp32", text, f"some of {', '.join(ProductKind)}, separated by commas")
    if names and "int8" not in precisions:
        raise SettingError("--keep-fp32", text, "int8 among the precisions")
    return frozenset(map(ProductKind, names))


@dataclass(frozen=True, slots=True, kw_only=True)
class _CalibrationText:
    # Sentences for the calibration of activations.
    files: tuple[ParallelFiles, ...]
    max_malformed: float  # largest accepted share of malformed lines, from 0 to 1
    origin: str  # description, such as `--calibration`

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.paths()))} ({self.origin})"

    def paths(self) -> list[Path]:
        return [path for pair in self.files for path in (pair.source, pair.target) if path is not None]


def _wants_fixed_scales(args: argparse.Namespace, precisions: tuple[str, ...]) -> bool:
    # SettingError if the flags contradict each other.
    if args.calibration_sentences < 1:
        raise SettingError("--calibration-sentences", args.calibration_sentences, "at least 1")
    if args.row_scales and args.calibration:
        raise SettingError("--row-scales", "given", "no --calibration")
    if "int8" in precisions:
        if args.row_scales:
            print("int8 activations: one scale per row, as requested")
        return not args.row_scales
    if args.row_scales or args.calibration:
        flag = "--row-scales" if args.row_scales else "--calibration"
        raise SettingError(flag, "given", "int8 among the precisions")
    return False


def _calibration_text(args: argparse.Namespace, trained: TrainedModel) -> _CalibrationText | None:
    # The given text, or the available text of the run; None without any.
    if args.calibration:
        files = tuple(ParallelFiles(source=path) for path in args.calibration)
        return _CalibrationText(files=files, max_malformed=0.0, origin="--calibration")
    data = trained.read_data()
    if data is not None:
        for files, origin in ((data.train, "training text of the run"), (data.dev, "development text of the run")):
            text = _CalibrationText(files=files, max_malformed=data.max_malformed, origin=origin)
            absent = [path for path in text.paths() if not split_columns(path)[0].exists()]
            if not absent:
                return text
            print(f"missing calibration text: {', '.join(map(str, absent))} ({origin})", file=sys.stderr)
    return None


def _imported_roundings(trained: TrainedModel) -> Mapping[str, Rounding]:
    # Roundings of an imported bundle; none, with a warning, otherwise.
    stored = {} if trained.portable else load_checkpoint(trained.checkpoint).get("roundings", {})
    if stored:
        print("int8 activations: fixed scales of the imported bundle")
    else:
        print(
            "warning: one scale per row of int8 activations, which is slower: no calibration text, give --calibration",
            file=sys.stderr,
        )
    fields = {path: (*fixed, 255)[:3] for path, fixed in stored.items()}  # imports of 0.1.0 do not store the levels
    return {
        path: Rounding(scale=scale, zero_point=zero_point, levels=levels)
        for path, (scale, zero_point, levels) in fields.items()
    }


def _calibration_pairs(
    text: _CalibrationText, count: int, tokenizer: SentencePieceTokenizer, limits: Limits
) -> list[tuple[list[int], list[int]]]:
    # Token ids of pairs within the limits, EOS last; CorpusError if there are none. Models with placeholders see them
    # in place of protected text, as in the service.
    chosen = read_spread(text.files, count=count, max_malformed=text.max_malformed)
    seen = AugmentationConfig(placeholders=_PLACEHOLDER_SHARE if tokenizer.placeholders else 0.0)
    tokenizers = {pair.languages: tokenizer.for_pair(*pair.languages) for pair in chosen if pair.languages}
    encoded = (
        (tokenizers[pair.languages] if pair.languages else tokenizer).encode_pair(*texts)
        for pair, texts in zip(chosen, augment_all(texts_of(chosen), seen, seed=(1, 0)), strict=True)
    )
    pairs = [
        (source, target)
        for source, target in encoded
        if len(source) <= limits.max_source_tokens and len(target) <= limits.max_target_tokens
    ]
    if not pairs:
        most = f"{limits.max_source_tokens} source and {limits.max_target_tokens} target tokens"
        raise CorpusError(f"no calibration sentences: all {len(chosen)} pairs of {text} have more than {most}")
    return pairs


def _provenance(trained: TrainedModel, settings: Mapping[str, Any]) -> Provenance:
    files = [path for pair in settings.get("data", {}).get("train", ()) for path in pair]
    return Provenance(
        exporter_version=exporter_version(),
        checkpoint=trained.checkpoint.name,
        checkpoint_sha256=file_entry(trained.checkpoint).sha256,
        training_step=None if trained.portable else load_checkpoint(trained.checkpoint).get("step"),
        training_data=tuple(f"{Path(path).parent.name}/{Path(path).name}" for path in files),
    )


def _read_scores(path: Path) -> tuple[Score, ...]:
    try:
        return TypeAdapter(tuple[Score, ...]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BundleWriteError(f"cannot read scores from {path}: {error}") from error
