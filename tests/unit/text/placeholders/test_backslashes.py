import pytest

from dragoman_service.text.placeholders.backslashes import find_escapes


def unescaped(text: str) -> str:
    """Return the text with the characters of its escapes."""
    pieces: list[str] = []
    position = 0
    for span, character in find_escapes(text):
        pieces += (text[position : span.start], character)
        position = span.end
    return "".join((*pieces, text[position:]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"Mike\'s apple", "Mike's apple"),
        (r"Don\'t close the \"window\".", 'Don\'t close the "window".'),
        (r"\'single\'", "'single'"),
        (r"\"Hello?\" he said", '"Hello?" he said'),
        (r"It\u0027s", "It's"),
        (r"caf\u00e9", "café"),
        (r"caf\u00E9", "café"),
        (r"Loading\u2026", "Loading…"),
        (r"a\u00a0b", "a\u00a0b"),
        (r"\ud83d\ude00!", "😀!"),
        (r"\U0001F600!", "😀!"),
        (r"a \\\"quoted\\\" word", 'a \\"quoted\\" word'),
        (r"\"\\", '"\\'),
        (r"the user\'s \"C:\temp\" folder", 'the user\'s "C:\\temp\\" folder'),
    ],
)
def test_escapes_are_read_as_characters(text: str, expected: str) -> None:
    assert unescaped(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        r"Line one\nLine two",
        r"a\tb\r\n",
        r"not a break: \\n",
        r"C:\Users\name",
        r"C:\u00e4\x",
        r"C:\\Users\\name",
        r'in "C:\temp\" now',
        r"\\server\share\file",
        r"\(user.name)",
        r"\textbf{bold}",
        r"a \\ b",
        r"a\u12 b",
        r"\ud83d alone",
        r"\u0000",
        r"regex \d+\.\w*",
        "\\" * 10_001,
        "no backslash",
        "",
    ],
)
def test_other_backslashes_are_text(text: str) -> None:
    assert unescaped(text) == text
