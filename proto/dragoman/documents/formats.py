"""Which format a file has, by the end of its name, and how it is read within bounds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dragoman.documents.content import FileContent, FileFormatError

MAX_FILE_BYTES = 64 * 1024 * 1024
"""Larger files are refused; every format holds its file in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What some formats ask for."""

    target_language: str
    """BCP-47 tag; says how many plural forms a catalogue has if it does not."""

    retranslates: bool = False
    """Translate what a catalogue has a translation for, too."""


@dataclass(frozen=True, slots=True)
class _Format:
    module: str
    function: str
    takes_options: bool = False
    packages: tuple[str, ...] = ()
    """Packages of the extra `files` that the format needs."""

    @property
    def is_available(self) -> bool:
        """Whether the packages that the format needs are installed."""
        return all(find_spec(package) for package in self.packages)

    def read(self, content: bytes, options: ReadOptions) -> FileContent:
        """Import what the format needs, and read."""
        read: Callable[..., FileContent] = getattr(import_module(f"dragoman.documents.{self.module}"), self.function)
        return read(content, options) if self.takes_options else read(content)


FORMATS: Mapping[str, _Format] = {
    ".txt": _Format("text_files", "read_text"),
    ".md": _Format("markdown_files", "read_markdown", packages=("markdown_it",)),
    ".markdown": _Format("markdown_files", "read_markdown", packages=("markdown_it",)),
    ".html": _Format("web_files", "read_html"),
    ".htm": _Format("web_files", "read_html"),
    ".docx": _Format("word_files", "read_docx", packages=("docx", "lxml")),
    ".srt": _Format("text_files", "read_srt"),
    ".vtt": _Format("text_files", "read_vtt"),
    ".po": _Format("catalogues", "read_po", takes_options=True, packages=("lxml", "translate")),
    ".pot": _Format("catalogues", "read_po", takes_options=True, packages=("lxml", "translate")),
    ".xlf": _Format("catalogues", "read_xliff", takes_options=True, packages=("lxml", "translate")),
    ".xliff": _Format("catalogues", "read_xliff", takes_options=True, packages=("lxml", "translate")),
    ".json": _Format("string_files", "read_json"),
    ".properties": _Format("string_files", "read_properties"),
}
"""By the end of the name, in lower case."""


def read_file(path: Path, options: ReadOptions) -> FileContent:
    """Read a file.

    Raises:
        FileFormatError: if its name tells no format, it is too large, or it is not what its name says.
        ModuleNotFoundError: if its format needs the extra `files`, which is not installed.
        OSError: if it cannot be read.
    """
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise FileFormatError(f"{path}: its name must end in one of {', '.join(FORMATS)}")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise FileFormatError(f"{path} has more than {MAX_FILE_BYTES} bytes")
    try:
        return found.read(content, options)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
