"""How the versions of a model are served: the section `models`, `NAME/serving.toml`, and the policy made of it.

`serving.toml` is beside the bundles of a model and not covered by their checksums.
"""

import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from service.errors import ConfigError
from service.models.names import MAX_LABEL_CHARACTERS, MAX_LABELS, is_label, is_plain_name, version_key


class ModelSettings(BaseModel):
    """Where the models are, and when they are loaded and unloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: Path = Path(__file__).resolve().parents[2] / "deploy" / "models"
    """Holds the bundles as NAME/VERSION/; all of them are loaded, unless NAME/serving.toml says which. Default: the
    models that ship."""

    poll_interval_s: float = Field(default=5.0, ge=0, le=3600)
    """Interval in seconds at which the directory is checked for new and removed versions; 0: it is never checked."""

    settle_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds for which a bundle that does not fit its checksums must stay unchanged to count as broken; until then it
    may still be copied."""

    unload_timeout_s: float = Field(default=300.0, ge=0, le=3600)
    """Seconds that the requests of a version have to finish when it is unloaded; what is left then is rejected."""


SERVING_NAME = "serving.toml"
"""The file of settings of a model, in the directory that holds its versions."""

LATEST = "latest"
"""As default version: the newest one that is ready."""

MAX_VERSIONS = 100
"""Most versions of a model that may be kept or listed."""

_LATEST_N = re.compile(r"latest:([1-9][0-9]{0,2})")


def _checked_versions(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, str) and (match := _LATEST_N.fullmatch(value)) and int(match[1]) <= MAX_VERSIONS:
        return value
    if isinstance(value, list | tuple) and 1 <= len(value) <= MAX_VERSIONS and all(map(_is_version, value)):
        return tuple(value)
    raise ValueError(f"`all`, `latest:N` with N from 1 to {MAX_VERSIONS}, or a list of 1 to {MAX_VERSIONS} versions")


def _is_version(value: object) -> bool:
    return isinstance(value, str) and is_plain_name(value)


def _check(holds: Callable[[str], bool], expected: str) -> AfterValidator:
    def checked(value: str) -> str:
        if holds(value):
            return value
        raise ValueError(expected)

    return AfterValidator(checked)


_Label = Annotated[str, _check(is_label, f"a label of 1 to {MAX_LABEL_CHARACTERS} letters, digits, `.`, `_` and `-`")]
_Version = Annotated[str, _check(is_plain_name, "a version: letters, digits, `.`, `_` and `-`")]
_DefaultVersion = Annotated[
    str, _check(lambda value: is_plain_name(value.removeprefix("@")), "`latest`, a version, or `@` and a label")
]


class ServingSettings(BaseModel):
    """Which versions of a model are loaded, which one is the default, and what differs from the server's settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    versions: Annotated[str | tuple[str, ...], BeforeValidator(_checked_versions)] = "all"
    """Which are loaded: `all`, `latest:N` (the newest N), or a list. A version with a label and the default version are
    loaded in any case."""

    default_version: _DefaultVersion = LATEST
    """The one that answers a request without a version: `latest`, a version, or `@` and a label."""

    labels: dict[_Label, _Version] = Field(default_factory=dict, max_length=MAX_LABELS)
    """Label to version, such as `stable` and `canary`; `SetModelLabel` sets others until the server ends."""

    scheduling: dict[str, Any] = Field(default_factory=dict)
    """Replaces settings of the server's section of this name for this model."""

    runtime: dict[str, Any] = Field(default_factory=dict)
    """Replaces settings of the server's section of this name for this model."""

    @property
    def num_latest(self) -> int | None:
        """N of `latest:N`."""
        match = _LATEST_N.fullmatch(self.versions) if isinstance(self.versions, str) else None
        return int(match[1]) if match else None

    @property
    def overrides(self) -> Mapping[str, Mapping[str, Any]]:
        """Section of the server's settings to the settings that this model replaces."""
        return {"scheduling": self.scheduling, "runtime": self.runtime}


def read_serving(directory: Path) -> ServingSettings:
    """Read the settings of the model whose versions a directory holds; all defaults if there is no file.

    `service.config` checks the tables `scheduling` and `runtime`.

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


def check_on_disk(serving: ServingSettings, directory: Path, versions: Collection[str]) -> None:
    """Raise ConfigError if the settings of the model in a directory name versions that it does not have."""
    path, default = directory / SERVING_NAME, serving.default_version
    listed = serving.versions if isinstance(serving.versions, tuple) else ()
    named = [("versions", version) for version in listed]
    named += [(f"labels.{label}", version) for label, version in serving.labels.items()]
    if default.startswith("@"):
        if default.removeprefix("@") not in serving.labels:
            raise ConfigError(f"{path}: default_version", default, f"one of the labels {', '.join(serving.labels)}")
    elif default != LATEST:
        named.append(("default_version", default))
    for key, version in named:
        if version not in versions:
            raise ConfigError(f"{path}: {key}", version, f"a version that is there: {', '.join(versions)}")


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
