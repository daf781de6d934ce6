"""`python -m export import`: a run folder with the weights and the vocabulary of a bundle."""

import argparse
from pathlib import Path

import torch

from export.importers.bundle import read_network
from export.training.checkpoint import save_checkpoint, write_atomically
from export.training.run_folder import RunFolder
from service.bundle import open_bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="bundle to read")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="run folder to make")
    parser.add_argument("--precision", help="whose graphs to read (the bundle's default)")


def run(args: argparse.Namespace) -> int:
    """Write `imported.pt`, with the measured ranges of int8 activations if there are any, and the vocabulary.

    Raises:
        BundleError: if the bundle is damaged or lacks the precision.
        ImportFormatError: if a graph does not hold the weights of such a network.
        RunFolderError: if the folder holds checkpoints already.
    """
    bundle = open_bundle(args.bundle)
    network = read_network(bundle, args.precision)
    folder = RunFolder(args.output)
    folder.create()
    weights = {name: torch.tensor(array) for name, array in network.weights.items()}
    content = {"model": weights, "model_config": network.config.to_dict(), "ranges": dict(network.ranges)}
    save_checkpoint(folder.imported, content)
    write_atomically(folder.vocabulary, bundle.tokenizer_path.read_bytes())
    print(f"{folder.imported}: weights of {bundle.manifest.name}/{bundle.manifest.version}")
    return 0
