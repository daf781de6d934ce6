import io
import re
import zipfile
from pathlib import Path
from xml.etree.ElementTree import canonicalize

import docx
import pytest
from docx.enum.text import WD_BREAK
from docx.oxml import OxmlElement
from docx.oxml.ns import qn

from dragoman.documents.content import FileContent, FileFormatError, MarkupLostError
from dragoman.documents.formats import ReadOptions, read_file


def _letter() -> bytes:
    document = docx.Document()
    document.add_heading("The heading", level=1)
    paragraph = document.add_paragraph("This is ")
    paragraph.add_run("a bold").bold = True
    paragraph.add_run(" word in ")
    paragraph.add_run("two runs.")
    paragraph.add_run().add_break(WD_BREAK.PAGE)
    field = document.add_paragraph("Page ")
    for kind in ("begin", "end"):
        run = field.add_run()
        mark = OxmlElement("w:fldChar")
        mark.set(qn("w:fldCharType"), kind)
        run._r.append(mark)
    link = OxmlElement("w:hyperlink")
    link.append(field.add_run("A link")._r)
    field._p.append(link)
    document.add_table(rows=1, cols=1).cell(0, 0).text = "In a cell"
    document.sections[0].header.paragraphs[0].text = "In the header"
    written = io.BytesIO()
    document.save(written)
    return written.getvalue()


_FILES = Path(__file__).parents[3] / "data" / "documents"

SAMPLES = {path.name: path.read_bytes() for path in sorted(_FILES.iterdir())} | {"letter.docx": _letter()}
_OPTIONS = ReadOptions(target_language="de")
_WITH_DOCUMENT_TYPE = (
    '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]>'
    '<xliff xmlns="urn:oasis:names:tc:xliff:document:1.2">&e;</xliff>'
)


def content_of(name: str, tmp_path: Path, content: bytes | str | None = None) -> FileContent:
    content = SAMPLES[name] if content is None else content
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return read_file(tmp_path / name, _OPTIONS)


def _package(entries: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as package:
        for name, content in entries.items():
            package.writestr(name, content)
    return written.getvalue()


def texts(content: FileContent) -> list[str]:
    return [segment.text for segment in content.segments]


@pytest.mark.parametrize("name", SAMPLES)
def test_file_is_preserved_if_translations_equal_their_sources(name: str, tmp_path: Path) -> None:
    # Byte for byte where the format permits it, else with equal content. Catalogues get translations.
    content = content_of(name, tmp_path)

    assert content.segments
    untouched, same = content.written([None] * len(content.segments)), content.written(texts(content))
    if name.endswith(".docx"):
        assert _parts_of(untouched) == _parts_of(same) == _parts_of(SAMPLES[name])
    elif ".xl" in name:
        assert canonicalize(re.sub(rb' (target-language|trgLang)="de"', b"", untouched)) == canonicalize(SAMPLES[name])
    else:
        assert untouched == SAMPLES[name]
        assert same == SAMPLES[name] or name.endswith(".po")


def _parts_of(package: bytes) -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(package)) as entries:
        return {
            name: canonicalize(entries.read(name), strip_text=False)
            for name in entries.namelist()
            if name.endswith((".xml", ".rels"))
        }


