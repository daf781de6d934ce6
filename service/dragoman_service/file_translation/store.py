"""Documents in a directory that several processes share.

Each document is a directory named by its id, with `state.json`, `source` and `result`. Names that begin with a dot are
not documents: `.lock` is held while limits are checked and states are changed, `.process-TOKEN` is the heartbeat of a
running process, `.removed-TOKEN` is a document being deleted.

The methods read and write files and wait for the lock: call them in a thread, not in the event loop.
"""

import contextlib
import enum
import errno
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from pydantic import FiniteFloat, NonNegativeInt, TypeAdapter

from dragoman_service.errors import ConfigError, DragomanError, RateLimitedError, RetryableError
from dragoman_service.file_translation.settings import DocumentSettings

log = logging.getLogger(__name__)

HEARTBEAT_S: Final = 5.0  # interval
LEASE_S: Final = 30.0
"""A process whose heartbeat does not change for this time counts as dead, and its documents as interrupted."""

REPEAT_S: Final = 60.0
"""Time from the end of the first complete download in which a document can be downloaded again."""

INTERRUPTED: Final = "the translation was interrupted because the server stopped; upload the document again"

_SETTING: Final = "documents.directory"
_ID: Final = re.compile("[0-9a-f]{32}")
_STATE, _SOURCE, _RESULT = "state.json", "source", "result"
_LOCK, _PROCESS, _REMOVED = ".lock", ".process-", ".removed-"
_LOCK_TRIES, _LOCK_WAIT_S = 500, 0.01
_RETRY_S: Final = 10.0  # a guess: space becomes free when documents are downloaded


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
    created_s: FiniteFloat
    expires_s: FiniteFloat
    reserved_bytes: NonNegativeInt  # disk space, used or not yet
    key_digest: str = ""  # SHA-256 of the document key, in hexadecimal
    file_name: str = ""
    status: DocumentStatus = DocumentStatus.UPLOADING
    message: str = ""  # of an error, or a warning about a finished translation
    num_characters: NonNegativeInt = 0
    num_done_characters: NonNegativeInt = 0
    started_s: FiniteFloat = 0.0  # start of the translation; 0 before
    is_downloaded: bool = False  # whether a download is complete; then it does not count for limits of documents

    def seconds_remaining(self, now_s: float) -> int | None:
        """Return the expected time until the end of the translation; None if unknown."""
        if self.status is not DocumentStatus.TRANSLATING or not self.num_done_characters:
            return None
        remaining = max(0, self.num_characters - self.num_done_characters)
        return 1 + round(max(0.0, now_s - self.started_s) * remaining / self.num_done_characters)

    def to_json(self) -> bytes:
        """Serialize the state."""
        return json.dumps(asdict(self)).encode()


_STORED: Final = TypeAdapter(DocumentState)


class DocumentNotFoundError(DragomanError):
    """No document has this id, key and owner, or it was removed or has expired."""

    def __init__(self) -> None:
        super().__init__("document not found: its id or key is wrong, or it was downloaded or has expired")


class StorageFullError(RetryableError):
    """A limit of the directory of documents is exceeded."""

    def __init__(self, *, limit: int, unit: str) -> None:
        super().__init__(f"document directory is full (limit {limit} {unit})", retry_after_s=_RETRY_S)


class StorageUnavailableError(RetryableError):
    """The disk is full, or a file of the directory cannot be read or written."""

    def __init__(self, error: OSError) -> None:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        fault = "full" if is_full else "unavailable"
        super().__init__(f"document directory is {fault} ({error.strerror})", retry_after_s=_RETRY_S)


