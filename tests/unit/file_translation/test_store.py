import json
import os
from pathlib import Path
from typing import Any

import pytest

from dragoman_service.errors import ConfigError, RateLimitedError
from dragoman_service.file_translation.settings import DocumentSettings
from dragoman_service.file_translation.store import (
    INTERRUPTED,
    LEASE_S,
    REPEAT_S,
    DocumentNotFoundError,
    DocumentState,
    DocumentStatus,
    DocumentStore,
    StorageFullError,
)
from tests.fakes import ManualClock

NOW_S = 1_000_000.0
MIB = 1024 * 1024


class Stores:
    """Stores of several processes in one directory, with one clock."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = ManualClock(NOW_S)
        self.monotonic = ManualClock(100.0)

    def open(self, **settings: Any) -> DocumentStore:
        found = DocumentSettings(directory=self.directory, **settings)
        return DocumentStore(found, clock=self.clock, monotonic=self.monotonic)

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.monotonic.advance(seconds)

    @property
    def documents(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if not path.name.startswith(".")]

    def files(self, document_id: str) -> list[str]:
        return sorted(path.name for path in (self.directory / document_id).iterdir())


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    return Stores(tmp_path)


def queued(store: DocumentStore, owner: str = "shop", content: bytes = b"text") -> tuple[str, str]:
    """Store a document; return its id and key."""
    state = store.begin(owner, len(content))
    store.source_path(state.document_id).write_bytes(content)
    _, key = store.complete(state.document_id, file_name="a.txt", num_bytes=len(content))
    return state.document_id, key


def done(store: DocumentStore, **kwargs: Any) -> tuple[str, str]:
    document_id, key = queued(store, **kwargs)
    store.result_path(document_id).write_bytes(b"result")
    store.finish(document_id)
    return document_id, key


def test_result_can_be_downloaded_again_for_a_while_from_each_process(stores: Stores) -> None:
    first, second = stores.open(), stores.open()
    document_id, key = done(first)

    with first.open_result(document_id) as one, second.open_result(document_id) as other:
        assert (one.read(), other.read()) == (b"result", b"result")
    first.downloaded(document_id)
    stores.advance(REPEAT_S - 1)
    second.downloaded(document_id)  # does not extend the time
    restarted = stores.open()
    assert restarted.get(document_id, key).status is DocumentStatus.DONE

    stores.advance(1)
    with pytest.raises(DocumentNotFoundError):
        restarted.get(document_id, key)
    assert restarted.sweep() == 1
    assert stores.documents == []
    restarted.downloaded(document_id)
    with pytest.raises(DocumentNotFoundError):
        restarted.open_result(document_id)


def test_download_never_extends_the_life_of_a_document(stores: Stores) -> None:
    store = stores.open(expiry_s=10)
    document_id, key = done(store)
    store.downloaded(document_id)

    stores.advance(10)

    with pytest.raises(DocumentNotFoundError):
        store.get(document_id, key)


def test_downloaded_documents_do_not_count_for_the_limit_of_documents(stores: Stores) -> None:
    store = stores.open(max_caller_documents=1)
    document_id, _ = done(store)
    with pytest.raises(RateLimitedError):
        store.begin("shop", 1)

    store.downloaded(document_id)

    store.begin("shop", 1)


def test_content_is_removed_when_it_is_not_needed(stores: Stores) -> None:
    store = stores.open()
    done_id, _ = done(store)
    failed_id, key = queued(store)

    store.fail(failed_id, "it is empty")

    assert stores.files(done_id) == ["result", "state.json"]
    assert stores.files(failed_id) == ["state.json"]
    assert store.get(failed_id, key).message == "it is empty"


def test_wrong_key_owner_or_id_is_not_found(stores: Stores) -> None:
    store = stores.open()
    document_id, key = queued(store)
    wrong: list[dict[str, str]] = [
        {"key": "0" * 64},
        {"owner": "other"},
        {"document_id": "0" * 32},
        {"document_id": f"../{stores.directory.name}/{document_id}"},
        {"document_id": str(stores.directory / document_id)},
        {"document_id": store.begin("shop", 1).document_id},
    ]

    for changed in wrong:
        with pytest.raises(DocumentNotFoundError):
            store.get(**{"document_id": document_id, "key": key, "owner": "shop", **changed})
    assert store.get(document_id, key, owner="shop").status is DocumentStatus.QUEUED


def test_key_is_not_stored(stores: Stores) -> None:
    store = stores.open()
    document_id, key = queued(store)

    stored = b"".join(path.read_bytes() for path in stores.directory.rglob("*") if path.is_file())

    assert key.encode() not in stored
    assert (stores.directory / document_id / "state.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("step_s", [60.0, 600.0, -3600.0])
def test_step_of_the_wall_clock_interrupts_no_document_of_a_running_process(stores: Stores, step_s: float) -> None:
    own, other = stores.open(), stores.open()
    documents = [queued(own), queued(other)]

    stores.clock.advance(step_s)
    own.sweep()

    assert {own.get(*document).status for document in documents} == {DocumentStatus.QUEUED}


@pytest.mark.parametrize("step_s", [60.0, -3600.0])
def test_dead_process_is_recognised_after_a_step_of_the_wall_clock(stores: Stores, step_s: float) -> None:
    dead = stores.open()
    document_id, key = queued(dead)
    restarted = stores.open()
    stores.clock.advance(step_s)

    stores.advance(LEASE_S + 1)

    assert restarted.get(document_id, key).message == INTERRUPTED


def test_document_of_a_dead_process_is_interrupted(stores: Stores) -> None:
    dead, alive = stores.open(), stores.open()
    document_id, key = queued(dead)
    stores.advance(LEASE_S)
    alive.heartbeat()
    assert alive.get(document_id, key).status is DocumentStatus.QUEUED

    stores.advance(1)
    state = alive.get(document_id, key)
    alive.sweep()

    assert (state.status, state.message) == (DocumentStatus.ERROR, INTERRUPTED)
    assert not alive.source_path(document_id).exists()
    assert alive.get(document_id, key).reserved_bytes == 0
    with pytest.raises(DocumentNotFoundError):  # the process was not dead after all
        dead.update(document_id, num_done_characters=1)


def test_of_a_dead_process_only_done_documents_are_kept(stores: Stores) -> None:
    dead, alive = stores.open(), stores.open()
    dead.begin("shop", 1)
    document_id, key = done(dead)
    dead.close()
    alive.sweep()

    assert stores.documents == [document_id]
    assert alive.get(document_id, key).status is DocumentStatus.DONE


@pytest.mark.parametrize("make", [queued, done])
def test_expired_documents_are_removed(stores: Stores, make: Any) -> None:
    store = stores.open(expiry_s=100)
    document_id, key = make(store)
    stores.advance(99)
    store.heartbeat()
    assert store.sweep() == 0
    assert store.get(document_id, key)

    stores.advance(1)

    with pytest.raises(DocumentNotFoundError):
        store.get(document_id, key)
    assert store.sweep() == 1
    assert stores.documents == []


def test_damaged_state_is_removed_when_a_document_would_have_expired(stores: Stores) -> None:
    store = stores.open(expiry_s=100)
    document_id, key = queued(store)
    (stores.directory / document_id / "state.json").write_bytes(b"{")
    os.utime(stores.directory / document_id, (NOW_S, NOW_S))
    with pytest.raises(DocumentNotFoundError):
        store.get(document_id, key)
    stores.advance(101 + LEASE_S)
    store.sweep()

    assert stores.documents == []


def test_field_of_a_newer_version_is_ignored(stores: Stores) -> None:
    store = stores.open()
    document_id, key = queued(store)
    path = stores.directory / document_id / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "added_later": 1}))

    assert store.get(document_id, key).status is DocumentStatus.QUEUED


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expires_s", "soon"),
        ("expires_s", None),
        ("created_s", float("nan")),
        ("expires_s", float("inf")),
        ("reserved_bytes", -1),
        ("reserved_bytes", "1"),
        ("reserved_bytes", 1.5),
        ("num_characters", []),
        ("started_s", {}),
        ("owner", 1),
        ("message", None),
        ("is_downloaded", "no"),
        ("status", "lost"),
        ("document_id", "0" * 32),
    ],
)
def test_state_with_a_wrong_value_is_damaged(stores: Stores, field: str, value: object) -> None:
    store = stores.open(expiry_s=100)
    document_id, key = queued(store)
    path = stores.directory / document_id / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_bytes()), field: value}))
    os.utime(path.parent, (NOW_S, NOW_S))

    with pytest.raises(DocumentNotFoundError):
        store.get(document_id, key)
    queued(store)  # compares the times and sizes of all documents
    store.heartbeat()
    stores.advance(101 + LEASE_S)
    store.sweep()
    assert stores.documents == []


@pytest.mark.parametrize(
    "settings",
    [
        {"max_caller_documents": 1},
        {"max_caller_documents": 1, "max_documents": 1},
        {"max_file_bytes": MIB, "max_caller_bytes": 4 * MIB},
        {"max_file_bytes": MIB, "max_caller_bytes": 4 * MIB, "max_directory_bytes": 4 * MIB},
    ],
)
def test_limits_of_an_owner_hold_over_all_processes(stores: Stores, settings: Any) -> None:
    first, second = stores.open(**settings), stores.open(**settings)
    document_id = first.begin("shop", 3 * MIB).document_id
    with pytest.raises(RateLimitedError):
        second.begin("shop", 3 * MIB)
    first.remove(document_id)

    second.begin("shop", 3 * MIB)


@pytest.mark.parametrize(
    "settings", [{"max_documents": 1, "max_caller_documents": 1}, {"max_directory_bytes": 256 * MIB}]
)
def test_limits_of_the_directory_hold(stores: Stores, settings: Any) -> None:
    store = stores.open(**settings)
    store.begin("shop", 200 * MIB)

    with pytest.raises(StorageFullError):
        store.begin("other", 200 * MIB)


def test_space_is_reserved_before_the_result_is_written(stores: Stores) -> None:
    store = stores.open()
    document_id, _ = queued(store)
    store.reserve(document_id, 200 * MIB)

    with pytest.raises(RateLimitedError):
        store.begin("shop", 57 * MIB)
    with pytest.raises(RateLimitedError):
        store.reserve(document_id, 257 * MIB)
    store.result_path(document_id).write_bytes(b"result")
    assert store.finish(document_id).reserved_bytes == len(b"result")
    store.begin("shop", 57 * MIB)


@pytest.mark.parametrize("directory", ["absent", "file"])
def test_unusable_directory_is_rejected(tmp_path: Path, directory: str) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(ConfigError, match=r"documents\.directory"):
        DocumentStore(DocumentSettings(directory=tmp_path / directory))


@pytest.mark.parametrize(("num_done", "seconds"), [(50, 11), (100, 1), (0, None)])
def test_remaining_time_follows_from_the_progress(num_done: int, seconds: int | None) -> None:
    translating = DocumentState(
        document_id="0" * 32,
        owner="shop",
        process="p",
        created_s=0.0,
        expires_s=100.0,
        reserved_bytes=0,
        status=DocumentStatus.TRANSLATING,
        num_characters=100,
        started_s=NOW_S,
        num_done_characters=num_done,
    )

    assert translating.seconds_remaining(NOW_S + 10) == seconds


@pytest.mark.parametrize(
    "settings",
    [
        {"max_documents": 1, "max_caller_documents": 2},
        {"max_file_bytes": MIB, "max_caller_bytes": 4 * MIB - 1},
        {"max_caller_bytes": 256 * MIB, "max_directory_bytes": 255 * MIB},
    ],
)
def test_contradicting_limits_are_rejected(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"at most|at least"):
        DocumentSettings.model_validate(settings)
