"""Message catalogues: PO, and XLIFF 1.2 and 2.0. Existing translations are preserved unless requested otherwise."""

import copy
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lxml import etree
from translate.lang.data import languages
from translate.storage import pypo

from dragoman.client.enums import TextFormat
from dragoman.documents.content import FileFormatError, FileSegment, has_words
from dragoman.documents.formats import ReadOptions
from dragoman.documents.tagged_text import Piece, TaggedText

_SPACE = "{http://www.w3.org/XML/1998/namespace}space"
_XLIFF = re.compile(r"\{urn:oasis:names:tc:xliff:document:(1\.1|1\.2|2\.\d)\}xliff")
_XLIFF_PAIRS = frozenset(("g", "mrk", "pc"))  # inline elements whose content is text; others replace code
_MAX_PLURAL_FORMS = 6  # maximum in CLDR (Arabic)
_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*\?>\s*")


def read_po(content: bytes, options: ReadOptions) -> "PoContent":
    """Read a gettext catalogue. Each message without a translation is a segment, a plural message is two.

    Fuzzy messages count as translated. The rest of the file is preserved as the Translate Toolkit writes it.

    Raises:
        FileFormatError: if it is not a catalogue or declares more plural forms than any language has.
    """
    num_kept = 0
    segments, places = [], []
    catalogue = _po(content)
    declared = str(catalogue.getheaderplural()[0] or "")
    if declared.isdecimal() and not 1 <= int(declared[:9]) <= _MAX_PLURAL_FORMS:
        raise FileFormatError(f"nplurals is {declared[:9]} in the header, must be 1 to {_MAX_PLURAL_FORMS}")
    for index, unit in enumerate(catalogue.units):
        if unit.isheader() or unit.isobsolete() or not unit.istranslatable():
            continue
        if any(map(str, _strings(unit.target))) and not options.retranslates:
            num_kept += 1
            continue
        for form, text in enumerate(_strings(unit.source)):
            if has_words(text):
                segments.append(
                    FileSegment(text=text, format=TextFormat.PLAIN, place=f"message {index}: {text[:40]!r}")
                )
                places.append((index, form))
    return PoContent(content, segments, places, num_kept, options.target_language)


@dataclass(frozen=True, slots=True)
class PoContent:
    """A gettext catalogue."""

    content: bytes
    segments: Sequence[FileSegment]
    places: Sequence[tuple[int, int]]  # of each segment: index of the message, and 1 for a plural text, else 0
    num_kept: int
    target_language: str

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`: every translation fits."""

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; all plural forms except the first get the translation of the plural."""
        catalogue = _po(self.content)
        declared = catalogue.getheaderplural()[0]
        primary = self.target_language.partition("-")[0].lower()
        default = languages.get(primary, ("", 2, ""))[1]
        num_forms = int(declared) if declared and declared.isdecimal() else default or 2
        by_message: dict[int, dict[int, str]] = {}
        for (unit, form), translation in zip(self.places, translations, strict=True):
            if translation is not None:
                by_message.setdefault(unit, {})[form] = translation
        for index, forms in by_message.items():
            unit = catalogue.units[index]
            if unit.hasplural():
                singular, plural = (forms.get(form, str(_strings(unit.source)[form])) for form in (0, 1))
                unit.target = [plural] if num_forms == 1 else [singular, *[plural] * (num_forms - 1)]
            else:
                unit.target = forms[0]
            unit.markfuzzy(False)
        return bytes(catalogue)


def _po(content: bytes) -> Any:
    try:
        return pypo.pofile.parsestring(content)  # type: ignore[no-untyped-call]
    except (ValueError, LookupError) as error:
        raise FileFormatError(f"not PO: {error}") from None


def _strings(text: Any) -> list[str]:
    return [str(each) for each in getattr(text, "strings", [text]) if each is not None]


def read_xliff(content: bytes, options: ReadOptions) -> "XliffContent":
    """Read XLIFF 1.2 or 2.0. Each unit or segment without a target is a segment; inline elements are preserved.

    Declaration, attributes and white space of the file are preserved, quotes may change.

    Raises:
        FileFormatError: if it is not XLIFF, or has a document type: entities are never read.
    """
    units, num_kept = [], 0
    for index, unit in enumerate(_xliff_units(_xml(content))):
        if unit.is_translated and not options.retranslates:
            num_kept += 1
        elif has_words(unit.tagged.words):
            units.append((index, unit))
    segments = [unit.tagged.segment(unit.place) for _, unit in units]
    texts = [unit.tagged for _, unit in units]
    return XliffContent(content, segments, texts, [index for index, _ in units], num_kept, options.target_language)


@dataclass(frozen=True, slots=True)
class XliffContent:
    """An XLIFF file."""

    content: bytes
    segments: Sequence[FileSegment]
    texts: Sequence[TaggedText]  # source of each segment
    places: Sequence[int]  # index of the unit of each segment
    num_kept: int
    target_language: str

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`."""
        self.texts[index].parts(translation)

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`."""
        tree = _xml(self.content)
        units = list(_xliff_units(tree))
        for place, translation in zip(self.places, translations, strict=True):
            if translation is not None:
                units[place].translate(translation)
        root = tree.getroot()
        if _XLIFF.fullmatch(root.tag)[1].startswith("1"):  # type: ignore[index]  # checked by `_xml`
            for file in root.iterchildren("{*}file"):
                file.set("target-language", file.get("target-language", self.target_language))
        else:
            root.set("trgLang", root.get("trgLang", self.target_language))
        written = etree.tostring(tree, encoding=tree.docinfo.encoding or "UTF-8", xml_declaration=False)
        declaration = _DECLARATION.match(self.content)
        return (declaration[0] if declaration else b"") + written + (b"\n" if self.content.endswith(b"\n") else b"")


