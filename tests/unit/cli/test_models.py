import argparse

import pytest

from service.cli import models


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    models.add_parser(parser.add_subparsers())
    return parser.parse_args(["models", *words])


@pytest.mark.parametrize(
    "words",
    [
        ("--target", "there:1", "--tls", "load", "en-de/2"),
        ("load", "en-de/2", "--target", "there:1", "--tls"),
        ("--target", "elsewhere:1", "load", "--tls", "--target", "there:1", "en-de/2"),
    ],
)
def test_who_is_asked_may_be_said_before_or_after_what_is_asked(words: tuple[str, ...]) -> None:
    arguments = parsed(*words)

    assert (arguments.target, arguments.tls, arguments.model) == ("there:1", True, "en-de/2")
    assert (arguments.timeout, arguments.api_key_file) == (None, None)


def test_without_a_change_the_models_are_listed() -> None:
    assert parsed().run is models.run
    assert parsed().target == "localhost:50051"
