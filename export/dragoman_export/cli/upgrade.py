"""`dragoman export upgrade`: adds what the current bundle format requires, without the checkpoint."""

import argparse

from dragoman_export.bundle_extension import upgrade_bundle
from dragoman_export.cli.flags import add_shared


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", "output")


def run(args: argparse.Namespace) -> int:
    """Write the upgraded bundle; errors as of `upgrade_bundle`."""
    manifest = upgrade_bundle(args.bundle, args.output)
    described = [name for name, files in manifest.precisions.items() if files.int8_weights is not None]
    print(f"{args.output}: {manifest.name}/{manifest.version} with int8 weights described: {', '.join(described)}")
    return 0