@dataclass(frozen=True, slots=True)
class _Unit:
    parent: Any  # element that contains source and target
    source: Any
    tagged: TaggedText
    elements: Sequence[Any]  # element of each piece; None for text
    place: str

    @property
    def _target(self) -> Any:
        return next(self.parent.iterchildren("{*}target"), None)

    @property
    def is_translated(self) -> bool:
        """True if there is a target that is not empty."""
        target = self._target
        return target is not None and bool(len(target) or (target.text or "").strip())

    def translate(self, translation: str) -> None:
        """Create or replace the target."""
        parts = self.tagged.parts(translation)
        namespace = etree.QName(self.source).namespace
        target = self._target
        if target is None:
            target = etree.Element(f"{{{namespace}}}target")
            before = next(self.parent.iterchildren("{*}seg-source"), self.source)
            target.tail, before.tail = before.tail, before.tail
            before.addnext(target)
            if target.tail is None:
                target.tail = before.tail
            if _SPACE in self.source.attrib:
                target.set(_SPACE, self.source.get(_SPACE))
        for child in list(target):
            target.remove(child)
        target.text = None
        stack = [target]
        for part in parts:
            if part.kind == "text":
                _append_text(stack[-1], part.text)
            elif part.kind == "close":
                stack.pop()
            else:
                element = self.elements[part.index]
                if part.kind == "open":
                    element = etree.SubElement(stack[-1], element.tag, element.attrib, nsmap=element.nsmap)
                    stack.append(element)
                else:
                    stack[-1].append(copy.deepcopy(element))
                    stack[-1][-1].tail = None
        if etree.QName(self.parent).localname == "segment":
            self.parent.set("state", "translated")
        else:
            target.set("state", "translated")
            target.set("state-qualifier", "leveraged-mt")


def _xml(content: bytes) -> Any:
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False)
    try:
        tree = etree.fromstring(content, parser).getroottree()
    except (etree.XMLSyntaxError, ValueError) as error:
        raise FileFormatError(f"not XML: {error}") from None
    if tree.docinfo.internalDTD is not None:
        raise FileFormatError("XLIFF with a document type is not supported")
    if not _XLIFF.fullmatch(tree.getroot().tag):
        raise FileFormatError("not XLIFF 1.2 or 2.0")
    return tree


def _xliff_units(tree: Any) -> Iterator[_Unit]:
    for parent in tree.getroot().iter("{*}trans-unit", "{*}segment"):
        source = next(parent.iterchildren("{*}seg-source"), None)
        if source is None:
            source = next(parent.iterchildren("{*}source"), None)
        if source is None or _inherited(parent, "translate") == "no":
            continue
        keeps_space = _inherited(source, _SPACE) == "preserve"
        pieces: list[Piece] = []
        elements: list[Any] = []
        for piece, element in _pieces(source, keeps_space=keeps_space):
            pieces.append(piece)
            elements.append(element)
        yield _Unit(parent, source, TaggedText(pieces), elements, f"line {source.sourceline}")


def _inherited(element: Any, name: str) -> str | None:
    values = (each.get(name) for each in (element, *element.iterancestors()))
    return next((value for value in values if value is not None), None)


def _pieces(element: Any, *, keeps_space: bool) -> Iterator[tuple[Piece, Any]]:
    """Yield the pieces of an element, each with its own element if it is one."""
    text = partial(_text_piece, keeps_space=keeps_space)
    yield from text(element.text)
    for child in element:
        is_pair = isinstance(child.tag, str) and etree.QName(child).localname in _XLIFF_PAIRS
        if is_pair and has_words("".join(child.itertext())):
            yield Piece("open", ""), child
            yield from _pieces(child, keeps_space=keeps_space)
            yield Piece("close", ""), child
        else:
            yield Piece("single", ""), child
        yield from text(child.tail)


def _text_piece(text: str | None, *, keeps_space: bool) -> Iterator[tuple[Piece, Any]]:
    if text:
        content = text if keeps_space else re.sub(r"\s*[\r\n]\s*", " ", text)
        yield Piece("text", "", content), None


def _append_text(element: Any, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text
