import json
from pathlib import Path

import pytest
from dragoman.files.content import FileContent, FileFormatError, MarkupLostError
from dragoman.files.formats import ReadOptions, read_file

from tests.unit.proto.files.samples import SAMPLES

_OPTIONS = ReadOptions(target_language="de")


def content_of(name: str, tmp_path: Path, content: bytes | str | None = None) -> FileContent:
    given = SAMPLES[name] if content is None else content
    (tmp_path / name).write_bytes(given.encode() if isinstance(given, str) else given)
    return read_file(tmp_path / name, _OPTIONS)


def texts(content: FileContent) -> list[str]:
    return [segment.text for segment in content.segments]


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_whose_translation_is_its_source_comes_back_byte_for_byte(name: str, tmp_path: Path) -> None:
    content = content_of(name, tmp_path)

    assert content.segments
    assert content.written(texts(content)) == SAMPLES[name]
    assert content.written([None] * len(content.segments)) == SAMPLES[name]


@pytest.mark.parametrize("name", SAMPLES)
def test_what_is_written_for_one_translation_is_read_as_it(name: str, tmp_path: Path) -> None:
    """Each text changes, so that all of them are spelled anew, and changes back."""
    content = content_of(name, tmp_path)

    there = content_of(name, tmp_path, content.written([text.replace("e", "E") for text in texts(content)]))
    back = there.written(texts(content))

    assert texts(there) == [text.replace("e", "E") for text in texts(content)]
    assert texts(content_of(name, tmp_path, back)) == texts(content)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain.txt", ["One line.", "An indented one,\twith a tab.", "The last has no end"]),
        (
            "film.srt",
            [
                '<g id="0">A man walks</g> through the old town.',
                "- Where to?",
                '- Home, to <x id="1"/><g id="2">Anna</g>.',
                "Before the empty line",
                "and after it.",
            ],
        ),
        (
            "film.vtt",
            ['<x id="0"/>Salt &amp; pepper for <g id="4">everyone</g>', 'Wait<x id="1"/> a moment.'],
        ),
        ("strings.json", ['Hello "world"', "One", "café", "A line\nand another"]),
        (
            "strings.properties",
            ["Hello", "Good morning", "A value\twith a tab", "It's {0}'s turn", "It's fine", "Über", "No line end"],
        ),
    ],
)
def test_what_is_text_is_found(name: str, expected: list[str], tmp_path: Path) -> None:
    assert texts(content_of(name, tmp_path)) == expected


def test_the_lines_of_a_cue_break_where_those_of_its_source_did(tmp_path: Path) -> None:
    content = content_of("film.srt", tmp_path)
    translated = '<g id="0">Ein Mann geht</g> durch die alte Stadt.'

    written = content.written([translated, *texts(content)[1:]]).decode()

    assert "\n<i>Ein Mann geht</i>\ndurch die alte Stadt.\n" in written


@pytest.mark.parametrize(
    "translation",
    ["A man walks", '<g id="0">A</g><g id="0">B</g>', "<g id='0'>A</g>", '<g id="0">A', '</g><g id="0">A', "A</g>"],
)
def test_markup_that_is_lost_or_there_twice_is_found(translation: str, tmp_path: Path) -> None:
    content = content_of("film.srt", tmp_path)

    with pytest.raises(MarkupLostError):
        content.check(0, translation)


def test_json_stays_json_whatever_the_translation_holds(tmp_path: Path) -> None:
    content = content_of("strings.json", tmp_path)
    translations = ['"', "\\", "\u2028ä\n", "</script>"]

    written = content.written(translations)

    assert json.loads(written)["nested"]["list"] == ["\\", 2, True, None, "\u2028ä\n"]
    assert written.isascii()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("strings.json", '{"a": }', "no JSON: Expecting value"),
        ("strings.json", "[" * 100_000, "no JSON"),
        ("plain.txt", b"One.\nTw\xf6.", "not UTF-8: byte 0xf6 in line 2"),
        ("song.mp3", b"", "its name must end in one of .txt, "),
    ],
)
def test_what_is_no_such_file_is_refused(name: str, content: bytes | str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        content_of(name, tmp_path, content)


def test_a_line_of_any_length_is_sent_in_bounded_segments(tmp_path: Path) -> None:
    text = "This is a sentence. " * 1_000

    content = content_of("plain.txt", tmp_path, text)

    assert max(map(len, texts(content))) <= 4_000
    assert " ".join(texts(content)) == text.strip()
