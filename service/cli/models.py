"""`models`: what a running server translates with."""

import argparse
from typing import Any

from dragoman.client import TranslationClient
from dragoman.models import Model, ModelVersion

from service.cli.target import add_target_flags, call


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "models",
        help="list the models of a running server",
        description="Lists every model of a running server with its versions, languages, limits and scores.",
    )
    add_target_flags(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """List the models; return the exit code."""

    def list_models(client: TranslationClient) -> None:
        for model in client.list_models():
            for version in model.versions:
                print(_described(model, version))

    return call(arguments, list_models)


def _described(model: Model, version: ModelVersion) -> str:
    pairs = ", ".join(f"{pair.source_language}-{pair.target_language}" for pair in version.language_pairs)
    limits = version.limits
    scores = "".join(
        f"\n    {score.metric} {score.value:.1f} on {score.test_set}" for score in version.evaluation_scores
    )
    return (
        f"{model.name}/{version.version}  {pairs}  {version.precision.name.lower()}  {version.state.name.lower()}\n"
        f"    up to {limits.max_texts} texts of {limits.max_text_characters} characters, "
        f"sentences up to {limits.max_source_tokens} tokens{scores}"
    )
