"""What is stored of one document apart from its content."""

import enum
import json
from dataclasses import asdict, dataclass


class DocumentStatus(enum.StrEnum):
    """How far a document is."""

    UPLOADING = "uploading"
    QUEUED = "queued"
    TRANSLATING = "translating"
    DONE = "done"
    ERROR = "error"

    @property
    def is_final(self) -> bool:
        """Whether no process works on the document any more."""
        return self in (DocumentStatus.DONE, DocumentStatus.ERROR)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentState:
    """State of a document; times are seconds since 1970."""

    document_id: str
    owner: str
    """Name of the caller that uploaded it."""

    process: str
    """The process that receives and translates it."""

    created_s: float
    expires_s: float
    reserved_bytes: int
    """Disk space that the document takes or may take."""

    key_digest: str = ""
    """SHA-256 of the document key, in hexadecimal."""

    file_name: str = ""
    status: DocumentStatus = DocumentStatus.UPLOADING
    message: str = ""
    """Cause of an error, or what a finished translation lacks."""

    num_characters: int = 0
    num_done_characters: int = 0
    started_s: float = 0.0
    """When translation began; 0 before."""

    @property
    def is_working(self) -> bool:
        """Whether the process named in `process` must be alive for the document to proceed."""
        return not self.status.is_final

    def seconds_remaining(self, now_s: float) -> int | None:
        """Return the expected time until the end of the translation; None if it is not known."""
        if self.status is not DocumentStatus.TRANSLATING or not self.num_done_characters:
            return None
        remaining = max(0, self.num_characters - self.num_done_characters)
        return 1 + round(max(0.0, now_s - self.started_s) * remaining / self.num_done_characters)

    def to_json(self) -> bytes:
        """Return the state as it is stored."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, stored: bytes) -> "DocumentState":
        """Return a stored state; ValueError or TypeError if it is damaged."""
        fields = json.loads(stored)
        return cls(**{**fields, "status": DocumentStatus(fields["status"])})
