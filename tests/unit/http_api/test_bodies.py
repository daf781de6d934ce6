"""Bodies of requests: JSON and forms, within limits on what one parse may cost."""

import json
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman_service.errors import RequestError
from dragoman_service.http_api.bodies import (
    MAX_JSON_VALUES,
    MAX_NUMBER_CHARACTERS,
    check_unicode,
    form_fields,
    json_content,
)
from dragoman_service.translation.settings import MAX_FORM_FIELDS

MANY = MAX_JSON_VALUES + 1


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b",".join([b"[]"] * MANY) + b"]",
        b"[" + b",".join([b"{}"] * MANY) + b"]",
        b"[" + b",".join([b'""'] * MANY) + b"]",
        b"{" + b",".join(b'"%d":0' % index for index in range(MANY + 1)) + b"}",
        b'["' + rb"\\" * 8 + b'",' + b",".join([b"[]"] * MANY) + b"]",
        b"[" * MANY + b"]" * MANY,
        b'["' + b"," * 200_000 + b'",' + b",".join([b"[]"] * MANY) + b"]",
        b'["' + b"x" * 65_533 + b'\\"",' + b",".join([b"[]"] * MANY) + b"]",
    ],
)
def test_json_with_too_many_values_is_rejected_before_parsing(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_args, **_options: pytest.fail("was parsed"))

    with pytest.raises(RequestError, match=f"more than {MAX_JSON_VALUES} JSON values"):
        json_content(body)


@pytest.mark.parametrize("character", [",", "[", "{", '"', "\\", '\\"[', ',"'])
def test_separators_inside_strings_are_not_counted(character: str) -> None:
    texts = [character * MANY, character, f"a{character}" * MANY]

    assert json_content(json.dumps(texts).encode()) == texts


@pytest.mark.parametrize("number", ["1" * (MAX_NUMBER_CHARACTERS + 1), "1." + "0" * MAX_NUMBER_CHARACTERS])
def test_long_numbers_are_rejected(number: str) -> None:
    assert json_content(b"[1.5, -2, 1e400]") == [1.5, -2, float("inf")]
    with pytest.raises(RequestError, match=f"at most {MAX_NUMBER_CHARACTERS}"):
        json_content(number.encode())


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=20)), max_size=5))
@example([("q", "ä" * 40_000), ("q", "%+& =")])
@example([("q", "x" * 65_535 + "ä" + "x" * 65_533 + "ä")])
@example([("q", " +" * 40_000)])
@example([("q", "")])
def test_encoded_form_round_trips(fields: list[tuple[str, str]]) -> None:
    assert list(form_fields(urlencode(fields).encode())) == fields


@given(st.text("a=&%+4Cé", max_size=12))
def test_form_parser_agrees_with_the_standard_library(form: str) -> None:
    try:
        expected = parse_qsl(form, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        with pytest.raises(RequestError):
            list(form_fields(form.encode()))
    else:
        assert list(form_fields(form.encode())) == expected


@pytest.mark.parametrize("content", [b"&" * MAX_FORM_FIELDS, b"a=%ff", b"\xff"])
def test_too_many_fields_and_invalid_utf8_are_rejected(content: bytes) -> None:
    with pytest.raises(RequestError):
        list(form_fields(content))


@pytest.mark.parametrize(
    ("value", "field"), [("\ud800", "request"), ({"a": ["b", "\udfff"]}, "a[1]"), ([{"\ud800": 1}], "[0]")]
)
def test_lone_surrogates_are_rejected_at_any_depth(value: object, field: str) -> None:
    with pytest.raises(RequestError) as raised:
        check_unicode(value)

    assert raised.value.field == field
    check_unicode({"ä": [None, 1.5, True, "\U0001f600"]})
