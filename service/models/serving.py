"""How the versions of one model are served: `NAME/serving.toml`, beside the bundles and outside of their checksums."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.errors import ConfigError
from service.models.names import MAX_LABEL_CHARACTERS, is_plain_name, version_key


class ModelSettings(BaseModel):
    """Where the models are, and when they are loaded and unloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: Path = Field(default=Path("deploy/models"))
    """Holds the bundles as NAME/VERSION/; all of them are loaded, unless NAME/serving.toml says which."""

    poll_interval_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds between two looks at the directory, for versions that have come or gone; 0: the server never looks."""

    settle_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds for which a bundle that does not fit its checksums must stay unchanged until it counts as broken, not as
    being copied."""

    unload_timeout_s: float = Field(default=300.0, ge=0, le=3600)
    """Seconds that the requests of a version get to finish when it is unloaded; what is left then is refused."""


SERVING_NAME = "serving.toml"
"""The file of settings of a model, in the directory that holds its versions."""

LATEST = "latest"
"""As default version: whichever ready one is the newest."""

MAX_VERSIONS = 100
"""Most versions of a model that may be kept or listed."""

_MAX_LABELS = 100
_LATEST_N = re.compile(r"latest:([1-9][0-9]{0,2})")


def _checked_versions(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, str) and (match := _LATEST_N.fullmatch(value)) and int(match[1]) <= MAX_VERSIONS:
        return value
    if isinstance(value, list | tuple) and 1 <= len(value) <= MAX_VERSIONS and all(map(_is_version, value)):
        return tuple(value)
    raise ValueError(f"`all`, `latest:N` with N from 1 to {MAX_VERSIONS}, or a list of 1 to {MAX_VERSIONS} versions")


def _checked_default(value: str) -> str:
    if is_plain_name(value.removeprefix("@")):
        return value
    raise ValueError("`latest`, a version, or `@` and a label")


def _checked_label(label: str) -> str:
    if is_plain_name(label) and len(label) <= MAX_LABEL_CHARACTERS:
        return label
    raise ValueError(f"a label of 1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")


def _checked_version(version: str) -> str:
    if is_plain_name(version):
        return version
    raise ValueError("a version: letters, digits, `.`, `_` and `-`")


def _is_version(value: object) -> bool:
    return isinstance(value, str) and is_plain_name(value)


_Label = Annotated[str, AfterValidator(_checked_label)]
_Version = Annotated[str, AfterValidator(_checked_version)]


class ServingSettings(BaseModel):
    """Which versions of a model are loaded, which one is the default, and what differs from the server's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    versions: Annotated[str | tuple[str, ...], BeforeValidator(_checked_versions)] = "all"
    """Which are loaded: `all`, the newest N with `latest:N`, or those of a list. What a label or the default version
    points to is loaded, too."""

    default_version: Annotated[str, AfterValidator(_checked_default)] = LATEST
    """Which one answers a request that names no version: `latest`, a version, or `@` and a label."""

    labels: dict[_Label, _Version] = Field(default_factory=dict, max_length=_MAX_LABELS)
    """Label to version, such as `stable` and `canary`; `SetModelLabel` sets others until the server ends."""

    scheduling: dict[str, Any] = Field(default_factory=dict)
    """What the model has in place of the server's settings of this section."""

    runtime: dict[str, Any] = Field(default_factory=dict)
    """What the model has in place of the server's settings of this section."""

    @property
    def num_latest(self) -> int | None:
        """How many of the newest versions are loaded, if it is those."""
        match = _LATEST_N.fullmatch(self.versions) if isinstance(self.versions, str) else None
        return int(match[1]) if match else None

    @property
    def overrides(self) -> Mapping[str, Mapping[str, Any]]:
        """Section of the server's settings to what the model has in place of it."""
        return {"scheduling": self.scheduling, "runtime": self.runtime}


def read_serving(directory: Path) -> ServingSettings:
    """Read the settings of the model whose versions a directory holds; all defaults if there is no file.

    What is in the tables of the server's settings is checked by who knows these.

    Raises:
        ConfigError: names the file, and the first key that is unknown or has a bad value.
    """
    path = directory / SERVING_NAME
    try:
        return ServingSettings.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return ServingSettings()
    except OSError as error:
        raise ConfigError("models.directory", str(path), f"a readable file ({error.strerror})") from error
    except ValidationError as error:
        raise _first_error(path, error) from error
    except ValueError as error:  # neither UTF-8 nor TOML
        raise ConfigError("models.directory", str(path), f"TOML ({error})") from error


def _first_error(path: Path, error: ValidationError) -> ConfigError:
    found = error.errors()[0]
    key = ".".join(str(part) for part in found["loc"] if part != "[key]")
    if found["type"] == "extra_forbidden":
        expected = f"one of the keys {', '.join(ServingSettings.model_fields)}"
    else:
        expected = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ConfigError(f"{path}: {key}", found["input"], expected)


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
