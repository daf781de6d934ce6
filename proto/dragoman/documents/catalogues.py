"""Catalogues of messages: PO and XLIFF 1.2 and 2.0. What has a translation keeps it unless asked."""

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

_XLIFF = re.compile(r"\{urn:oasis:names:tc:xliff:document:(1\.1|1\.2|2\.\d)\}xliff")
_XLIFF_PAIRS = frozenset(("g", "mrk", "pc"))
"""Elements within a text whose content is text; all others are what stands in the place of code."""

_MAX_PLURAL_FORMS = 6
"""Arabic has six; no language of CLDR has more."""

_DECLARATION = re.compile(rb"(?:\xef\xbb\xbf)?<\?xml[^>]*\?>\s*")


def read_po(content: bytes, options: ReadOptions) -> "PoContent":
    """Read a catalogue of gettext: each message without a translation; fuzzy ones have one. Plurals are two segments.

    The file comes back byte for byte, as the Translate Toolkit writes it, but for the translations.

    Raises:
        FileFormatError: if it is none, or declares more plural forms than any language has.
    """
    kept = 0
    segments, places = [], []
    catalogue = _po(content)
    declared = str(catalogue.getheaderplural()[0] or "")
    if declared.isdecimal() and not 1 <= int(declared[:9]) <= _MAX_PLURAL_FORMS:
        raise FileFormatError(f"its header declares nplurals={declared[:9]}, must be 1 to {_MAX_PLURAL_FORMS}")
    for index, unit in enumerate(catalogue.units):
        if unit.isheader() or unit.isobsolete() or not unit.istranslatable():
            continue
        if any(map(str, _strings(unit.target))) and not options.retranslates:
            kept += 1
            continue
        for form, text in enumerate(_strings(unit.source)):
            if has_words(text):
                segments.append(
                    FileSegment(text=text, format=TextFormat.PLAIN, place=f"message {index}: {text[:40]!r}")
                )
                places.append((index, form))
    return PoContent(content, segments, places, kept, options.target_language)


@dataclass(frozen=True, slots=True)
class PoContent:
    """A catalogue of gettext."""

    content: bytes
    segments: Sequence[FileSegment]
    places: Sequence[tuple[int, int]]
    """Of each segment: which message, and 0 or, for the text of its plural, 1."""

    num_kept: int
    target_language: str

    def check(self, index: int, translation: str) -> None:
        """See `FileContent`: any translation is good."""

    def written(self, translations: Sequence[str | None]) -> bytes:
        """See `FileContent`; all plural forms but the first get the translation of the plural."""
        catalogue = _po(self.content)
        declared = catalogue.getheaderplural()[0]
        primary = self.target_language.partition("-")[0].lower()
        known = languages.get(primary, ("", 2, ""))[1]
        num_forms = int(declared) if declared and declared.isdecimal() else known or 2
        told: dict[int, dict[int, str]] = {}
        for (unit, form), translation in zip(self.places, translations, strict=True):
            if translation is not None:
                told.setdefault(unit, {})[form] = translation
        for index, forms in told.items():
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
        raise FileFormatError(f"no PO: {error}") from None


def _strings(text: Any) -> list[str]:
    return [str(each) for each in getattr(text, "strings", [text]) if each is not None]


def read_xliff(content: bytes, options: ReadOptions) -> "XliffContent":
    """Read XLIFF 1.2 or 2.0: each unit, or segment of one, without a target; elements within stay around their words.

    The file comes back with equal content: declaration, attributes and white space stay, quotes may change.

    Raises:
        FileFormatError: if it is none, or has a document type: no entity is ever read.
    """
    units, kept = [], 0
    for index, unit in enumerate(_xliff_units(_xml(content))):
        if unit.is_translated and not options.retranslates:
            kept += 1
        elif has_words(unit.tagged.words):
            units.append((index, unit))
    segments = [unit.tagged.segment(unit.place) for _, unit in units]
    texts = [unit.tagged for _, unit in units]
    return XliffContent(content, segments, texts, [index for index, _ in units], kept, options.target_language)


