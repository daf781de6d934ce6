"""Requests of LibreTranslate's clients as requests of the contract."""

import json
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import InvalidFieldError
from dragoman_service.vendor_apis.base import fields_of
from dragoman_service.vendor_apis.libretranslate import translate_request

ASKED = {"q": "A man rides a bicycle.", "source": "en", "target": "de"}


def requested(**fields: Any) -> pb.TranslateRequest:
    body = json.dumps({**ASKED, **fields}).encode()
    return translate_request(fields_of(body, "application/json", repeated={"q"}), max_characters=100)


@pytest.mark.parametrize(
    "change",
    [
        {"q": None},
        {"q": 7},
        {"q": ["A man.", 7]},
        {"q": []},
        {"q": ["A man."] * 129},
        {"q": "\ud800"},
        {"q": "x" * 101},
        {"q": ["A man.", "\ud800"]},
        {"source": None},
        {"source": "\ud800"},
        {"target": ["de"]},
        {"target": "\udfff"},
        {"format": "pdf"},
        {"format": "\ud800"},
        {"format": {}},
        {"alternatives": 99},
        {"alternatives": -1},
        {"alternatives": "many"},
        {"alternatives": 1.5},
        {"colour": "red"},
        {"\ud800": "red"},
    ],
)
def test_wrong_fields_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidFieldError):
        requested(**change)


def test_width_of_the_beam_is_that_of_the_server() -> None:
    assert requested(alternatives=5).options == pb.DecodingOptions(format=pb.TEXT_FORMAT_PLAIN, num_hypotheses=6)
    assert requested().options == pb.DecodingOptions(format=pb.TEXT_FORMAT_PLAIN)