@pytest.mark.parametrize("name", [name for name in SAMPLES if not name.endswith((".po", ".xlf", ".xliff"))])
def test_written_translations_are_read_again(name: str, tmp_path: Path) -> None:
    content = content_of(name, tmp_path)
    translations = [text.replace("e", "E") for text in texts(content)]

    translated = content_of(name, tmp_path, content.written(translations))
    restored = content_of(name, tmp_path, translated.written(texts(content)))

    assert (texts(translated), texts(restored)) == (translations, texts(content))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("plain.txt", ["One line.", "An indented one,\twith a tab.", "The last has no end"]),
        (
            "film.srt",
            [
                '<g id="1">A man walks</g> through the old town.',
                "- Where to?",
                '- Home, to <x id="1"/><g id="2">Anna</g>.',
                "Before the empty line",
                "and after it.",
            ],
        ),
        (
            "film.vtt",
            ['<x id="1"/>Salt &amp; pepper for <g id="2">everyone</g>', 'Wait<x id="1"/> a moment.'],
        ),
        ("strings.json", ['Hello "world"', "One", "café", "A line\nand another"]),
        (
            "guide.md",
            [
                'The <g id="1">first</g> heading',
                (
                    'A paragraph with <g id="1">bold words</g>, <x id="2"/>, a <g id="3">link</g> and '
                    '<g id="4">a picture</g>, * a star, 3 * 4 &amp; more, a <g id="5">reference</g>, '
                    '<g id="6">ref</g>, <x id="7"/>, <g id="8">HTML</g> and a note<x id="9"/>.<x id="10"/>'
                    "After a hard break."
                ),
                'A quote with <g id="1">two lines</g>',
                "an item that goes on",
                "Name",
                'What <x id="1"/> does',
                "One",
                "First cell with a | pipe",
                "A block of <em>HTML</em>.",
                "Setext heading",
                "Number one",
                "Number two",
            ],
        ),
        (
            "page.html",
            [
                "A page &amp; its title",
                "<h1 title='Tooltip of the heading'>",
                "Heading",
                'A <b>bold</b> word, <code>code()</code> &copy; and an <img src=x alt="image">.',
                "One",
                "Two &lt;three&gt;",
                "<pre>Keep  the\n   white space</pre>",
                "Loose text",
                "after a break",
                "Unclosed <i>italic",
            ],
        ),
        ("messages.po", ["Hello %s", "One file", "%d files"]),
        (
            "units.xlf",
            ['Press <g id="1">the red</g> button<x id="2"/> now &amp; here', "Wrapped text"],
        ),
        ("units.xliff", ['A <g id="1">paired</g> code<x id="2"/>', "  Two  spaces"]),
        (
            "letter.docx",
            [
                "The heading",
                'This is <g id="1">a bold</g> word in two runs.<x id="2"/>',
                'Page <x id="1"/><g id="2">A link</g>',
                "In a cell",
                "In the header",
            ],
        ),
        (
            "strings.properties",
            ["Hello", "Good morning", "A value\twith a tab", "It's {0}'s turn", "It's fine", "Über", "No line end"],
        ),
    ],
)
def test_segments_of_format(name: str, expected: list[str], tmp_path: Path) -> None:
    assert texts(content_of(name, tmp_path)) == expected