@dataclass(frozen=True, slots=True)
class XliffContent:
    """An XLIFF file."""

    content: bytes
    segments: Sequence[FileSegment]
    texts: Sequence[TaggedText]
    """What each segment was made of."""

    places: Sequence[int]
    """Which unit of the file each segment is."""

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
        if _XLIFF.fullmatch(root.tag)[1].startswith("1"):  # type: ignore[index]  # it was read before
            for file in root.iterchildren("{*}file"):
                file.set("target-language", file.get("target-language", self.target_language))
        else:
            root.set("trgLang", root.get("trgLang", self.target_language))
        written = etree.tostring(tree, encoding=tree.docinfo.encoding or "UTF-8", xml_declaration=False)
        declaration = _DECLARATION.match(self.content)
        return (declaration[0] if declaration else b"") + written + (b"\n" if self.content.endswith(b"\n") else b"")


@dataclass(frozen=True, slots=True)
class _Unit:
    """A text of an XLIFF file that is translated by itself."""

    parent: Any
    """Holds source and target."""

    source: Any
    tagged: TaggedText
    elements: Sequence[Any]
    """The element of each piece; None of text."""

    place: str

    @property
    def _target(self) -> Any:
        return next(self.parent.iterchildren("{*}target"), None)

    @property
    def is_translated(self) -> bool:
        """Whether there is a target with anything in it."""
        target = self._target
        return target is not None and bool(len(target) or (target.text or "").strip())

    def translate(self, translation: str) -> None:
        """Make or replace the target."""
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
                    stack[-1].append(_without_tail(element))
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
        raise FileFormatError(f"no XML: {error}") from None
    if tree.docinfo.internalDTD is not None:
        raise FileFormatError("it has a document type, which no XLIFF has")
    if not _XLIFF.fullmatch(tree.getroot().tag):
        raise FileFormatError("no XLIFF 1.2 or 2.0")
    return tree


def _xliff_units(tree: Any) -> Iterator[_Unit]:
    for parent in tree.getroot().iter("{*}trans-unit", "{*}segment"):
        source = next(parent.iterchildren("{*}seg-source"), None)
        if source is None:
            source = next(parent.iterchildren("{*}source"), None)
        if source is None or _translates(parent) == "no":
            continue
        keeps_space = _inherited(source, "{http://www.w3.org/XML/1998/namespace}space") == "preserve"
        pieces: list[Piece] = []
        elements: list[Any] = []
        for piece, element in _pieces(source, keeps_space=keeps_space):
            pieces.append(piece)
            elements.append(element)
        yield _Unit(parent, source, TaggedText(pieces), elements, f"line {source.sourceline}")


def _translates(parent: Any) -> str:
    return _inherited(parent, "translate") or "yes"


def _inherited(element: Any, name: str) -> str | None:
    values = (each.get(name) for each in (element, *element.iterancestors()))
    return next((value for value in values if value is not None), None)


def _pieces(element: Any, *, keeps_space: bool) -> Iterator[tuple[Piece, Any]]:
    """Yield what is in an element, with the element of each piece that is one."""
    text = partial(_text_piece, keeps_space=keeps_space)
    yield from text(element.text)
    for child in element:
        if isinstance(child.tag, str) and etree.QName(child).localname in _XLIFF_PAIRS and _has_content(child):
            yield Piece("open", ""), child
            yield from _pieces(child, keeps_space=keeps_space)
            yield Piece("close", ""), child
        else:
            yield Piece("single", ""), child
        yield from text(child.tail)


def _text_piece(text: str | None, *, keeps_space: bool) -> Iterator[tuple[Piece, Any]]:
    if text:
        told = text if keeps_space else re.sub(r"\s*[\r\n]\s*", " ", text)
        yield Piece("text", "", told), None


def _has_content(element: Any) -> bool:
    return has_words("".join(element.itertext()))


def _append_text(element: Any, text: str) -> None:
    if len(element):
        element[-1].tail = (element[-1].tail or "") + text
    else:
        element.text = (element.text or "") + text


def _without_tail(element: Any) -> Any:
    copied = copy.deepcopy(element)
    copied.tail = None
    return copied
