"""Word documents (DOCX): paragraphs, including headers, footers, notes, tables and text boxes.

A paragraph is one segment. Runs whose formatting differs from most of it become a pair of tags; pictures, fields and
references to notes become a single tag. The runs are recreated from the translation.
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
_MAX_RATIO = 200  # unpacked to packed bytes of an entry above 1 MiB; XML compresses to about a tenth
_TEXT_PARTS = re.compile(r"/word/(?:document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_TEXT = frozenset(map(qn, ("w:t", "w:tab", "w:br", "w:cr", "w:rPr")))
_IGNORED_FORMATTING = frozenset(map(qn, ("w:lang", "w:noProof")))
_WRAPPERS = frozenset(map(qn, ("w:hyperlink", "w:ins", "w:smartTag")))
_OPAQUE = frozenset(
    (*map(qn, ("w:sdt", "w:fldSimple")), "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath")
)


def read_docx(content: bytes) -> "DocxContent":
    """Read a document. The package and its XML are written again, with equal content.

    Raises:
        FileFormatError: if it is not DOCX, contains a document type, or exceeds the limits of unpacked size.
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
    """A Word document."""

    content: bytes
    segments: Sequence[FileSegment]
    paragraphs: Sequence[tuple[int, "_Paragraph"]]  # paragraph of each segment and its index in the document
    num_kept: int = 0

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`."""
        self.paragraphs[index][1].parts(translation)

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; a translation that equals its source does not change the paragraph."""
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
                raise FileFormatError("unpacked size exceeds the limits")
            for entry in entries:
                if entry.filename.endswith((".xml", ".rels")) and _has_document_type(package.read(entry)):
                    raise FileFormatError(f"{entry.filename} has a document type, which is not supported")
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, zlib.error) as error:
        raise FileFormatError(f"not DOCX: {error}") from None


def _has_document_type(content: bytes) -> bool:
    """Return whether the XML parser finds a document type before the first element."""
    prologue: Any = _Prologue()
    parser = etree.XMLParser(target=prologue, resolve_entities=False, no_network=True, load_dtd=False)
    try:
        etree.fromstring(content, parser)
    except _PrologueEndError as end:
        return end.has_document_type
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FileFormatError(f"not DOCX: {error}") from None
    return False


class _PrologueEndError(Exception):
    """Ends parsing after the prologue."""

    def __init__(self, *, has_document_type: bool) -> None:
        super().__init__()
        self.has_document_type = has_document_type


class _Prologue:
    """Target of an XML parser that ends at a document type or the first element."""

    def doctype(self, _name: str, _public_id: str | None, _system_id: str | None) -> None:
        """End at a document type."""
        raise _PrologueEndError(has_document_type=True)

    def start(self, _tag: str, _attributes: object) -> None:
        """End without a document type."""
        raise _PrologueEndError(has_document_type=False)

    def close(self) -> None:
        """Required by the interface of lxml."""


def _opened(content: bytes) -> Any:
    try:
        return docx.Document(io.BytesIO(content))
    except (PackageNotFoundError, KeyError, ValueError, etree.XMLSyntaxError) as error:
        raise FileFormatError(f"not DOCX: {error}") from None


class _Part:
    """A part of the package that contains text."""

    def __init__(self, part: Any) -> None:
        self._part = part
        self._is_parsed = hasattr(part, "element")
        self.element = part.element if self._is_parsed else parse_xml(part.blob)

    def store(self) -> None:
        """Write changes to the package, unless the part shares its element with it."""
        if not self._is_parsed:  # python-docx does not parse notes
            self._part._blob = etree.tostring(self.element, encoding="UTF-8", xml_declaration=True, standalone=True)


def _paragraphs(document: Any) -> Iterator["_Paragraph"]:
    parts = {str(part.partname): part for part in document.part.package.iter_parts()}
    for name in sorted(parts):
        if _TEXT_PARTS.fullmatch(name):
            part = _Part(parts[name])
            for element in part.element.iter(qn("w:p")):
                yield _Paragraph(element, part)


class _Paragraph:
    """A paragraph as pieces of text and marks, each with its elements."""

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
        """Parse a translation.

        Raises:
            MarkupLostError: if markup is lost, the parts of a field are reordered, or text is outside all markup.
        """
        parts = self.tagged.parts(translation)
        singles = [part.index for part in parts if part.kind == "single"]
        if singles != sorted(singles) and any(self._of_piece[index].is_field for index in singles):
            raise MarkupLostError("the translation reorders the parts of a field")
        depth = 0
        for part in parts:
            depth += {"open": 1, "close": -1}.get(part.kind, 0)
            if part.kind == "text" and not depth and self._base is None and part.text.strip():
                raise MarkupLostError("the translation has text outside the markup that enclosed the source")
        return parts

    def translate(self, translation: str) -> None:
        """Replace the runs."""
        new: list[Any] = []
        marked: list[_Group] = []
        for part in self.parts(translation):
            if part.kind == "open":
                marked.append(self._of_piece[part.index])
            elif part.kind == "close":
                marked.pop()
            elif part.kind == "single":
                new += self._of_piece[part.index].elements
            else:
                group = marked[-1] if marked else self._base
                new += [group.run_with(part.text)] if group is not None else []
        old = [
            element for group in {id(group): group for group in self._of_piece}.values() for element in group.elements
        ]
        place = self._element.index(old[0])
        for element in old:
            self._element.remove(element)
        for offset, element in enumerate(new):
            self._element.insert(place + offset, element)


@dataclass(slots=True)
class _Group:
    """Adjacent runs with the same formatting, a hyperlink, or an element that is not text."""

    elements: list[Any]  # children of the paragraph
    text: str = ""  # empty if the elements are not text
    formatting: bytes = b""
    wrapper: Any = None  # hyperlink or revision; None for runs
    is_field: bool = False

    def run_with(self, text: str) -> Any:
        """Return a run with another text, in a hyperlink if the group is one."""
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
    depth = 0  # nesting depth of fields
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
    """Return the group of one child of a paragraph; None if it is preserved in place, such as bookmarks."""
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
