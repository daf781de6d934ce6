import pytest

from dragoman.documents.content import FileFormatError, MarkupLostError
from dragoman.documents.markdown_files import read_markdown


def texts(source: str) -> list[str]:
    return [segment.text for segment in read_markdown(source.encode()).segments]


def written(source: str, *translations: str) -> str:
    return read_markdown(source.encode()).written(translations).decode()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("- [ ] Write\n- [x] Fix it", ["Write", "Fix it"]),
        ("> [!NOTE]\n> Take care.", ["Take care."]),
        ("A note[^a].\n\n[^a]: Word\n[^b]: Two words", ['A note<x id="1"/>.', "Word", "Two words"]),
        ("| a \\| b | `c \\| d` e |\n|---|---|", ["a | b", '<x id="1"/> e']),
        ("> One `a\n> b` two", ['One <x id="1"/> two']),
        ("![ ](a.png) and ![text](b.png)", ['<x id="1"/> and <g id="2">text</g>']),
        ("\u00a0\nText", ["Text"]),
    ],
)
def test_markers_and_code_are_not_in_the_text(source: str, expected: list[str]) -> None:
    assert texts(source) == expected
    assert written(source, *texts(source)) == source


@pytest.mark.parametrize(
    ("source", "translation", "expected"),
    [
        ("- [ ] Write", "Schreiben", "- [ ] Schreiben"),
        ("| a \\| b |\n|---|", "c | d", "| c \\| d |\n|---|"),
        ("[^a]: Two words", "Zwei Wörter", "[^a]: Zwei Wörter"),
        ("[it][]\n\n[it]: x", '<g id="1">das</g>', "[das][it]\n\n[it]: x"),
        ("See ***both** marks*", 'Siehe <g id="1"><g id="2">beide</g> Zeichen</g>', "Siehe ***beide** Zeichen*"),
    ],
)
def test_translation_is_written_with_its_marks(source: str, translation: str, expected: str) -> None:
    assert written(source, translation) == expected


def test_marks_in_another_order_are_rejected() -> None:
    with pytest.raises(MarkupLostError):
        written("See *it* and **this**", 'Siehe <g id="1">es</g>')


@pytest.mark.parametrize("unit", ["[", "![", "[a][", "[[a]("])
def test_too_many_brackets_without_a_link_are_rejected(unit: str) -> None:
    with pytest.raises(FileFormatError, match="more than 25000 brackets without a link"):
        read_markdown((unit * 30_000 + "\n\n").encode())


def test_many_links_and_checkboxes_are_read() -> None:
    content = "- [ ] see [a](http://b.example) and [c]\n" * 5000

    assert len(read_markdown(content.encode()).segments) == 5000


def test_deeply_nested_file_is_rejected() -> None:
    with pytest.raises(FileFormatError, match="nested more than 64 deep in line 1"):
        read_markdown(b"> " * 100 + b"a")
