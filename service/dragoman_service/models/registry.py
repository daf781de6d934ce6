"""Immutable registry: known versions, version policies, selection of the version for a request."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import islice, product
from pathlib import Path
from typing import Self

from dragoman_service.bundle.manifest import Languages, Manifest
from dragoman_service.errors import DragomanError, DrainingError, ModelNotFoundError, ModelStateError, StartingError
from dragoman_service.language_tags import check_language_tag, matching_tags
from dragoman_service.models.model import (
    LanguageGroup,
    LoadedModel,
    ModelReference,
    ModelState,
    ModelStatus,
    full_name,
    parse_reference,
    version_key,
)
from dragoman_service.models.serving import LATEST, ServingSettings

_NO_LANGUAGES = Languages.model_construct(sources={}, targets={}, pairs=None)

# An error lists at most this number of language pairs, else the pairs of the source language or all source languages.
_MAX_LISTED_PAIRS = 20

_MAX_RESOLVED = 256  # cached results of `resolve`; bounded, because callers can spell a tag in many ways


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Versions of a model to load, and its default version: the settings, and changes at run time."""

    serving: ServingSettings = field(default_factory=ServingSettings)

    set_labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels set at run time, which override the settings; None: the label is removed."""

    requested: frozenset[str] = frozenset()  # versions that a caller has loaded and that the settings do not select

    @property
    def labels(self) -> Mapping[str, str]:
        """Label to version, sorted by label."""
        merged = {**self.serving.labels, **self.set_labels}
        return {label: version for label, version in sorted(merged.items()) if version is not None}

    def labels_of(self, version: str) -> tuple[str, ...]:
        """Return the labels of a version, sorted."""
        return tuple(label for label, labelled in self.labels.items() if labelled == version)

    def selected(self, versions: Collection[str]) -> frozenset[str]:
        """Return the subset of `versions` to load and to keep loaded."""
        pinned = self._pinned()
        named = frozenset(self.labels.values()) | self.requested | ({pinned} if pinned else set())
        return self._by_settings(versions) | named & frozenset(versions)

    def default(self, versions: Collection[str]) -> str | None:
        """Return the default version; None if it is not in `versions`."""
        if self.serving.default_version == LATEST:
            return max(versions, key=version_key, default=None)
        pinned = self._pinned()
        return pinned if pinned in versions else None

    def no_default_reason(self) -> str:
        """Return the reason why a model with ready versions has no default version."""
        pinned = self._pinned()
        rule = f"its default version is {self.serving.default_version}"
        return f"{rule}, which is not loaded" if pinned else f"{rule}, an unknown label"

    def with_label(self, label: str, version: str | None) -> Self:
        """Return the policy with a label set, or removed if `version` is None."""
        return replace(self, set_labels={**self.set_labels, label: version})

    def with_requested(self, version: str, versions: Collection[str]) -> Self:
        """Return the policy with `version` requested, unless it already selects it from `versions`."""
        if version in self.selected(versions):
            return self
        return replace(self, requested=self.requested | {version})

    def without_requested(self, versions: Iterable[str]) -> Self:
        """Return the policy without the request of some versions."""
        return replace(self, requested=self.requested - frozenset(versions))

    def _by_settings(self, versions: Collection[str]) -> frozenset[str]:
        rule = self.serving.versions
        if rule == "all":
            return frozenset(versions)
        if self.serving.num_latest is not None:
            return frozenset(sorted(versions, key=version_key, reverse=True)[: self.serving.num_latest])
        return frozenset(rule) & frozenset(versions)

    def _pinned(self) -> str | None:
        # Returns the default version of the settings, with its label resolved; None for `latest` or an unknown label.
        default = self.serving.default_version
        if default.startswith("@"):
            return self.labels.get(default.removeprefix("@"))
        return None if default == LATEST else default


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelVersionEntry:
    """Immutable entry of a model version; a change of state replaces it."""

    name: str
    version: str
    directory: Path
    state: ModelState
    manifest: Manifest | None = None
    model: LoadedModel | None = None
    """None unless the version is ready: a registry must not keep the memory of a draining version alive."""

    precision: str = ""
    message: str = ""  # error message in state FAILED, else empty

    @property
    def full_name(self) -> str:
        """`name/version`."""
        return full_name(self.name, self.version)

    @property
    def languages(self) -> Languages:
        """Languages of the version; empty without a manifest."""
        return _NO_LANGUAGES if self.manifest is None else self.manifest.languages()

    @property
    def is_ready(self) -> bool:
        """True if the version takes requests."""
        return self.state is ModelState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistry:
    """All versions of all models, and the policy of each name.

    The policy of a name determines its default version, normally the latest ready one (see `version_key`). The default
    model of a language pair is the default version of the first name, in alphabetical order, that supports the pair.
    """

    entries: Mapping[str, ModelVersionEntry] = field(default_factory=dict)  # `name/version` to entry
    policies: Mapping[str, VersionPolicy] = field(default_factory=dict)
    """Name to policy; other names have the default policy."""

    resolved: dict[tuple[str, str, str], LoadedModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Cached results of `resolve`, by its arguments."""

    _language_groups: dict[str, tuple[LanguageGroup, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # by `name/version`

    def with_entries(self, *entries: ModelVersionEntry) -> Self:
        """Return a registry with entries added or replaced."""
        return replace(self, entries={**self.entries, **{entry.full_name: entry for entry in entries}})

    def without_entry(self, model: str) -> Self:
        """Return a registry without `name/version`."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key != model})

    def with_policy(self, name: str, policy: VersionPolicy) -> Self:
        """Return a registry with the policy of a name replaced."""
        return replace(self, policies={**self.policies, name: policy})

    def policy(self, name: str) -> VersionPolicy:
        """Return the policy of a name."""
        return self.policies.get(name) or VersionPolicy()

    def versions(self, name: str) -> list[ModelVersionEntry]:
        """Return the versions of a name, the latest first."""
        entries = [entry for entry in self.entries.values() if entry.name == name]
        return sorted(entries, key=lambda entry: version_key(entry.version), reverse=True)

    def ready_versions(self, name: str) -> list[str]:
        """Return the ready versions of a name, the latest first."""
        return [entry.version for entry in self.versions(name) if entry.is_ready]

    def default_version(self, name: str) -> str | None:
        """Return the version for requests that do not name one; None if there is none."""
        return self.policy(name).default(self.ready_versions(name))

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model for a request, and cache it; see `ModelRepository.resolve`."""
        entry, pair = self.find(model, source_language, target_language)
        if entry.model is None:
            raise AssertionError(f"{entry.full_name} is ready without a model")
        resolved = entry.model.for_pair(*pair)
        if len(self.resolved) < _MAX_RESOLVED:
            self.resolved[model, source_language, target_language] = resolved
        return resolved

    def find(self, model: str, source_language: str, target_language: str) -> tuple[ModelVersionEntry, tuple[str, str]]:
        """Return the ready version for a request, and its language pair; raises as `resolve`."""
        check_language_tag("source_language", source_language)
        check_language_tag("target_language", target_language)
        if model:
            named = self._ready_entry(parse_reference(model))
            _, pair = _find_pair([named], source_language, target_language)
            return named, named.languages.find(*pair) or pair
        entries, pair = _find_pair(self._requestable(), source_language, target_language)
        entry = self._pair_default(entries)
        if entry is None:
            raise self._unavailable(entries)
        return entry, entry.languages.find(*pair) or pair

    def source_languages(self, model: str, target_language: str) -> tuple[str, ...]:
        """Return the source languages of a target language; see `ModelRepository.source_languages`."""
        if target_language:
            check_language_tag("target_language", target_language)
        entries = [self._ready_entry(parse_reference(model))] if model else self._requestable()
        available = [entry.languages for entry in entries]
        targets = matching_tags(target_language, _lower_tags(available)[1]) if target_language else ()
        sources = {
            source
            for languages in available
            for source in languages.sources
            if not target_language or any(languages.find(source.lower(), target) for target in targets)
        }
        if not sources:
            raise ModelNotFoundError("target_language", target_language, _available_pairs(available, ()))
        return tuple(sorted(sources))

    def _requestable(self) -> list[ModelVersionEntry]:
        return [entry for entry in self.entries.values() if entry.state is not ModelState.FAILED]

    def select(self, reference: ModelReference) -> list[ModelVersionEntry]:
        """Return the versions of a reference in any state, the latest first; raises ModelNotFoundError if none."""
        if reference.label is not None:
            return [self._labelled(reference.name, reference.label)]
        entries = self.versions(reference.name)
        if reference.version is not None:
            entries = [entry for entry in entries if entry.version == reference.version]
        if not entries:
            requested = full_name(reference.name, reference.version) if reference.version else reference.name
            raise ModelNotFoundError("model", requested, self.available())
        return entries

    def available(self) -> tuple[str, ...]:
        """Return the versions that requests may name, as sorted `name/version`."""
        return tuple(sorted(entry.full_name for entry in self._requestable()))

    def statuses(self, entries: Iterable[ModelVersionEntry] | None = None) -> Iterator[ModelStatus]:
        """Yield the status of versions, by default all, sorted by name, the latest version first."""
        chosen = self.entries.values() if entries is None else entries
        latest_first = sorted(chosen, key=lambda entry: version_key(entry.version), reverse=True)
        for entry in sorted(latest_first, key=lambda entry: entry.name):
            yield ModelStatus(
                name=entry.name,
                version=entry.version,
                state=entry.state,
                manifest=entry.manifest,
                precision=entry.precision,
                is_default=entry.is_ready and entry.version == self.default_version(entry.name),
                language_groups=self._groups(entry),
                message=entry.message,
                labels=self.policy(entry.name).labels_of(entry.version),
            )

    def _groups(self, entry: ModelVersionEntry) -> tuple[LanguageGroup, ...]:
        if entry.full_name not in self._language_groups:
            groups = language_groups(entry.languages, partial(self._defaults, entry))
            self._language_groups[entry.full_name] = groups
        return self._language_groups[entry.full_name]

    def _defaults(self, entry: ModelVersionEntry, source: str) -> Callable[[str], bool]:
        # Returns a function that returns whether the version is the default model from `source` to a target.
        others = [(other, other.languages) for other in self._requestable() if other is not entry]
        others = [(other, languages) for other, languages in others if languages.has_source(source.lower())]

        @cache
        def ranks_above(*rivals: str) -> bool:
            return self._pair_default([entry, *(self.entries[rival] for rival in rivals)]) is entry

        def is_default(target: str) -> bool:
            pair = source.lower(), target.lower()
            return ranks_above(*(other.full_name for other, languages in others if languages.find(*pair)))

        return is_default

    def check_label_known(self, name: str, label: str) -> None:
        """Raise ModelNotFoundError, which lists the labels of the model, unless the model has the label."""
        if name not in {entry.name for entry in self.entries.values()}:
            raise ModelNotFoundError("model", f"{name}@{label}", self.available())
        labels = self.policy(name).labels
        if label not in labels:
            available = tuple(f"{name}@{other}" for other in labels)
            fault = "is not served here" if labels else f"is not served here, as {name} has no labels"
            raise ModelNotFoundError("model", f"{name}@{label}", available or self.available(), fault=fault)

    def _labelled(self, name: str, label: str) -> ModelVersionEntry:
        self.check_label_known(name, label)
        model = full_name(name, self.policy(name).labels[label])
        if model not in self.entries:
            raise ModelNotFoundError("model", f"{name}@{label}, which is {model},", self.available())
        return self.entries[model]

    def _ready_entry(self, reference: ModelReference) -> ModelVersionEntry:
        entries = self.select(reference)
        if reference.version is None and reference.label is None:
            default = self.default_version(reference.name)
            entries = [entry for entry in entries if entry.version == default] or entries
            if default is None and any(entry.is_ready for entry in entries):
                raise ModelStateError(reference.name, self.policy(reference.name).no_default_reason())
        ready = [entry for entry in entries if entry.is_ready]
        if not ready:
            raise self._unavailable(entries)
        return ready[0]

    def _pair_default(self, entries: Sequence[ModelVersionEntry]) -> ModelVersionEntry | None:
        # `entries` are all versions that support a language pair.
        for name in sorted({entry.name for entry in entries}):
            ready = {entry.version: entry for entry in entries if entry.name == name and entry.is_ready}
            version = self.policy(name).default(ready.keys())
            if version is not None:
                return ready[version]
        return None

    def _unavailable(self, entries: Sequence[ModelVersionEntry]) -> DragomanError:
        if ready := [entry for entry in entries if entry.is_ready]:
            name = min(entry.name for entry in ready)
            return ModelStateError(name, self.policy(name).no_default_reason())
        states = {entry.state for entry in entries}
        if ModelState.LOADING in states:
            return StartingError()
        if ModelState.DRAINING in states:
            return DrainingError()
        return ModelStateError(entries[0].full_name, f"could not be loaded: {entries[0].message}")


def language_groups(
    languages: Languages, defaults: Callable[[str], Callable[[str], bool]]
) -> tuple[LanguageGroup, ...]:
    """Return all language pairs of a version in few groups: sources with the same targets form one group.

    `defaults` returns for a source a function of a target: whether the version is the default model of the pair.
    """
    into_itself: list[LanguageGroup] = []
    merged: dict[tuple[bool, frozenset[str]], list[str]] = {}
    for source in languages.sources:
        is_default = defaults(source)
        own = {source} & languages.targets.keys()
        targets: dict[bool, set[str]] = {True: set(), False: set()}
        for target in languages.targets_of(source):
            if target == source:
                into_itself.append(LanguageGroup(sources=(source,), targets=(source,), is_default=is_default(source)))
            else:
                targets[is_default(target)].add(target)
        for is_group_default, others in targets.items():
            if others:  # with the source itself, so that sources with all other languages as targets are equal
                merged.setdefault((is_group_default, frozenset(others | own)), []).append(source)
    groups = []
    for (is_group_default, group_targets), sources in merged.items():
        listed = group_targets.difference(sources) if len(sources) == 1 else group_targets
        in_order = tuple(target for target in languages.targets if target in listed)
        groups.append(LanguageGroup(sources=tuple(sources), targets=in_order, is_default=is_group_default))
    return (*groups, *into_itself)


def _find_pair(
    entries: Sequence[ModelVersionEntry], source_language: str, target_language: str
) -> tuple[list[ModelVersionEntry], tuple[str, str]]:
    # Returns the entries that support the best matching pair, and the pair. The source language has precedence.
    available = [entry.languages for entry in entries]
    all_sources, all_targets = _lower_tags(available)
    sources = matching_tags(source_language, all_sources)
    for pair in product(sources, matching_tags(target_language, all_targets)):
        matching = [entry for entry, languages in zip(entries, available, strict=True) if languages.find(*pair)]
        if matching:
            return matching, pair
    spelled = {tag.lower(): tag for languages in available for tag in languages.sources}
    known_sources = [spelled[source] for source in sources]
    field = "target_language" if known_sources else "source_language"
    pair_name = f"{source_language} to {target_language}".lower()
    raise ModelNotFoundError(field, pair_name, _available_pairs(available, known_sources))


def _lower_tags(available: Iterable[Languages]) -> tuple[set[str], set[str]]:
    # Source and target languages in lower case.
    sides = [(languages.sources, languages.targets) for languages in available]
    return {tag.lower() for tags, _ in sides for tag in tags}, {tag.lower() for _, tags in sides for tag in tags}


def _available_pairs(available: Sequence[Languages], sources: Sequence[str]) -> tuple[str, ...]:
    # For an error message: all pairs if they are few, else the pairs of `sources`, else all source languages.
    pairs = {pair for languages in available for pair in islice(languages.pairs_served(), _MAX_LISTED_PAIRS + 1)}
    if len(pairs) > _MAX_LISTED_PAIRS:
        own = {(source, to) for languages in available for source in sources for to in languages.targets_of(source)}
        pairs = own or {(source, "...") for languages in available for source in languages.sources}
    return tuple(sorted(f"{source} to {target}".lower() for source, target in pairs))
