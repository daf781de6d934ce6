"""Attacks by uploaded files: archives and markup that expand, structures that nest, names that lead elsewhere."""

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from loadtests.scenarios.bad_inputs.attacks.attack import (
    ANY,
    Attack,
    Credentials,
    Make,
    Payload,
    Way,
    repeated,
    request,
)

_BOUNDARY: Final = "9f86d081884c7d65"
_WORD: Final = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_FIELDS: Final[Mapping[str, str]] = {"source_lang": "EN", "target_lang": "DE", "source": "en", "target": "de"}
_NAMES: Final[Mapping[str, Sequence[str]]] = {
    "/v2/document": ("source_lang", "target_lang"),
    "/translate_file": ("source", "target"),
}

_LEAVE_S: Final = 1.5

Content = Callable[[int], bytes]
"""Returns a file; its size grows with the number."""


def _uploaded(
    file_name: str,
    content: Content,
    *,
    path: str = "/translate_file",
    is_authorized: bool = True,
    file_first: bool = False,
) -> Make:
    """Return the upload of a file by a form."""

    def make(size: int, credentials: Credentials) -> Payload:
        line = f"--{_BOUNDARY}\r\nContent-Disposition: form-data; name="
        fields = "".join(f'{line}"{name}"\r\n\r\n{_FIELDS[name]}\r\n' for name in _NAMES[path]).encode()
        file = f'{line}"file"; filename="{file_name}"\r\n\r\n'.encode() + content(size) + b"\r\n"
        body = (file + fields if file_first else fields + file) + f"--{_BOUNDARY}--\r\n".encode()
        scheme = "DeepL-Auth-Key" if path.startswith("/v2/") else "Bearer"
        authorization = [f"Authorization: {scheme} {credentials.key}"] if is_authorized else []
        media_type = f"Content-Type: multipart/form-data; boundary={_BOUNDARY}"
        return Payload(parts=[request("POST", path, media_type, *authorization, body=body)])

    return make


def _docx(document: Callable[[int], bytes]) -> Content:
    """Return a Word file whose text is the XML that is given for a size."""

    def make(size: int) -> bytes:
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as opened:
            types = "http://schemas.openxmlformats.org/package/2006/content-types"
            main = "application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"
            part = f'<Override PartName="/word/document.xml" ContentType="{main}"/>'
            opened.writestr("[Content_Types].xml", f'<Types xmlns="{types}">{part}</Types>')
            opened.writestr("word/document.xml", document(size))
        return archive.getvalue()

    return make


def _paragraphs(inner: Callable[[int], str]) -> Callable[[int], bytes]:
    return lambda size: f'<w:document xmlns:w="{_WORD}"><w:body>{inner(size)}</w:body></w:document>'.encode()


def _laughs(size: int) -> bytes:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    text = "&a9;" * size
    return f'<!DOCTYPE xliff [<!ENTITY a0 "a">{entities}]><xliff version="1.2"><file>{text}</file></xliff>'.encode()


def _unit(text: Callable[[int], str]) -> Content:
    return lambda size: text(size).encode()


_FILES: Final[Mapping[str, tuple[str, Content, int]]] = {
    "docx-zeros": ("a.docx", _docx(bytes), 200_000_000),
    "docx-paragraphs": (
        "a.docx",
        _docx(_paragraphs(lambda size: "<w:p><w:r><w:t>a</w:t></w:r></w:p>" * size)),
        200_000,
    ),
    "docx-nested": ("a.docx", _docx(_paragraphs(lambda size: "<w:p>" * size + "</w:p>" * size)), 100_000),
    "docx-broken": ("a.docx", lambda size: b"PK\x03\x04" * (size // 4), 1_000_000),
    "xliff-entities": ("a.xlf", _laughs, 10),
    "xliff-nested": ("a.xlf", _unit(lambda size: "<xliff version='1.2'>" + "<g>" * size + "</g>" * size), 100_000),
    "json-nested": ("a.json", _unit(lambda size: '{"a":' * size + "0" + "}" * size), 100_000),
    "json-digits": ("a.json", _unit(lambda size: '{"a":' + "9" * size + "}"), 1_000_000),
    "po-plurals": (
        "a.po",
        _unit(lambda _: 'msgid ""\nmsgstr "Plural-Forms: nplurals=999999999; plural=0;\\n"\n\nmsgid "a"\nmsgstr ""\n'),
        1,
    ),
    "html-unmatched": ("a.html", _unit(lambda size: "<b>" * (size // 7) + "</i>" * (size // 7)), 1_000_000),
    "html-attributes": ("a.html", _unit(lambda size: "<a " + repeated("b='", size)), 1_000_000),
    "markdown-backticks": (
        "a.md",
        _unit(lambda size: " ".join("`" * n for n in range(1, int((2 * size) ** 0.5)))),
        400_000,
    ),
    "markdown-brackets": ("a.md", _unit(lambda size: "[" * size), 200_000),
    "srt-numbers": (
        "a.srt",
        _unit(lambda size: repeated("{i}\n00:00:01,000 --> 00:00:02,000\na\n\n", size)),
        1_000_000,
    ),
    "txt-icu": ("a.txt", _unit(lambda size: repeated("'{a,plural,one{' ", size)), 900_000),
    "properties-escapes": ("a.properties", _unit(lambda size: "a=" + "\\u00e4" * (size // 6)), 900_000),
    "name-elsewhere": ("../../../../tmp/a.txt", _unit(lambda _: "A man reads."), 1),
    "name-long": ("a" * 4_000 + ".txt", _unit(lambda _: "A man reads."), 1),
}
_TEXT: Final = _unit(lambda size: "A man reads. " * (size // 13))


def _attack(name: str, make: Make, size: int, **others: Any) -> Attack:
    usual: dict[str, Any] = {"grows": False, "num_connections": 2, "expected": ANY}
    usual |= {"way": Way.LEAVE, "leave_after_s": _LEAVE_S}  # which removes the file
    return Attack(**{"name": name, "surface": "uploaded files", "make": make, "size": size, **usual, **others})


FILES: Final[Sequence[Attack]] = [
    *(_attack(f"file-{name}", _uploaded(file, content), size) for name, (file, content, size) in _FILES.items()),
    _attack("file-large", _uploaded("a.txt", _TEXT), 9_000_000, num_connections=4),
    _attack("file-too-large", _uploaded("a.txt", _TEXT), 40_000_000, way=Way.REPEAT),
    _attack("file-flood", _uploaded("a.txt", _TEXT, path="/v2/document"), 100, way=Way.REPEAT, num_connections=8),
    _attack("file-left", _uploaded("a.txt", _TEXT), 200_000, num_connections=8, num_hosts=8, is_short=True),
    _attack(
        "file-before-key",
        _uploaded("a.txt", _TEXT, is_authorized=False, file_first=True),
        4_000_000,
        way=Way.REPEAT,
        grows=True,
        num_connections=8,
    ),
]
"""Attacks on what takes files. A server without a directory for documents, or without this feature, refuses them."""
