"""Markdown as text: an identity preserves any text, and translations of documents keep their markup."""

from collections.abc import Callable

from hypothesis import example, given
from hypothesis import strategies as st

from dragoman.documents.markdown_reader import MarkdownPart, read_blocks
from dragoman_service.text.placeholders.markdown import is_markup_intact, markdown_units
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.restoration import Assembler, restore
from dragoman_service.text.segmentation import iterate_sentences

_WORDS = st.lists(
    st.sampled_from(["the", "old", "Town", "is", "near", "Zürich", "3", "go"]), min_size=1, max_size=4
).map(" ".join)
_INLINE = st.recursive(
    _WORDS
    | st.sampled_from(
        ["`a | b`", "<https://a.b>", "\\*", "&amp;", "&copy;", "note[^1]", "2 * 3", "snake_case", "a < b"]
    ),
    lambda inner: st.builds(
        str.format,
        st.sampled_from(["**{}**", "*{}*", "~~{}~~", "[{}](http://a.b)", "[{}][ref]", '[{}](c "t")', "<b>{}</b>"]),
        st.lists(inner, min_size=1, max_size=3).map(" ".join).map("see {}".format),
    ),
    max_leaves=5,
)
_LINE = st.lists(_INLINE, min_size=1, max_size=4).map(" ".join).map(lambda line: f"We {line} end.")
_PARAGRAPH = st.lists(_LINE, min_size=1, max_size=3).flatmap(
    lambda lines: st.sampled_from(["\n", "  \n", "\\\n"]).map(lambda end: end.join(lines))
)
_CELL = _LINE.map(lambda line: line.replace("|", "\\|"))
_BLOCK = st.one_of(
    _PARAGRAPH,
    st.builds("{} {}".format, st.sampled_from(["#", "##", "-", "1.", "- [ ]", "* [x]", ">", "- >", "[^1]:"]), _LINE),
    _PARAGRAPH.map(lambda text: "\n".join(f"> {line}" for line in text.split("\n"))),
    _PARAGRAPH.map(lambda text: "- " + text.replace("\n", "\n  ")),
    st.tuples(_CELL, _CELL).map(lambda row: f"| {row[0]} | b |\n| --- | :-: |\n| c | {row[1]} |"),
    _LINE.map(lambda line: f"{line}\n==="),
    st.sampled_from(["```\ncode *a*\n```", "    code", "<div>\n<p>Hello <b>you</b></p>\n</div>", "***", "<!-- x -->"]),
)
_DOCUMENT = st.lists(_BLOCK, min_size=1, max_size=4).map(lambda blocks: "\n\n".join((*blocks, "[ref]: http://e.f\n")))

_ANY = st.lists(
    st.sampled_from(
        [
            *(
                "word",
                "The end.",
                "**",
                "*",
                "_",
                "~~",
                "`",
                "[",
                "]",
                "](x)",
                "![",
                "[ref]",
                "[ref][]",
                "\n",
                "  \n",
                "\\\n",
            ),
            *(
                "\n\n",
                "\n\n# ",
                "- ",
                "\n- ",
                "\n1. ",
                "\n> ",
                "|",
                "\\|",
                "\n|---|\n",
                "<b>",
                "</b>",
                "<br>",
                "<code>",
            ),
            *(
                "</code>",
                "<div>\n",
                "<!-- c -->",
                "&amp;",
                "&",
                "<",
                "\\*",
                "\\",
                "\n```\n",
                "    ",
                "\t",
                "[^1]",
                "- [ ] ",
            ),
            *(
                "\n[^1]: Note",
                "\n\n[ref]: u\n\n",
                "<http://a.b>",
                "===\n",
                "---\n",
                "\r\n",
                "&nbsp;",
                "\u00a0",
                "\x0c",
                " ",
            ),
        ]
    ),
    max_size=25,
).map("".join)


def _translated(message: str, translate: Callable[[str], str]) -> str:
    parts = []
    for unit in markdown_units(message, placeholders=Placeholders(message)):
        for span in iterate_sentences(unit.text, language="en", ends=unit.sentence_ends):
            part = unit.part(unit.outside_codes(span))
            if part.has_words or not part.has_placeholders:
                parts.append((part.source, restore(part, translate(part.text), None).fragments))
    return Assembler(message, parts).assemble().text


@given(_DOCUMENT, st.sampled_from(["\n", "\r\n"]))
@example("[ref]\n\n[ref]: x\n", "\n")
def test_identity_preserves_any_document(document: str, end: str) -> None:
    message = document.replace("\n", end)

    assert _translated(message, str) == message


@given(_DOCUMENT, st.sampled_from([str.upper, "1. {}".format, "- {}".format, "# {}".format]))
def test_translation_of_any_document_has_its_markup(document: str, translate: Callable[[str], str]) -> None:
    assert is_markup_intact(document, _translated(document, translate))


def _contents(parts: tuple[MarkdownPart, ...]) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in parts]


@given(_ANY | _DOCUMENT | st.text())
def test_parts_of_any_text_cover_their_block_without_gaps(message: str) -> None:
    last = 0
    for block in read_blocks(message, {}):
        assert block.is_located
        assert last <= block.start <= block.end <= len(message)
        last = block.end
        spans = _contents(block.parts)
        assert [start for start, _ in spans[1:]] == [end for _, end in spans[:-1]]
        for part in block.parts:
            if part.kind == "text":
                assert message[part.start : part.end].replace("\0", "\ufffd") == part.text


@given(_ANY)
def test_units_of_any_text_are_ordered(message: str) -> None:
    for unit in markdown_units(message, placeholders=Placeholders(message)):
        positions = [
            unit.source.start,
            *(place for code in unit.codes for place in (code.source.start, code.source.end)),
        ]
        assert positions == sorted(positions)
        assert positions[-1] <= unit.source.end <= len(message)
