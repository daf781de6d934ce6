"""How versions are loaded and unloaded: read, warmed up, published; drained, stopped, freed.

These calls block only their caller: requests and decoding threads go on.
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

from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import DragomanError, DrainingError, ModelStateError
from dragoman_service.models.model import LoadedModel, ModelMetrics, ModelRuntime, ModelScheduler, ModelState
from dragoman_service.models.registry import Entry, ModelRegistry, VersionPolicy
from dragoman_service.models.serving import ServingSettings, named_manifest, read_serving
from dragoman_service.observability.metrics import Metrics

log = logging.getLogger(__name__)

ModelLoader = Callable[[Bundle, ServingSettings], ModelRuntime]
"""Loads a bundle with the settings of its name; raises BundleError if a file has changed since, or ConfigError."""

WarmUp = Callable[[LoadedModel], None]
"""Translates with a model that takes no requests yet; raises EngineError if it cannot."""

_COLLECT_INTERVAL_S = 1.0
"""The traceback of a failed request may hold a model in a reference cycle until the garbage collector runs: so often it
is run while a version is drained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrainingVersion:
    """A version that takes no new requests; those that hold its model may still submit to its scheduler."""

    entry: Entry
    scheduler: ModelScheduler

    is_released: threading.Event
    """Set once there are no references to the model any more."""


