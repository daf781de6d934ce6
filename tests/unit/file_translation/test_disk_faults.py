"""Operations of the document store on a disk where one call of the operating system fails."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman_service.errors import RetryableError
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.file_translation.store import (
    LEASE_S,
    DocumentNotFoundError,
    DocumentStatus,
    DocumentStore,
    StorageUnavailableError,
)
from tests.captured_logs import capture_logs
from tests.fakes import ManualClock
from tests.faulty_disk import ERRORS, each_fault, num_open_files

NOW_S = 1_000_000.0
EXPIRY_S = 3600.0


class Documents:
    """A store with a document in each state."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.directory = directory
        self.clock = ManualClock(NOW_S)
        self.settings = DocumentSettings(directory=directory, expiry_s=EXPIRY_S)
        self.store = DocumentStore(self.settings, clock=self.clock)
        dead = DocumentStore(self.settings, clock=self.clock)
        self.interrupted, _ = self.queued(dead)
        dead.close()
        self.uploading = self.store.begin("shop", 4).document_id
        self.working, self.key = self.queued(self.store)
        self.store.result_path(self.working).write_bytes(b"result")
        self.done, self.done_key = self.queued(self.store)
        self.store.result_path(self.done).write_bytes(b"result")
        self.store.finish(self.done)

    def queued(self, store: DocumentStore) -> tuple[str, str]:
        document_id = store.begin("shop", 4).document_id
        store.append(document_id, b"text")
        return document_id, store.complete(document_id, file_name="a.txt", num_bytes=4)[1]

    def status(self) -> DocumentStatus:
        return self.store.get(self.working, self.key).status

    def paths(self) -> set[str]:
        """Return the paths in the directory, except the lock and the files of processes."""
        found = {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}
        return {path for path in found if not path.startswith((".lock", ".process-"))}


OPERATIONS: dict[str, Callable[[Documents], object]] = {
    "open": lambda each: DocumentStore(each.settings, clock=each.clock).close(),
    "heartbeat": lambda each: each.store.heartbeat(),
    "begin": lambda each: each.store.begin("shop", 4),
    "append": lambda each: each.store.append(each.uploading, b"text"),
    "complete": lambda each: each.store.complete(each.uploading, file_name="a.txt", num_bytes=4),
    "get": lambda each: each.store.get(each.done, each.done_key),
    "update": lambda each: each.store.update(each.working, num_done_characters=1),
    "reserve": lambda each: each.store.reserve(each.working, 8),
    "finish": lambda each: each.store.finish(each.working),
    "fail": lambda each: each.store.fail(each.working, "failed"),
    "open_result": lambda each: each.store.open_result(each.done).close(),
    "downloaded": lambda each: each.store.downloaded(each.done),
    "remove": lambda each: each.store.remove(each.done),
    "sweep": lambda each: each.store.sweep(),
    "close": lambda each: each.store.close(),
}
_STATUSES = {  # of the working document afterwards; otherwise queued
    "fail": {DocumentStatus.ERROR},
    "finish": {DocumentStatus.QUEUED, DocumentStatus.DONE},
}
_NEVER_FAIL = {"fail", "downloaded", "remove"}  # what the disk does not allow is done later
_OS_ERRORS = {"heartbeat", "close"}  # for the maintenance, which logs them
_OTHERS = {"open", "sweep"}  # ConfigError; an unreadable directory


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EACCES"])  # EDQUOT and ESTALE have no other path
@pytest.mark.parametrize("name", OPERATIONS)
def test_state_stays_true_and_nothing_leaks_if_a_call_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, error: str
) -> None:
    for number, disk in enumerate(each_fault(monkeypatch, ERRORS[error])):
        documents = Documents(tmp_path / str(number))
        before, num_open = documents.paths(), num_open_files()
        raised: Exception | None = None
        with disk.active():
            try:
                OPERATIONS[name](documents)
            except Exception as fault:  # noqa: BLE001 - checked below
                raised = fault

        assert num_open_files() == num_open
        if name in _OS_ERRORS:
            assert isinstance(raised, OSError | None)
        elif name not in _OTHERS:
            allowed = (StorageUnavailableError, DocumentNotFoundError)
            assert raised is None or (isinstance(raised, allowed) and name not in _NEVER_FAIL), repr(raised)
        if raised and name in ("begin", "update", "reserve", "complete"):
            assert documents.paths() <= before | {path for path in documents.paths() if path.startswith(".removed-")}
        if name != "close":
            assert documents.status() in _STATUSES.get(name, {DocumentStatus.QUEUED})
        documents.queued(documents.store)

        documents.store.sweep()  # the disk works again
        if name == "fail":
            assert not documents.store.result_path(documents.working).exists()
            assert not documents.store.source_path(documents.working).exists()
        documents.clock.advance(2 * EXPIRY_S + LEASE_S)
        for path in documents.directory.iterdir():
            os.utime(path, (NOW_S, NOW_S))
        documents.store.heartbeat()
        documents.store.sweep()
        assert documents.paths() == set()


