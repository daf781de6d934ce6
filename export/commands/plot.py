"""`python -m export plot`: draws the curves of a run from its log."""

import argparse
from pathlib import Path

from export.errors import RunFolderError
from export.training.report import draw_curves
from export.training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="PNG to write. Default: RUN/curves.png.")


def run(args: argparse.Namespace) -> int:
    """Draw; RunFolderError if the folder has no log."""
    folder = RunFolder(args.run)
    if not folder.log.exists():
        raise RunFolderError(f"{folder.path} holds no log")
    draw_curves(folder.log, args.output or folder.curves)
    return 0
