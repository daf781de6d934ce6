"""Multipart forms: any split of the body, limits, and hostile input."""

import contextlib
import itertools
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.errors import RequestError
from dragoman_service.file_translation.multipart import MultipartForm, multipart_fields

TYPE = "multipart/form-data; boundary=b"
FIELD = b'--b\r\nContent-Disposition: form-data; name="q"\r\n\r\n'


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def file(content: bytes = b"A man.", name: str = "a.txt") -> bytes:
    return part("file", content, f'; filename="{name}"')


def form(content_type: str = TYPE) -> MultipartForm:
    return MultipartForm(content_type, file_field="file", max_value_bytes=16 * 1024)


def parse(body: bytes) -> None:
    parsed = form()
    parsed.feed(body)
    parsed.check_complete()


@given(st.binary(max_size=200), st.lists(st.integers(0, 400), max_size=8))
def test_form_is_parsed_however_it_is_split(content: bytes, cuts: list[int]) -> None:
    body = part("target_lang", b"DE") + file(content) + part("source_lang", "ü".encode()) + b"--b--\r\n"
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    parsed, read = form(), bytearray()
    for start, end in itertools.pairwise(places):
        parsed.feed(body[start:end])
        read += parsed.take_file_bytes()

    if b"\r\n--b" in b"\r\n" + content:
        return
    assert (bytes(read), parsed.fields) == (content, [("target_lang", "DE"), ("source_lang", "ü")])
    assert (parsed.file_name, parsed.is_complete) == ("a.txt", True)


def test_fields_of_a_client_are_parsed_in_order() -> None:
    data: dict[str, Any] = {"q": ["Where\r\nis ä?", ""], "source": "en"}
    request = httpx.Request("POST", "http://localhost", data=data, files={"more": (None, b"1")})

    assert multipart_fields(request.read(), request.headers["content-type"]) == [
        ("q", "Where\r\nis ä?"), ("q", ""), ("source", "en"), ("more", "1"),
    ]  # fmt: skip


def test_boundary_may_be_quoted() -> None:
    assert multipart_fields(part("q", b"a") + b"--b--", 'multipart/form-data; charset=utf-8; boundary="b"')


@pytest.mark.parametrize(
    "content_type",
    [
        "",
        "application/json",
        "multipart/form-data",
        f"multipart/form-data; boundary={'b' * 300}",
        "multipart/mixed; boundary=b",
    ],
)
def test_other_content_types_are_rejected(content_type: str) -> None:
    with pytest.raises(RequestError):
        form(content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        file() + b"--b",
        b"--b\r\n" + b"x" * 10_000,
        b"--b\r\n" + b"x: y\r\n" * 100,
        b"--b\r\n\r\na\r\n--b--\r\n",
        part("x", b"a" * 100_000),
        b"".join(part(f"x{index}", b"") for index in range(200)),
        file() + file(),
        part("x", b"a", '; filename="a"') + b"--b--",
        part("x", b"\xff") + b"--b--",
        b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n',
        FIELD.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + b"QQ==\r\n--b--",
    ],
)
def test_invalid_incomplete_and_large_forms_are_rejected(body: bytes) -> None:
    with pytest.raises(RequestError):
        parse(body)


def test_file_is_rejected_where_none_is_expected() -> None:
    with pytest.raises(RequestError):
        multipart_fields(file() + b"--b--\r\n", TYPE)


PIECES = [b"--b", b"--", b"\r\n", b"\r", b"a", b":", b'Content-Disposition: form-data; name="q"', b"\r\n\r\n", b"\xff"]
ENCODINGS = [b"Content-Transfer-Encoding: base64", b"Content-Transfer-Encoding: x", b'; filename="', b"=="]


@given(st.lists(st.sampled_from([*PIECES, *ENCODINGS]), max_size=20).map(b"".join))
def test_hostile_bytes_are_a_form_or_are_rejected(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        multipart_fields(b"--b\r\n" + body, TYPE)
