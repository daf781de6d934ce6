import argparse
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from pydantic import ConfigDict

from dragoman_export.cli.flags import add_flags, field_documents, given
from dragoman_export.model.config import ModelConfig
from dragoman_export.training.config import TrainingConfig


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings with a flag per field."""

    __pydantic_config__ = ConfigDict(use_attribute_docstrings=True)

    num_rooms: int = 3
    """Rooms of
    the house."""
    share: float | None = None
    """Rooms with a window, in %."""
    is_warm: bool = True
    """Heat."""
    colour: Literal["red", "blue"] = "red"
    """Colour of the walls."""


PRESETS = {"hut": Settings(num_rooms=1), "house": Settings(), "villa": Settings()}


def make_parser(**options: Any) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings, title="the house", presets=PRESETS, **options)
    return parser


def test_given_flags_are_parsed_as_their_fields() -> None:
    args = make_parser().parse_args(["--num-rooms", "5", "--share", "0.5", "--no-is-warm", "--colour", "blue"])

    assert given(args, Settings) == {"num_rooms": 5, "share": 0.5, "is_warm": False, "colour": "blue"}
    assert given(make_parser().parse_args([]), Settings) == {}


def test_flags_can_be_renamed_and_omitted() -> None:
    parser = make_parser(flags={"num_rooms": "rooms"}, leave_out={"colour"})

    assert given(parser.parse_args(["--rooms", "2"]), Settings) == {"num_rooms": 2}
    assert "--colour" not in parser.format_help()


def test_help_has_description_and_default() -> None:
    message = " ".join(make_parser().format_help().split())

    assert "the house: --num-rooms INT Rooms of the house. Default: 1 (hut); 3 (house, villa)." in message
    assert "--share FLOAT Rooms with a window, in %. Default: none." in message
    assert "--is-warm, --no-is-warm Heat. Default: yes." in message
    assert "--colour {red,blue} Colour of the walls. Default: red." in message


@pytest.mark.parametrize("settings", [ModelConfig, TrainingConfig])
def test_every_setting_is_documented(settings: type) -> None:
    documents = field_documents(settings)

    assert documents.keys() == settings.__annotations__.keys()
    assert all(text.endswith(".") for text in documents.values())
