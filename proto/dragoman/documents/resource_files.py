"""Resource files of programs: JSON and Java properties. Keys and layout are preserved, values are translated."""

import json
import re

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileFormatError, FileSegment, LineNumbers, Patch, PatchedText, decoded, has_words

_JSON_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"(?P<key>\s*:)?')
_PROPERTY = re.compile(
    r"[ \t\f]*+(?P<key>(?:\\(?:\r\n|.)|[^\\\s:=])*+)(?:[ \t\f]*+[:=][ \t\f]*+|[ \t\f]++|(?=[\r\n]|\Z))"
    r"(?P<value>(?:\\(?:\r\n|.)|[^\\\r\n])*+)(?:\r\n|[\r\n]|\Z)",
    re.DOTALL,
)
_COMMENT = re.compile(r"[ \t\f]*+(?:[#!][^\r\n]*+)?(?:\r\n|[\r\n]|\Z)")
_CONTINUATION = re.compile(r"\\(?:\r\n|[\r\n])[ \t\f]*+")
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9A-Fa-f]{4})|(?P<other>.))", re.DOTALL)
_SHORT = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
_MESSAGE_ARGUMENT = re.compile(r"\{\d")


def read_json(content: bytes) -> PatchedText:
    """Read JSON. Each string value is a segment; keys are preserved.

    Raises:
        FileFormatError: if it is not UTF-8 or not JSON.
    """
    text = decoded(content)
    try:
        json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"not JSON: {error}") from None
    lines = LineNumbers(text)
    patches = []
    is_ascii = text.isascii() and "\\u" in text
    for string in _JSON_STRING.finditer(text):
        value = json.loads(string[0]) if string["key"] is None else ""
        if has_words(value) and not _has_surrogates(value):
            segment = FileSegment(text=value, format=TextFormat.PLAIN, place=lines.place(string.start()))
            patches.append(
                Patch(
                    start=string.start(),
                    end=string.end(),
                    segment=segment,
                    escape=lambda translation: json.dumps(translation, ensure_ascii=is_ascii),
                )
            )
    return PatchedText(text, patches)


def read_properties(content: bytes) -> PatchedText:
    """Read Java properties in UTF-8 or, as before Java 9, ISO 8859-1.

    In a value with arguments such as `{0}`, two apostrophes stand for one, as in `java.text.MessageFormat`.
    """
    try:
        text, encoding = content.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = content.decode("latin-1"), "latin-1"
    is_escaped = encoding == "latin-1" or (text.isascii() and "\\u" in text)
    lines = LineNumbers(text)
    patches = []
    position = 1 if text.startswith("\ufeff") else 0
    while position < len(text):
        if blank := _COMMENT.match(text, position):
            position = max(blank.end(), position + 1)
            continue
        entry = _PROPERTY.match(text, position)
        if entry is None:  # a backslash at the end of the file
            break
        position = max(entry.end(), position + 1)
        value = _unescaped(_CONTINUATION.sub("", entry["value"]))
        is_message = bool(_MESSAGE_ARGUMENT.search(value))
        source = value.replace("''", "'") if is_message else value
        if has_words(source) and not _has_surrogates(source):
            segment = FileSegment(text=source, format=TextFormat.PLAIN, place=lines.place(entry.start("value")))

            def escape(translation: str, is_message: bool = is_message) -> str:
                quoted = translation.replace("'", "''") if is_message else translation
                return _property_value(quoted, is_escaped=is_escaped)

            patches.append(Patch(start=entry.start("value"), end=entry.end("value"), segment=segment, escape=escape))
    return PatchedText(text, patches, encoding)


def _unescaped(raw: str) -> str:
    def character(escape: re.Match[str]) -> str:
        return chr(int(escape["code"], 16)) if escape["code"] else _SHORT.get(escape["other"], escape["other"])

    unescaped = _ESCAPE.sub(character, raw)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # \uD83D\uDE00 is one character


def _property_value(text: str, *, is_escaped: bool) -> str:
    escaped = "".join(_ESCAPED.get(character, character) for character in text)
    if escaped.startswith(" "):
        escaped = "\\" + escaped
    if not is_escaped:
        return escaped
    units = escaped.encode("utf-16-be")
    codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    return "".join(chr(code) if code < 0x7F else f"\\u{code:04x}" for code in codes)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)
