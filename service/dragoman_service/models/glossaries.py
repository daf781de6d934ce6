"""Named glossaries: the files `NAME.tsv` and `NAME.tbx` in a directory, which are read again when they change.

A TSV file is UTF-8. Its first line has two language tags, every other line a term and its translation, separated by a
tab. A term without a translation is copied. TBX is ISO 30042 in both styles (`martif` and `tbx`): each term of a
concept is translated into the first term of the concept in the other language.
"""

import itertools
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.parsers import expat

from dragoman.option_ranges import option_range
from dragoman_service.bundle.files import read_file
from dragoman_service.errors import ConfigError, GlossaryNotFoundError, InvalidFieldError
from dragoman_service.language_tags import check_language_tag, matching_tags
from dragoman_service.models.model import is_plain_name
from dragoman_service.models.serving import fingerprint
from dragoman_service.observability.metrics import Metrics
from dragoman_service.request import Term
from dragoman_service.text.placeholders.terms import TermMatcher

log = logging.getLogger(__name__)

_MAX_TERM_CHARACTERS: Any = option_range("options.terms.source").max_characters

MAX_GLOSSARIES = 256  # maximum number of files in the directory

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_GLOSSARY_TERMS = 20_000  # maximum number of terms of a glossary, all language pairs together

_SUFFIXES = (".tsv", ".tbx")
_SETTING = "models.glossaries_directory"
_LANGUAGE_ELEMENTS = {"langSet", "langSec"}
_CONCEPT_ELEMENTS = {"termEntry", "conceptEntry"}
_XML_LANGUAGE = "xml:lang"

Pair = tuple[str, str]  # source and target language, BCP-47 tags in lower case

Terms = Mapping[Pair, tuple[Term, ...]]  # language pair to terms, in the order of the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Glossary:
    """The terms of one file."""

    name: str
    terms: Terms
    matchers: Mapping[Pair, TermMatcher] = field(repr=False)
    modified_s: float  # modification time of the file, in Unix time

    def find(self, source_language: str, target_language: str) -> Pair | None:
        """Return the language pair of the glossary that matches two tags (`matching_tags`); None if there is none."""
        sources = matching_tags(source_language, {source for source, _ in self.terms})
        targets = matching_tags(target_language, {target for _, target in self.terms})
        return next((pair for pair in itertools.product(sources, targets) if pair in self.terms), None)


class GlossaryRepository:
    """Glossaries of one server. Thread-safe, except for concurrent calls of `refresh`."""

    def __init__(self, directory: Path, metrics: Metrics) -> None:
        """Create an empty repository."""
        self._directory = directory
        self._metrics = metrics
        self._glossaries: Mapping[str, Glossary] = {}  # replaced as a whole
        self._files: dict[str, tuple[object, ...]] = {}

    def refresh(self) -> None:
        """Read new and changed files and drop glossaries whose files were removed.

        An invalid file is logged and counted, and the previous content of the glossary stays active.
        """
        entries = [entry for entry in fingerprint(self._directory) if entry[0].endswith(_SUFFIXES)]
        files = {name for name, *_ in entries}
        glossaries = {
            name: old
            for name, old in self._glossaries.items()
            if not files.isdisjoint(name + suffix for suffix in _SUFFIXES)
        }
        seen = {}
        for number, (name, *status) in enumerate(entries):
            fault = _reason_to_ignore(name, number, files)
            seen[name] = (*status, fault)
            if self._files.get(name) != seen[name]:
                self._read(name, fault, glossaries)
        self._files = seen
        self._glossaries = glossaries

    def _read(self, file: str, fault: str, glossaries: dict[str, Glossary]) -> None:
        try:
            glossary = None if fault else read_glossary(self._directory / file)
        except Exception as error:  # noqa: BLE001 - files are untrusted: any error concerns only this file
            glossary, fault = None, str(error)
        if glossary is None:
            log.error("invalid glossary ignored", extra={"glossary": file, "fault": fault})
            self._metrics.glossary_failures.inc()
            return
        glossaries[glossary.name] = glossary
        num_terms = sum(map(len, glossary.terms.values()))
        log.info("glossary read", extra={"glossary": glossary.name, "terms": num_terms})

    def all(self) -> list[Glossary]:
        """Return all glossaries, sorted by name."""
        return [glossary for _, glossary in sorted(self._glossaries.items())]

    def get(self, name: str, *, field: str = "options.glossary") -> Glossary:
        """Return a glossary; GlossaryNotFoundError has the field and the names of existing glossaries."""
        glossary = self._glossaries.get(name)
        if glossary is None:
            raise GlossaryNotFoundError(field, name, tuple(sorted(self._glossaries)))
        return glossary

    def matcher(self, name: str, source_language: str, target_language: str) -> TermMatcher:
        """Return the matcher for the terms of a language pair; tags match as in `ModelRepository.resolve`.

        Raises GlossaryNotFoundError, or InvalidFieldError if the glossary does not have the language pair.
        """
        glossary = self.get(name)
        check_language_tag("source_language", source_language)
        check_language_tag("target_language", target_language)
        if pair := glossary.find(source_language, target_language):
            return glossary.matchers[pair]
        pairs = ", ".join(f"{source} to {target}" for source, target in glossary.terms)
        limit = f"a glossary from {source_language} to {target_language}".lower()
        raise InvalidFieldError("options.glossary", f"{name!r}, from {pairs}", limit)


def _reason_to_ignore(file: str, number: int, files: set[str]) -> str:
    # Empty if the content of the file decides.
    if number >= MAX_GLOSSARIES:
        return f"more than {MAX_GLOSSARIES} files in the directory"
    if file.endswith(".tbx") and f"{file.removesuffix('.tbx')}.tsv" in files:
        return "a TSV file with this name exists"
    return ""