@pytest.mark.parametrize(
    "translation",
    ["A man walks", '<g id="1">A</g><g id="1">B</g>', "<g id='1'>A</g>", '<g id="1">A', '</g><g id="1">A', "A</g>"],
)
def test_lost_or_repeated_markup_is_rejected(translation: str, tmp_path: Path) -> None:
    content = content_of("film.srt", tmp_path)

    with pytest.raises(MarkupLostError):
        content.check(0, translation)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("strings.json", '{"a": }', "not JSON"),
        ("strings.json", "[" * 100_000, "not JSON"),
        ("plain.txt", b"One.\nTw\xf6.", "not UTF-8.* line 2"),
        ("units.xlf", '<!DOCTYPE x [<!ENTITY e "e">]><xliff xmlns="urn:oasis:names:tc:xliff:document:1.2"/>', "type"),
        ("units.xlf", "<xliff/>", "not XLIFF"),
        ("units.xlf", "<xliff>", "not XML"),
        ("letter.docx", b"PK", "not DOCX"),
        ("letter.docx", _package({"word/document.xml": b" " * 2**24}), "unpacked size"),
        ("letter.docx", _package({"word/document.xml": b"<!DOCTYPE x []><x/>"}), "document type"),
        ("letter.docx", _package({"word/document.xml": _WITH_DOCUMENT_TYPE.encode("utf-16")}), "document type"),
        ("letter.docx", _package({"word/document.xml": b"<x/>"}), "not DOCX"),
        ("letter.docx", _package({"word/document.xml": b"<x"}), "not DOCX"),
        ("units.xlf", _WITH_DOCUMENT_TYPE.encode("utf-16"), "type"),
        ("app.po", 'msgid ""\nmsgstr "Plural-Forms: nplurals=7; plural=0;\\n"\n', "nplurals is 7 "),
        ("app.po", f'msgid ""\nmsgstr "Plural-Forms: nplurals={"9" * 5000}; plural=0;\\n"\n', "nplurals is 999999999 "),
        ("song.mp3", b"", "extension"),
    ],
)
def test_invalid_file_is_rejected(name: str, content: bytes | str, message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        content_of(name, tmp_path, content)


def test_long_line_is_split_into_segments(tmp_path: Path) -> None:
    text = "This is a sentence. " * 1_000

    content = content_of("plain.txt", tmp_path, text)

    assert max(map(len, texts(content))) <= 4_000
    assert " ".join(texts(content)) == text.strip()


@pytest.mark.parametrize(
    ("name", "num_kept", "expected"),
    [
        ("messages.po", 4, ['msgstr "HELLO %S"', 'msgstr[0] "ONE FILE"', 'msgstr[1] "%D FILES"', 'msgstr "Behalten"']),
        (
            "units.xlf",
            3,
            [
                '<target state="translated" state-qualifier="leveraged-mt">PRESS <g id="b">THE RED</g> BUTTON<x',
                '<target state="final">Behalten</target>',
                '<target state="translated" state-qualifier="leveraged-mt">WRAPPED TEXT</target><note>',
            ],
        ),
        (
            "units.xliff",
            3,
            [
                '<target>A <pc id="1">PAIRED</pc> CODE<ph id="2"/></target>',
                '<target xml:space="preserve">  TWO  SPACES</target>',
            ],
        ),
    ],
)
def test_missing_translations_are_added_to_a_catalogue(
    name: str, num_kept: int, expected: list[str], tmp_path: Path
) -> None:
    content = content_of(name, tmp_path)

    written = content.written([_upper(text) for text in texts(content)])

    assert all(piece in written.decode() for piece in expected), written.decode()
    assert content_of(name, tmp_path, written).segments == []
    assert content_of(name, tmp_path, written).num_kept == num_kept


def test_existing_translations_are_replaced_on_request(tmp_path: Path) -> None:
    (tmp_path / "messages.po").write_bytes(SAMPLES["messages.po"])

    content = read_file(tmp_path / "messages.po", ReadOptions(target_language="de", retranslates=True))

    assert texts(content) == ["Hello %s", "Kept", "Fuzzy", "One file", "%d files"]


def test_formatting_of_runs_follows_their_words(tmp_path: Path) -> None:
    content = content_of("letter.docx", tmp_path)
    translation = '<g id="1">Fett</g> ist hier ein Wort<x id="2"/> in zwei.'

    written = content.written([None, translation, *[None] * 3])

    runs = [(run.text, bool(run.bold)) for run in docx.Document(io.BytesIO(written)).paragraphs[1].runs]
    assert runs == [("Fett", True), (" ist hier ein Wort", False), ("", False), (" in zwei.", False)]


_CUE = "00:00:01,000 --> 00:00:02,000\n"


@pytest.mark.parametrize(
    ("name", "source", "translation", "expected"),
    [
        ("guide.md", "One * two", "1. Eins [x] *und* `zwei`", "1\\. Eins \\[x\\] \\*und\\* \\`zwei\\`"),
        ("guide.md", "> Two\n> lines", "# Zwei Zeilen", "> \\# Zwei\n> Zeilen"),
        ("guide.md", "See [it].\n\n[it]: x", 'Siehe <g id="1">das</g>.', "Siehe [das][it].\n\n[it]: x"),
        ("guide.md", "| a |\n| - |\n| b |", "x|y", "| x\\|y |\n| - |\n| x\\|y |"),
        ("guide.md", "Two\nlines", "Zwei - Zeilen", "Zwei - Zeilen"),
        ("strings.json", '["a"]', '"\\</script>', '["\\"\\\\</script>"]'),
        ("strings.json", '["\\u00e4"]', "\u2028ä\n", '["\\u2028\\u00e4\\n"]'),
        (
            "film.srt",
            f"{_CUE}<i>A man walks</i>\nthrough the old town.\n",
            '<g id="1">Ein Mann geht</g> durch die alte Stadt.',
            f"{_CUE}<i>Ein Mann geht</i>\ndurch die alte Stadt.\n",
        ),
    ],
)
def test_translation_is_escaped_and_wrapped_as_its_source(
    name: str, source: str, translation: str, expected: str, tmp_path: Path
) -> None:
    content = content_of(name, tmp_path, source)

    assert content.written([translation] * len(content.segments)).decode() == expected


def _upper(text: str) -> str:
    return "".join(piece if piece.startswith("<") else piece.upper() for piece in re.split("(<[^>]*>)", text))
