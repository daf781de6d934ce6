"""`translate-dataset`: translate a column of Parquet, JSONL, CSV or text files with Ray."""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from dragoman.cli.target import add_tls_flags, tls_options
from dragoman.client.errors import DragomanError as CallError
from dragoman.option_ranges import OptionRange, option_range
from dragoman_service.config import CONFIG_VARIABLE, load_settings
from dragoman_service.dataset_translation.settings import OUTPUT_FORMATS, DatasetError
from dragoman_service.errors import ConfigError, DragomanError, RequestError
from dragoman_service.threads import num_cores

_DESCRIPTION = """\
Translates one column of Parquet, JSONL, CSV or text files (one row per line) into a directory of Parquet or JSONL
parts, with the bundled models, those of --models, or a running server (--target). Ray distributes the work: an instance
on this machine, or the cluster of RAY_ADDRESS.

The output has all columns of the input, row_id (FILE:ROW), the translation, score and warnings. Rows that cannot be
translated go to rejects.jsonl with row_id and reason. The same command resumes an interrupted run.

The exit status is 0 if all rows are translated or rejected, 1 on failure, 2 for wrong usage, and 128 plus the number of
the signal after SIGINT or SIGTERM."""

_MODULES = ("ray", "pyarrow", "tqdm")  # of the extra `ray`
_BEAM_SIZE: OptionRange = option_range("options.beam_size")
_MAX_CALL_TEXTS: Any = option_range("texts").max_items
_RANGES = {"block_rows": 100_000, "workers": 1024, "batch_size": 1024, "beam_size": int(_BEAM_SIZE.maximum)}  # from 1


class _Stopped(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "translate-dataset",
        help="translate a column of Parquet, JSONL, CSV or text files",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("input", type=Path, metavar="INPUT", help="file, or directory with files of one format")
    add("output", type=Path, metavar="OUTPUT", help="directory; created, or resumed if it has a manifest")
    format_help = "format of the parts (default: parquet for Parquet, otherwise jsonl)"
    add("--format", choices=OUTPUT_FORMATS, help=format_help)
    add("--text-column", default="text", metavar="NAME", help="column to translate (%(default)s)")
    add("--column", default="translation", metavar="NAME", help="column for translations (%(default)s)")
    add("--source-language", default="en", metavar="TAG", help="BCP-47 tag (%(default)s)")
    add("--target-language", default="de", metavar="TAG", help="BCP-47 tag (%(default)s)")
    add("--model", default="", metavar="NAME[/VERSION|@LABEL]", help="model (default: that of the language pair)")
    beam_help = f"live hypotheses; 1 is greedy search ({_BEAM_SIZE.text}; default %(default)s)"
    add("--beam-size", type=int, default=_BEAM_SIZE.default, metavar="N", help=beam_help)
    batch_help = f"sentences decoded together; with --target, texts per call, at most {_MAX_CALL_TEXTS} (%(default)s)"
    add("--batch-size", type=int, default=32, metavar="N", help=batch_help)
    add("--block-rows", type=int, default=500, metavar="N", help="maximum number of rows of a part (%(default)s)")
    workers_help = "processes, with one thread each (default: one per core)"
    add("--workers", type=int, default=num_cores(), metavar="N", help=workers_help)
    add("--models", metavar="DIR", help="models.directory: directory of the bundles, as NAME/VERSION/")
    add("--config", type=Path, metavar="FILE", help=f"settings in TOML (default: ${CONFIG_VARIABLE})")
    server = parser.add_argument_group("translation by a running server")
    server.add_argument("--target", metavar="HOST:PORT", help="server (default: translate in the processes of Ray)")
    server.add_argument("--api-key-file", type=Path, metavar="FILE", help="file with the API key")
    add_tls_flags(server.add_argument)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Translate; return the exit status."""
    for module in _MODULES:
        if find_spec(module) is None:  # `dragoman.__main__` names the extra
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    try:
        _check_ranges(arguments)
        with _stop_signals():
            print(_translate(arguments))
    except _Stopped as stopped:
        print(f"dragoman: {stopped}; run the same command to resume", file=sys.stderr)
        return 128 + stopped.number
    except RequestError as error:
        print(f"dragoman: --{error.field.replace('_', '-')}: {error.description}", file=sys.stderr)
        return 2
    except (DragomanError, CallError, OSError, ValueError) as error:
        print(f"dragoman: {error}", file=sys.stderr)
        return 2 if isinstance(error, DatasetError | ConfigError) else 1
    return 0


def _check_ranges(arguments: argparse.Namespace) -> None:
    for name, limit in _RANGES.items():
        if name == "batch_size" and arguments.target:
            limit = _MAX_CALL_TEXTS  # noqa: PLW2901 - of the contract
        value = getattr(arguments, name)
        if not 1 <= value <= limit:
            raise DatasetError(f"--{name.replace('_', '-')}", value, f"1 to {limit}")
    if arguments.target and arguments.models:
        raise DatasetError("--models", arguments.models, "absent with --target")
    if not arguments.target and (arguments.api_key_file or tls_options(arguments)):
        raise DatasetError("--target", "absent", "a server, which --api-key-file and the flags for TLS are for")


def _translate(arguments: argparse.Namespace) -> str:
    from dragoman_service.dataset_translation import driver, translators  # noqa: PLC0415 - need the extra

    sizes = {"beam_size": arguments.beam_size, "batch_size": arguments.batch_size}
    languages = arguments.source_language, arguments.target_language
    spec: translators.EngineSpec | translators.ServerSpec
    max_characters = None
    if arguments.target:
        spec = translators.ServerSpec(
            target=arguments.target,
            api_key_file=arguments.api_key_file and arguments.api_key_file.resolve(),
            tls=tls_options(arguments),
            model=arguments.model,
            source_language=languages[0],
            target_language=languages[1],
            **sizes,
        ).with_served_model()
    else:
        flags = {"models.directory": arguments.models}
        settings = load_settings(file=arguments.config, environment=os.environ, flags=flags)
        spec = translators.EngineSpec.of(settings, arguments.model, *languages, **sizes)
        max_characters = settings.limits.max_text_characters
    return driver.translate_dataset(
        arguments.input,
        arguments.output,
        spec,
        text_column=arguments.text_column,
        translation_column=arguments.column,
        output_format=arguments.format,
        max_characters=max_characters,
        block_rows=arguments.block_rows,
        num_workers=arguments.workers,
    )


@contextmanager
def _stop_signals() -> Iterator[None]:
    # SIGINT and SIGTERM end the block with `_Stopped`; later ones are ignored, so that Ray can stop.
    def stop(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