def glossaries_directory(directory: Path | None, models: Path) -> Path:
    """Return the directory of glossaries, by default `glossaries` next to the models; ConfigError if it is missing."""
    if directory is not None and not directory.is_dir():
        raise ConfigError(_SETTING, str(directory), "an existing directory")
    return directory or models.resolve().parent / "glossaries"


def read_glossary(path: Path) -> Glossary:
    """Read a glossary; raises ConfigError with the invalid line, or OSError if the file cannot be read."""
    if not is_plain_name(path.stem):
        raise ConfigError(_SETTING, path.name, "a name of letters, digits, `.`, `_` and `-`")
    content = read_file(path, max_bytes=MAX_FILE_BYTES)
    rows = _tsv_terms(path, content) if path.suffix == ".tsv" else _tbx_terms(path, content)
    terms: dict[Pair, dict[str, Term]] = {}
    for number, (place, pair, term) in enumerate(rows, 1):
        _check_term(path, place, term)
        if number > MAX_GLOSSARY_TERMS:
            raise _fault(path, place, f"more than {MAX_GLOSSARY_TERMS} terms", f"at most {MAX_GLOSSARY_TERMS} terms")
        of_pair = terms.setdefault(pair, {})
        if term.source in of_pair and path.suffix == ".tsv":
            raise _fault(path, place, f"the duplicate term {term.source}", "unique terms")
        of_pair.setdefault(term.source, term)  # homonyms in TBX: the first concept has precedence
    if not terms:
        raise _fault(path, "the end", "0 terms", "at least 1 term")
    sorted_terms = {pair: tuple(terms[pair].values()) for pair in sorted(terms)}
    return Glossary(
        name=path.stem,
        terms=sorted_terms,
        matchers={pair: TermMatcher(of_pair) for pair, of_pair in sorted_terms.items()},
        modified_s=path.stat().st_mtime,
    )


def _tsv_terms(path: Path, content: bytes) -> Iterator[tuple[str, Pair, Term]]:
    try:
        lines = [line.removesuffix("\r") for line in content.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise _fault(path, f"byte {error.start}", "invalid UTF-8", "UTF-8") from error
    head = lines[0].split("\t")
    if len(head) != 2:
        raise _fault(path, "line 1", f"{len(head)} columns", "two language tags separated by a tab, as in `en\tde`")
    pair = _tag(path, "line 1", head[0]), _tag(path, "line 1", head[1])
    for number, line in enumerate(lines[1:], 2):
        cells = [cell.strip() for cell in line.split("\t")]
        if not any(cells):
            continue
        if len(cells) > 2:
            raise _fault(path, f"line {number}", f"{len(cells)} columns", "a term and its translation")
        yield f"line {number}", pair, Term(source=cells[0], target=cells[1] if len(cells) > 1 else "")


def _tbx_terms(path: Path, content: bytes) -> Iterator[tuple[str, Pair, Term]]:
    for place, concept in _Concepts(path).parse(content):
        for source, target in itertools.permutations(concept, 2):
            for term in concept[source]:
                yield place, (source, target), Term(source=term, target=concept[target][0])


class _Concepts:
    # Parser of a TBX file; a concept has terms by language.

    def __init__(self, path: Path) -> None:
        self._path = path
        self._concepts: list[tuple[str, dict[str, list[str]]]] = []
        self._language = ""
        self._term: list[str] | None = None
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._read
        self._parser.EntityDeclHandler = self._reject_entity

    def parse(self, content: bytes) -> list[tuple[str, dict[str, list[str]]]]:
        # Returns the concepts with their first lines.
        try:
            self._parser.Parse(content, True)
        except expat.ExpatError as error:
            raise _fault(self._path, f"line {error.lineno}", expat.ErrorString(error.code), "XML") from error
        return self._concepts

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name in _CONCEPT_ELEMENTS:
            self._concepts.append((self._place, {}))
        elif name in _LANGUAGE_ELEMENTS:
            self._language = _tag(self._path, self._place, attributes.get(_XML_LANGUAGE, ""))
        elif name == "term":
            self._term = []

    def _end(self, name: str) -> None:
        if name == "term" and self._term is not None and self._concepts:
            term = " ".join("".join(self._term).split())
            self._concepts[-1][1].setdefault(self._language, []).append(term)
            self._term = None

    def _read(self, text: str) -> None:
        if self._term is not None:
            self._term.append(text)

    def _reject_entity(self, *_: object) -> None:
        raise _fault(self._path, self._place, "an entity declaration", "TBX without entity declarations")

    @property
    def _place(self) -> str:
        return f"line {self._parser.CurrentLineNumber}"


def _tag(path: Path, place: str, language: str) -> str:
    tag = language.strip().lower()
    try:
        check_language_tag("language", tag)
    except InvalidFieldError as error:
        raise _fault(path, place, language[:_MAX_TERM_CHARACTERS], "a BCP-47 tag, such as `en`") from error
    return tag


def _check_term(path: Path, place: str, term: Term) -> None:
    for text, at_least in ((term.source, 1), (term.target, 0)):
        if not at_least <= len(text) <= _MAX_TERM_CHARACTERS:
            expected = f"terms of 1 to {_MAX_TERM_CHARACTERS} characters"
            raise _fault(path, place, f"a term of {len(text)} characters", expected)


def _fault(path: Path, place: str, found: str, expected: str) -> ConfigError:
    return ConfigError(f"{_SETTING}: {path.name}, {place}", found, expected)
