"""Looks at the directory of models from time to time."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from service.errors import BundleError, ConfigError, DragomanError
from service.models.disk import Fingerprint, NameOnDisk, check_complete, fingerprint, name_on_disk, names_on_disk
from service.models.lifecycle import Lifecycle, Shelf, entry_of
from service.models.model import ModelState
from service.models.names import full_name, version_key
from service.models.registry import Entry
from service.models.serving import VersionPolicy, read_serving

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """What is known of a version that could not be loaded."""

    content: tuple[Fingerprint, Fingerprint]
    """The bundle, and the settings of its name."""

    since_s: float
    """When it was first seen like this."""

    is_final: bool = False
    """Whether there is no point in trying again while it stays like this."""


class Follower:
    """Compares what is loaded with what lies on the disk and is wanted.

    A bundle counts as there once its checksums fit. One that does not fit may be on its way: it is tried again whenever
    it has changed, and is broken if it has stayed the same for a while.
    """

    def __init__(
        self,
        directory: Path,
        shelf: Shelf,
        lifecycle: Lifecycle,
        *,
        settle_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._shelf = shelf
        self._lifecycle = lifecycle
        self._settle_s = settle_s
        self._clock = clock
        self._lock = threading.Lock()  # one look at a time
        self._attempts: dict[str, _Attempt] = {}
        self._dismissed: dict[str, Fingerprint] = {}
        self._servings: dict[str, Fingerprint] = {}
        self._is_lost = False

    def note_serving(self, name: str, on_disk: NameOnDisk) -> None:
        """Take the settings of a name as read."""
        self._servings[name] = on_disk.serving

    def dismiss(self, directory: Path) -> None:
        """Do not load a version by itself while its directory stays as it is."""
        entry = entry_of(directory)
        self._dismissed[entry.full_name] = fingerprint(directory)
        self._shelf.change_policy(entry.name, lambda policy: policy.without_demand([entry.version]))

    def recall(self, directory: Path) -> None:
        """Treat a version as if it had never been dismissed, or tried."""
        model = entry_of(directory).full_name
        self._dismissed.pop(model, None)
        self._attempts.pop(model, None)

    def refresh(self) -> None:
        """Look once; returns when what has come is loaded. What has gone finishes in threads of its own.

        A directory that is missing, unreadable or empty as a whole is taken for a lost mount: nothing is unloaded.
        """
        with self._lock:
            try:
                found = names_on_disk(self._directory)
            except ConfigError as error:
                if not self._is_lost:
                    log.warning("the directory of models is lost; what is loaded stays", extra={"fault": str(error)})
                self._is_lost = True
                return
            self._is_lost = False
            known = {entry.name for entry in self._shelf.catalogue.entries.values()}
            for name in sorted(known | found.keys()):
                self._follow(name, found.get(name) or name_on_disk(self._directory / name))

    def retire_unwanted(self, name: str, versions: Sequence[str] | None = None) -> None:
        """Unload what the policy of a name does not want any more, or what is not among the versions given."""
        catalogue = self._shelf.catalogue
        ready = catalogue.ready_versions(name)
        there = ready if versions is None else [version for version in ready if version in versions]
        wanted = catalogue.policy(name).wanted(there)
        self._lifecycle.retire(full_name(name, version) for version in ready if version not in wanted)

    def _follow(self, name: str, on_disk: NameOnDisk) -> None:
        self._read_serving(name, on_disk)
        self._forget_gone(name, on_disk)
        for version in self._missing(name, on_disk):
            if self._shelf.is_ending:
                return
            self._try(name, version, on_disk)
        self.retire_unwanted(name, tuple(on_disk.versions))

    def _read_serving(self, name: str, on_disk: NameOnDisk) -> None:
        """Take over changed settings; broken ones leave what was valid before."""
        if self._servings.get(name, ()) == on_disk.serving:
            return
        self._servings[name] = on_disk.serving
        try:
            serving = read_serving(on_disk.directory)
        except ConfigError as error:
            log.warning("settings of a model are not taken over", extra={"model": name, "fault": str(error)})
        else:
            self._shelf.change_policy(name, lambda policy: replace(policy, serving=serving))

    def _forget_gone(self, name: str, on_disk: NameOnDisk) -> None:
        """Forget what was known of versions that are no longer there."""
        gone = [entry for entry in self._shelf.catalogue.versions(name) if entry.version not in on_disk.versions]
        for entry in gone:
            if entry.state is ModelState.FAILED:
                self._shelf.remove(entry)
        self._shelf.change_policy(name, lambda policy: _without_gone(policy, gone))
        there = {full_name(name, version) for version in on_disk.versions}
        for known in (self._attempts, self._dismissed):
            for model in [model for model in known if model.startswith(f"{name}/") and model not in there]:
                del known[model]

    def _missing(self, name: str, on_disk: NameOnDisk) -> list[str]:
        """Return the versions to load, the oldest first."""
        catalogue = self._shelf.catalogue
        candidates = [version for version in on_disk.versions if not self._is_ruled_out(name, version, on_disk)]
        there = {entry.version for entry in catalogue.versions(name) if entry.state is not ModelState.FAILED}
        return sorted(catalogue.policy(name).wanted(candidates) - there, key=version_key)

    def _is_ruled_out(self, name: str, version: str, on_disk: NameOnDisk) -> bool:
        model, bundle = full_name(name, version), on_disk.versions[version]
        if self._dismissed.get(model, bundle) != bundle:
            del self._dismissed[model]
        attempt = self._attempts.get(model)
        has_failed = attempt is not None and attempt.is_final and attempt.content == (bundle, on_disk.serving)
        return model in self._dismissed or has_failed

    def _try(self, name: str, version: str, on_disk: NameOnDisk) -> None:
        """Load a version if it is all there."""
        model, content = full_name(name, version), (on_disk.versions[version], on_disk.serving)
        attempt = self._attempts.get(model)
        is_new = attempt is None or attempt.content != content
        if attempt is None or attempt.content != content:
            attempt = self._attempts[model] = _Attempt(content=content, since_s=self._clock())
        is_still = self._clock() - attempt.since_s >= self._settle_s
        if not (is_new or is_still):
            return  # nothing new can come of it
        directory = on_disk.directory / version
        try:
            check_complete(directory)
        except BundleError as error:
            if not is_still:
                return
            self._lifecycle.fail(entry_of(directory), error)
        else:
            if self._loads(directory):
                return
        self._attempts[model] = replace(attempt, is_final=True)

    def _loads(self, directory: Path) -> bool:
        """Load a version; False if it failed, which has been told."""
        try:
            self._lifecycle.load(directory)
        except DragomanError:
            return False
        return True


def _without_gone(policy: VersionPolicy, gone: Sequence[Entry]) -> VersionPolicy:
    return policy.without_demand([entry.version for entry in gone])


class Watcher:
    """Calls `refresh` again and again, in a thread of its own, until it is ended."""

    def __init__(self, refresh: Callable[[], None], *, interval_s: float) -> None:
        """Prepare it; nothing runs before `start`.

        Args:
            refresh: what to do; if it fails, that is logged and it is called again next time.
            interval_s: from the end of a call to the next; 0: it is never called.
        """
        self._refresh = refresh
        self._interval_s = interval_s
        self._is_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch-models", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        if self._interval_s and not self._is_ended.is_set():
            self._thread.start()

    def end(self) -> None:
        """Look no more; a call that runs goes on. May be called at any time, more than once."""
        self._is_ended.set()

    def join(self, timeout_s: float) -> None:
        """Wait for a call that runs, after `end`."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._is_ended.wait(self._interval_s):
            try:
                self._refresh()
            except Exception:  # a directory that cannot be read now may be there again next time
                log.exception("looking for models failed")
