"""Keeps what is loaded in step with the directory of models: the reconciler, and the thread that calls it."""

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

log = logging.getLogger(__name__)

LOADING = "load-"
"""Begins the name of each thread that loads models by itself, not for a caller."""

_MAX_LOADS = 4  # at a time: cores and memory are those of the versions that serve


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """A version that could not be loaded."""

    content: tuple[Fingerprint, Fingerprint]
    """The bundle, and the settings of its name."""

    since_s: float
    """When this content was first seen."""

    is_final: bool = False
    """True if it is not tried again with the same content."""


class Reconciler:
    """Loads and unloads versions until they are those that are on the disk and wanted by the policy of their name.

    A bundle is complete once its checksums fit. One that does not fit may still be being copied: it is tried again
    after each change, and is broken if it has not changed for `settle_s`, or at once if its manifest is that of another
    version.
    """

    def __init__(
        self, directory: Path, lifecycle: Lifecycle, *, settle_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory = directory
        self._lifecycle = lifecycle
        self._settle_s = settle_s
        self._clock = clock
        self._lock = threading.Lock()  # of one look at the directory at a time
        self._loads: dict[str, threading.Thread] = {}  # by name: one version of a name at a time
        self._may_load = threading.Semaphore(_MAX_LOADS)
        self._attempts: dict[str, _Attempt] = {}
        self._unloaded: dict[str, Fingerprint] = {}
        self._servings: dict[str, Fingerprint] = {}
        self._is_lost = False

    def note_serving(self, name: str, on_disk: NameOnDisk) -> None:
        """Remember that the settings of a name have been read."""
        self._servings[name] = on_disk.serving

    def note_unload(self, directory: Path) -> None:
        """Do not load a version again while its directory stays as it is: a caller unloads it."""
        entry = entry_of(directory)
        self._unloaded[entry.full_name] = fingerprint(directory)
        self._lifecycle.change_policy(entry.name, lambda policy: policy.without_requested([entry.version]))

    def note_load(self, directory: Path) -> None:
        """Forget that a version was unloaded, or could not be loaded: a caller loads it."""
        model = entry_of(directory).full_name
        self._unloaded.pop(model, None)
        self._attempts.pop(model, None)

    def refresh(self, *, waits: bool = True) -> None:
        """Reconcile once; if it `waits`, until new versions are loaded. Unloading goes on in threads of its own.

        A name is left alone while versions of it are being loaded; no other name waits for it.

        A directory that is missing, unreadable or empty as a whole is taken for a lost mount: nothing is unloaded.
        """
        with self._lock:
            try:
                found = names_on_disk(self._directory)
            except ConfigError as error:
                if not self._is_lost:
                    log.warning("the directory of models is lost; loaded models stay", extra={"fault": str(error)})
                self._is_lost = True
                return
            self._is_lost = False
            known = {entry.name for entry in self._lifecycle.registry.entries.values()}
            self._loads = {name: thread for name, thread in self._loads.items() if thread.is_alive()}
            for name in sorted((known | found.keys()) - self._loads.keys()):
                try:
                    self._reconcile(name, found.get(name) or name_on_disk(self._directory / name))
                except Exception:  # whatever is wrong with one, the others come next
                    log.exception("reconciling a model failed", extra={"model": name})
            loads = list(self._loads.values())
        for thread in loads if waits else ():
            thread.join()

    def retire_unwanted(self, name: str, versions: Sequence[str] | None = None) -> None:
        """Unload the ready versions of a name that its policy does not want, or that are not among `versions`."""
        registry = self._lifecycle.registry
        ready = registry.ready_versions(name)
        kept = ready if versions is None else [version for version in ready if version in versions]
        wanted = registry.policy(name).wanted(kept)
        self._lifecycle.retire(full_name(name, version) for version in ready if version not in wanted)

    def _reconcile(self, name: str, on_disk: NameOnDisk) -> None:
        self._read_serving(name, on_disk)
        self._forget_removed(name, on_disk)
        if missing := self._missing(name, on_disk):
            arguments = (name, missing, on_disk)
            self._loads[name] = threading.Thread(target=self._load, args=arguments, name=LOADING + name, daemon=True)
            self._loads[name].start()
        else:
            self.retire_unwanted(name, tuple(on_disk.versions))

    def _load(self, name: str, versions: Sequence[str], on_disk: NameOnDisk) -> None:
        with self._may_load:
            for version in versions:
                if self._lifecycle.is_stopped:
                    return
                self._try(name, version, on_disk)
            self.retire_unwanted(name, tuple(on_disk.versions))

    def _read_serving(self, name: str, on_disk: NameOnDisk) -> None:
        """Apply changed settings; invalid ones are ignored and the previous ones stay active."""
        if self._servings.get(name, ()) == on_disk.serving:
            return
        self._servings[name] = on_disk.serving
        try:
            serving = read_serving(on_disk.directory)
        except ConfigError as error:
            facts = {"model": name, "fault": str(error)}
            log.warning("invalid settings of a model are ignored; the previous ones stay active", extra=facts)
        else:
            self._lifecycle.change_policy(name, lambda policy: replace(policy, serving=serving))

    def _forget_removed(self, name: str, on_disk: NameOnDisk) -> None:
        """Forget what is known of versions whose directory was removed."""
        entries = self._lifecycle.registry.versions(name)
        removed = [entry for entry in entries if entry.version not in on_disk.versions]
        for entry in removed:
            if entry.state is ModelState.FAILED:
                self._lifecycle.forget(entry)
        versions = [entry.version for entry in removed]
        self._lifecycle.change_policy(name, lambda policy: policy.without_requested(versions))
        current = {full_name(name, version) for version in on_disk.versions}
        for known in (self._attempts, self._unloaded):
            for model in [model for model in list(known) if model.startswith(f"{name}/") and model not in current]:
                del known[model]

    def _missing(self, name: str, on_disk: NameOnDisk) -> list[str]:
        """Return the versions to load, the oldest first."""
        registry = self._lifecycle.registry
        candidates = [version for version in on_disk.versions if not self._has_failed(name, version, on_disk)]
        current = {entry.version for entry in registry.versions(name) if entry.state is not ModelState.FAILED}
        wanted = registry.policy(name).wanted(candidates) - current
        # One that was unloaded by command still counts among the newest: none that is older takes its place.
        return sorted((v for v in wanted if not self._is_unloaded(name, v, on_disk)), key=version_key)

    def _is_unloaded(self, name: str, version: str, on_disk: NameOnDisk) -> bool:
        """Whether a caller unloaded a version whose directory has not changed since."""
        model, bundle = full_name(name, version), on_disk.versions[version]
        if self._unloaded.get(model, bundle) != bundle:
            del self._unloaded[model]
        return model in self._unloaded

    def _has_failed(self, name: str, version: str, on_disk: NameOnDisk) -> bool:
        attempt = self._attempts.get(full_name(name, version))
        content = on_disk.versions[version], on_disk.serving
        return attempt is not None and attempt.is_final and attempt.content == content

    def _try(self, name: str, version: str, on_disk: NameOnDisk) -> None:
        """Load a version if its bundle is complete."""
        model, content = full_name(name, version), (on_disk.versions[version], on_disk.serving)
        known = self._attempts.get(model)
        attempt = known if known and known.content == content else _Attempt(content=content, since_s=self._clock())
        self._attempts[model] = attempt
        is_settled = self._clock() - attempt.since_s >= self._settle_s
        if attempt is known and not is_settled:
            return  # tried already
        directory = on_disk.directory / version
        try:
            self._lifecycle.load(directory, bundle=open_version(directory))
        except DrainingError:
            return
        except ModelStateError:
            pass  # `load` has entered and logged it
        except Exception as error:  # noqa: BLE001 - whatever a bundle does to its reader, it is that bundle's fault
            if isinstance(error, BundleError) and not (is_settled or is_misplaced(error)):
                return
            self._lifecycle.fail(entry_of(directory), error)
        else:
            return
        self._attempts[model] = replace(attempt, is_final=True)


class Watcher:
    """Calls `refresh` periodically, in a thread of its own, until `end`; errors are logged."""

    def __init__(self, refresh: Callable[[], None], *, interval_s: float) -> None:
        """Run nothing yet; `interval_s` is from the end of a call to the next, 0: it is never called."""
        self._refresh = refresh
        self._interval_s = interval_s
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-models", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._interval_s and not self._is_ended.is_set():
            self._thread.start()

    def end(self) -> None:
        """Make no more calls; one that runs goes on. May be called at any time, more than once."""
        self._is_ended.set()

    def _run(self) -> None:
        while not self._is_ended.wait(self._interval_s):
            try:
                self._refresh()
            except Exception:  # the next call may succeed, for instance once a directory can be read again
                log.exception("refreshing models failed")
