"""`models`: list, load, unload and label the models of a running server."""

import argparse
from typing import Any

from dragoman.cli.target import add_target_flags, call
from dragoman.client import ModelAdminClient, TranslationClient
from dragoman.client.enums import ModelState, Precision
from dragoman.client.models import LanguageGroup, Model, ModelVersion

_MAX_LISTED_PAIRS = 8


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "models",
        help="list the models of a running server, load, unload or label them",
        description="Lists every model of a running server with its versions, languages, limits and scores. A version "
        "marked `default` serves requests with a model name and without a version. A version marked `default of` a "
        "language pair also serves requests without a model name.",
    )
    add_target_flags(parser)
    parser.set_defaults(run=run)
    changes = parser.add_subparsers(metavar="CHANGE")
    _add_change(changes, "load", run_load, "load a version from the model directory of the server")
    _add_change(changes, "unload", run_unload, "unload a version after its requests are answered")
    label = _add_change(changes, "label", run_label, "point NAME@LABEL to a version")
    label.add_argument("label", metavar="LABEL", help="such as stable or canary")
    label.add_argument(
        "--remove", action="store_true", help="remove the label; MODEL is a model name without a version"
    )


def _add_change(changes: Any, name: str, run_change: Any, description: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = changes.add_parser(
        name, help=description, description=f"{description[0].upper()}{description[1:]}."
    )
    parser.add_argument("model", metavar="MODEL", help="NAME/VERSION")
    add_target_flags(parser, overrides_parent=True)
    parser.set_defaults(run=run_change)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """List the models; return the exit code."""
    return call(arguments, TranslationClient, lambda client: _print(*client.list_models()))


def run_load(arguments: argparse.Namespace) -> int:
    """Load a version and print it; return the exit code."""
    return call(arguments, ModelAdminClient, lambda admin: _print(admin.load_model(arguments.model)))


def run_unload(arguments: argparse.Namespace) -> int:
    """Unload a version; return the exit code."""

    def unload(admin: ModelAdminClient) -> None:
        admin.unload_model(arguments.model)
        print(f"{arguments.model}  unloaded")

    return call(arguments, ModelAdminClient, unload)


def run_label(arguments: argparse.Namespace) -> int:
    """Set or remove a label and print the model; return the exit code."""

    def label(admin: ModelAdminClient) -> None:
        change = admin.remove_model_label if arguments.remove else admin.set_model_label
        _print(change(arguments.model, arguments.label))

    return call(arguments, ModelAdminClient, label)


def _print(*models: Model) -> None:
    for model in models:
        for version in model.versions:
            print(_described(model, version))


def _summary(group: LanguageGroup) -> str:
    sides = [" ".join(side) for side in (group.source_languages, group.target_languages)]
    return f"[{sides[0]}]" if sides[0] == sides[1] else f"[{sides[0]}]-[{sides[1]}]"


def _described(model: Model, version: ModelVersion) -> str:
    pairs = [(f"{pair.source_language}-{pair.target_language}", pair.is_default) for pair in version.language_pairs]
    if len(version.language_pairs) > _MAX_LISTED_PAIRS or not pairs:
        pairs = [(_summary(group), group.is_default) for group in version.language_groups]
    is_all = len(pairs) > 1 and all(is_default for _, is_default in pairs)
    default_of = "all" if is_all else ", ".join(name for name, is_default in pairs if is_default)
    columns = [
        f"{model.name}/{version.version}",
        *(f"@{label}" for label in version.labels),
        ", ".join(name for name, _ in pairs),
        "" if version.precision is Precision.UNSPECIFIED else version.precision.name.lower(),
        version.state.name.lower(),
        f"default of {default_of}" if default_of else "default" if version.is_default else "",
    ]
    lines = ["  ".join(filter(None, columns))]
    if version.state_message:
        lines.append(version.state_message)
    if version.state is not ModelState.FAILED:
        texts = f"{version.limits.max_texts} texts of {version.limits.max_text_characters} characters"
        lines.append(f"up to {texts}, sentences up to {version.limits.max_source_tokens} tokens")
        lines += [f"{score.metric} {score.value:.1f} on {score.test_set}" for score in version.evaluation_scores]
    return "\n    ".join(lines)