@contextlib.contextmanager
def storage_errors() -> Iterator[None]:
    """Raise errors of the operating system as StorageUnavailableError."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailableError(error) from error


class DocumentStore:
    """Stores documents and enforces the limits of the directory.

    Methods that a caller waits for raise StorageUnavailableError if the disk fails.
    """

    def __init__(
        self,
        settings: DocumentSettings,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Register this process in the directory; ConfigError if files cannot be written and locked in it.

        Args:
            settings: directory and limits.
            clock: seconds since 1970, for the states of documents.
            monotonic: measures the age of heartbeats, as the other clock can be set to another time.
        """
        if settings.directory is None:
            raise ConfigError(_SETTING, None, "a directory")
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._directory = settings.directory.absolute()
        self._process = secrets.token_hex(16)
        # Time of the heartbeat of each other process, and when it was first seen on the monotonic clock.
        self._heartbeats: dict[str, tuple[int, float]] = {}
        self._failed: dict[str, str] = {}  # messages of failed documents whose state is not stored yet
        self._unusable: set[str] = set()  # logged names in the directory
        try:
            with self._locked():
                self.heartbeat()
            for path in self._directory.glob(f"{_PROCESS}*"):
                self._is_alive(path.name.removeprefix(_PROCESS))
        except OSError as error:
            expected = f"an existing directory in which files can be written and locked ({error.strerror})"
            raise ConfigError(_SETTING, str(settings.directory), expected) from error

    def heartbeat(self) -> None:
        """Renew the heartbeat of this process."""
        path = self._directory / f"{_PROCESS}{self._process}"
        path.touch(mode=0o600)
        now_s = self._clock()
        os.utime(path, (now_s, now_s))

    def close(self) -> None:
        """Remove the heartbeat of this process."""
        (self._directory / f"{_PROCESS}{self._process}").unlink(missing_ok=True)

    @storage_errors()
    def begin(self, owner: str, num_bytes: int) -> DocumentState:
        """Reserve space for an upload and return the new document.

        Raises:
            RateLimitedError: if a limit of the owner is exceeded.
            StorageFullError: if a limit of the directory is exceeded.
        """
        now_s = self._clock()
        state = DocumentState(
            document_id=secrets.token_hex(16),
            owner=owner,
            process=self._process,
            created_s=now_s,
            expires_s=now_s + self._settings.upload_timeout_s + LEASE_S,
            reserved_bytes=num_bytes,
        )
        with self._locked():
            self._check_limits(state, is_new=True)
            try:
                self._path(state.document_id).mkdir(mode=0o700)
                self._write(state)
            except BaseException:
                self.remove(state.document_id)
                raise
        return state

    @storage_errors()
    def append(self, document_id: str, data: bytes) -> None:
        """Append to the uploaded file."""
        with self.source_path(document_id).open("ab") as file:
            file.write(data)

    def complete(self, document_id: str, *, file_name: str, num_bytes: int) -> tuple[DocumentState, str]:
        """Queue a document whose source is stored; return its state and the key for status and download."""
        key = secrets.token_hex(32)
        expires_s = self._clock() + self._settings.expiry_s
        changes = {"key_digest": _digest(key), "file_name": file_name, "reserved_bytes": num_bytes}
        return self.update(document_id, status=DocumentStatus.QUEUED, expires_s=expires_s, **changes), key

    @storage_errors()
    def get(self, document_id: str, key: str, *, owner: str | None = None) -> DocumentState:
        """Return the state of the document with this id, key and owner (None: any); DocumentNotFoundError if none."""
        state = self._read(document_id)
        if state.status is DocumentStatus.UPLOADING or self._clock() >= state.expires_s:
            raise DocumentNotFoundError
        is_key = hmac.compare_digest(_digest(key), state.key_digest)
        if not is_key or (owner is not None and owner != state.owner):
            raise DocumentNotFoundError
        if message := self._failed.get(document_id):
            return replace(state, status=DocumentStatus.ERROR, message=message)
        return self._interrupted(state) if self._is_abandoned(state) else state

    @storage_errors()
    def update(self, document_id: str, **changes: Any) -> DocumentState:
        """Change the state of a document that this process works on, and return it.

        Raises:
            DocumentNotFoundError: if it was removed, or this process counts as dead for another.
        """
        with self._locked():
            state = replace(self._read_own(document_id), **changes)
            self._write(state)
        return state

    @storage_errors()
    def reserve(self, document_id: str, num_bytes: int) -> None:
        """Set the disk space reserved for a document; raises as `update` and `begin`."""
        with self._locked():
            state = replace(self._read_own(document_id), reserved_bytes=num_bytes)
            self._check_limits(state, is_new=False)
            self._write(state)

    @storage_errors()
    def finish(self, document_id: str, *, message: str = "") -> DocumentState:
        """Mark a document as translated and remove its source; raises as `update`."""
        self.source_path(document_id).unlink(missing_ok=True)
        try:
            num_bytes = self.result_path(document_id).stat().st_size
            return self.update(document_id, status=DocumentStatus.DONE, message=message, reserved_bytes=num_bytes)
        except (FileNotFoundError, DocumentNotFoundError):
            self._remove_content(document_id)
            raise DocumentNotFoundError from None

    def fail(self, document_id: str, message: str) -> None:
        """Mark a document as failed and remove its content; `sweep` continues if the disk does not allow it now."""
        self._failed[document_id] = message
        self._store_failure(document_id, message)

    @storage_errors()
    def open_result(self, document_id: str) -> BinaryIO:
        """Return the open result of a translated document; DocumentNotFoundError if it was removed."""
        try:
            return self.result_path(document_id).open("rb")
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise DocumentNotFoundError from None

    def downloaded(self, document_id: str) -> None:
        """Let a document expire soon, because a download is complete; only the first one counts.

        Without effect if the state cannot be stored: the document expires as if it had not been downloaded.
        """
        with contextlib.suppress(DocumentNotFoundError, RetryableError, OSError), self._locked():
            state = self._read(document_id)
            if not state.is_downloaded:
                expires_s = min(state.expires_s, self._clock() + REPEAT_S)
                self._write(replace(state, expires_s=expires_s, is_downloaded=True))

    def remove(self, document_id: str) -> None:
        """Remove a document if it still exists; if the disk does not allow it, `sweep` does when it has expired."""
        with contextlib.suppress(DocumentNotFoundError, OSError):
            self._remove(document_id)

    def sweep(self) -> int:
        """Remove expired documents and the content of failed and interrupted ones; return the number expired.

        Includes the documents of all processes. An entry that cannot be read or removed is logged once.
        """
        num_expired = 0
        now_s = self._clock()
        for document_id, message in list(self._failed.items()):
            self._store_failure(document_id, message)
        paths = list(self._directory.iterdir())
        self._unusable.intersection_update(path.name for path in paths)
        for path in paths:
            try:
                num_expired += self._sweep_entry(path, now_s)
            except (OSError, ValueError) as error:
                if path.name not in self._unusable:
                    log.warning("document entry unusable", extra={"entry": path.name, "reason": str(error)})
                self._unusable.add(path.name)
            else:
                self._unusable.discard(path.name)
        return num_expired

    def source_path(self, document_id: str) -> Path:
        """Return the path of the uploaded file."""
        return self._path(document_id) / _SOURCE

    def result_path(self, document_id: str) -> Path:
        """Return the path of the translated file."""
        return self._path(document_id) / _RESULT

    def _sweep_entry(self, path: Path, now_s: float) -> bool:
        # Returns whether it is a document that has expired.
        if path.name.startswith(_REMOVED):
            shutil.rmtree(path, ignore_errors=True)  # as much as possible
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)
        elif path.name.startswith(_PROCESS):
            if not self._is_alive(path.name.removeprefix(_PROCESS)):
                path.unlink(missing_ok=True)
        elif _ID.fullmatch(path.name):
            with contextlib.suppress(DocumentNotFoundError, FileNotFoundError):  # another process removes it
                return self._sweep_document(path, now_s)
        return False

    def _sweep_document(self, path: Path, now_s: float) -> bool:
        # Removes a document if it has expired, or its content if it was interrupted; returns whether it expired.
        try:
            state = self._load(path.name)
        except NotADirectoryError:
            raise
        except (OSError, ValueError) as error:
            if now_s - path.stat().st_mtime > self._settings.expiry_s + LEASE_S:
                self._remove(path.name)
                return False
            if isinstance(error, FileNotFoundError):  # not complete yet
                return False
            raise
        if now_s >= state.expires_s:
            self._remove(path.name)
            return True
        if self._is_abandoned(state):
            with self._locked():
                state = self._read(path.name)
                if not self._is_abandoned(state):
                    return False
                if state.status is DocumentStatus.UPLOADING:
                    self._remove(path.name)
                    return False
                state = replace(self._interrupted(state), reserved_bytes=0)
                self._remove_content(path.name)  # first, because the state may need its space
                self._write(state)
        elif state.status is DocumentStatus.ERROR:
            self._remove_content(path.name)
        return False

    def _store_failure(self, document_id: str, message: str) -> None:
        with contextlib.suppress(OSError):  # continued by `sweep`
            self._remove_content(document_id)  # first, because the state may need its space
        try:
            self.update(document_id, status=DocumentStatus.ERROR, message=message, reserved_bytes=0)
        except RetryableError:
            return
        except DocumentNotFoundError:
            pass
        self._failed.pop(document_id, None)

    def _is_abandoned(self, state: DocumentState) -> bool:
        return not (state.status.is_final or self._is_alive(state.process))

    @staticmethod
    def _interrupted(state: DocumentState) -> DocumentState:
        return replace(state, status=DocumentStatus.ERROR, message=INTERRUPTED)

    def _is_alive(self, process: str) -> bool:
        if process == self._process:
            return True
        try:
            renewed_ns = (self._directory / f"{_PROCESS}{process}").stat().st_mtime_ns
        except FileNotFoundError:
            self._heartbeats.pop(process, None)
            return False
        now_s = self._monotonic()
        known_ns, since_s = self._heartbeats.get(process, (None, now_s))
        if renewed_ns != known_ns:
            self._heartbeats[process] = renewed_ns, now_s
            return True
        return now_s - since_s <= LEASE_S

    def _check_limits(self, wanted: DocumentState, *, is_new: bool) -> None:
        limits = self._settings
        others = [state for state in self._states() if state.document_id != wanted.document_id]
        own = [state for state in others if state.owner == wanted.owner]
        for states, max_documents, max_bytes in (
            (own, limits.max_caller_documents, limits.max_caller_bytes),
            (others, limits.max_documents, limits.max_directory_bytes),
        ):
            num_documents = sum(not state.is_downloaded for state in states)
            num_bytes = wanted.reserved_bytes + sum(state.reserved_bytes for state in states)
            for unit, is_exceeded, limit in (
                ("stored documents", is_new and num_documents >= max_documents, max_documents),
                ("bytes of stored documents", num_bytes > max_bytes, max_bytes),
            ):
                if is_exceeded and states is own:
                    raise RateLimitedError(caller=wanted.owner, limit=limit, unit=unit, retry_after_s=_RETRY_S)
                if is_exceeded:
                    raise StorageFullError(limit=limit, unit=unit)

    def _states(self) -> Iterator[DocumentState]:
        for path in self._directory.iterdir():
            if _ID.fullmatch(path.name):
                with contextlib.suppress(OSError, ValueError):  # `sweep` logs them
                    yield self._load(path.name)

    def _path(self, document_id: str) -> Path:
        if not _ID.fullmatch(document_id):
            raise DocumentNotFoundError
        return self._directory / document_id

    def _read(self, document_id: str) -> DocumentState:
        try:
            return self._load(document_id)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
            raise DocumentNotFoundError from None

    def _load(self, document_id: str) -> DocumentState:
        # Raises ValueError if the state is damaged.
        state = _STORED.validate_json((self._path(document_id) / _STATE).read_bytes(), strict=True)
        if state.document_id != document_id:
            raise ValueError(f"document_id is {state.document_id}")
        return state

    def _read_own(self, document_id: str) -> DocumentState:
        # The document must be one that this process works on.
        state = self._read(document_id)
        if state.status.is_final or state.process != self._process:
            raise DocumentNotFoundError
        return state

    def _write(self, state: DocumentState) -> None:
        directory = self._path(state.document_id)
        temporary = directory / f".state-{self._process}"
        try:
            with open(temporary, "wb", opener=_private) as file:
                file.write(state.to_json())
            temporary.replace(directory / _STATE)
        except FileNotFoundError:
            raise DocumentNotFoundError from None
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise

    def _remove(self, document_id: str) -> None:
        shutil.rmtree(self._hide(document_id), ignore_errors=True)  # `sweep` removes the rest

    def _hide(self, document_id: str) -> Path:
        # Makes a document unreachable for all processes atomically; returns the path of its files.
        hidden = self._directory / f"{_REMOVED}{secrets.token_hex(16)}"
        try:
            self._path(document_id).rename(hidden)
        except FileNotFoundError:
            raise DocumentNotFoundError from None
        return hidden

    def _remove_content(self, document_id: str) -> None:
        # Removes both files even if the first one cannot be removed.
        with contextlib.ExitStack() as stack:
            for path in (self.result_path(document_id), self.source_path(document_id)):
                stack.callback(path.unlink, missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._directory / _LOCK, "ab", opener=_private) as lock:
            for _ in range(_LOCK_TRIES):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(_LOCK_WAIT_S)
            else:
                raise RetryableError("document directory is locked by other processes", retry_after_s=_RETRY_S)
            yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()
