"""File formats by file extension, and reading files within limits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from dragoman.documents.content import FileContent, FileFormatError

MAX_FILE_BYTES = 64 * 1024 * 1024  # every format holds its file in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options of some formats."""

    target_language: str  # BCP-47 tag; determines the number of plural forms if a catalogue does not declare it
    retranslates: bool = False  # translate texts of a catalogue that already have a translation


@dataclass(frozen=True, slots=True)
class _Format:
    module: str
    function: str
    takes_options: bool = False
    packages: tuple[str, ...] = ()  # packages of the extra `files` that the format requires

    @property
    def is_available(self) -> bool:
        """True if the packages that the format requires are installed."""
        return all(find_spec(package) for package in self.packages)

    def read(self, content: bytes, options: ReadOptions) -> FileContent:
        """Import the module of the format and parse the content."""
        read: Callable[..., FileContent] = getattr(import_module(f"dragoman.documents.{self.module}"), self.function)
        return read(content, options) if self.takes_options else read(content)


FORMATS: Mapping[str, _Format] = {
    ".txt": _Format("text_files", "read_text"),
    ".md": _Format("markdown_files", "read_markdown", packages=("markdown_it",)),
    ".markdown": _Format("markdown_files", "read_markdown", packages=("markdown_it",)),
    ".html": _Format("html_files", "read_html"),
    ".htm": _Format("html_files", "read_html"),
    ".docx": _Format("docx_files", "read_docx", packages=("docx", "lxml")),
    ".srt": _Format("text_files", "read_srt"),
    ".vtt": _Format("text_files", "read_vtt"),
    ".po": _Format("catalogues", "read_po", takes_options=True, packages=("lxml", "translate")),
    ".pot": _Format("catalogues", "read_po", takes_options=True, packages=("lxml", "translate")),
    ".xlf": _Format("catalogues", "read_xliff", takes_options=True, packages=("lxml", "translate")),
    ".xliff": _Format("catalogues", "read_xliff", takes_options=True, packages=("lxml", "translate")),
    ".json": _Format("resource_files", "read_json"),
    ".properties": _Format("resource_files", "read_properties"),
}  # by lower-case file extension


def read_file(path: Path, options: ReadOptions) -> FileContent:
    """Read a file.

    Raises:
        FileFormatError: if the extension is unknown, the file is too large, or it does not have the format.
        ModuleNotFoundError: if the format requires the extra `files`, which is not installed.
        OSError: if it cannot be read.
    """
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise FileFormatError(f"{path}: unknown file extension, must be one of {', '.join(FORMATS)}")
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise FileFormatError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        return file_format.read(content, options)
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
