"""Reconciler of loaded models with the model directory, and the task that runs it periodically."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman_service.errors import BundleError, ConfigError, DrainingError, ModelStateError
from dragoman_service.models.lifecycle import Lifecycle, entry_of
from dragoman_service.models.model import ModelState, full_name, version_key
from dragoman_service.models.serving import (
    Fingerprint,
    NameOnDisk,
    fingerprint,
    is_misplaced,
    name_on_disk,
    names_on_disk,
    open_version,
    read_serving,
)
from dragoman_service.threads import call_in_daemon

log = logging.getLogger(__name__)

LOAD_THREAD_PREFIX = "load-"  # prefix of the names of threads that load models in the background

_MAX_LOADS = 4  # concurrent loads: they share cores and memory with the versions that take requests


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    # A failed or unfinished attempt to load a version.

    content: tuple[Fingerprint, Fingerprint]  # of the bundle and of `serving.toml`
    since_s: float  # time at which this content was first seen
    is_final: bool = False  # True: no further attempt with the same content


class Reconciler:
    """Loads and unloads versions until the loaded versions are those on disk that the policy selects.

    A bundle is complete if its checksums match. If they do not match, the bundle may still be being copied: loading is
    tried again after each change, and fails if the bundle has not changed for `settle_s`. Loading fails immediately if
    the manifest has the name or version of another directory.
    """

    def __init__(
        self, directory: Path, lifecycle: Lifecycle, *, settle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._lifecycle = lifecycle
        self._settle_s = settle_s
        self._clock = clock
        self._lock = threading.Lock()  # one scan of the directory at a time
        self._loads: dict[str, threading.Thread] = {}  # by name; the versions of a name are loaded one after the other
        self._may_load = threading.Semaphore(_MAX_LOADS)
        self._attempts: dict[str, _Attempt] = {}
        self._unloaded: dict[str, Fingerprint] = {}
        self._servings: dict[str, Fingerprint] = {}
        self._is_lost = False

    def record_serving(self, name: str, on_disk: NameOnDisk) -> None:
        """Record that the settings of a model have been read."""
        self._servings[name] = on_disk.serving

    def record_unload(self, directory: Path) -> None:
        """Record that a caller unloads a version: it is loaded again only if its directory changes."""
        entry = entry_of(directory)
        self._unloaded[entry.full_name] = fingerprint(directory)
        self._lifecycle.change_policy(entry.name, lambda policy: policy.without_requested([entry.version]))

    def record_load(self, directory: Path) -> None:
        """Record that a caller loads a version: earlier unloads and failed attempts no longer count."""
        model = entry_of(directory).full_name
        self._unloaded.pop(model, None)
        self._attempts.pop(model, None)

    def refresh(self, *, waits: bool = True) -> None:
        """Reconcile once. Models with versions that are still being loaded are skipped.

        A missing, unreadable or empty directory is treated as a lost mount: no version is unloaded.

        Args:
            waits: whether to wait until new versions are loaded. Unloading always continues in the background.
        """
        with self._lock:
            try:
                names = names_on_disk(self._directory)
            except ConfigError as error:
                if not self._is_lost:
                    log.warning("model directory unavailable; models stay loaded", extra={"fault": str(error)})
                self._is_lost = True
                return
            self._is_lost = False
            known = {entry.name for entry in self._lifecycle.registry.entries.values()}
            self._loads = {name: thread for name, thread in self._loads.items() if thread.is_alive()}
            for name in sorted((known | names.keys()) - self._loads.keys()):
                try:
                    self._reconcile(name, names.get(name) or name_on_disk(self._directory / name))
                except Exception:  # continue with the other models
                    log.exception("reconciling a model failed", extra={"model": name})
            loads = list(self._loads.values())
        for thread in loads if waits else ():
            thread.join()

    def retire_unselected(self, name: str, versions: Sequence[str] | None = None) -> None:
        """Unload the ready versions of a model that its policy does not select, or that are not in `versions`."""
        registry = self._lifecycle.registry
        ready = registry.ready_versions(name)
        candidates = ready if versions is None else [version for version in ready if version in versions]
        selected = registry.policy(name).selected(candidates)
        self._lifecycle.retire(full_name(name, version) for version in ready if version not in selected)

    def _reconcile(self, name: str, on_disk: NameOnDisk) -> None:
        self._read_serving(name, on_disk)
        self._forget_removed(name, on_disk)
        if missing := self._versions_to_load(name, on_disk):
            thread_name, arguments = LOAD_THREAD_PREFIX + name, (name, missing, on_disk)
            self._loads[name] = threading.Thread(target=self._load, args=arguments, name=thread_name, daemon=True)
            self._loads[name].start()
        else:
            self.retire_unselected(name, tuple(on_disk.versions))

    def _load(self, name: str, versions: Sequence[str], on_disk: NameOnDisk) -> None:
        with self._may_load:
            for version in versions:
                if self._lifecycle.is_stopped:
                    return
                self._try_load(name, version, on_disk)
            self.retire_unselected(name, tuple(on_disk.versions))

    def _read_serving(self, name: str, on_disk: NameOnDisk) -> None:
        if self._servings.get(name, ()) == on_disk.serving:
            return
        self._servings[name] = on_disk.serving
        try:
            serving = read_serving(on_disk.directory)
        except ConfigError as error:
            log.warning(
                "invalid model settings ignored; the previous ones stay active",
                extra={"model": name, "fault": str(error)},
            )
        else:
            self._lifecycle.change_policy(name, lambda policy: replace(policy, serving=serving))

    def _forget_removed(self, name: str, on_disk: NameOnDisk) -> None:
        entries = self._lifecycle.registry.versions(name)
        removed = [entry for entry in entries if entry.version not in on_disk.versions]
        for entry in removed:
            if entry.state is ModelState.FAILED:
                self._lifecycle.remove(entry)
        versions = [entry.version for entry in removed]
        self._lifecycle.change_policy(name, lambda policy: policy.without_requested(versions))
        current = {full_name(name, version) for version in on_disk.versions}
        for records in (self._attempts, self._unloaded):
            for model in [model for model in list(records) if model.startswith(f"{name}/") and model not in current]:
                del records[model]

    def _versions_to_load(self, name: str, on_disk: NameOnDisk) -> list[str]:
        # Sorted, the oldest first.
        registry = self._lifecycle.registry
        candidates = [version for version in on_disk.versions if not self._has_failed(name, version, on_disk)]
        current = {entry.version for entry in registry.versions(name) if entry.state is not ModelState.FAILED}
        selected = registry.policy(name).selected(candidates) - current
        # A version that a caller unloaded still counts as one of the newest N: no older version replaces it.
        return sorted((v for v in selected if not self._is_unloaded(name, v, on_disk)), key=version_key)

    def _is_unloaded(self, name: str, version: str, on_disk: NameOnDisk) -> bool:
        # True if a caller unloaded the version and its directory has not changed since. A change ends the record.
        model, bundle = full_name(name, version), on_disk.versions[version]
        if self._unloaded.get(model, bundle) != bundle:
            del self._unloaded[model]
        return model in self._unloaded

    def _has_failed(self, name: str, version: str, on_disk: NameOnDisk) -> bool:
        attempt = self._attempts.get(full_name(name, version))
        content = on_disk.versions[version], on_disk.serving
        return attempt is not None and attempt.is_final and attempt.content == content

    def _try_load(self, name: str, version: str, on_disk: NameOnDisk) -> None:
        model, content = full_name(name, version), (on_disk.versions[version], on_disk.serving)
        previous = self._attempts.get(model)
        attempt = (
            previous if previous and previous.content == content else _Attempt(content=content, since_s=self._clock())
        )
        self._attempts[model] = attempt
        is_settled = self._clock() - attempt.since_s >= self._settle_s
        if attempt is previous and not is_settled:
            return  # the same content has failed before
        directory = on_disk.directory / version
        try:
            self._lifecycle.load(directory, bundle=open_version(directory))
        except DrainingError:
            return
        except ModelStateError:
            pass  # `load` has recorded and logged the error
        except Exception as error:  # noqa: BLE001 - a bundle is untrusted input: any error concerns only this bundle
            if isinstance(error, BundleError) and not (is_settled or is_misplaced(error)):
                return
            self._lifecycle.fail(entry_of(directory), error)
        else:
            return
        self._attempts[model] = replace(attempt, is_final=True)


async def watch(refresh: Callable[[], None], *, interval_s: float) -> None:
    """Call `refresh` in a thread, again `interval_s` after its end (0: never), and log its errors.

    If the task is cancelled, a running call continues.
    """
    while interval_s:
        await asyncio.sleep(interval_s)
        try:
            await call_in_daemon(refresh, name="watch-models")
        except Exception:  # the next call may succeed, for example if the directory is readable again
            log.exception("refreshing models failed")
