"""`python -m export bundle`: from the checkpoint of a run to a directory the service loads."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from export.bundle import BundleDescription, BundleWriteError, exporter_version, write_bundle
from export.commands.evaluate import read_pairs
from export.corpus.vocabulary import Vocabulary
from export.errors import SettingError
from export.graph.mixed import ProductKind
from export.graph.network import ARITHMETICS, Network, TrainedModel
from export.graph.quantize import measure_ranges
from export.training.checkpoint import load_checkpoint, load_model
from export.training.config import TrainingConfig
from service.bundle import Limits, Provenance, Score, file_entry

_KIND_HELP: Mapping[ProductKind, str] = {
    ProductKind.VOCABULARY: "the projection to it and the embeddings",
    ProductKind.FEED_FORWARD: "both products",
    ProductKind.FEED_FORWARD_OUTER: "the second only",
    ProductKind.ATTENTION: "queries, keys, values and outputs of self- and cross-attention",
    ProductKind.ENCODER: "the whole graph",
    ProductKind.DECODER: "the whole graph",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--checkpoint", type=Path, required=True, metavar="PATH", help="checkpoint of a run, or the run's folder"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory to make; must not exist")
    parser.add_argument("--name", required=True, help="of the model, such as en-de")
    parser.add_argument("--version", required=True, help="of the model, such as 1")
    parser.add_argument("--source-language", required=True, metavar="TAG", help="BCP-47 tag, such as en")
    parser.add_argument("--target-language", required=True, metavar="TAG", help="BCP-47 tag, such as de")
    known = ",".join(ARITHMETICS)
    parser.add_argument("--precisions", default=known, metavar="LIST", help=f"the last is the default ({known})")
    parser.add_argument(
        "--calibration",
        type=Path,
        nargs="+",
        metavar="TSV",
        help="source<TAB>target lines, such as those learned from: fixes the scales of int8 activations, which makes "
        "int8 faster. Without it every row has its own.",
    )
    parser.add_argument(
        "--calibration-sentences", type=int, default=500, metavar="N", help="lines of it used, spread evenly (500)"
    )
    parser.add_argument(
        "--keep-fp32",
        default="",
        metavar="LIST",
        help="products that int8 leaves in 32-bit floats, separated by commas: "
        f"{', '.join(f'{kind} ({_KIND_HELP[kind]})' for kind in ProductKind)} (none)",
    )
    parser.add_argument("--max-source-tokens", type=int, metavar="N", help="EOS counted (longest the run learned from)")
    parser.add_argument("--max-target-tokens", type=int, metavar="N", help="EOS counted (longest the run learned from)")
    parser.add_argument("--licence", default="NOASSERTION", metavar="SPDX", help="of the model (NOASSERTION)")
    parser.add_argument("--attribution", default="", metavar="TEXT", help="who must be named")
    parser.add_argument(
        "--scores-from", type=Path, nargs="+", default=(), metavar="JSON", help="what `evaluate --scores` wrote"
    )


def run(args: argparse.Namespace) -> int:
    """Write the bundle and say what is in it."""
    trained = TrainedModel.find(args.checkpoint)
    settings = _run_settings(trained)
    max_tokens = settings.get("training", {}).get("max_tokens", TrainingConfig().max_tokens)
    description = BundleDescription(
        name=args.name,
        version=args.version,
        source_language=args.source_language,
        target_language=args.target_language,
        limits=Limits(
            max_source_tokens=args.max_source_tokens or max_tokens,
            max_target_tokens=args.max_target_tokens or max_tokens,
        ),
        precisions=tuple(args.precisions.split(",")),
        provenance=_provenance(trained, settings),
        scores=tuple(score for path in args.scores_from for score in _read_scores(path)),
        licence=args.licence,
        attribution=args.attribution,
    )
    kept = _kept(args.keep_fp32, description.precisions)
    vocabulary = Vocabulary.load(trained.run.vocabulary)
    model = load_model(trained.checkpoint)
    ranges = measure_ranges(model, _calibration_pairs(args, vocabulary, description.limits)) if args.calibration else {}
    manifest = write_bundle(args.output, Network.of(model, ranges, kept=kept), vocabulary, description)
    print(f"{args.output}: {manifest.name}/{manifest.version} from {trained.checkpoint}")
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


def _kept(text: str, precisions: tuple[str, ...]) -> frozenset[ProductKind]:
    """Return the kinds of products that int8 leaves in floats."""
    names = frozenset(text.split(",")) if text else frozenset[str]()
    if not names <= set(ProductKind):
        raise SettingError("--keep-fp32", text, f"some of {', '.join(ProductKind)}, separated by commas")
    if names and "int8" not in precisions:
        raise SettingError("--keep-fp32", text, "nothing without int8 among the precisions")
    return frozenset(map(ProductKind, names))


def _calibration_pairs(
    args: argparse.Namespace, vocabulary: Vocabulary, limits: Limits
) -> list[tuple[list[int], list[int]]]:
    """Return token ids of sources and targets, EOS last, that the model takes."""
    if args.calibration_sentences < 1:
        raise SettingError("--calibration-sentences", args.calibration_sentences, "at least 1")
    pairs = read_pairs(args.calibration, None)
    step = max(1, len(pairs) // args.calibration_sentences)
    chosen = pairs[::step][: args.calibration_sentences]
    sources = vocabulary.encode([pair.source for pair in chosen])
    targets = vocabulary.encode([pair.target for pair in chosen])
    return [
        (source, target)
        for source, target in zip(sources, targets, strict=True)
        if len(source) <= limits.max_source_tokens and len(target) <= limits.max_target_tokens
    ]


def _run_settings(trained: TrainedModel) -> Mapping[str, Any]:
    """Return what the run folder's config.json says; nothing if a checkpoint lies elsewhere."""
    return trained.run.read_settings() if (trained.run.path / "config.json").is_file() else {}


def _provenance(trained: TrainedModel, settings: Mapping[str, Any]) -> Provenance:
    files = [path for pair in settings.get("data", {}).get("train", ()) for path in pair]
    return Provenance(
        exporter_version=exporter_version(),
        checkpoint=trained.checkpoint.name,
        checkpoint_sha256=file_entry(trained.checkpoint).sha256,
        training_step=load_checkpoint(trained.checkpoint).get("step"),
        training_data=tuple(f"{Path(path).parent.name}/{Path(path).name}" for path in files),
    )


def _read_scores(path: Path) -> tuple[Score, ...]:
    try:
        return TypeAdapter(tuple[Score, ...]).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise BundleWriteError(f"cannot read scores from {path}: {error}") from error
