"""Loading and unloading of model versions, and the states that a version goes through.

Loading and unloading block only their caller. Requests and decoding threads continue.
"""

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.errors import DragomanError, DrainingError, ModelStateError
from dragoman_service.models.model import LoadedModel, ModelMetrics, ModelRuntime, ModelScheduler, ModelState
from dragoman_service.models.registry import ModelRegistry, ModelVersionEntry, VersionPolicy
from dragoman_service.models.serving import ServingSettings, named_manifest, read_serving
from dragoman_service.observability.metrics import Metrics

log = logging.getLogger(__name__)

ModelLoader = Callable[[Bundle, ServingSettings], ModelRuntime]
"""Loads an open bundle with the settings of its model; raises BundleError if a file has changed, or ConfigError."""

WarmUp = Callable[[LoadedModel], None]
"""Translates with a model before it takes requests; raises EngineError if the translation fails."""

# Interval of garbage collections while a version drains. The traceback of a failed request can keep the model in a
# reference cycle, which only the garbage collector frees.
_COLLECT_INTERVAL_S = 1.0

TRANSITIONS: Mapping[ModelState | None, frozenset[ModelState | None]] = {
    None: frozenset({ModelState.LOADING, ModelState.FAILED}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.DRAINING}),
    ModelState.READY: frozenset({ModelState.DRAINING}),
    ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.DRAINING, None}),
    ModelState.DRAINING: frozenset({None}),
}
"""Allowed changes of the state of a version; None: the version is not in the registry.

An unreadable bundle fails before its version is loaded. When the server stops, versions in all states drain.
"""


def check_transition(model: str, before: ModelState | None, after: ModelState | None) -> None:
    """Raise AssertionError, an internal error, if `TRANSITIONS` does not allow a change of state."""
    if before is not after and after not in TRANSITIONS[before]:
        names = [state.value if state else "absent" for state in (before, after)]
        raise AssertionError(f"state of {model}: change from {names[0]} to {names[1]} is not allowed")


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrainingVersion:
    # Current requests that have a reference to the model may still submit to its scheduler.

    entry: ModelVersionEntry
    scheduler: ModelScheduler
    is_released: threading.Event  # set when the last reference to the model is gone


