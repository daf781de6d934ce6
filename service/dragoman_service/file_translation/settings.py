"""Settings of uploaded documents."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from dragoman_service.toml import SettingsSection

_MIB = 1024 * 1024


class DocumentSettings(SettingsSection):
    """Translation of uploaded files: `/v2/document` of DeepL and `/translate_file` of LibreTranslate."""

    directory: Path | None = None
    """Existing directory for uploaded documents and their translations; if unset, documents are not translated. Servers
    with the same directory answer status and download requests of all its documents; their clocks must agree to within
    10 s.
    """

    max_file_bytes: int = Field(default=10 * _MIB, ge=1024, le=64 * _MIB)
    """Maximum size of an uploaded file; larger files are rejected with 413."""

    max_characters: int = Field(default=1_000_000, ge=1, le=16_000_000)
    """Maximum number of characters (Unicode code points) of text in a document."""

    max_segments: int = Field(default=50_000, ge=1, le=1_000_000)
    """Maximum number of separate texts in a document, such as paragraphs, cells or messages."""

    max_documents: int = Field(default=256, ge=1, le=100_000)
    """Maximum number of documents in the directory, including uploads in progress; further uploads are rejected with
    503."""

    max_caller_documents: int = Field(default=32, ge=1, le=100_000)
    """Maximum number of documents of one caller in the directory; further uploads are rejected with 429."""

    max_directory_bytes: int = Field(default=1024 * _MIB, ge=1024)
    """Disk space for all documents and translations. Space is reserved before it is used: an upload without space is
    rejected with 503, and a document without space for its translation fails."""

    max_caller_bytes: int = Field(default=256 * _MIB, ge=1024)
    """Disk space for the documents of one caller; uploads that exceed it are rejected with 429."""

    expiry_s: float = Field(default=3600.0, ge=1, le=30 * 86400)
    """Lifetime of a document from the end of its upload. After that, work on it stops and its content is removed. A
    downloaded document is removed 60 s after its first complete download."""

    upload_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Maximum duration of an upload."""

    max_concurrent: int = Field(default=4, ge=1, le=1024)
    """Documents that a server translates concurrently; others wait with the status `queued`."""

    max_caller_concurrent: int = Field(default=2, ge=1, le=1024)
    """Documents of one caller that a server translates concurrently."""

    parser_memory_bytes: int = Field(default=512 * _MIB, ge=64 * _MIB, le=64 * 1024 * _MIB)
    """Address space of the process that reads or writes one file. Up to `max_concurrent` of them run concurrently."""

    parser_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Maximum time for reading or writing one file. After that, the process is killed and the document fails."""

    @model_validator(mode="after")
    def _check_limits_of_callers(self) -> Self:
        if self.max_caller_documents > self.max_documents:
            raise ValueError(f"max_caller_documents at most max_documents ({self.max_documents})")
        if not 4 * self.max_file_bytes <= self.max_caller_bytes <= self.max_directory_bytes:
            raise ValueError(
                f"max_caller_bytes at least 4 * max_file_bytes ({4 * self.max_file_bytes}) and at most "
                f"max_directory_bytes ({self.max_directory_bytes})"
            )
        return self
