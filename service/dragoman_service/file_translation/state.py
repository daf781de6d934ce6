"""Stored state of a document, without its content."""

import enum
import json
from dataclasses import asdict, dataclass


class DocumentStatus(enum.StrEnum):
    """Progress of a document."""

    UPLOADING = "uploading"
    QUEUED = "queued"
    TRANSLATING = "translating"
    DONE = "done"
    ERROR = "error"

    @property
    def is_final(self) -> bool:
        """Return whether work on the document has ended."""
        return self in (DocumentStatus.DONE, DocumentStatus.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """State of a document; times are seconds since 1970."""

    document_id: str
    owner: str  # name of the caller that uploaded it
    process: str  # receives and translates it
    created_s: float
    expires_s: float
    reserved_bytes: int  # disk space, used or not yet
    key_digest: str = ""  # SHA-256 of the document key, in hexadecimal
    file_name: str = ""
    status: DocumentStatus = DocumentStatus.UPLOADING
    message: str = ""  # of an error, or a warning about a finished translation
    num_characters: int = 0
    num_done_characters: int = 0
    started_s: float = 0.0  # start of the translation; 0 before

    def seconds_remaining(self, now_s: float) -> int | None:
        """Return the expected time until the end of the translation; None if unknown."""
        if self.status is not DocumentStatus.TRANSLATING or not self.num_done_characters:
            return None
        remaining = max(0, self.num_characters - self.num_done_characters)
        return 1 + round(max(0.0, now_s - self.started_s) * remaining / self.num_done_characters)

    def to_json(self) -> bytes:
        """Serialize the state."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, stored: bytes) -> "DocumentState":
        """Parse a stored state; ValueError, TypeError or KeyError if it is damaged."""
        fields = json.loads(stored)
        return cls(**{**fields, "status": DocumentStatus(fields["status"])})