class Lifecycle:
    """Loads and unloads versions and replaces the registry after each change. Thread-safe."""

    def __init__(self, load: ModelLoader, metrics: Metrics, *, warm_up: WarmUp, unload_timeout_s: float) -> None:
        self._load = load
        self._metrics = metrics
        self._model_metrics = ModelMetrics(metrics)
        self._warm_up = warm_up
        self._unload_timeout_s = unload_timeout_s
        self._changed = threading.Condition()  # guards the attributes below
        self.registry = ModelRegistry()  # current registry; each change replaces it
        self._draining: dict[str, _DrainingVersion] = {}  # by `name/version`
        self._threads: set[threading.Thread] = set()
        self.is_stopped = False  # True after `stop`: no version takes requests

    def change_policy(self, name: str, change: Callable[[VersionPolicy], VersionPolicy]) -> None:
        """Replace the policy of a model by the result of `change`."""
        with self._changed:
            self._replace(self.registry.with_policy(name, change(self.registry.policy(name))))

    def claim(self, entry: ModelVersionEntry) -> ModelVersionEntry | None:
        """Add a version in state LOADING; return None, or the existing entry if the version is already registered.

        An entry in state FAILED is replaced. Raises DrainingError after `stop`.
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
        """Load the version `NAME/VERSION`, or wait until another thread has loaded it.

        A ready version is not loaded again. `bundle` is the bundle in the directory if it is already open.

        Raises:
            ModelStateError: if the version cannot be loaded or is being unloaded; other versions stay loaded.
            DrainingError: after `stop`.
        """
        entry = entry_of(directory)
        current = self.claim(entry)
        if current is None:
            try:
                self.load_claimed(entry, read_serving(directory.parent), bundle=bundle)
            except Exception as error:
                self.fail(entry, error)
                raise ModelStateError(entry.full_name, f"could not be loaded: {_described(error)}") from error
            return
        if current.state is ModelState.LOADING:
            current = self._wait_while(entry.full_name, ModelState.LOADING)
        if current is None or current.state is ModelState.DRAINING:
            raise ModelStateError(entry.full_name, "is being unloaded; load it again after unloading ends")
        if current.state is ModelState.FAILED:
            raise ModelStateError(entry.full_name, f"could not be loaded: {current.message}")

    def load_claimed(self, entry: ModelVersionEntry, serving: ServingSettings, *, bundle: Bundle | None = None) -> None:
        """Load and warm up a version after `claim`, then make it ready unless `stop` was called in the meantime.

        Raises:
            BundleError: if the bundle is damaged, or its name and version differ from those of its directory.
            ConfigError: if a setting is invalid for the model.
            EngineError: if the warm-up fails.
        """
        began_s = time.monotonic()
        manifest = bundle.manifest if bundle else named_manifest(entry.directory)
        entry = replace(entry, manifest=manifest, precision=manifest.default_precision)
        with self._changed:
            if self._state(entry.full_name) is ModelState.LOADING:
                self._put(entry)
        runtime = self._load(bundle or open_bundle(entry.directory), serving)
        model = LoadedModel.of(manifest, runtime)
        try:
            self._warm_up(model)
            load_s = time.monotonic() - began_s
            with self._changed:
                is_published = self._state(entry.full_name) is ModelState.LOADING
                if is_published:
                    runtime.scheduler.start()
                    self._model_metrics.show_runtime(entry.name, entry.version, runtime)
                    self._put(replace(entry, model=model, precision=runtime.precision, state=ModelState.READY))
        except BaseException:
            runtime.scheduler.stop()
            raise
        if not is_published:
            runtime.scheduler.stop()
            return
        self._metrics.model_load_seconds.observe(load_s)
        fields = {"precision": runtime.precision, "device": runtime.device, "load_s": round(load_s, 3)}
        log.info("model ready", extra={"model": entry.full_name, **fields})

    def fail(self, entry: ModelVersionEntry, error: Exception) -> None:
        """Set the state of a version to FAILED, and count and log the error.

        A version that another thread has made ready, or is unloading, keeps its state. A DrainingError is ignored,
        because the server is stopping.
        """
        if isinstance(error, DrainingError):
            return
        with self._changed:
            if not self.is_stopped and self._state(entry.full_name) not in (ModelState.READY, ModelState.DRAINING):
                self._put(replace(entry, state=ModelState.FAILED, message=_described(error)))
        self._metrics.model_load_failures.labels(entry.name).inc()
        is_expected = isinstance(error, DragomanError)
        log.error(
            "model could not be loaded",
            extra={"model": entry.full_name, "fault": _described(error)},
            exc_info=None if is_expected else error,
        )

    def remove(self, entry: ModelVersionEntry) -> None:
        """Remove a failed or unloaded version from registry and metrics, unless its state has changed since."""
        with self._changed:
            if self._state(entry.full_name) is entry.state:
                check_transition(entry.full_name, entry.state, None)
                self._model_metrics.hide(entry.name, entry.version)
                self._replace(self.registry.without_entry(entry.full_name))

    def unload(self, model: str) -> None:
        """Unload a version if it is ready; return when its requests have ended and its memory is free."""
        if self._begin_draining(model):
            self._finish_unloading(model)
        else:
            self._wait_while(model, ModelState.DRAINING)  # another caller unloads it

    def retire(self, models: Iterable[str]) -> None:
        """Stop new requests to the given versions and unload each ready version in its own thread."""
        for model in models:
            if self._begin_draining(model):
                thread = threading.Thread(
                    target=self._finish_unloading, args=(model,), name=f"unload-{model}", daemon=True
                )
                with self._changed:
                    self._threads = {other for other in self._threads if other.is_alive()} | {thread}
                    thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop all versions, including draining ones; pending segments fail with an error."""
        with self._changed:
            self.is_stopped = True
            entries = [replace(entry, state=ModelState.DRAINING) for entry in self.registry.entries.values()]
            self._put(*entries)
            draining, threads = list(self._draining.values()), list(self._threads)
        for version in draining:
            version.is_released.set()  # ends the wait in `_drain`
        schedulers = [entry.model.scheduler for entry in entries if entry.model]
        schedulers += [version.scheduler for version in draining]
        with ThreadPoolExecutor(max_workers=max(1, len(schedulers))) as pool:  # a scheduler may take long
            list(pool.map(lambda scheduler: scheduler.stop(), schedulers))
        for thread in threads:
            thread.join(timeout_s)
        with self._changed:
            for entry in entries:
                self._model_metrics.hide_runtime(entry.name, entry.version)

    def _begin_draining(self, model: str) -> bool:
        # Returns False if the version is not ready.
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
        log.info("model draining", extra={"model": model})
        version = self._draining[model]
        is_drained = self._drain(version)
        version.scheduler.stop()
        entry = version.entry
        with self._changed:
            self._model_metrics.hide_runtime(entry.name, entry.version)
            del self._draining[model], version
        gc.collect()  # tracebacks of failed requests may still refer to the model
        self.remove(entry)
        log.info("model unloaded", extra={"model": model, "is_drained": is_drained})

    def _drain(self, version: _DrainingVersion) -> bool:
        # Waits for the end of all references to the model, then of all queued segments. Returns False on timeout.
        ends_s = time.monotonic() + self._unload_timeout_s
        while not version.is_released.wait(max(0.0, min(_COLLECT_INTERVAL_S, ends_s - time.monotonic()))):
            if time.monotonic() >= ends_s:
                break
            gc.collect()
        if self.is_stopped:
            return False
        return version.scheduler.drain(max(0.0, ends_s - time.monotonic()))

    def _wait_while(self, model: str, state: ModelState) -> ModelVersionEntry | None:
        with self._changed:
            self._changed.wait_for(lambda: self._state(model) is not state or self.is_stopped)
            return self.registry.entries.get(model)

    def _state(self, model: str) -> ModelState | None:
        entry = self.registry.entries.get(model)
        return entry.state if entry else None

    def _put(self, *entries: ModelVersionEntry) -> None:
        for entry in entries:
            check_transition(entry.full_name, self._state(entry.full_name), entry.state)
        for entry in entries:
            self._model_metrics.show_state(entry.name, entry.version, entry.state)
        self._replace(self.registry.with_entries(*entries))

    def _replace(self, registry: ModelRegistry) -> None:
        previous, self.registry = self.registry, registry
        for name in {entry.name for entry in previous.entries.values()}:
            before, now = previous.default_version(name), registry.default_version(name)
            if before is not None and now is not None and before != now:
                self._metrics.model_swaps.labels(name).inc()
                log.info("default version changed", extra={"model": name, "before": before, "now": now})
        self._changed.notify_all()


def entry_of(directory: Path) -> ModelVersionEntry:
    """Return a new entry, in state LOADING, for the directory `NAME/VERSION`."""
    return ModelVersionEntry(
        name=directory.parent.name, version=directory.name, directory=directory, state=ModelState.LOADING
    )


def _described(error: Exception) -> str:
    # Errors of other libraries may have an empty message.
    return str(error) if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"
