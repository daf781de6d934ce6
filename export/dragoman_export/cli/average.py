"""`dragoman export average`: averages the weights of the last checkpoints of a run."""

import argparse
from pathlib import Path

from dragoman_export.errors import SettingError
from dragoman_export.training.checkpoint import average_checkpoints, list_checkpoints, save_checkpoint
from dragoman_export.training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a training run")
    parser.add_argument("--last", type=int, default=5, metavar="N", help="newest checkpoints to average. Default: 5.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file to write. Default: RUN/average.pt.")


def run(args: argparse.Namespace) -> int:
    """Write the average; SettingError if `--last` is out of range, RunFolderError without checkpoints."""
    if args.last < 1:
        raise SettingError("--last", args.last, "at least 1")
    paths = list_checkpoints(RunFolder(args.run).checkpoints)
    if paths and len(paths) < args.last:
        kept = f"at most {len(paths)}, the checkpoints in {args.run} (`train --keep-checkpoints`)"
        raise SettingError("--last", args.last, kept)
    average = average_checkpoints(paths[-args.last :])
    output = args.output or args.run / "average.pt"
    save_checkpoint(output, average)
    print(f"{output}: average of {', '.join(average['averaged'])}")
    return 0
