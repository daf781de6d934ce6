"""Bodies of requests: JSON and forms, within limits on what one parse may cost."""

import contextlib
import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dragoman_service.errors import InvalidFieldError
from dragoman_service.http_api.bodies import (
    MAX_FORM_FIELDS,
    MAX_JSON_VALUES,
    MAX_NUMBER_CHARACTERS,
    check_unicode,
    form_fields,
    json_content,
    multipart_fields,
)

MANY = MAX_JSON_VALUES + 1
MULTIPART = "multipart/form-data; boundary=b"


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
def test_json_of_too_many_values_is_refused_before_it_is_parsed(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", lambda *_args, **_options: pytest.fail("was parsed"))

    with pytest.raises(InvalidFieldError, match=f"at most {MAX_JSON_VALUES} values"):
        json_content(body)


@pytest.mark.parametrize("character", [",", "[", "{", '"', "\\", '\\"[', ',"'])
def test_texts_may_have_any_number_of_separators(character: str) -> None:
    texts = [character * MANY, character, f"a{character}" * MANY]

    assert json_content(json.dumps(texts).encode()) == texts


@pytest.mark.parametrize("number", ["1" * (MAX_NUMBER_CHARACTERS + 1), "1." + "0" * MAX_NUMBER_CHARACTERS])
def test_long_numbers_are_refused(number: str) -> None:
    assert json_content(b"[1.5, -2, 1e400]") == [1.5, -2, float("inf")]
    with pytest.raises(InvalidFieldError, match=f"at most {MAX_NUMBER_CHARACTERS}"):
        json_content(number.encode())


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=20)), max_size=5))
@example([("q", "ä" * 40_000), ("q", "%+& =")])
@example([("q", "x" * 65_535 + "ä" + "x" * 65_533 + "ä")])
@example([("q", " +" * 40_000)])
def test_form_has_the_fields_that_were_encoded(fields: list[tuple[str, str]]) -> None:
    assert list(form_fields(urlencode(fields).encode())) == fields


@given(st.text("a=&%+4Cé", max_size=12))
def test_form_is_read_as_the_standard_library_reads_it(form: str) -> None:
    try:
        expected = parse_qsl(form, keep_blank_values=True, errors="strict")
    except UnicodeDecodeError:
        with pytest.raises(InvalidFieldError):
            list(form_fields(form.encode()))
    else:
        assert list(form_fields(form.encode())) == expected


def multipart(fields: dict[str, Any], **more: Any) -> tuple[bytes, str]:
    request = httpx.Request("POST", "http://localhost", data=fields, files=more or {"x": (None, "")})
    return request.read(), request.headers["content-type"]


def test_multipart_form_has_its_fields() -> None:
    body, content_type = multipart({"q": ["Where\r\nis ä?", ""], "source": "en"}, more=(None, b"1"))

    assert multipart_fields(body, content_type) == [
        ("q", "Where\r\nis ä?"), ("q", ""), ("source", "en"), ("more", "1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"", MULTIPART),
        (b"q=a", MULTIPART),
        (b"--b--\r\n", "multipart/form-data"),
        (b"--b--\r\n", f"multipart/form-data; boundary={'b' * 5000}"),
        (b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\na', MULTIPART),
        (b"--b\r\n\r\na\r\n--b--\r\n", MULTIPART),
        (b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n\xff\r\n--b--\r\n', MULTIPART),
        (b'--b\r\nContent-Disposition: form-data; name="q"; filename="a"\r\n\r\na\r\n--b--\r\n', MULTIPART),
        (b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n\r\n' * (MAX_FORM_FIELDS + 1) + b"--b--", MULTIPART),
        (b"--b\r\n" + b"a: b\r\n" * 9, MULTIPART),
        (b"--b\r\na: " + b"b" * 5000, MULTIPART),
    ],
)
def test_what_is_not_a_multipart_form_of_fields_is_refused(body: bytes, content_type: str) -> None:
    with pytest.raises(InvalidFieldError):
        multipart_fields(body, content_type)


PIECES = [b"--b", b"--", b"\r\n", b"\r", b"a", b":", b'Content-Disposition: form-data; name="q"', b"\r\n\r\n", b"\xff"]
ENCODINGS = [b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: x", b'; filename="', b"=="]


@given(st.lists(st.sampled_from([*PIECES, *ENCODINGS]), max_size=20).map(b"".join))
def test_any_bytes_are_a_multipart_form_or_are_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidFieldError):
        multipart_fields(b"--b\r\n" + body, MULTIPART)


@pytest.mark.parametrize("content", [b"q", b"&" * MAX_FORM_FIELDS, b"a=%ff", b"\xff"])
def test_too_many_fields_or_other_encodings_are_refused(content: bytes) -> None:
    if content == b"q":
        assert list(form_fields(content)) == [("q", "")]
        return
    with pytest.raises(InvalidFieldError):
        list(form_fields(content))


@pytest.mark.parametrize(
    ("value", "field"), [("\ud800", "request"), ({"a": ["b", "\udfff"]}, "a[1]"), ([{"\ud800": 1}], "[0]")]
)
def test_lone_surrogates_are_refused_wherever_they_are(value: object, field: str) -> None:
    with pytest.raises(InvalidFieldError) as raised:
        check_unicode(value)

    assert raised.value.field == field
    check_unicode({"ä": [None, 1.5, True, "\U0001f600"]})
