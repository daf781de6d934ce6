"""`dragoman export convert`: adds a precision to a bundle, without the checkpoint and without PyTorch."""

import argparse

from dragoman_export.bundle_extension import add_precision
from dragoman_export.cli.flags import add_shared
from dragoman_export.errors import SettingError
from dragoman_service.bundle.files import MANIFEST_NAME


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add_shared(parser, "bundle", "output")
    precision_help = "precision to add; fp16 is for GPUs (%(default)s)"
    parser.add_argument("--precision", choices=("fp16", "fp32"), default="fp16", help=precision_help)


def run(args: argparse.Namespace) -> int:
    """Write the bundle with the added precision and print its files."""
    if not (args.bundle / MANIFEST_NAME).is_file():
        expected = f"a bundle; export a checkpoint with `dragoman export bundle --precisions {args.precision}`"
        raise SettingError("--bundle", str(args.bundle), expected)
    manifest = add_precision(args.bundle, args.output, args.precision)
    print(f"{args.output}: {manifest.name}/{manifest.version} with {', '.join(manifest.precisions)}")
    for name in manifest.precisions[args.precision].names():
        print(f"  {name:24} {manifest.files[name].bytes:>12,} bytes")
    return 0
