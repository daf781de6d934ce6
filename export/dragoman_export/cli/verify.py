"""`dragoman export verify`: compares a bundle with its checkpoint."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import Pair, read_pairs
from dragoman_export.errors import SettingError
from dragoman_export.evaluation.translation import BundleTextModel
from dragoman_export.evaluation.verification import (
    Check,
    check_batching,
    check_quality,
    check_steps,
    gain_of_other_source_end,
)
from dragoman_export.importers.reference_models.checks import check_original, open_original
from dragoman_export.importers.reference_models.original import Original
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.network import FLOAT_TYPES, Network, write_graphs
from dragoman_export.trained_model import TrainedModel
from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import Bundle, file_entry, open_bundle
from dragoman_service.decoding.step_model import StepModel
from dragoman_service.errors import BundleError
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer

_EXACT = "fp32"
_MOST_GAIN = 0.1  # nats per token; sentences without their usual end lose more

# by precision, if below `BLEU_TOLERANCE`: half precision changes log-probabilities by hundredths, which sometimes
# decides between translations of equal quality
_MOST_BLEU_LOST = {"fp16": 0.1}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", help="bundle to verify")
    add_shared(parser, "checkpoint")
    original_help = "imported model (not fairseq): also compare with its own library"
    parser.add_argument("--original", type=Path, metavar="PATH", help=original_help)
    for side in ("source", "target"):
        language_help = f"{side} language of the sentences (first pair of the bundle)"
        parser.add_argument(f"--{side}-language", metavar="TAG", help=language_help)
    add_shared(parser, "data", "limit")
    parser.add_argument("--step-sentences", type=int, default=40, metavar="N", help="lines compared step by step (40)")
    add_shared(parser, "beam")


def run(args: argparse.Namespace) -> int:
    """Run all checks, print a table, and return 1 if one fails."""
    bundle = open_bundle(args.bundle)
    manifest = bundle.manifest
    trained = TrainedModel.find(args.checkpoint)
    found, stated = file_entry(trained.checkpoint).sha256, manifest.provenance.checkpoint_sha256
    if found != stated:
        raise BundleError(str(trained.checkpoint), found=found, expected=stated, what="SHA-256")
    model = trained.load()
    pairs = read_pairs(args.data, args.limit)
    with tempfile.TemporaryDirectory() as temporary:
        pair = args.source_language or manifest.source_language, args.target_language or manifest.target_language
        if not manifest.languages().serves(*pair):
            raise SettingError("--target-language", f"{pair[1]}, of {pair[0]}", f"a pair of {args.bundle}")
        tokenizer = open_tokenizer(bundle).for_pair(*pair)
        graphs = _load_graphs(bundle, model, Path(temporary))
        models = {
            name: BundleTextModel(graph=graph, tokenizer=tokenizer, source_language=pair[0], target_language=pair[1])
            for name, graph in graphs.items()
        }
        original = args.original and open_original(args.original, bundle, tokenizer)
        checks = list(_report(_checks(args, model, models, pairs, original)))
    failed = [check for check in checks if not check.holds]
    for check in failed:
        print(f"FAILED: {check.claim}: {check.measured:.6g} {check.unit}, limit {check.limit:g}", file=sys.stderr)
    return 1 if failed else 0


def _checks(
    args: argparse.Namespace,
    model: Transformer,
    models: dict[str, BundleTextModel],
    pairs: Sequence[Pair],
    original: Original | None,
) -> Iterator[Check]:
    # `models` by precision, always with fp32; `original` is None if the model was trained here
    exact, few = models[_EXACT], pairs[: args.step_sentences]
    limits = (exact.max_source_tokens, exact.max_target_tokens)
    ids = [exact.tokenizer.encode_pair(pair.source, pair.target) for pair in few]
    source_ids, target_ids = (
        [[*each[side][:-1][: limit - 1], each[side][-1]] for each in ids] for side, limit in enumerate(limits)
    )
    yield from check_steps(model, exact.graph, list(zip(source_ids, target_ids, strict=True)))
    if original is not None:
        yield from check_original(original, exact, few, beam_size=args.beam)
        token_pairs = list(zip(source_ids, target_ids, strict=True))
        gain = gain_of_other_source_end(exact.graph, token_pairs, eos_id=exact.tokenizer.eos_id)
        if gain > _MOST_GAIN:
            print(
                f"WARNING: the translations of --data are likelier by {gain:.2f} nats per token if the end of sources "
                "is changed: import the model again with the other value of --source-eos",
                file=sys.stderr,
            )
    for precision, each in models.items():
        yield check_batching(each, [pair.source for pair in few], beam_size=args.beam, precision=precision)
    for precision, each in models.items():
        if precision != _EXACT:
            check = check_quality(exact, each, pairs, beam_size=args.beam, precision=precision)
            yield replace(check, limit=_MOST_BLEU_LOST.get(precision, check.limit))


def _load_graphs(bundle: Bundle, model: Transformer, temporary: Path) -> dict[str, StepModel]:
    # All precisions of the bundle; exports fp32 from the checkpoint if the bundle lacks it.
    manifest = bundle.manifest
    graphs: dict[str, StepModel] = {}
    if _EXACT not in manifest.precisions:
        files = write_graphs(temporary, Network.of(model), _EXACT, manifest.limits)
        shape = manifest.architecture
        tensors = graph_tensors(shape.num_decoder_layers, FLOAT_TYPES[_EXACT], shape.decoder_type)
        exact = manifest.model_copy(update={"precisions": {_EXACT: files}, "tensors": {_EXACT: tensors}})
        graphs[_EXACT] = OnnxStepModel(Bundle(directory=temporary, manifest=exact), RuntimeSettings(precision=_EXACT))
    for precision in manifest.precisions:
        graphs[precision] = OnnxStepModel(bundle, RuntimeSettings(precision=precision))
    return graphs


def _report(checks: Iterable[Check]) -> Iterator[Check]:
    print(f"{'claim':36} {'measured':>12} {'at most':>10} {'unit':10} {'holds':5}  of")
    for check in checks:
        holds = "yes" if check.holds else "NO"
        print(
            f"{check.claim:36} {check.measured:12.6g} {check.limit:10g} {check.unit:10} {holds:5}  {check.detail}",
            flush=True,
        )
        yield check
