"""Which versions there are, which are wanted, and which of them answers a request: a registry as an immutable value."""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Self

from dragoman_service.bundle.manifest import Languages, Manifest
from dragoman_service.errors import DragomanError, DrainingError, ModelNotFoundError, ModelStateError, StartingError
from dragoman_service.models.model import (
    LanguageGroup,
    LoadedModel,
    ModelReference,
    ModelState,
    ModelStatus,
    full_name,
    language_lookup,
    parse_reference,
    version_key,
)
from dragoman_service.models.serving import LATEST, ServingSettings

_NO_LANGUAGES = Languages.model_construct(sources={}, targets={}, pairs=None)

_MAX_LISTED_PAIRS = 20
"""Of an error about a pair; beyond, it names what the source is translated into, or the sources."""

_MAX_RESOLVED = 256
"""Answers that a registry remembers: callers may spell a tag in many ways."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """Which versions of a model are wanted, and the default one: its settings, and changes while the server runs."""

    serving: ServingSettings = field(default_factory=ServingSettings)

    set_labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels set while the server runs, in place of those of the settings; None: removed."""

    requested: frozenset[str] = frozenset()
    """Versions that a caller loaded and the settings do not want."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Label to version."""
        merged = {**self.serving.labels, **self.set_labels}
        return {label: version for label, version in sorted(merged.items()) if version is not None}

    def labels_of(self, version: str) -> tuple[str, ...]:
        """Return the labels of a version, sorted."""
        return tuple(label for label, labelled in self.labels.items() if labelled == version)

    def wanted(self, versions: Collection[str]) -> frozenset[str]:
        """Return which of some versions are to be loaded, and to stay loaded."""
        pinned = self._pinned()
        named = frozenset(self.labels.values()) | self.requested | ({pinned} if pinned else set())
        return self._by_settings(versions) | named & frozenset(versions)

    def default(self, versions: Collection[str]) -> str | None:
        """Return the one of some versions that answers a request without a version; None if it is not among them."""
        if self.serving.default_version == LATEST:
            return max(versions, key=version_key, default=None)
        pinned = self._pinned()
        return pinned if pinned in versions else None

    def why_no_default(self) -> str:
        """Return why there is no default version although some are ready."""
        pinned = self._pinned()
        rule = f"its default version is {self.serving.default_version}"
        return f"{rule}, which is not loaded" if pinned else f"{rule}, a label that no version has"

    def with_label(self, label: str, version: str | None) -> Self:
        """Return it with a label set, or removed if `version` is None."""
        return replace(self, set_labels={**self.set_labels, label: version})

    def with_requested(self, version: str, versions: Collection[str]) -> Self:
        """Return it with a version that a caller loads, if it would not stay loaded among `versions` otherwise."""
        if version in self.wanted(versions):
            return self
        return replace(self, requested=self.requested | {version})

    def without_requested(self, versions: Iterable[str]) -> Self:
        """Return it as if no caller had loaded some versions."""
        return replace(self, requested=self.requested - frozenset(versions))

    def _by_settings(self, versions: Collection[str]) -> frozenset[str]:
        rule = self.serving.versions
        if rule == "all":
            return frozenset(versions)
        if self.serving.num_latest is not None:
            return frozenset(sorted(versions, key=version_key, reverse=True)[: self.serving.num_latest])
        return frozenset(rule) & frozenset(versions)

    def _pinned(self) -> str | None:
        """Return the version that the settings name as the default, directly or by a label; None if none is named."""
        default = self.serving.default_version
        if default.startswith("@"):
            return self.labels.get(default.removeprefix("@"))
        return None if default == LATEST else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One version; replaced as a whole when its state changes."""

    name: str
    version: str
    directory: Path
    state: ModelState
    manifest: Manifest | None = None
    model: LoadedModel | None = None
    """None unless it is ready: a registry must not keep a version alive that is being unloaded."""

    precision: str = ""
    message: str = ""
    """Why it failed, if it did."""

    @property
    def full_name(self) -> str:
        """Name and version."""
        return full_name(self.name, self.version)

    @property
    def languages(self) -> Languages:
        """Its languages; those of a version without a manifest are none."""
        return _NO_LANGUAGES if self.manifest is None else self.manifest.languages()

    @property
    def is_ready(self) -> bool:
        """True if it answers requests."""
        return self.state is ModelState.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRegistry:
    """All versions of all models, and the policy of each name.

    The default version of a name is the one its policy says, by default the latest (see `version_key`) that is ready.
    The default model of a language pair is the default version of the name that comes first in the alphabet among
    those that serve the pair.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    """By `name/version`."""

    policies: Mapping[str, VersionPolicy] = field(default_factory=dict)
    """By name; a name without one has the default policy."""

    _resolved: dict[tuple[str, str, str], LoadedModel] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """What `resolve` has found, as it does not change as long as the registry."""

    _language_groups: dict[str, tuple[LanguageGroup, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Likewise those of versions, by `name/version`."""

    def with_entries(self, *entries: Entry) -> Self:
        """Return it with entries added or replaced."""
        return replace(self, entries={**self.entries, **{entry.full_name: entry for entry in entries}})

    def without_entry(self, model: str) -> Self:
        """Return it without `name/version`."""
        return replace(self, entries={key: entry for key, entry in self.entries.items() if key != model})

    def with_policy(self, name: str, policy: VersionPolicy) -> Self:
        """Return it with the policy of a name replaced."""
        return replace(self, policies={**self.policies, name: policy})

    def policy(self, name: str) -> VersionPolicy:
        """Return the policy of a name."""
        return self.policies.get(name) or VersionPolicy()

    def versions(self, name: str) -> list[Entry]:
        """Return the versions of a name, the latest first."""
        entries = [entry for entry in self.entries.values() if entry.name == name]
        return sorted(entries, key=lambda entry: version_key(entry.version), reverse=True)

    def ready_versions(self, name: str) -> list[str]:
        """Return the versions of a name that answer requests, the latest first."""
        return [entry.version for entry in self.versions(name) if entry.is_ready]

    def default_version(self, name: str) -> str | None:
        """Return the version that answers a request that names no version; None if none does."""
        return self.policy(name).default(self.ready_versions(name))

    def resolve(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        """Return the model that answers a request; see `ModelRepository.resolve`."""
        request = model, source_language, target_language
        found = self._resolved.get(request)
        if found is None:
            found = self._find(*request)
            if len(self._resolved) < _MAX_RESOLVED:
                self._resolved[request] = found
        return found

    def _find(self, model: str, source_language: str, target_language: str) -> LoadedModel:
        sources = language_lookup("source_language", source_language)
        targets = language_lookup("target_language", target_language)
        if model:
            named = self._chosen(parse_reference(model))
            _, pair = _serving([named], sources, targets)
            return _model(named, pair)
        serving, pair = _serving(self._served(), sources, targets)
        entry = self._pair_default(serving)
        if entry is None:
            raise self._unavailable(serving)
        return _model(entry, pair)

    def source_languages(self, model: str, target_language: str) -> tuple[str, ...]:
        """Return from which languages requests are translated; see `ModelRepository.source_languages`."""
        targets = language_lookup("target_language", target_language) if target_language else ()
        entries = [self._chosen(parse_reference(model))] if model else self._served()
        known = [entry.languages for entry in entries]
        found = {
            source
            for languages in known
            for source in languages.sources
            if not targets or any(languages.find(source.lower(), target) for target in targets)
        }
        if not found:
            raise ModelNotFoundError("target_language", target_language, _available_pairs(known, ()))
        return tuple(sorted(found))

    def _served(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if _has_served(entry)]

    def select(self, reference: ModelReference) -> list[Entry]:
        """Return the versions that a reference names, the latest first, in any state; ModelNotFoundError if none."""
        if reference.label is not None:
            return [self._labelled(reference.name, reference.label)]
        entries = self.versions(reference.name)
        if reference.version is not None:
            entries = [entry for entry in entries if entry.version == reference.version]
        if not entries:
            wanted = full_name(reference.name, reference.version) if reference.version else reference.name
            raise ModelNotFoundError("model", wanted, self.available())
        return entries

    def available(self) -> tuple[str, ...]:
        """Return the versions that a request may name, sorted."""
        return tuple(sorted(entry.full_name for entry in self.entries.values() if _has_served(entry)))

    def statuses(self, entries: Iterable[Entry] | None = None) -> Iterator[ModelStatus]:
        """Yield the status of some versions, or of all: by name, the latest version of each first."""
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

    def _groups(self, entry: Entry) -> tuple[LanguageGroup, ...]:
        """Return the language pairs of a version, those of which it is the default apart from the others."""
        groups = self._language_groups.get(entry.full_name)
        if groups is None:
            is_default, alike = self._defaults(entry)
            groups = self._language_groups[entry.full_name] = language_groups(entry.languages, is_default, alike=alike)
        return groups

    def _defaults(self, entry: Entry) -> tuple[Callable[[str, str], bool], Callable[[str], Hashable]]:
        """Return what says of which of its language pairs a version is the default, and of which sources alike."""
        others = [(other, other.languages) for other in self._served() if other is not entry]
        others = [(other, languages) for other, languages in others if _overlap(languages, entry.languages)]
        answers: dict[tuple[str, ...], bool] = {}  # by the others that serve a pair: few sets, however many pairs

        def is_default(source: str, target: str) -> bool:
            pair = source.lower(), target.lower()
            rivals = [other for other, languages in others if languages.find(*pair)]
            names = tuple(rival.full_name for rival in rivals)
            if names not in answers:
                answers[names] = entry.is_ready and self._pair_default([entry, *rivals]) is entry
            return answers[names]

        def alike(source: str) -> Hashable:
            rivals = [(other, languages) for other, languages in others if languages.has_source(source.lower())]
            if any(languages.pairs is not None for _, languages in rivals):
                return source
            return tuple(other.full_name for other, _ in rivals)

        return is_default, alike

    def check_label_known(self, name: str, label: str) -> None:
        """Do nothing if a model has a label, else ModelNotFoundError, which lists its labels."""
        if name not in {entry.name for entry in self.entries.values()}:
            raise ModelNotFoundError("model", f"{name}@{label}", self.available())
        labels = self.policy(name).labels
        if label not in labels:
            known = tuple(f"{name}@{other}" for other in labels)
            fault = "is not served here" if labels else f"is not served here, as {name} has no labels"
            raise ModelNotFoundError("model", f"{name}@{label}", known or self.available(), fault=fault)

    def _labelled(self, name: str, label: str) -> Entry:
        self.check_label_known(name, label)
        model = full_name(name, self.policy(name).labels[label])
        if model not in self.entries:
            raise ModelNotFoundError("model", f"{name}@{label}, which is {model},", self.available())
        return self.entries[model]

    def _chosen(self, reference: ModelReference) -> Entry:
        """Return the version, which is ready, that answers a request for a reference."""
        entries = self.select(reference)
        if reference.version is None and reference.label is None:
            default = self.default_version(reference.name)
            entries = [entry for entry in entries if entry.version == default] or entries
            if default is None and any(entry.is_ready for entry in entries):
                raise ModelStateError(reference.name, self.policy(reference.name).why_no_default())
        ready = [entry for entry in entries if entry.is_ready]
        if not ready:
            raise self._unavailable(entries)
        return ready[0]

    def _pair_default(self, entries: Sequence[Entry]) -> Entry | None:
        """Return the entry, of those that serve a pair, that answers a request without a model; None if none does."""
        for name in sorted({entry.name for entry in entries}):
            ready = {entry.version: entry for entry in entries if entry.name == name and entry.is_ready}
            version = self.policy(name).default(ready.keys())
            if version is not None:
                return ready[version]
        return None

    def _unavailable(self, entries: Sequence[Entry]) -> DragomanError:
        """Return the error that says why none of some entries can answer."""
        if ready := [entry for entry in entries if entry.is_ready]:
            name = min(entry.name for entry in ready)
            return ModelStateError(name, self.policy(name).why_no_default())
        states = {entry.state for entry in entries}
        if ModelState.LOADING in states:
            return StartingError()
        if ModelState.DRAINING in states:
            return DrainingError()
        return ModelStateError(entries[0].full_name, f"could not be loaded: {entries[0].message}")


def language_groups(
    languages: Languages, is_default: Callable[[str, str], bool], *, alike: Callable[[str], Hashable] = str
) -> tuple[LanguageGroup, ...]:
    """Return all pairs in few groups: sources with the same targets are one, be they translated into each other.

    Args:
        languages: of a version.
        is_default: whether it is the default of a pair.
        alike: of a source; where it is equal, so are the defaults for all targets that are another language. They are
            asked for once, as a model of 200 languages has 40,000 pairs.
    """
    into_itself: list[LanguageGroup] = []
    merged: dict[tuple[bool, frozenset[str]], list[str]] = {}
    spelled = {target.lower(): target for target in languages.targets}
    rows: dict[Hashable, _Defaults] = {}
    for source in languages.sources:
        if languages.pairs is None:
            row = rows.setdefault(alike(source), _Defaults(set(languages.targets)))
        else:
            row = _Defaults(set(languages.targets_of(source)))
        own = spelled.get(source.lower(), "")
        targets = row.learn(own, partial(is_default, source))
        if source == own and languages.serves(source, own):
            into_itself.append(LanguageGroup(sources=(own,), targets=(own,), is_default=is_default(own, own)))
        elif own and languages.serves(source, own):
            targets[is_default(source, own)].add(own)
        for chosen, found in targets.items():
            if found:
                merged.setdefault((chosen, frozenset(found | ({source} & {own}))), []).append(source)
    between = []
    for (chosen, those), sources in merged.items():
        others = those.difference(sources) if len(sources) == 1 else those
        in_order = tuple(target for target in languages.targets if target in others)
        between.append(LanguageGroup(sources=tuple(sources), targets=in_order, is_default=chosen))
    return (*between, *into_itself)


class _Defaults:
    """For which targets a version is the default, of sources for which that is the same."""

    def __init__(self, targets: set[str]) -> None:
        """Know nothing of some targets."""
        self._unknown = targets
        self._known: dict[bool, set[str]] = {True: set(), False: set()}

    def learn(self, own: str, is_default: Callable[[str], bool]) -> dict[bool, set[str]]:
        """Return for which targets of a source it is the default and for which not, but for the source's own language.

        What is not known yet is asked for.
        """
        for target in self._unknown - {own}:
            self._known[is_default(target)].add(target)
        self._unknown &= {own}
        return {chosen: targets - {own} for chosen, targets in self._known.items()}


def _overlap(languages: Languages, others: Languages) -> bool:
    """Say whether two versions may have a pair in common."""
    return any(
        not {tag.lower() for tag in some}.isdisjoint(tag.lower() for tag in more)
        for some, more in ((languages.sources, others.sources), (languages.targets, others.targets))
    )


def _model(entry: Entry, pair: tuple[str, str]) -> LoadedModel:
    if entry.model is None:
        raise AssertionError(f"{entry.full_name} is ready without a model")
    return entry.model.for_pair(*(entry.languages.find(*pair) or pair))


def _has_served(entry: Entry) -> bool:
    """Say whether requests may name a version."""
    return entry.state is not ModelState.FAILED


def _serving(
    entries: Sequence[Entry], sources: Sequence[str], targets: Sequence[str]
) -> tuple[list[Entry], tuple[str, str]]:
    """Return the entries that serve the closest pair, and that pair; the source language counts before the target."""
    languages = [(entry, entry.languages) for entry in entries]
    for pair in product(sources, targets):
        if serving := [entry for entry, of_entry in languages if of_entry.find(*pair)]:
            return serving, pair
    known = [of_entry for _, of_entry in languages]
    spelled = {tag.lower(): tag for of_entry in known for tag in of_entry.sources}
    from_here = [spelled[source] for source in sources if source in spelled]
    field = "target_language" if from_here else "source_language"
    raise ModelNotFoundError(field, f"{sources[0]} to {targets[0]}", _available_pairs(known, from_here))


def _available_pairs(known: Sequence[Languages], sources: Sequence[str]) -> tuple[str, ...]:
    """Return what there is for an error: all pairs if they are few, else those of some sources, else all sources."""
    pairs = {pair for each in known for pair in islice(each.pairs_served(), _MAX_LISTED_PAIRS + 1)}
    if len(pairs) > _MAX_LISTED_PAIRS:
        own = {(source, target) for each in known for source in sources for target in each.targets_of(source)}
        pairs = own or {(source, "...") for each in known for source in each.sources}
    return tuple(sorted(f"{source} to {target}".lower() for source, target in pairs))
