"""`dragoman export average`: averages the weights of the last checkpoints of a run, or of the best of several runs."""

import argparse
from pathlib import Path

from dragoman_export.errors import SettingError
from dragoman_export.training.checkpoint import average_checkpoints, list_checkpoints, save_checkpoint
from dragoman_export.training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    run_help = "folder of a training run; of several, the best checkpoints are averaged"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=run_help)
    last_help = "newest checkpoints of a single run to average. Default: 5."
    parser.add_argument("--last", type=int, metavar="N", help=last_help)
    output_help = "file to write. Default: average.pt in the last RUN."
    parser.add_argument("--output", type=Path, metavar="FILE", help=output_help)


def run(args: argparse.Namespace) -> int:
    """Write the average; SettingError if `--last` is out of range, RunFolderError without checkpoints."""
    if len(args.runs) == 1:
        paths = _last_checkpoints(args.runs[0], 5 if args.last is None else args.last)
    elif args.last is not None:
        raise SettingError("--last", args.last, "no value with several runs")
    else:
        paths = [RunFolder(path).best for path in args.runs]
    average = average_checkpoints(paths)
    output = args.output or args.runs[-1] / "average.pt"
    save_checkpoint(output, average)
    print(f"{output}: average of {', '.join(map(str, paths))}")
    return 0


def _last_checkpoints(run: Path, count: int) -> list[Path]:
    if count < 1:
        raise SettingError("--last", count, "at least 1")
    paths = list_checkpoints(RunFolder(run).checkpoints)
    if paths and len(paths) < count:
        kept = f"at most {len(paths)}, the checkpoints in {run} (`train --keep-checkpoints`)"
        raise SettingError("--last", count, kept)
    return paths[-count:]
