"""How a version comes and goes: read, warmed up, published; taken out, let finish, freed.

All of it blocks whoever asks, and nobody else: requests and decoding threads go on.
"""

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from service.bundle import Manifest
from service.errors import DragomanError, DrainingError, ModelStateError
from service.models.disk import check_complete, named_manifest
from service.models.model import LoadedModel, ModelLoader, ModelParts, ModelScheduler, ModelState
from service.models.registry import Catalogue, Entry
from service.models.serving import ServingSettings, VersionPolicy, read_serving
from service.telemetry.metrics import Metrics


class ModelGauges:
    """Shows models in the metrics, and takes them out again, which would otherwise keep their memory from being freed.

    One thread at a time may call it.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._infos: dict[str, tuple[str, ...]] = {}  # `name/version` to the labels of its info
        self._in_own_process: set[str] = set()

    def show_state(self, entry: Entry) -> None:
        """Show the state that a version is in."""
        for state in ModelState:
            self._metrics.model_state.labels(entry.name, entry.version, state.value).set(state is entry.state)

    def show_parts(self, entry: Entry, parts: ModelParts) -> None:
        """Show what a version that is ready consists of."""
        labels = (entry.name, entry.version, parts.precision, parts.device)
        self._infos[entry.full_name] = labels
        self._metrics.model_info.labels(*labels).set(1)
        self._metrics.model_weights_bytes.labels(entry.name, entry.version).set(parts.weights_bytes)
        self._metrics.kv_cache_bytes.labels(entry.name, entry.version).set_function(parts.cache_bytes)
        if parts.process_bytes is not None:
            gauge = self._metrics.decoding_process_memory_bytes.labels(entry.name, entry.version)
            gauge.set_function(parts.process_bytes)
            self._in_own_process.add(entry.full_name)

    def hide_parts(self, entry: Entry) -> None:
        """Take out what was shown of its parts."""
        labels = self._infos.pop(entry.full_name, None)
        if labels is None:
            return
        self._metrics.model_info.remove(*labels)
        for gauge in (self._metrics.model_weights_bytes, self._metrics.kv_cache_bytes):
            gauge.remove(entry.name, entry.version)
        if entry.full_name in self._in_own_process:
            self._in_own_process.remove(entry.full_name)
            self._metrics.decoding_process_memory_bytes.remove(entry.name, entry.version)

    def hide(self, entry: Entry) -> None:
        """Take out all that was shown of a version that is gone."""
        self.hide_parts(entry)
        for state in ModelState:
            self._metrics.model_state.remove(entry.name, entry.version, state.value)

    def count_load(self, duration_s: float) -> None:
        """Count a version that was loaded."""
        self._metrics.model_load_seconds.observe(duration_s)

    def count_failure(self, name: str) -> None:
        """Count a version that could not be loaded."""
        self._metrics.model_load_failures.labels(name).inc()

    def count_swap(self, name: str) -> None:
        """Count a change of what answers requests that name a model alone."""
        self._metrics.model_swaps.labels(name).inc()


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


WarmUp = Callable[[LoadedModel], None]
"""Translates with a model that takes no requests yet; raises EngineError if it cannot."""

_Result = TypeVar("_Result")

_COLLECT_INTERVAL_S = 1.0
"""What failed may hold a model until Python's collector comes by; so often is it called while one is waited for."""


