"""Run files of `dragoman export train`: the flags of a run in YAML or TOML, in sections or not."""

import argparse
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

import yaml

from dragoman_export.cli.flags import actions_of
from dragoman_export.errors import RunFileError

_INVALID = frozenset({"--help", "--resume", "--dump", "--dry-run"})


def read_run_file(path: Path, add_arguments: Callable[[argparse.ArgumentParser], None]) -> argparse.Namespace:
    """Return the flags of a run file; keys are long flags without dashes, and sections only group them.

    Raises:
        RunFileError: if the file cannot be read, or a key or value is invalid.
    """
    parser = _Parser(path, add_help=False, allow_abbrev=False)
    add_arguments(parser)
    known = {flag: action for action in actions_of(parser) for flag in action.option_strings if flag not in _INVALID}
    arguments: list[str] = []
    for key, value in _entries(path, _read(path)):
        flag = f"--{key.replace('_', '-')}"
        if flag not in known:
            raise RunFileError(f"{path}: {key} is not a flag of `dragoman export train`, see --help")
        is_switch = isinstance(known[flag], argparse.BooleanOptionalAction)
        if is_switch != isinstance(value, bool):
            raise RunFileError(f"{path}: {key} is {value!r}: expected {'true or false' if is_switch else 'no boolean'}")
        if is_switch:
            arguments.append(flag if value else f"--no-{flag[2:]}")
        else:
            arguments += [flag, *map(str, value if isinstance(value, list) else [value])]
    return parser.parse_args(arguments)


def run_file(sections: Mapping[str, Any]) -> str:
    """Return a run file as YAML; keys without a value are left out."""
    content = {
        key: {name: each for name, each in value.items() if each is not None} if isinstance(value, Mapping) else value
        for key, value in sections.items()
        if value is not None
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


class _Parser(argparse.ArgumentParser):
    # Raises RunFileError instead of ending the process.

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(**options)
        self._path = path

    def error(self, message: str) -> NoReturn:
        raise RunFileError(f"{self._path}: {message}")


def _read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else yaml.safe_load(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, yaml.YAMLError) as error:
        raise RunFileError(f"cannot read run file {path}: {error}") from error


def _entries(path: Path, content: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, Mapping):
        raise RunFileError(f"{path} has no keys: expected flags of `dragoman export train` without their dashes")
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _entries(path, value)
        elif value is not None:
            yield str(key), value
