"""How a version is loaded and unloaded: read, warmed up, published; drained, stopped, freed.

These calls block only their caller: requests and decoding threads go on.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from service.errors import DragomanError, ModelStateError
from service.models.disk import check_complete, named_manifest
from service.models.model import LoadedModel, ModelLoader, ModelState
from service.models.registry import DrainingVersion, Entry, ModelRegistry
from service.models.serving import ServingSettings, read_serving

log = logging.getLogger(__name__)

WarmUp = Callable[[LoadedModel], None]
"""Translates with a model that takes no requests yet; raises EngineError if it cannot."""

_COLLECT_INTERVAL_S = 1.0
"""The traceback of a failed request may hold a model in a reference cycle until the garbage collector runs: so often it
is run while a version is drained."""


class Lifecycle:
    """Loads and unloads versions; any thread may call it."""

    def __init__(self, registry: ModelRegistry, load: ModelLoader, *, warm_up: WarmUp, unload_timeout_s: float) -> None:
        """Use a registry.

        Args:
            registry: of the versions.
            load: loads a bundle.
            warm_up: called before a model takes requests.
            unload_timeout_s: for the requests of a version that is unloaded; then they are rejected.
        """
        self._registry = registry
        self._load = load
        self._warm_up = warm_up
        self._unload_timeout_s = unload_timeout_s
        self._lock = threading.Lock()
        self._draining: dict[str, DrainingVersion] = {}  # by `name/version`
        self._threads: set[threading.Thread] = set()

    def load(self, directory: Path) -> None:
        """Check all of a bundle and load it; nothing to do if it is ready, and waits for a load under way.

        Raises:
            ModelStateError: if it is broken or being unloaded; what is loaded stays loaded.
            DrainingError: after `stop`.
        """
        entry = entry_of(directory)
        current = self._registry.claim(entry)
        if current is None:
            try:
                check_complete(directory)
                self.bring_up(entry, read_serving(directory.parent))
            except Exception as error:
                self.fail(entry, error)
                raise ModelStateError(entry.full_name, f"could not be loaded: {_described(error)}") from error
            return
        if current.state is ModelState.LOADING:
            current = self._registry.wait_while(entry.full_name, ModelState.LOADING)
        if current is None or current.state is ModelState.DRAINING:
            raise ModelStateError(entry.full_name, "is being unloaded; load it again once that is done")
        if current.state is ModelState.FAILED:
            raise ModelStateError(entry.full_name, f"could not be loaded: {current.message}")

    def bring_up(self, entry: Entry, serving: ServingSettings) -> None:
        """Load a claimed version and let it answer, unless `stop` was called meanwhile.

        Raises:
            BundleError: if the bundle is damaged, or not the one its directory says.
            ConfigError: if a setting does not fit it.
            EngineError: if it cannot translate.
        """
        began_s = time.monotonic()
        manifest = named_manifest(entry.directory)
        entry = replace(entry, manifest=manifest, precision=manifest.default_precision)
        self._registry.update(entry)
        parts = self._load(entry.directory, serving)
        model = LoadedModel(
            name=entry.name,
            version=entry.version,
            manifest=manifest,
            tokenizer=parts.tokenizer,
            scheduler=parts.scheduler,
            precision=parts.precision,
        )
        try:
            self._warm_up(model)
            load_s = time.monotonic() - began_s
            is_published = self._registry.publish(entry, model, parts, load_s=load_s)
        except BaseException:
            parts.scheduler.stop()
            raise
        if not is_published:
            parts.scheduler.stop()
            return
        facts = {"precision": parts.precision, "device": parts.device, "load_s": round(load_s, 3)}
        log.info("model ready", extra={"model": entry.full_name, **facts})

    def fail(self, entry: Entry, error: Exception) -> None:
        """Enter and log why a version could not be loaded."""
        self._registry.fail(entry, _described(error))
        facts = {"model": entry.full_name, "fault": _described(error)}
        is_foreseen = isinstance(error, DragomanError)
        log.error("model could not be loaded", extra=facts, exc_info=None if is_foreseen else error)

    def unload(self, model: str) -> None:
        """Unload a version, if it is ready; returns once its requests are answered and its memory is free."""
        if self._begin_draining(model):
            self._finish_unloading(model)

    def retire(self, models: Iterable[str]) -> None:
        """Let versions take no new requests, and unload them in threads of their own."""
        for model in models:
            if self._begin_draining(model):
                thread = threading.Thread(
                    target=self._finish_unloading, args=(model,), name=f"unload-{model}", daemon=True
                )
                with self._lock:
                    self._threads = {other for other in self._threads if other.is_alive()} | {thread}
                    thread.start()

    def stop(self, timeout_s: float) -> None:
        """End all versions, those that are drained included; what is unanswered is answered with an error."""
        schedulers = self._registry.close()
        with self._lock:
            draining, threads = list(self._draining.values()), list(self._threads)
        for version in draining:
            version.is_released.set()  # waited for no longer
        schedulers += [version.scheduler for version in draining]
        with ThreadPoolExecutor(max_workers=max(1, len(schedulers))) as pool:  # each may take its time
            list(pool.map(lambda scheduler: scheduler.stop(), schedulers))
        for thread in threads:
            thread.join(timeout_s)
        for entry in self._registry.catalogue.entries.values():
            self._registry.hide_parts(entry)

    def _begin_draining(self, model: str) -> bool:
        with self._lock:
            version = self._registry.begin_draining(model)
            if version:
                self._draining[model] = version
        return version is not None

    def _finish_unloading(self, model: str) -> None:
        """Wait until a version is not used any more, end it and free its memory."""
        log.info("model draining", extra={"model": model})
        version = self._draining[model]
        is_drained = self._drain(version)
        version.scheduler.stop()
        entry = version.entry
        self._registry.hide_parts(entry)
        del self._draining[model], version
        gc.collect()  # what failed requests left behind may still refer to the model
        self._registry.remove(entry)
        log.info("model unloaded", extra={"model": model, "is_drained": is_drained})

    def _drain(self, version: DrainingVersion) -> bool:
        """Wait until there are no references to a version and all it has is answered; False at the timeout."""
        ends_s = time.monotonic() + self._unload_timeout_s
        while not version.is_released.wait(max(0.0, min(_COLLECT_INTERVAL_S, ends_s - time.monotonic()))):
            if time.monotonic() >= ends_s:
                break
            gc.collect()
        if self._registry.is_closed:
            return False
        return version.scheduler.drain(max(0.0, ends_s - time.monotonic()))


def entry_of(directory: Path) -> Entry:
    """Return the entry of a version of which nothing is known but its directory."""
    return Entry(name=directory.parent.name, version=directory.name, directory=directory, state=ModelState.LOADING)


def _described(error: Exception) -> str:
    """Return a message for people; errors of other libraries may have an empty one."""
    return str(error) if isinstance(error, DragomanError) else f"{type(error).__name__}: {error}"