class Lifecycle:
    """Loads and unloads versions; any thread may call it."""

    def __init__(self, shelf: Shelf, load: ModelLoader, *, warm_up: WarmUp, unload_timeout_s: float) -> None:
        """Use a shelf.

        Args:
            shelf: where versions are put up, and taken from.
            load: makes a bundle directory into a model.
            warm_up: called before a model takes requests.
            unload_timeout_s: for the requests of a version that is unloaded; then they are refused.
        """
        self._shelf = shelf
        self._load = load
        self._warm_up = warm_up
        self._unload_timeout_s = unload_timeout_s
        self._lock = threading.Lock()
        self._leaving: dict[str, TakenOut] = {}  # by `name/version`
        self._threads: set[threading.Thread] = set()

    def load(self, directory: Path) -> None:
        """Load the bundle of a directory after checking all of it; left alone if it is ready, waited for if on its way.

        Raises:
            ModelStateError: if it is broken, or being unloaded: what served before goes on serving.
            DrainingError: once all have ended.
        """
        entry = entry_of(directory)
        there = self._shelf.claim(entry)
        if there is None:
            try:
                check_complete(directory)
                self.bring_up(entry, read_serving(directory.parent))
            except Exception as error:
                self.fail(entry, error)
                raise ModelStateError(entry.full_name, f"could not be loaded: {_described(error)}") from error
            return
        if there.state is ModelState.LOADING:
            there = self._shelf.wait_while(entry.full_name, ModelState.LOADING)
        if there is None or there.state is ModelState.DRAINING:
            raise ModelStateError(entry.full_name, "is being unloaded; load it again once that is done")
        if there.state is ModelState.FAILED:
            raise ModelStateError(entry.full_name, f"could not be loaded: {there.message}")

    def bring_up(self, entry: Entry, serving: ServingSettings) -> None:
        """Load a claimed version and let it answer, unless all have ended meanwhile.

        Raises:
            BundleError: if the bundle is damaged, or not the one its directory says.
            ConfigError: if a setting does not fit it.
            EngineError: if it cannot translate.
        """
        began_s = time.monotonic()
        manifest = named_manifest(entry.directory)
        entry = replace(entry, manifest=manifest, precision=manifest.default_precision)
        self._shelf.update(entry)
        parts = self._load(entry.directory, serving)
        model = _loaded(entry, manifest, parts)
        try:
            self._warm_up(model)
            is_published = self._shelf.publish(entry, model, parts)
        except BaseException:
            parts.scheduler.stop()
            raise
        if not is_published:
            parts.scheduler.stop()
        else:
            duration_s = time.monotonic() - began_s
            self._shelf.count_load(duration_s)
            facts = {"precision": parts.precision, "device": parts.device, "load_s": round(duration_s, 3)}
            log.info("model ready", extra={"model": entry.full_name, **facts})

    def fail(self, entry: Entry, error: Exception) -> None:
        """Put up a version that could not be loaded, and say why in the log."""
        self._shelf.fail(entry, _described(error))
        is_unforeseen = not isinstance(error, DragomanError)
        facts = {"model": entry.full_name, "fault": _described(error)}
        log.error("model could not be loaded", extra=facts, exc_info=error if is_unforeseen else None)

    def unload(self, model: str) -> None:
        """Take a version out, if it is ready, and return once its requests are answered and its memory is free."""
        if self._takes_out(model):
            self._see_off(model)

    def retire(self, models: Iterable[str]) -> None:
        """Take versions out at once, and see to the rest in threads of their own."""
        for model in models:
            if self._takes_out(model):
                thread = threading.Thread(target=self._see_off, args=(model,), name=f"unload-{model}", daemon=True)
                with self._lock:
                    self._threads = {other for other in self._threads if other.is_alive()} | {thread}
                    thread.start()

    def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what is under way; return False if time ran out first."""
        return all(_at_once(self._shelf.end(), lambda scheduler: scheduler.drain(timeout_s)))

    def stop(self, timeout_s: float) -> None:
        """End all versions, those that are leaving included; what is unanswered is answered with an error."""
        schedulers = self._shelf.end()
        with self._lock:
            leaving, threads = list(self._leaving.values()), list(self._threads)
        for taken in leaving:
            taken.is_released.set()  # waited for no longer
        _at_once([*schedulers, *(taken.scheduler for taken in leaving)], lambda scheduler: scheduler.stop())
        for thread in threads:
            thread.join(timeout_s)
        self._shelf.hide_all(self._shelf.catalogue.entries.values())

    def _takes_out(self, model: str) -> bool:
        with self._lock:
            taken = self._shelf.take_out(model)
            if taken:
                self._leaving[model] = taken
        return taken is not None

    def _see_off(self, model: str) -> None:
        """Wait for those who hold a version that was taken out, end it, and free its memory."""
        log.info("model draining", extra={"model": model})
        taken = self._leaving[model]
        is_drained = self._is_left(taken)
        taken.scheduler.stop()
        entry = taken.entry
        self._shelf.hide_parts(entry)
        del self._leaving[model], taken
        gc.collect()  # answered segments and their futures refer to each other, and to the scheduler
        self._shelf.remove(entry)
        log.info("model unloaded", extra={"model": model, "is_drained": is_drained})

    def _is_left(self, taken: TakenOut) -> bool:
        """Wait until nobody holds a version and all it has is answered; False if time ran out first."""
        ends_s = time.monotonic() + self._unload_timeout_s
        while not taken.is_released.wait(max(0.0, min(_COLLECT_INTERVAL_S, ends_s - time.monotonic()))):
            if time.monotonic() >= ends_s:
                break
            gc.collect()
        if self._shelf.is_ending:
            return False
        return taken.scheduler.drain(max(0.0, ends_s - time.monotonic()))


def entry_of(directory: Path) -> Entry:
    """Return the entry of a version of which nothing is known but its directory."""
    return Entry(name=directory.parent.name, version=directory.name, directory=directory, state=ModelState.LOADING)


def _loaded(entry: Entry, manifest: Manifest, parts: ModelParts) -> LoadedModel:
    return LoadedModel(
        name=entry.name,
        version=entry.version,
        manifest=manifest,
        tokenizer=parts.tokenizer,
        scheduler=parts.scheduler,
        precision=parts.precision,
    )


def _described(error: Exception) -> str:
    """Return what a person is told; an error that is none of ours may have an empty message."""
    return str(error) if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"


def _at_once(schedulers: Iterable[ModelScheduler], end: Callable[[ModelScheduler], _Result]) -> list[_Result]:
    """End all at the same time: each may take its time."""
    ending = list(schedulers)
    with ThreadPoolExecutor(max_workers=max(1, len(ending))) as pool:
        return list(pool.map(end, ending))