def test_failure_is_reported_until_the_full_disk_can_store_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = Documents(tmp_path / "documents")

    with monkeypatch.context() as patched:
        patched.setattr(documents.store, "_write", _full_disk)
        documents.store.fail(documents.working, "no space")
        state = documents.store.get(documents.working, documents.key)
        documents.store.sweep()
        assert (state.status, state.message) == (DocumentStatus.ERROR, "no space")
        assert not documents.store.source_path(documents.working).exists()
    documents.store.sweep()

    other = DocumentStore(documents.settings, clock=documents.clock)
    assert other.get(documents.working, documents.key).message == "no space"


def _full_disk(*_args: object) -> None:
    raise OSError(ERRORS["ENOSPC"], "No space left on device")


@pytest.mark.parametrize("kind", ["file", "state is a directory", "result is a directory", "damaged", "link loop"])
def test_odd_entry_stops_nothing_and_is_logged_once(tmp_path: Path, kind: str) -> None:
    documents = Documents(tmp_path / "documents")
    documents.clock.advance(EXPIRY_S - 1)
    entry = documents.directory / ("0" * 32)
    if kind == "file":
        entry.touch()
    else:
        (entry / "state.json").mkdir(parents=True) if kind == "state is a directory" else entry.mkdir()
    if kind == "damaged":
        (entry / "state.json").write_bytes(b"{")
    elif kind == "link loop":
        (entry / "state.json").symlink_to(entry / "state.json")
    elif kind == "result is a directory":
        entry.rmdir()
        document_id, _ = documents.queued(documents.store)
        documents.store.result_path(document_id).mkdir()
        documents.store.fail(document_id, "failed")
        entry = documents.directory / document_id
    if entry.is_dir():
        os.utime(entry, (documents.clock(), documents.clock()))

    with capture_logs() as events:
        documents.store.heartbeat()
        documents.queued(documents.store)
        documents.clock.advance(1)
        num_expired = documents.store.sweep()
        documents.store.sweep()

    assert num_expired == 4
    assert [(event["event"], event["entry"]) for event in events] == [("document entry unusable", entry.name)]
    documents.clock.advance(2 * EXPIRY_S)
    documents.store.heartbeat()
    documents.store.sweep()
    assert documents.paths() == ({entry.name} if kind == "file" else set())


def test_entry_is_logged_again_after_it_recovered(tmp_path: Path) -> None:
    documents = Documents(tmp_path / "documents")
    state = documents.directory / documents.done / "state.json"
    stored = state.read_bytes()

    with capture_logs() as events:
        for content in (b"{", stored, b"{"):
            state.write_bytes(content)
            documents.store.sweep()

    assert len(events) == 2


@pytest.mark.parametrize(
    ("error", "is_full"), [("ENOSPC", True), ("EDQUOT", True), ("EIO", False), ("ESTALE", False), ("EACCES", False)]
)
def test_upload_on_a_faulty_disk_may_be_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str, is_full: bool
) -> None:
    documents = Documents(tmp_path / "documents")

    def fail(*_args: object, **_kwargs: object) -> None:
        raise OSError(ERRORS[error], os.strerror(ERRORS[error]))

    monkeypatch.setattr("pathlib.Path.mkdir", fail)
    with pytest.raises(RetryableError, match="full" if is_full else "unavailable") as raised:
        documents.store.begin("shop", 1)

    assert raised.value.retry_after_s > 0
