"""The catalogue of now, and its changes: each is made at once, seen whole or not at all, and shown in the metrics."""

import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from service.errors import DrainingError
from service.models.catalogue import Catalogue, Entry
from service.models.gauges import ModelGauges
from service.models.model import LoadedModel, ModelParts, ModelScheduler, ModelState
from service.models.policy import VersionPolicy
from service.telemetry.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOut:
    """A version that takes no new requests; those who hold it may still submit to its scheduler."""

    entry: Entry
    scheduler: ModelScheduler

    is_released: threading.Event
    """Set once nobody holds the model any more."""


class Shelf:
    """Holds the catalogue; any thread may read it at any time and change it by these methods."""

    def __init__(self, metrics: Metrics) -> None:
        self._changed = threading.Condition()
        self._catalogue = Catalogue()
        self._gauges = ModelGauges(metrics)
        self._is_ending = False

    @property
    def catalogue(self) -> Catalogue:
        """What there is now; never changes once it is given out."""
        return self._catalogue

    @property
    def is_ending(self) -> bool:
        """Whether no model takes anything new, for good."""
        return self._is_ending

    def claim(self, entry: Entry) -> Entry | None:
        """Put up a version that is being loaded, unless it is there; return what is in the way, None if nothing is.

        Raises:
            DrainingError: once all have ended.
        """
        with self._changed:
            if self._is_ending:
                raise DrainingError
            there = self._catalogue.entries.get(entry.full_name)
            if there is not None and there.state is not ModelState.FAILED:
                return there
            self._put(entry)
            return None

    def update(self, entry: Entry) -> None:
        """Replace a version that is being loaded, by what is known of it now."""
        with self._changed:
            if self._is_loading(entry):
                self._put(entry)

    def publish(self, entry: Entry, model: LoadedModel, parts: ModelParts) -> bool:
        """Start a version that is being loaded and let it answer; False if all have ended meanwhile."""
        with self._changed:
            if not self._is_loading(entry):
                return False
            model.scheduler.start()
            self._gauges.show_parts(entry, parts)
            self._put(replace(entry, model=model, precision=model.precision, state=ModelState.READY))
            return True

    def fail(self, entry: Entry, message: str) -> None:
        """Say why a version could not be loaded."""
        with self._changed:
            self._gauges.count_failure(entry.name)
            if not self._is_ending:
                self._put(replace(entry, state=ModelState.FAILED, message=message))

    def take_out(self, model: str) -> TakenOut | None:
        """Let a version that is ready take no new requests; None if there is none."""
        with self._changed:
            entry = self._catalogue.entries.get(model)
            if entry is None or entry.model is None or not entry.is_ready:
                return None
            is_released = threading.Event()
            weakref.finalize(entry.model, is_released.set).atexit = False
            scheduler, entry = entry.model.scheduler, replace(entry, model=None, state=ModelState.DRAINING)
            self._put(entry)
        return TakenOut(entry=entry, scheduler=scheduler, is_released=is_released)

    def hide_parts(self, entry: Entry) -> None:
        """Take the parts of a version out of the metrics, so that they can be freed."""
        with self._changed:
            self._gauges.hide_parts(entry)

    def remove(self, entry: Entry) -> None:
        """Forget a version that failed or is unloaded."""
        with self._changed:
            if entry.full_name in self._catalogue.entries:
                self._gauges.hide(entry)
                self._replace(self._catalogue.without_entry(entry.full_name))

    def change_policy(self, name: str, change: Callable[[VersionPolicy], VersionPolicy]) -> None:
        """Change what decides over the versions of a name."""
        with self._changed:
            self._replace(self._catalogue.with_policy(name, change(self._catalogue.policy(name))))

    def wait_while(self, model: str, state: ModelState) -> Entry | None:
        """Wait until a version is in another state, or gone; return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._state(model) is not state or self._is_ending)
            return self._catalogue.entries.get(model)

    def count_load(self, duration_s: float) -> None:
        """Count a version that was loaded."""
        self._gauges.count_load(duration_s)

    def end(self) -> list[ModelScheduler]:
        """Let nothing take anything new, for good; return the schedulers of what was ready."""
        with self._changed:
            self._is_ending = True
            entries = [replace(entry, state=ModelState.DRAINING) for entry in self._catalogue.entries.values()]
            for entry in entries:
                self._gauges.show_state(entry)
            self._replace(self._catalogue.with_entries(*entries))
        return [entry.model.scheduler for entry in entries if entry.model]

    def hide_all(self, entries: Iterable[Entry]) -> None:
        """Take the parts of all versions out of the metrics."""
        for entry in entries:
            self.hide_parts(entry)

    def _put(self, entry: Entry) -> None:
        self._gauges.show_state(entry)
        self._replace(self._catalogue.with_entries(entry))

    def _replace(self, catalogue: Catalogue) -> None:
        before, self._catalogue = self._catalogue, catalogue
        for name in {entry.name for entry in before.entries.values()}:
            self._note_swap(name, before.default_version(name), catalogue.default_version(name))
        self._changed.notify_all()

    def _note_swap(self, name: str, before: str | None, now: str | None) -> None:
        if before is not None and now is not None and before != now:
            self._gauges.count_swap(name)
            log.info("default version changed", extra={"model": name, "before": before, "now": now})

    def _is_loading(self, entry: Entry) -> bool:
        return self._state(entry.full_name) is ModelState.LOADING

    def _state(self, model: str) -> ModelState | None:
        entry = self._catalogue.entries.get(model)
        return entry.state if entry else None
