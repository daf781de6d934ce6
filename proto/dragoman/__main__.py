"""The command `dragoman`: runs the package that implements a sub-command, if its dependencies are installed."""

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import dragoman

INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit statuses after Ctrl-C and after the reader of the output ended, as in shells: 128 plus a signal's number."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command."""

    summary: str
    program: str = "dragoman_service"
    """Package whose `__main__.main` runs it."""

    extra: str = ""
    """Extra of the distribution `dragoman` with its dependencies. Empty: the bare installation has them."""

    modules: tuple[str, ...] = ()
    """Top-level modules of that extra. `--help` lists the command only if all are installed."""

    @property
    def missing(self) -> str:
        """The first module that is not installed; empty if there is none."""
        return next((name for name in (self.program.partition(".")[0], *self.modules) if find_spec(name) is None), "")


_SERVE = ("onnxruntime", "pydantic", "prometheus_client", "starlette")

COMMANDS: Mapping[str, Command] = {  # by name
    "serve": Command("run the server", extra="serve", modules=_SERVE),
    "translate": Command("translate texts or files with a running server", "dragoman.cli"),
    "translate-dataset": Command(
        "translate a column of Parquet, JSONL, CSV or text files", extra="serve,ray", modules=(*_SERVE, "ray")
    ),
    "models": Command("list, load, unload or label the models of a running server"),
    "keys": Command("create an API key, check a callers file", extra="serve", modules=("pydantic",)),
    "doctor": Command("check an installation and its settings", extra="serve", modules=_SERVE),
    "demo": Command("start a server with the bundled models, translate, stop it", extra="serve", modules=_SERVE),
    "export": Command(
        "train or import a model, export, verify and evaluate it", "dragoman_export", "train,serve", ("torch", "onnx")
    ),
    "loadtest": Command("measure latency and capacity of a server", "loadtests", "load,serve", ("locust",)),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 success, 1 failure, 2 wrong usage, 130 or 141 interrupted."""
    _open_missing_streams()
    try:
        try:
            return _run(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        print("dragoman: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # such as `| head`
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        _discard_output()
        print(f"dragoman: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1


def _discard_output() -> None:
    """Connect standard output to the null device, as Python flushes it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _open_missing_streams() -> None:
    """Open the null device for standard streams that the parent process has closed."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free, so that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))


def _run(words: Sequence[str]) -> int:
    first = words[0] if words else "--help"
    if first in ("--help", "-h", "--version"):
        print(f"dragoman {dragoman.__version__}" if first == "--version" else _usage())
        return 0
    command = COMMANDS.get(first)
    if command is None:
        print(f"dragoman: unknown command {first!r}; commands: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        # These two programs parse the name of the command themselves.
        arguments = words if command.program in ("dragoman_service", "dragoman.cli") else words[1:]
        status: int = import_module(f"{command.program}.__main__").main(arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("dragoman") or not command.extra:
            raise
        # Only this part of the exporter needs no PyTorch.
        extra = "convert" if words[:2] == ["export", "convert"] else command.extra
        print(_install_hint(first, command, extra, missing=error.name or command.program), file=sys.stderr)
        return 2
    return status


def _usage() -> str:
    available = [f"  {name:17} {command.summary}" for name, command in COMMANDS.items() if not command.missing]
    extras = sorted({command.extra for command in COMMANDS.values() if command.missing})
    hints = [f"More commands: pip install 'dragoman[{extra}]'" for extra in extras]
    lines = ["usage: dragoman COMMAND ...", "       dragoman --version", "", "commands:", *available, ""]
    return "\n".join((*lines, "`dragoman COMMAND --help` describes a command.", *hints))


def _install_hint(name: str, command: Command, extra: str, *, missing: str) -> str:
    if command.program == "loadtests":
        return f"dragoman: `dragoman {name}` runs in a checkout: make .venv/.load (missing module: {missing})"
    return (
        f"dragoman: `dragoman {name}` needs the module {missing!r}; install it:\n"
        f"  {sys.executable} -m pip install 'dragoman[{extra}]'"
    )


if __name__ == "__main__":
    sys.exit(main())