class Lifecycle:
    """Loads and unloads versions, and replaces the registry each time; any thread may call it."""

    def __init__(self, load: ModelLoader, metrics: Metrics, *, warm_up: WarmUp, unload_timeout_s: float) -> None:
        self._load = load
        self._metrics = metrics
        self._shown = ModelMetrics(metrics)
        self._warm_up = warm_up
        self._unload_timeout_s = unload_timeout_s
        self._changed = threading.Condition()  # guards all that follows
        self.registry = ModelRegistry()
        """The current one; replaced as a whole by each change."""
        self._draining: dict[str, _DrainingVersion] = {}  # by `name/version`
        self._threads: set[threading.Thread] = set()
        self.is_stopped = False
        """True once no version takes requests any more."""

    def change_policy(self, name: str, change: Callable[[VersionPolicy], VersionPolicy]) -> None:
        """Replace the policy of a name by what a function makes of it."""
        with self._changed:
            self._replace(self.registry.with_policy(name, change(self.registry.policy(name))))

    def claim(self, entry: Entry) -> Entry | None:
        """Enter a version that is about to be loaded; return the entry that prevents this, None if none does.

        Raises:
            DrainingError: after `stop`.
        """
        with self._changed:
            if self.is_stopped:
                raise DrainingError
            current = self.registry.entries.get(entry.full_name)
            if current is not None and current.state is not ModelState.FAILED:
                return current
            self._put(entry)
            return None

    def load(self, directory: Path, *, bundle: Bundle | None = None) -> None:
        """Load a version, or its `bundle` that is open already; waits for a load under way, nothing to do if ready.

        Raises:
            ModelStateError: if it is broken or being unloaded; what is loaded stays loaded.
            DrainingError: after `stop`.
        """
        entry = entry_of(directory)
        current = self.claim(entry)
        if current is None:
            try:
                self.bring_up(entry, read_serving(directory.parent), bundle=bundle)
            except Exception as error:
                self.fail(entry, error)
                raise ModelStateError(entry.full_name, f"could not be loaded: {_described(error)}") from error
            return
        if current.state is ModelState.LOADING:
            current = self._wait_while(entry.full_name, ModelState.LOADING)
        if current is None or current.state is ModelState.DRAINING:
            raise ModelStateError(entry.full_name, "is being unloaded; load it again once that is done")
        if current.state is ModelState.FAILED:
            raise ModelStateError(entry.full_name, f"could not be loaded: {current.message}")

    def bring_up(self, entry: Entry, serving: ServingSettings, *, bundle: Bundle | None = None) -> None:
        """Load a claimed version and let it answer, unless `stop` was called meanwhile.

        Raises:
            BundleError: if the bundle is damaged, or not the one its directory says.
            ConfigError: if a setting does not fit it.
            EngineError: if it cannot translate.
        """
        began_s = time.monotonic()
        manifest = bundle.manifest if bundle else named_manifest(entry.directory)
        entry = replace(entry, manifest=manifest, precision=manifest.default_precision)
        with self._changed:
            if self._state(entry.full_name) is ModelState.LOADING:
                self._put(entry)
        parts = self._load(bundle or open_bundle(entry.directory), serving)
        model = LoadedModel(
            name=entry.name,
            version=entry.version,
            manifest=manifest,
            tokenizer=parts.tokenizer,
            scheduler=parts.scheduler,
            precision=parts.precision,
            source_language=manifest.source_language,
            target_language=manifest.target_language,
        )
        try:
            self._warm_up(model)
            load_s = time.monotonic() - began_s
            with self._changed:
                is_published = self._state(entry.full_name) is ModelState.LOADING
                if is_published:
                    parts.scheduler.start()
                    self._shown.show_parts(entry.name, entry.version, parts)
                    self._put(replace(entry, model=model, precision=parts.precision, state=ModelState.READY))
        except BaseException:
            parts.scheduler.stop()
            raise
        if not is_published:
            parts.scheduler.stop()
            return
        self._metrics.model_load_seconds.observe(load_s)
        facts = {"precision": parts.precision, "device": parts.device, "load_s": round(load_s, 3)}
        log.info("model ready", extra={"model": entry.full_name, **facts})

    def fail(self, entry: Entry, error: Exception) -> None:
        """Enter, count and log why a version could not be loaded, unless that is the end of the server."""
        if isinstance(error, DrainingError):
            return
        with self._changed:
            if not self.is_stopped:
                self._put(replace(entry, state=ModelState.FAILED, message=_described(error)))
        self._metrics.model_load_failures.labels(entry.name).inc()
        facts = {"model": entry.full_name, "fault": _described(error)}
        is_foreseen = isinstance(error, DragomanError)
        log.error("model could not be loaded", extra=facts, exc_info=None if is_foreseen else error)

    def forget(self, entry: Entry) -> None:
        """Remove a version that failed or is unloaded from the registry and the metrics."""
        with self._changed:
            if entry.full_name in self.registry.entries:
                self._shown.hide(entry.name, entry.version)
                self._replace(self.registry.without_entry(entry.full_name))

    def unload(self, model: str) -> None:
        """Unload a version, if it is ready; returns once its requests are answered and its memory is free."""
        if self._begin_draining(model):
            self._finish_unloading(model)
        else:
            self._wait_while(model, ModelState.DRAINING)  # another caller unloads it

    def retire(self, models: Iterable[str]) -> None:
        """Let versions take no new requests, and unload them in threads of their own."""
        for model in models:
            if self._begin_draining(model):
                thread = threading.Thread(
                    target=self._finish_unloading, args=(model,), name=f"unload-{model}", daemon=True
                )
                with self._changed:
                    self._threads = {other for other in self._threads if other.is_alive()} | {thread}
                    thread.start()

    def stop(self, timeout_s: float) -> None:
        """End all versions, those that are drained included; what is unanswered is answered with an error."""
        with self._changed:
            self.is_stopped = True
            entries = [replace(entry, state=ModelState.DRAINING) for entry in self.registry.entries.values()]
            for entry in entries:
                self._shown.show_state(entry.name, entry.version, entry.state)
            self._replace(self.registry.with_entries(*entries))
            draining, threads = list(self._draining.values()), list(self._threads)
        for version in draining:
            version.is_released.set()  # waited for no longer
        schedulers = [entry.model.scheduler for entry in entries if entry.model]
        schedulers += [version.scheduler for version in draining]
        with ThreadPoolExecutor(max_workers=max(1, len(schedulers))) as pool:  # each may take its time
            list(pool.map(lambda scheduler: scheduler.stop(), schedulers))
        for thread in threads:
            thread.join(timeout_s)
        with self._changed:
            for entry in entries:
                self._shown.hide_parts(entry.name, entry.version)

    def _begin_draining(self, model: str) -> bool:
        """Let a version take no new requests; False if it is not ready."""
        with self._changed:
            entry = self.registry.entries.get(model)
            if entry is None or entry.model is None or not entry.is_ready:
                return False
            is_released = threading.Event()
            weakref.finalize(entry.model, is_released.set).atexit = False
            scheduler, entry = entry.model.scheduler, replace(entry, model=None, state=ModelState.DRAINING)
            self._draining[model] = _DrainingVersion(entry=entry, scheduler=scheduler, is_released=is_released)
            self._put(entry)
            return True

    def _finish_unloading(self, model: str) -> None:
        """Wait until a version is not used any more, end it and free its memory."""
        log.info("model draining", extra={"model": model})
        version = self._draining[model]
        is_drained = self._drain(version)
        version.scheduler.stop()
        entry = version.entry
        with self._changed:
            self._shown.hide_parts(entry.name, entry.version)
            del self._draining[model], version
        gc.collect()  # what failed requests left behind may still refer to the model
        self.forget(entry)
        log.info("model unloaded", extra={"model": model, "is_drained": is_drained})

    def _drain(self, version: _DrainingVersion) -> bool:
        """Wait until there are no references to a version and all it has is answered; False at the timeout."""
        ends_s = time.monotonic() + self._unload_timeout_s
        while not version.is_released.wait(max(0.0, min(_COLLECT_INTERVAL_S, ends_s - time.monotonic()))):
            if time.monotonic() >= ends_s:
                break
            gc.collect()
        if self.is_stopped:
            return False
        return version.scheduler.drain(max(0.0, ends_s - time.monotonic()))

    def _wait_while(self, model: str, state: ModelState) -> Entry | None:
        """Wait until a version leaves a state, or `stop`; return its entry then, None if it is gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._state(model) is not state or self.is_stopped)
            return self.registry.entries.get(model)

    def _state(self, model: str) -> ModelState | None:
        entry = self.registry.entries.get(model)
        return entry.state if entry else None

    def _put(self, entry: Entry) -> None:
        self._shown.show_state(entry.name, entry.version, entry.state)
        self._replace(self.registry.with_entries(entry))

    def _replace(self, registry: ModelRegistry) -> None:
        previous, self.registry = self.registry, registry
        for name in {entry.name for entry in previous.entries.values()}:
            before, now = previous.default_version(name), registry.default_version(name)
            if before is not None and now is not None and before != now:
                self._metrics.model_swaps.labels(name).inc()
                log.info("default version changed", extra={"model": name, "before": before, "now": now})
        self._changed.notify_all()


def entry_of(directory: Path) -> Entry:
    """Return the entry of a version of which nothing is known but its directory."""
    return Entry(name=directory.parent.name, version=directory.name, directory=directory, state=ModelState.LOADING)


def _described(error: Exception) -> str:
    """Return a message for people; errors of other libraries may have an empty one."""
    return str(error) if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"
