"""The command `dragoman`: finds the program that a sub-command belongs to, and hands its arguments on.

The client package holds neither the server nor the exporter. They are found by import, or beside this package in the
checkout of an editable install.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import dragoman

_CHECKOUT = Path(__file__).resolve().parents[2]
"""Of an editable install."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 and the number of the signal."""


@dataclass(frozen=True, slots=True)
class Command:
    """One sub-command."""

    summary: str
    program: str = "dragoman_service"
    """Package whose `__main__.main` runs it."""

    extra: str = "serve"
    """Extra of the package `dragoman` that installs what it needs."""


COMMANDS: Mapping[str, Command] = {
    "serve": Command("run the server"),
    "translate": Command("translate texts or files with a running server", "dragoman.cli", "files"),
    "models": Command("list the models of a running server, load, unload or label them"),
    "keys": Command("make an API key, check a file of callers"),
    "probe": Command("ask whether a server accepts calls, for health checks"),
    "demo": Command("start the server on the shipped model, translate four texts, stop it"),
    "export": Command("train a model, make a bundle of it, verify and evaluate that", "dragoman_export", "train,serve"),
    "loadtest": Command("measure latency and capacity of a server under load", "loadtests", "load,serve"),
}
"""By name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 failed, 2 called wrongly, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    first = words[0] if words else "--help"
    if first in ("--help", "-h", "--version"):
        print(f"dragoman {dragoman.__version__}" if first == "--version" else _usage())
        return 0
    command = COMMANDS.get(first)
    if command is None:
        print(f"dragoman: there is no command {first!r}; the commands are {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    if not _is_importable(command.program):
        print(_told_missing(first, command, f"the package {command.program!r}"), file=sys.stderr)
        return 2
    try:
        # Programs with several commands want to know which of them is meant.
        handed_on = words if command.program in ("dragoman_service", "dragoman.cli") else words[1:]
        status: int = import_module(f"{command.program}.__main__").main(handed_on)
    except ModuleNotFoundError as error:
        if _is_ours(error):
            raise
        print(_told_missing(first, command, f"the module {error.name!r}"), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dragoman: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


def _usage() -> str:
    lines = [f"  {name:10} {command.summary}" for name, command in COMMANDS.items()]
    return (
        "\n".join(("usage: dragoman COMMAND ...", "       dragoman --version", "", "commands:", *lines, ""))
        + "\n`dragoman COMMAND --help` describes a command."
    )


def _is_importable(program: str) -> bool:
    """Whether a program is here; makes that of the checkout importable, for child processes too."""
    if find_spec(program) is None and (_CHECKOUT / program / "__main__.py").is_file():
        path = str(_CHECKOUT)
        sys.path.insert(0, path)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))
    return find_spec(program) is not None


def _is_ours(error: ModuleNotFoundError) -> bool:
    return (error.name or "").partition(".")[0] in ("dragoman", *(command.program for command in COMMANDS.values()))


def _told_missing(name: str, command: Command, missing: str) -> str:
    is_checkout = (_CHECKOUT / command.program).is_dir()
    where = "" if is_checkout else ", in a checkout of the project"
    source = _CHECKOUT if is_checkout else "."
    lines = [
        f"dragoman: `dragoman {name}` needs {missing}, which is not installed here; this installs it{where}:",
        f"  {sys.executable} -m pip install --editable '{source}[{command.extra}]'",
    ]
    environment = _CHECKOUT / ".venv"
    if (environment / "bin" / "activate").is_file() and not environment.samefile(sys.prefix):
        lines += ["or, if `make` has installed it, this activates it:", f"  . {environment}/bin/activate"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
