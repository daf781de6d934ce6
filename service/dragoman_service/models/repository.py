"""Model repository: loads models from a directory and selects the model for a request.

The directory contains bundles as `NAME/VERSION/`. `app` passes the function that loads a bundle.
"""

import time
from collections.abc import Callable
from dataclasses import replace

from dragoman_service.errors import ConfigError, InvalidFieldError, ModelNotFoundError, ModelStateError
from dragoman_service.models.lifecycle import Lifecycle, ModelLoader, WarmUp, entry_of
from dragoman_service.models.model import (
    MAX_LABELS,
    LoadedModel,
    ModelState,
    ModelStatus,
    check_label,
    full_name,
    parse_reference,
    parse_version,
    version_key,
)
from dragoman_service.models.registry import ModelRegistry, ModelVersionEntry, VersionPolicy
from dragoman_service.models.serving import (
    ModelSettings,
    NameOnDisk,
    ServingSettings,
    check_on_disk,
    named_manifest,
    names_on_disk,
    read_serving,
)
from dragoman_service.models.watcher import Reconciler
from dragoman_service.observability.metrics import Metrics

_STOP_TIMEOUT_S = 10.0  # for threads that free memory


class ModelRepository:
    """All models of one server.

    Loads the versions on disk that the policy of each model selects; by default all. `ModelRegistry` selects the
    version for a request. `load`, `unload`, `refresh` and `load_all` block. Thread-safe.
    """

    def __init__(
        self,
        settings: ModelSettings,
        load: ModelLoader,
        metrics: Metrics,
        *,
        warm_up: WarmUp,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a repository without loaded models; `clock` measures how long an incomplete bundle has not changed."""
        self._directory = settings.directory
        self._lifecycle = Lifecycle(load, metrics, warm_up=warm_up, unload_timeout_s=settings.unload_timeout_s)
        self._reconciler = Reconciler(self._directory, self._lifecycle, settle_s=settings.settle_s, clock=clock)

    def load_all(self) -> None:
        """Load the selected versions, sorted by name, the latest version first; return when all are ready.

        Raises the first error, because a server without the model would reject its requests. The versions loaded before
        the error stay loaded until `stop`.

        Raises:
            ConfigError: if the directory is missing or has no bundle, or the settings of a model are invalid.
            BundleError: if a bundle is damaged, or its name and version differ from those of its directory.
            EngineError: if the warm-up of a model fails.
        """
        claimed = [
            (entry, serving)
            for name, on_disk in names_on_disk(self._directory).items()
            for serving in [self._policy_of(name, on_disk)]
            for entry in self._selected_entries(name, on_disk)
        ]
        for entry, _ in claimed:
            self._lifecycle.claim(entry)
        for entry, serving in claimed:
            if self._lifecycle.is_stopped:
                return
            try:
                self._lifecycle.load_claimed(entry, serving)
            except Exception as error:
                self._lifecycle.fail(entry, error)
                raise

    def refresh(self, *, waits: bool = True) -> None:
        """Load new versions and unload removed ones; see `Reconciler`."""
        self._reconciler.refresh(waits=waits)

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model for a request. The model stays usable while the caller has a reference to it.

        BCP-47 tags are compared without regard to case. A tag that no model supports is shortened from its end (RFC
        4647, section 3.4, lookup): a request for `en-GB` can use a model for `en`, but not the reverse.

        Args:
            model: `name`, `name/version`, `name@label`, or empty for the default model of the language pair.
            source_language: BCP-47 tag.
            target_language: BCP-47 tag.

        Raises:
            InvalidFieldError: if an argument is malformed.
            ModelNotFoundError: if no model has this name, version, label or pair; lists the available ones.
            ModelStateError: if the version could not be loaded, or the model has no default version.
            StartingError: if the version is still being loaded.
            DrainingError: if the version is being unloaded.
        """
        registry = self._lifecycle.registry
        cached = registry.resolved.get((model, source_language, target_language))
        return cached or registry.resolve(model, source_language, target_language)

    def source_languages(self, model: str, target_language: str) -> tuple[str, ...]:
        """Return the source languages of a target language, sorted; an empty target language means any.

        `model` and the errors are the same as in `resolve`.
        """
        return self._lifecycle.registry.source_languages(model, target_language)

    def list_models(self) -> tuple[ModelStatus, ...]:
        """Return the status of all versions, sorted by name, the latest version first."""
        return tuple(self._lifecycle.registry.statuses())

    def get_model(self, model: str) -> tuple[ModelStatus, ...]:
        """Return all versions of `name`, the latest first, or the version of `name/version` or `name@label`.

        Raises InvalidFieldError and ModelNotFoundError as `resolve` does.
        """
        registry = self._lifecycle.registry
        return tuple(registry.statuses(registry.select(parse_reference(model))))

    def load(self, model: str) -> tuple[ModelStatus, ...]:
        """Load `name/version` unless it is loaded; return its status when it is ready.

        The version stays loaded even if the policy of the model does not select it. Versions that the policy no longer
        selects are unloaded afterwards.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if the directory has no such version; lists the available ones.
            ModelStateError: if the version cannot be loaded or is being unloaded; other versions stay loaded.
            DrainingError: after `stop`.
        """
        name, version = parse_version(model)
        directory = self._directory / name / version
        if not directory.is_dir():
            fault = f"cannot be loaded: no bundle at {directory}"
            raise ModelNotFoundError("model", model, self._names_on_disk(), fault=fault)
        self._reconciler.record_load(directory)
        ready = {*self._lifecycle.registry.ready_versions(name), version}
        self._lifecycle.change_policy(name, lambda policy: policy.with_requested(version, ready))
        try:
            self._lifecycle.load(directory)
        except ModelStateError:
            self._lifecycle.change_policy(name, lambda policy: policy.without_requested([version]))
            raise
        self._reconciler.retire_unselected(name)
        return self.get_model(model)

    def unload(self, model: str) -> None:
        """Unload `name/version`; return when its requests have ended and its memory is free.

        After the last version of a model is unloaded, requests to the model fail with NOT_FOUND. `refresh` loads the
        version again only if its directory changes. The version keeps its labels.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if the version is not loaded; lists the loaded ones.
            ModelStateError: if the version is being loaded.
        """
        name, version = parse_version(model)
        _check_loaded(model, self._lifecycle.registry)
        self._reconciler.record_unload(self._directory / name / version)
        self._lifecycle.unload(model)

    def set_label(self, model: str, label: str) -> tuple[ModelStatus, ...]:
        """Give a label to `name/version`, or remove it if `model` is a name; return all versions of the name.

        Raises:
            InvalidFieldError: if an argument is malformed, or the model has too many labels.
            ModelNotFoundError: if the version, or the label to remove, does not exist; lists the available ones.
            ModelStateError: if the version is not ready.
        """
        check_label(label)
        reference = parse_reference(model)
        if reference.label is not None:
            raise InvalidFieldError("model", repr(model), "`name/version`, or `name` to remove the label")
        registry = self._lifecycle.registry
        (entry, *_) = registry.select(reference)
        if reference.version is not None:
            _check_label_allowed(label, entry, registry)
        else:
            registry.check_label_known(reference.name, label)
        self._lifecycle.change_policy(reference.name, lambda policy: policy.with_label(label, reference.version))
        self._reconciler.retire_unselected(reference.name)
        return self.get_model(reference.name)

    def stop(self) -> None:
        """Stop all models; pending segments fail with an error."""
        self._lifecycle.stop(_STOP_TIMEOUT_S)

    def _policy_of(self, name: str, on_disk: NameOnDisk) -> ServingSettings:
        serving = read_serving(on_disk.directory)
        check_on_disk(serving, on_disk.directory, on_disk.versions)
        self._reconciler.record_serving(name, on_disk)
        self._lifecycle.change_policy(name, lambda _: VersionPolicy(serving=serving))
        return serving

    def _selected_entries(self, name: str, on_disk: NameOnDisk) -> list[ModelVersionEntry]:
        selected = self._lifecycle.registry.policy(name).selected(on_disk.versions.keys())
        entries = [entry_of(on_disk.directory / version) for version in sorted(selected, key=version_key, reverse=True)]
        return [replace(entry, manifest=named_manifest(entry.directory)) for entry in entries]

    def _names_on_disk(self) -> tuple[str, ...]:
        try:
            names = names_on_disk(self._directory)
        except ConfigError:
            return ()
        return tuple(full_name(name, version) for name, on_disk in names.items() for version in on_disk.versions)


def _check_loaded(model: str, registry: ModelRegistry) -> None:
    # A separate function, because a local variable in `unload` would keep a reference to the model.
    entry = registry.entries.get(model)
    if entry is None or entry.state is ModelState.FAILED:
        raise ModelNotFoundError("model", model, registry.available())
    if entry.state is ModelState.LOADING:
        raise ModelStateError(model, "is being loaded; unload it after loading ends")


def _check_label_allowed(label: str, entry: ModelVersionEntry, registry: ModelRegistry) -> None:
    if not entry.is_ready:
        raise ModelStateError(entry.full_name, f"is {entry.state.value}; only a ready version can have a label")
    labels = registry.policy(entry.name).labels
    if len(labels) >= MAX_LABELS and label not in labels:
        raise InvalidFieldError("label", repr(label), f"one of the existing labels (maximum: {MAX_LABELS})")
