"""The repository of bundles: which models there are, and which of them answers a request.

A directory holds them as `NAME/VERSION/`. How a bundle becomes a running model is the business of the loader that
`service.app` injects; here are only names, versions, languages and states.
"""

import time
from collections.abc import Callable
from pathlib import Path

from service.datatypes import TranslationOptions, TranslationRequest
from service.errors import ConfigError, InvalidFieldError, ModelNotFoundError, ModelStateError
from service.models.disk import NameOnDisk, named_manifest, names_on_disk
from service.models.lifecycle import Lifecycle, Shelf, WarmUp
from service.models.model import LoadedModel, ModelLoader, ModelState, ModelStatus
from service.models.names import check_label, full_name, parse_reference, parse_version, version_key
from service.models.registry import Catalogue, Entry
from service.models.serving import SERVING_NAME, ModelSettings, ServingSettings, VersionPolicy, read_serving
from service.models.watcher import Follower
from service.telemetry.metrics import Metrics
from service.text.pipeline import TextPipeline
from service.translate.options import TranslationDefaults, search_config

_SENTENCE = "1, 2, 3."  # the same in any language
_TEXTS = (_SENTENCE, f"{_SENTENCE} {_SENTENCE} {_SENTENCE}", ", ".join(str(number) for number in range(1, 25)) + ".")
"""One sentence, several, and a long one: encoder runs of different lengths, and a batch that shrinks."""

_MAX_TARGET_TOKENS = 24
"""Enough for every size of step to occur; what a network says to numbers is not worth waiting for."""


def warm_up(model: LoadedModel, *, defaults: TranslationDefaults) -> None:
    """Translate some texts with everything that requests will use: text pipeline, and batch of each decoding thread.

    Raises:
        EngineError: if the model cannot translate.
    """
    options = TranslationOptions(max_target_tokens=min(_MAX_TARGET_TOKENS, model.max_target_tokens))
    request = TranslationRequest(
        texts=_TEXTS,
        source_language=model.manifest.source_language,
        target_language=model.manifest.target_language,
        options=options,
    )
    pipeline = TextPipeline(request, model=model, search=search_config(options, defaults))
    plans = pipeline.plan()
    results = model.scheduler.warm_up([part.segment for plan in plans for part in plan.parts])
    pipeline.assemble(plans, results)


MAX_LABELS = 100
"""Most labels of a model."""

_STOP_TIMEOUT_S = 10.0  # for threads that have nothing left to do but to free memory


