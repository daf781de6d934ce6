"""Parameters of vendor requests: parsing of bodies, validation and error messages."""

import json
from typing import Any

import pytest
from pydantic import Field

from dragoman_service.errors import RequestError
from dragoman_service.translation.settings import MAX_TEXTS
from dragoman_service.vendor_apis.parameters import Parameters, StringList, Text, Texts, Unsupported, body_fields


class Item(Parameters):
    name: str
    size: int = Field(default=1, ge=1, le=9, alias="itemSize")


class Example(Parameters):
    q: Texts
    title: Text = ""
    names: StringList = Field(default=[])
    items: list[Item] = Field(default=[], max_length=2)
    is_on: bool = False
    context: Unsupported = None


def parse(**fields: Any) -> Example:
    return Example.parse(fields, max_text_characters=10)


def test_values_of_forms_are_converted() -> None:
    parsed = parse(q="A.", names="a", is_on="1", title=None, items=[{"name": "b", "itemSize": "3"}], context="")

    assert (parsed.q, parsed.names, parsed.is_on, parsed.title) == (["A."], ["a"], True, "")
    assert parsed.items == [Item(name="b", itemSize=3)]


def test_empty_text_is_a_text() -> None:
    assert parse(q="").q == [""]
    assert parse(q=["", "a"]).q == ["", "a"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "q: is required"),
        ({"q": []}, "q: is an empty list, must be a string or a list of 1 to 128 strings"),
        ({"q": ["A."] * (MAX_TEXTS + 1)}, "q: is a list of 129, must be at most 128 texts"),
        ({"q": ["A.", 7]}, "q[1]: is 7, must be a string"),
        ({"q": ["A.", "a" * 11]}, "q[1]: is 11 characters, must be at most 10"),
        ({"q": "A.", "title": ["a"]}, "title: is a list, must be a string"),
        ({"q": "A.", "context": "x"}, "context: not supported"),
        ({"q": "A.", "is_on": "maybe"}, "is_on: is 'maybe', must be a valid boolean, unable to interpret input"),
        ({"q": "A.", "items": [{}]}, "items[0].name: is required"),
        ({"q": "A.", "items": ["a"]}, "items[0]: is 'a', must be an object"),
        ({"q": "A.", "items": [{"name": "a"}] * 3}, "items: is a list of 3, must be at most 2"),
        (
            {"q": "A.", "items": [{"name": "a", "itemSize": 10}]},
            "items[0].itemSize: is 10, must be less than or equal to 9",
        ),
        ({"q": "A.", "names": [7] * 200}, "names: is a list of 200, must be at most 128"),
        ({f"x{index}": 1 for index in range(65)}, "request: an object has 65 fields, at most 64 are allowed"),
        ({"q": "A.", "items": [{"name": "a", "x": 1}]}, "items[0].x: unknown field"),
        ({"q": "A.", "x": 1}, "x: unknown field; expected one of q, title, names, items, is_on, context"),
        ({"q": "A.", "a text": 1}, "request: unknown field; expected one of q, title, names, items, is_on, context"),
    ],
)
def test_error_names_field_value_and_expectation(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        parse(**fields)

    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("body", "content_type", "fields"),
    [
        (b'{"q": ["a"], "n": 1}', "application/json; charset=utf-8", {"q": ["a"], "n": 1}),
        (b"q=a&q=%C3%A4&n=1", "application/x-www-form-urlencoded", {"q": ["a", "ä"], "n": "1"}),
        (
            b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\na\r\n--b--\r\n',
            'multipart/form-data; boundary="b"',
            {"q": "a"},
        ),
    ],
)
def test_body_is_parsed_by_its_content_type(body: bytes, content_type: str, fields: dict[str, Any]) -> None:
    assert body_fields(body, content_type) == fields


@pytest.mark.parametrize("body", [b"[]", b"7", b"{", json.dumps({"q": "\ud800"}).encode()])
def test_body_without_an_object_of_unicode_text_is_rejected(body: bytes) -> None:
    with pytest.raises(RequestError):
        body_fields(body, "application/json")
