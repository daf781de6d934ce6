"""Which versions of a model are wanted, and which one is its default: pure functions of names."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from service.models.names import version_key
from service.models.serving import LATEST, ServingSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPolicy:
    """What decides over the versions of one model: its settings, and what was changed while the server runs."""

    serving: ServingSettings = field(default_factory=ServingSettings)

    set_labels: Mapping[str, str | None] = field(default_factory=dict)
    """Labels set while the server runs; None: removed. They win over those of the settings."""

    asked_for: frozenset[str] = frozenset()
    """Versions loaded on demand that the settings would not load."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Label to version."""
        merged = {**self.serving.labels, **self.set_labels}
        return {label: version for label, version in sorted(merged.items()) if version is not None}

    def labels_of(self, version: str) -> tuple[str, ...]:
        """Return the labels that point to a version, sorted."""
        return tuple(label for label, labelled in self.labels.items() if labelled == version)

    def wanted(self, versions: Collection[str]) -> frozenset[str]:
        """Return which of some versions are to be loaded, and to stay so."""
        return self._by_settings(versions) | (self._pointed_to() | self.asked_for) & frozenset(versions)

    def default(self, versions: Collection[str]) -> str | None:
        """Return which of some versions answers a request that names none; None if it is not among them."""
        if self.serving.default_version == LATEST:
            return max(versions, key=version_key, default=None)
        pinned = self._pinned()
        return pinned if pinned in versions else None

    def why_no_default(self) -> str:
        """Say why no version answers a request that names none, although some could."""
        pinned = self._pinned()
        rule = f"its default version is {self.serving.default_version}"
        return f"{rule}, which is not loaded" if pinned else f"{rule}, a label that no version has"

    def with_label(self, label: str, version: str | None) -> Self:
        """Return it with a label set, or removed."""
        return replace(self, set_labels={**self.set_labels, label: version})

    def with_demand(self, version: str, versions: Collection[str]) -> Self:
        """Return it with a version that was asked for, if it would not stay loaded among `versions` otherwise."""
        if version in self.wanted(versions):
            return self
        return replace(self, asked_for=self.asked_for | {version})

    def without_demand(self, versions: Iterable[str]) -> Self:
        """Return it as if some versions had never been asked for."""
        return replace(self, asked_for=self.asked_for - frozenset(versions))

    def _by_settings(self, versions: Collection[str]) -> frozenset[str]:
        rule = self.serving.versions
        if rule == "all":
            return frozenset(versions)
        if self.serving.num_latest is not None:
            return frozenset(sorted(versions, key=version_key, reverse=True)[: self.serving.num_latest])
        return frozenset(rule) & frozenset(versions)

    def _pointed_to(self) -> frozenset[str]:
        pinned = self._pinned()
        return frozenset(self.labels.values()) | ({pinned} if pinned else set())

    def _pinned(self) -> str | None:
        """Return the version that the settings name as the default, by itself or by a label; None if none is named."""
        default = self.serving.default_version
        if default.startswith("@"):
            return self.labels.get(default.removeprefix("@"))
        return None if default == LATEST else default
