"""How a version comes and goes: read, warmed up, published; taken out, let finish, freed.

All of it blocks whoever asks, and nobody else: requests and decoding threads go on.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from service.bundle import Manifest
from service.errors import DragomanError, ModelStateError
from service.models.catalogue import Entry
from service.models.disk import check_complete, named_manifest
from service.models.model import LoadedModel, ModelLoader, ModelParts, ModelScheduler, ModelState
from service.models.serving import ServingSettings, read_serving
from service.models.shelf import Shelf, TakenOut

log = logging.getLogger(__name__)

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
