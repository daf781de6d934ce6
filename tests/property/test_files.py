"""Files of strings and subtitles: everything except text is preserved, and an identity preserves the text."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dragoman.documents.formats import ReadOptions, read_file

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_LINE = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=10,
)


def _translated(name: str, content: bytes, translate: Any) -> bytes:
    with TemporaryDirectory() as directory:
        path = Path(directory) / name
        path.write_bytes(content)
        read = read_file(path, ReadOptions(target_language="de"))
    return read.written([translate(segment.text) for segment in read.segments])


def _marked(text: str) -> str:
    return f"«{text}»\n'\\"


def _with_marked_strings(value: Any) -> Any:
    if isinstance(value, str) and any(map(str.isalpha, value)):
        return _marked(value)
    if isinstance(value, list):
        return list(map(_with_marked_strings, value))
    return {key: _with_marked_strings(each) for key, each in value.items()} if isinstance(value, dict) else value


@given(_JSON, st.booleans(), st.sampled_from([None, 2]))
def test_only_strings_of_json_change(value: Any, is_ascii: bool, indent: int | None) -> None:
    content = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()

    assert _translated("strings.json", content, str) == content
    assert json.loads(_translated("strings.json", content, _marked)) == _with_marked_strings(value)


@given(st.lists(_LINE), st.sampled_from(["\n", "\r\n"]))
def test_any_lines_of_properties_are_preserved(lines: list[str], end: str) -> None:
    content = end.join(lines).encode()

    assert _translated("strings.properties", content, str) == content


@given(_TEXT)
def test_property_has_its_translation(text: str) -> None:
    content = b"key=Value\nnext=Other\n"
    translated = _translated("strings.properties", content, lambda source: f"a{text}" * (source == "Value"))

    restored = _translated("strings.properties", translated, lambda value: value.removeprefix(f"a{text}"))

    assert restored == b"key=\nnext=" + translated.rpartition(b"next=")[2]


@given(st.lists(st.lists(_LINE, max_size=3), max_size=4), st.sampled_from(["film.srt", "film.vtt", "plain.txt"]))
def test_any_cues_of_subtitles_are_preserved(cues: list[list[str]], name: str) -> None:
    blocks = [["1", "00:00:01,000 --> 00:00:02,000", *lines, ""] for lines in cues]
    content = "\n".join(line for block in blocks for line in block).encode()

    assert _translated(name, content, str) == content
