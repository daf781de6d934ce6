"""`dragoman export upgrade`: a bundle with what the present version of the format adds, without its checkpoint."""

import argparse
from pathlib import Path

from dragoman_export.bundle_writer import upgrade_bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("--bundle", type=Path, required=True, metavar="DIR", help="bundle to read; it stays as it is")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory to make; must not exist")


def run(args: argparse.Namespace) -> int:
    """Write the bundle and say what is new; errors as `upgrade_bundle` raises them."""
    manifest = upgrade_bundle(args.bundle, args.output)
    described = [name for name, files in manifest.precisions.items() if files.int8_weights is not None]
    print(f"{args.output}: {manifest.name}/{manifest.version} with int8 weights described: {', '.join(described)}")
    return 0
