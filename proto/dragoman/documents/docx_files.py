"""Word documents (DOCX): each paragraph, with headers, footers, notes, tables and text boxes.

A paragraph is sent as one text. What has another formatting than most of it becomes a pair of tags, what is no text
(pictures, fields, references to notes) a tag that stands alone; the runs are made again from what comes back.
"""

import copy
import io
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import docx
from docx.opc.exceptions import PackageNotFoundError
from docx.oxml import parse_xml
from docx.oxml.ns import qn
from lxml import etree

from dragoman.documents.content import FileFormatError, FileSegment, MarkupLostError, has_words
from dragoman.documents.tagged_text import Part, Piece, TaggedText

_MAX_UNPACKED_BYTES = 256 * 1024 * 1024
_MAX_ENTRIES = 10_000
_MAX_RATIO = 200
"""Of unpacked to packed bytes, for an entry of more than a MiB; text in XML is packed to a tenth or so."""

_TEXT_PARTS = re.compile(r"/word/(?:document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_TEXT = frozenset(map(qn, ("w:t", "w:tab", "w:br", "w:cr", "w:rPr")))
_IGNORED_FORMATTING = frozenset(map(qn, ("w:lang", "w:noProof")))
_WRAPPERS = frozenset(map(qn, ("w:hyperlink", "w:ins", "w:smartTag")))
_OPAQUE = frozenset(
    (*map(qn, ("w:sdt", "w:fldSimple")), "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath")
)


def read_docx(content: bytes) -> "DocxContent":
    """Read a document. It comes back with equal content: the package and its XML are written anew.

    Raises:
        FileFormatError: if it is none, holds a document type, or unpacks to more than a document would.
    """
    _check_package(content)
    paragraphs = [
        (index, paragraph)
        for index, paragraph in enumerate(_paragraphs(_opened(content)))
        if has_words(paragraph.tagged.words)
    ]
    segments = [paragraph.tagged.segment(f"paragraph {index + 1}") for index, paragraph in paragraphs]
    return DocxContent(content, segments, paragraphs)


@dataclass(frozen=True, slots=True)
class DocxContent:
    """A document."""

    content: bytes
    segments: Sequence[FileSegment]
    paragraphs: Sequence[tuple[int, "_Paragraph"]]
    """Which paragraph of the document each segment is, counted from 0, and as it was read."""

    num_kept: int = 0

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`."""
        self.paragraphs[index][1].parts(translation)

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; a paragraph whose translation is its source stays as it is."""
        document = _opened(self.content)
        paragraphs = list(_paragraphs(document))
        for (place, _), segment, translation in zip(self.paragraphs, self.segments, translations, strict=True):
            if translation not in (None, segment.text):
                paragraphs[place].translate(str(translation))
        for paragraph in paragraphs:
            paragraph.part.store()
        written = io.BytesIO()
        document.save(written)
        return written.getvalue()


def _check_package(content: bytes) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as package:
            entries = package.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            is_bomb = any(entry.file_size > max(2**20, _MAX_RATIO * entry.compress_size) for entry in entries)
            if len(entries) > _MAX_ENTRIES or unpacked > _MAX_UNPACKED_BYTES or is_bomb:
                raise FileFormatError("it unpacks to more than a document would")
            for entry in entries:
                if entry.filename.endswith((".xml", ".rels")) and _has_document_type(package.read(entry)):
                    raise FileFormatError(f"{entry.filename} in it has a document type, which no DOCX has")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise FileFormatError(f"no DOCX: {error}") from None


def _has_document_type(content: bytes) -> bool:
    """Whether the parser that reads a part of a package finds a document type before the first element of it."""
    prologue: Any = _Prologue()
    parser = etree.XMLParser(target=prologue, resolve_entities=False, no_network=True, load_dtd=False)
    try:
        etree.fromstring(content, parser)
    except _PrologueEndError as end:
        return end.has_document_type
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FileFormatError(f"no DOCX: {error}") from None
    return False


class _PrologueEndError(Exception):
    """Ends the parsing of XML."""

    def __init__(self, *, has_document_type: bool) -> None:
        super().__init__()
        self.has_document_type = has_document_type


class _Prologue:
    """Target of a parser, which ends at a document type or the first element."""

    def doctype(self, _name: str, _public_id: str | None, _system_id: str | None) -> None:
        """Take a document type."""
        raise _PrologueEndError(has_document_type=True)

    def start(self, _tag: str, _attributes: object) -> None:
        """Take the first element."""
        raise _PrologueEndError(has_document_type=False)

    def close(self) -> None:
        """Take the end of the document."""


def _opened(content: bytes) -> Any:
    try:
        return docx.Document(io.BytesIO(content))
    except (PackageNotFoundError, KeyError, ValueError, etree.XMLSyntaxError) as error:
        raise FileFormatError(f"no DOCX: {error}") from None


class _Part:
    """A part of the package with text in it."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self._is_parsed = hasattr(part, "element")
        self.element = part.element if self._is_parsed else parse_xml(part.blob)

    def store(self) -> None:
        """Give what was changed back to the package; of most parts it has the very element."""
        if not self._is_parsed:  # python-docx knows nothing of notes
            self._part._blob = etree.tostring(self.element, encoding="UTF-8", xml_declaration=True, standalone=True)


def _paragraphs(document: Any) -> Iterator["_Paragraph"]:
    parts = {str(part.partname): part for part in document.part.package.iter_parts()}
    for name in sorted(parts):
        if _TEXT_PARTS.fullmatch(name):
            part = _Part(parts[name])
            for element in part.element.iter(qn("w:p")):
                yield _Paragraph(element, part)


class _Paragraph:
    """A paragraph as pieces of text and marks, each with the elements that it stands for."""

    def __init__(self, element: Any, part: _Part) -> None:
        self.part = part
        self._element = element
        groups = _groups(element)
        lengths: Counter[bytes] = Counter()
        for group in groups:
            lengths[group.formatting] += len(group.text) * (group.wrapper is None)
        usual = max(lengths, key=lambda formatting: lengths[formatting], default=b"")
        self._base = next(
            (group for group in groups if group.text and group.formatting == usual and group.wrapper is None), None
        )
        pieces: list[Piece] = []
        self._of_piece: list[_Group] = []
        for group in groups:
            marked = [Piece("single", "")]
            if group.text:
                marked = [Piece("text", "", group.text)]
                if group.wrapper is not None or group.formatting != usual:
                    marked = [Piece("open", ""), *marked, Piece("close", "")]
            pieces += marked
            self._of_piece += [group] * len(marked)
        self.tagged = TaggedText(pieces)

    def parts(self, translation: str) -> list[Part]:
        """Read a translation.

        Raises:
            MarkupLostError: if markup is lost, a field would be torn, or there is text where none was.
        """
        parts = self.tagged.parts(translation)
        singles = [part.index for part in parts if part.kind == "single"]
        if singles != sorted(singles) and any(self._of_piece[index].is_field for index in singles):
            raise MarkupLostError("the parts of a field are in another order")
        depth = 0
        for part in parts:
            depth += {"open": 1, "close": -1}.get(part.kind, 0)
            if part.kind == "text" and not depth and self._base is None and part.text.strip():
                raise MarkupLostError("there is text outside of the markup that was around all of it")
        return parts

    def translate(self, translation: str) -> None:
        """Make the runs again."""
        made: list[Any] = []
        marked: list[_Group] = []
        for part in self.parts(translation):
            if part.kind == "open":
                marked.append(self._of_piece[part.index])
            elif part.kind == "close":
                marked.pop()
            elif part.kind == "single":
                made += self._of_piece[part.index].elements
            else:
                group = marked[-1] if marked else self._base
                made += [group.made(part.text)] if group is not None else []
        old = [
            element for group in {id(group): group for group in self._of_piece}.values() for element in group.elements
        ]
        place = self._element.index(old[0])
        for element in old:
            self._element.remove(element)
        for offset, element in enumerate(made):
            self._element.insert(place + offset, element)


@dataclass(slots=True)
class _Group:
    """Neighbouring runs that look alike, a hyperlink, or what is no text."""

    elements: list[Any]
    """Children of the paragraph."""

    text: str = ""
    """Empty of what is no text."""

    formatting: bytes = b""
    wrapper: Any = None
    """The hyperlink or revision; None of runs."""

    is_field: bool = False

    def made(self, text: str) -> Any:
        """Return a run with another text, in a hyperlink if the runs were."""
        first = self.elements[0] if self.wrapper is None else next(self.wrapper.iter(qn("w:r")))
        run = copy.deepcopy(first)
        run.text = text
        if self.wrapper is None:
            return run
        wrapper = copy.copy(self.wrapper)
        for child in list(wrapper):
            wrapper.remove(child)
        wrapper.append(run)
        return wrapper


def _groups(paragraph: Any) -> list[_Group]:
    groups: list[_Group] = []
    depth = 0  # of fields, which may be nested
    for child in paragraph:
        is_in_field = depth > 0
        for mark in child.iter(qn("w:fldChar")):
            depth += {"begin": 1, "end": -1}.get(mark.get(qn("w:fldCharType")), 0)
        group = _group(child)
        if is_in_field and groups:
            groups[-1].elements.append(child)
        elif group is None:
            continue
        elif depth or next(child.iter(qn("w:fldChar"), qn("w:instrText")), None) is not None:
            groups.append(_Group([child], is_field=True))
            depth = max(depth, 0)
        elif groups and group.wrapper is None and group.text and groups[-1].wrapper is None and groups[-1].text:
            if groups[-1].formatting == group.formatting:
                groups[-1].elements.append(child)
                groups[-1].text += group.text
            else:
                groups.append(group)
        else:
            groups.append(group)
    return groups


def _group(child: Any) -> _Group | None:
    """Return what a child of a paragraph is; None of what stays where it is, such as bookmarks and deleted text."""
    if child.tag == qn("w:r"):
        if not _is_text(child):
            return _Group([child])
        return _Group([child], child.text, _formatting(child)) if child.text else None
    if child.tag in _WRAPPERS:
        runs = list(child.iter(qn("w:r")))
        text = "".join(run.text for run in runs)
        if text and all(run.getparent() is child and _is_text(run) for run in runs):
            return _Group([child], text, _formatting(runs[0]), child)
        return _Group([child])
    return _Group([child]) if child.tag in _OPAQUE else None


def _is_text(run: Any) -> bool:
    return all(child.tag in _TEXT and child.get(qn("w:type")) is None for child in run)


def _formatting(run: Any) -> bytes:
    if run.rPr is None:
        return b""
    formatting = copy.deepcopy(run.rPr)
    for child in list(formatting):
        if child.tag in _IGNORED_FORMATTING:
            formatting.remove(child)
    return etree.tostring(formatting, method="c14n") if len(formatting) else b""
