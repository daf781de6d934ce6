import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.errors import InvalidFieldError
from dragoman_service.file_translation.multipart import FormWithFile

TYPE = "multipart/form-data; boundary=b"


def part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def file(content: bytes = b"A man.", name: str = "a.txt") -> bytes:
    return part("file", content, f'; filename="{name}"')


def parsed(*pieces: bytes, content_type: str = TYPE) -> FormWithFile:
    form = FormWithFile(content_type)
    for piece in pieces:
        form.feed(piece)
    return form


@given(st.binary(max_size=200), st.lists(st.integers(0, 400), max_size=8))
def test_form_is_read_however_it_is_split(content: bytes, cuts: list[int]) -> None:
    body = part("target_lang", b"DE") + file(content) + part("source_lang", "ü".encode()) + b"--b--\r\n"
    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    form = FormWithFile(TYPE)
    read = bytearray()
    for start, end in itertools.pairwise(places):
        form.feed(body[start:end])
        read += form.take_file_bytes()

    if b"\r\n--b" in b"\r\n" + content:
        return
    assert (bytes(read), form.fields) == (content, {"target_lang": "DE", "source_lang": "ü"})
    assert (form.file_name, form.is_complete) == ("a.txt", True)


def test_boundary_in_quotes_is_read() -> None:
    form = parsed(file() + b"--b--\r\n", content_type='multipart/form-data; charset=utf-8; boundary="b"')

    assert form.is_complete


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
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(InvalidFieldError):
        FormWithFile(content_type)


@pytest.mark.parametrize(
    "body",
    [
        b"garbage",
        b"--b\r\n" + b"x" * 10_000,
        b"--b\r\n" + b"x: y\r\n" * 100,
        part("x", b"a" * 100_000),
        b"".join(part(f"x{index}", b"") for index in range(100)),
        part("x", b"1") + part("x", b"2") + b"--b--",
        file() + file(),
        part("x", b"\xff") + b"--b--",
        b'--b\r\nContent-Disposition: form-data; name="\xff"\r\n\r\n',
    ],
)
def test_invalid_or_large_forms_are_refused(body: bytes) -> None:
    with pytest.raises(InvalidFieldError):
        parsed(body)


def test_form_without_its_end_is_not_complete() -> None:
    assert not parsed(file() + b"--b").is_complete
