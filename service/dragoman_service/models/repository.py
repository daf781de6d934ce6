"""The repository of models: loads them from a directory, and says which of them answers a request.

The directory holds bundles as `NAME/VERSION/`. `app` injects the function that makes a running model of one.
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
from dragoman_service.models.registry import Entry, ModelRegistry, VersionPolicy
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

_STOP_TIMEOUT_S = 10.0  # for threads that only free memory


class ModelRepository:
    """All models of one server.

    Loads the versions on the disk that the policy of their name wants; by default all. `ModelRegistry` says which of
    them answers a request. `load`, `unload`, `refresh` and `load_all` block; any thread may call any method.
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
        """Load nothing yet; the clock measures for how long an incomplete bundle has not changed."""
        self._directory = settings.directory
        self._lifecycle = Lifecycle(load, metrics, warm_up=warm_up, unload_timeout_s=settings.unload_timeout_s)
        self._reconciler = Reconciler(self._directory, self._lifecycle, settle_s=settings.settle_s, clock=clock)

    def load_all(self) -> None:
        """Load every bundle that is wanted, by name, the latest version of each first; blocks until all are ready.

        If one cannot be loaded the start fails: a server without it would answer its requests with errors. `stop` ends
        those that were loaded before it.

        Raises:
            ConfigError: if the directory is missing or has no bundle, or the settings of a name do not fit.
            BundleError: if a bundle is damaged or not the one its directory says; names file, property and values.
            EngineError: if a model cannot translate.
        """
        claimed = [
            (entry, serving)
            for name, on_disk in names_on_disk(self._directory).items()
            for serving in [self._policy_of(name, on_disk)]
            for entry in self._wanted_entries(name, on_disk)
        ]
        for entry, _ in claimed:
            self._lifecycle.claim(entry)
        for entry, serving in claimed:
            if self._lifecycle.is_stopped:
                return
            try:
                self._lifecycle.bring_up(entry, serving)
            except Exception as error:
                self._lifecycle.fail(entry, error)
                raise

    def refresh(self, *, waits: bool = True) -> None:
        """Load new versions and unload removed ones; see `Reconciler`."""
        self._reconciler.refresh(waits=waits)

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model that answers a request; it can be used as long as there are references to it.

        `model` is `name`, `name/version`, `name@label`, or empty for the default of the pair. BCP-47 tags are compared
        without regard to case. As in the lookup of RFC 4647, section 3.4, a tag that no model has is shortened from its
        end, so `en-GB` gets a model for `en`; a model for `en-GB` never answers `en`.

        Raises:
            InvalidFieldError: if one of them is malformed.
            ModelNotFoundError: if no model has this name, version, label or pair; lists what there is.
            ModelStateError: if the version is broken, or the name has no default version.
            StartingError: if the version is still being loaded.
            DrainingError: if it is being unloaded.
        """
        return self._lifecycle.registry.resolve(model, source_language, target_language)

    def source_languages(self, model: str, target_language: str) -> tuple[str, ...]:
        """Return from which languages requests are translated into a language, or into any if it is empty, sorted.

        `model` is as in `resolve`. Raises as `resolve`, if there are none.
        """
        return self._lifecycle.registry.source_languages(model, target_language)

    def list_models(self) -> tuple[ModelStatus, ...]:
        """Return all models: by name, the latest version of each first."""
        return tuple(self._lifecycle.registry.statuses())

    def get_model(self, model: str) -> tuple[ModelStatus, ...]:
        """Return all versions of `name`, the latest first, or the one of `name/version` or `name@label`.

        Raises InvalidFieldError or ModelNotFoundError as `resolve`.
        """
        registry = self._lifecycle.registry
        return tuple(registry.statuses(registry.select(parse_reference(model))))

    def load(self, model: str) -> tuple[ModelStatus, ...]:
        """Load `name/version`, unless it is loaded; return it once it takes requests.

        It stays loaded even if the policy of its name does not want it. Versions that the policy does not want any more
        are unloaded afterwards.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if the directory has no such version; lists those it has.
            ModelStateError: if it is broken or being unloaded; what is loaded stays loaded.
            DrainingError: after `stop`.
        """
        name, version = parse_version(model)
        directory = self._directory / name / version
        if not directory.is_dir():
            fault = f"cannot be loaded: no bundle at {directory}"
            raise ModelNotFoundError("model", model, self._names_on_disk(), fault=fault)
        self._reconciler.note_load(directory)
        ready = {*self._lifecycle.registry.ready_versions(name), version}
        self._lifecycle.change_policy(name, lambda policy: policy.with_requested(version, ready))
        try:
            self._lifecycle.load(directory)
        except ModelStateError:
            self._lifecycle.change_policy(name, lambda policy: policy.without_requested([version]))
            raise
        self._reconciler.retire_unwanted(name)
        return self.get_model(model)

    def unload(self, model: str) -> None:
        """Unload `name/version`; returns once its requests are answered and its memory is free.

        Also the last version of a name may be unloaded: requests to the name then fail with NOT_FOUND. It is not loaded
        again by `refresh` while its directory stays as it is. It keeps its labels.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if it is not loaded; lists what is.
            ModelStateError: if it is being loaded.
        """
        name, version = parse_version(model)
        _check_loaded(model, self._lifecycle.registry)
        self._reconciler.note_unload(self._directory / name / version)
        self._lifecycle.unload(model)

    def set_label(self, model: str, label: str) -> tuple[ModelStatus, ...]:
        """Give a label to `name/version`, or remove it if `model` is a name; return all versions of the name.

        Raises:
            InvalidFieldError: if one of them is malformed, or the model has too many labels.
            ModelNotFoundError: if there is no such version, or no such label to remove; lists what there is.
            ModelStateError: if it is not ready.
        """
        check_label(label)
        reference = parse_reference(model)
        if reference.label is not None:
            raise InvalidFieldError("model", repr(model), "`name/version`, or `name` to remove the label")
        registry = self._lifecycle.registry
        (entry, *_) = registry.select(reference)
        if reference.version is not None:
            _check_may_have(label, entry, registry)
        else:
            registry.check_label_known(reference.name, label)
        self._lifecycle.change_policy(reference.name, lambda policy: policy.with_label(label, reference.version))
        self._reconciler.retire_unwanted(reference.name)
        return self.get_model(reference.name)

    def stop(self) -> None:
        """End all models, at any time; what is unanswered is answered with an error."""
        self._lifecycle.stop(_STOP_TIMEOUT_S)

    def _policy_of(self, name: str, on_disk: NameOnDisk) -> ServingSettings:
        """Read the settings of a name and make them its policy."""
        serving = read_serving(on_disk.directory)
        check_on_disk(serving, on_disk.directory, on_disk.versions)
        self._reconciler.note_serving(name, on_disk)
        self._lifecycle.change_policy(name, lambda _: VersionPolicy(serving=serving))
        return serving

    def _wanted_entries(self, name: str, on_disk: NameOnDisk) -> list[Entry]:
        wanted = self._lifecycle.registry.policy(name).wanted(on_disk.versions.keys())
        entries = [entry_of(on_disk.directory / version) for version in sorted(wanted, key=version_key, reverse=True)]
        return [replace(entry, manifest=named_manifest(entry.directory)) for entry in entries]

    def _names_on_disk(self) -> tuple[str, ...]:
        try:
            found = names_on_disk(self._directory)
        except ConfigError:
            return ()
        return tuple(full_name(name, version) for name, there in found.items() for version in there.versions)


def _check_loaded(model: str, registry: ModelRegistry) -> None:
    """Reject what cannot be unloaded; a function of its own, because a variable with an entry would hold its model."""
    entry = registry.entries.get(model)
    if entry is None or entry.state is ModelState.FAILED:
        raise ModelNotFoundError("model", model, registry.available())
    if entry.state is ModelState.LOADING:
        raise ModelStateError(model, "is being loaded; unload it once that is done")


def _check_may_have(label: str, entry: Entry, registry: ModelRegistry) -> None:
    if not entry.is_ready:
        raise ModelStateError(entry.full_name, f"is {entry.state.value}: only a version that is ready gets a label")
    labels = registry.policy(entry.name).labels
    if len(labels) >= MAX_LABELS and label not in labels:
        raise InvalidFieldError("label", repr(label), f"one of the {MAX_LABELS} labels that the model has")