class ModelRepository:
    """All models of one server.

    What lies on the disk and is wanted by the policy of its name is loaded, by default everything. See `Catalogue` for
    which version answers.

    `load`, `unload`, `refresh` and `load_all` block; all methods may be called from any thread.
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
        """Know nothing yet.

        Args:
            settings: where the models are, and when they are loaded and unloaded.
            load: makes a bundle directory into a model.
            metrics: where models are shown.
            warm_up: translates with a model before it takes requests.
            clock: by which a bundle that does not change is found to be broken.
        """
        self._directory = settings.directory
        self._shelf = Shelf(metrics)
        self._lifecycle = Lifecycle(self._shelf, load, warm_up=warm_up, unload_timeout_s=settings.unload_timeout_s)
        self._follower = Follower(
            self._directory, self._shelf, self._lifecycle, settle_s=settings.settle_s, clock=clock
        )

    def load_all(self) -> None:
        """Load every bundle that is wanted, by name, the latest version of each first; blocks until all are ready.

        One that cannot be loaded fails the whole start: a server that quietly lacks a model answers its requests with
        errors until somebody looks. `stop` ends those that were loaded before it.

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
            self._shelf.claim(entry)
        for entry, serving in claimed:
            if self._shelf.is_ending:
                return
            try:
                self._lifecycle.bring_up(entry, serving)
            except Exception as error:
                self._lifecycle.fail(entry, error)
                raise

    def refresh(self) -> None:
        """Load what has come and unload what has gone since the last time; see `Follower`."""
        self._follower.refresh()

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model that answers a request; while it is held, it can be used.

        Language tags are compared without regard to case. As in the lookup of RFC 4647, section 3.4, a tag that no
        model has is shortened from its end, so `en-GB` gets a model for `en`; a model for `en-GB` never answers `en`.

        Args:
            model: `name`, `name/version`, `name@label`, or empty for the default of the pair.
            source_language: BCP-47 tag.
            target_language: BCP-47 tag.

        Raises:
            InvalidFieldError: if one of them is malformed.
            ModelNotFoundError: if no model has this name, version, label or pair; says what there is.
            ModelStateError: if what would answer is broken, or the name has no default version.
            StartingError: if what would answer is still being loaded.
            DrainingError: if it takes nothing new any more.
        """
        return self._shelf.catalogue.resolve(model, source_language, target_language)

    def list_models(self) -> tuple[ModelStatus, ...]:
        """Return all models: by name, the latest version of each first."""
        return tuple(self._shelf.catalogue.statuses())

    def get_model(self, model: str) -> tuple[ModelStatus, ...]:
        """Return all versions of `name`, the latest first, or the one of `name/version` or `name@label`.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if there is none.
        """
        catalogue = self._shelf.catalogue
        return tuple(catalogue.statuses(catalogue.select(parse_reference(model))))

    def load(self, model: str) -> tuple[ModelStatus, ...]:
        """Load `name/version`, unless it is loaded; return it once it takes requests.

        It stays loaded even if the policy of its name would not have loaded it. What the policy does not want any more
        with it there is unloaded afterwards.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if the directory has no such version; says which it has.
            ModelStateError: if it is broken, or being unloaded: what served before goes on serving.
            DrainingError: once all have ended.
        """
        name, version = parse_version(model)
        directory = self._directory / name / version
        if not directory.is_dir():
            raise ModelNotFoundError("model", model, self._names_on_disk())
        self._follower.recall(directory)
        ready = {*self._shelf.catalogue.ready_versions(name), version}
        self._shelf.change_policy(name, lambda policy: policy.with_demand(version, ready))
        try:
            self._lifecycle.load(directory)
        except ModelStateError:
            self._shelf.change_policy(name, lambda policy: policy.without_demand([version]))
            raise
        self._follower.retire_unwanted(name)
        return self.get_model(model)

    def unload(self, model: str) -> None:
        """Unload `name/version`; returns once its requests are answered and its memory is free.

        Any version may go, the last one of a name, too: requests to the name are then answered with NOT_FOUND. It is
        not loaded again by itself while its directory stays as it is. Labels go on pointing to it.

        Raises:
            InvalidFieldError: if `model` is malformed.
            ModelNotFoundError: if it is not loaded; says what is.
            ModelStateError: if it is being loaded.
        """
        name, version = parse_version(model)
        _check_loaded(model, self._shelf.catalogue)
        self._follower.dismiss(self._directory / name / version)
        self._lifecycle.unload(model)
        self._shelf.wait_while(model, ModelState.DRAINING)  # somebody else may have been at it

    def set_label(self, model: str, label: str) -> tuple[ModelStatus, ...]:
        """Let a label point to `name/version`, or to nothing if `model` is a name; return all versions of the name.

        Raises:
            InvalidFieldError: if one of them is malformed, or the model has too many labels.
            ModelNotFoundError: if the version is not there; says what is.
            ModelStateError: if it is not ready.
        """
        check_label(label)
        reference = parse_reference(model)
        if reference.label is not None:
            raise InvalidFieldError("model", repr(model), "`name/version`, or `name` to remove the label")
        catalogue = self._shelf.catalogue
        (entry, *_) = catalogue.select(reference)
        if reference.version is not None:
            _check_may_have(label, entry, catalogue)
        self._shelf.change_policy(reference.name, lambda policy: policy.with_label(label, reference.version))
        self._follower.retire_unwanted(reference.name)
        return self.get_model(reference.name)

    def drain(self, timeout_s: float) -> bool:
        """Take nothing new and wait for what is under way; return False if time ran out first."""
        return self._lifecycle.drain(timeout_s)

    def stop(self) -> None:
        """End all models; what is unanswered is answered with an error.

        May be called at any time, more than once, and from another thread while anything else runs.
        """
        self._lifecycle.stop(_STOP_TIMEOUT_S)

    def _policy_of(self, name: str, on_disk: NameOnDisk) -> ServingSettings:
        """Read the settings of a name, and make them its policy."""
        serving = read_serving(on_disk.directory)
        _check_on_disk(serving, on_disk)
        self._follower.note_serving(name, on_disk)
        self._shelf.change_policy(name, lambda _: VersionPolicy(serving=serving))
        return serving

    def _wanted_entries(self, name: str, on_disk: NameOnDisk) -> list[Entry]:
        wanted = self._shelf.catalogue.policy(name).wanted(on_disk.versions.keys())
        return [
            _readable_entry(on_disk.directory / version) for version in sorted(wanted, key=version_key, reverse=True)
        ]

    def _names_on_disk(self) -> tuple[str, ...]:
        try:
            found = names_on_disk(self._directory)
        except ConfigError:
            return ()
        return tuple(full_name(name, version) for name, there in found.items() for version in there.versions)


def _readable_entry(directory: Path) -> Entry:
    return Entry(
        name=directory.parent.name,
        version=directory.name,
        directory=directory,
        state=ModelState.LOADING,
        manifest=named_manifest(directory),
    )


def _check_on_disk(serving: ServingSettings, on_disk: NameOnDisk) -> None:
    """Refuse settings that name versions which are not there."""
    path = on_disk.directory / SERVING_NAME
    listed = serving.versions if isinstance(serving.versions, tuple) else ()
    named = [("versions", version) for version in listed]
    named += [(f"labels.{label}", version) for label, version in serving.labels.items()]
    default = serving.default_version
    if default.startswith("@"):
        if default.removeprefix("@") not in serving.labels:
            raise ConfigError(f"{path}: default_version", default, f"one of the labels {', '.join(serving.labels)}")
    elif default != "latest":
        named.append(("default_version", default))
    for key, version in named:
        if version not in on_disk.versions:
            raise ConfigError(f"{path}: {key}", version, f"a version that is there: {', '.join(on_disk.versions)}")


def _check_loaded(model: str, catalogue: Catalogue) -> None:
    """Refuse what cannot be unloaded; in a function of its own, as who holds an entry holds its model."""
    entry = catalogue.entries.get(model)
    if entry is None or entry.state is ModelState.FAILED:
        raise ModelNotFoundError("model", model, catalogue.available())
    if entry.state is ModelState.LOADING:
        raise ModelStateError(model, "is being loaded; unload it once that is done")


def _check_may_have(label: str, entry: Entry, catalogue: Catalogue) -> None:
    if not entry.is_ready:
        raise ModelStateError(entry.full_name, f"is {entry.state.value}: only a version that is ready gets a label")
    labels = catalogue.policy(entry.name).labels
    if len(labels) >= MAX_LABELS and label not in labels:
        raise InvalidFieldError("label", repr(label), f"one of the {MAX_LABELS} labels that the model has")
