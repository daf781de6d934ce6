"""The directory of models: bundles as `NAME/VERSION/`, and `NAME/serving.toml`, which says how they are served.

The checksums of the bundles do not cover `serving.toml`.
"""

import os
import re
import stat
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, load_manifest, open_bundle, read_file
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.models.model import MAX_LABEL_CHARACTERS, MAX_LABELS, is_label, is_plain_name
from dragoman_service.toml import MAX_BYTES, parse_toml


def bundled_models() -> Path:
    """Return the directory of the installed package `dragoman-models`, or `models` if it is not installed."""
    spec = find_spec("dragoman_models")  # a namespace package: it contains bundles and no code
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else Path("models")


class ModelSettings(BaseModel):
    """Where the models are, and when they are loaded and unloaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    directory: Path = Field(default_factory=bundled_models)
    """Directory of the bundles, as NAME/VERSION/. All bundles are loaded unless NAME/serving.toml selects some.
    Default: the models of the package `dragoman-models`, or `models` if it is not installed."""

    glossaries_directory: Path | None = None
    """Holds the named glossaries as NAME.tsv or NAME.tbx, read again when they change; unset: `glossaries` beside
    `directory`, if there is one."""

    poll_interval_s: float = Field(default=5.0, ge=0, le=3600)
    """Interval in seconds at which the directory is checked for new and removed versions; 0: it is never checked."""

    settle_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds for which a bundle that does not fit its checksums must stay unchanged to count as broken; until then it
    may still be copied."""

    load_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Seconds within which the worker process of a version must load its model and translate the warm-up texts. If it
    takes longer, the server kills it and the load fails. Ignored with `runtime.isolation` `none`."""

    unload_timeout_s: float = Field(default=300.0, ge=0, le=3600)
    """Seconds that the requests of a version have to finish when it is unloaded; what is left then is rejected."""


SERVING_NAME = "serving.toml"
"""The file of settings of a model, in the directory that holds its versions."""

LATEST = "latest"
"""As default version: the newest one that is ready."""

MAX_VERSIONS = 100
"""Most versions of a model that may be kept or listed."""

_PLACE = "name and version"
_LATEST_N = re.compile(r"latest:([1-9][0-9]{0,2})")


def _checked_versions(value: object) -> object:
    if value == "all":
        return value
    if isinstance(value, str) and (match := _LATEST_N.fullmatch(value)) and int(match[1]) <= MAX_VERSIONS:
        return value
    versions = tuple(value) if isinstance(value, list | tuple) else ()
    are_names = all(isinstance(version, str) and is_plain_name(version) for version in versions)
    if are_names and 1 <= len(versions) <= MAX_VERSIONS:
        return versions
    raise ValueError(f"`all`, `latest:N` with N from 1 to {MAX_VERSIONS}, or a list of 1 to {MAX_VERSIONS} versions")


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

    ConfigError names the file, and the first key that is unknown or has a bad value. `config` checks the tables
    `scheduling` and `runtime`.
    """
    path = directory / SERVING_NAME
    try:
        return ServingSettings.model_validate(parse_toml(read_file(path, max_bytes=MAX_BYTES)))
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


Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of every file of a directory; changes with any of the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOnDisk:
    """A name and its versions, at one moment."""

    directory: Path
    versions: Mapping[str, Fingerprint]
    serving: Fingerprint
    """Of `serving.toml`; empty without one."""


def names_on_disk(directory: Path) -> dict[str, NameOnDisk]:
    """Return all names with at least one version; ConfigError if there is none, or the directory cannot be read.

    Hidden directories and `lost+found` are ignored.
    """
    try:
        names = {path.name: name_on_disk(path) for path in _named_directories(directory)}
    except OSError as error:
        expected = f"a directory that exists and can be read ({error.strerror})"
        raise ConfigError("models.directory", str(directory), expected) from error
    found = {name: on_disk for name, on_disk in names.items() if on_disk.versions}
    if not found:
        raise ConfigError("models.directory", str(directory), "a directory with bundles as NAME/VERSION/")
    return found


def name_on_disk(directory: Path) -> NameOnDisk:
    """Return the versions of a name; none if its directory was just removed."""
    try:
        versions = {path.name: fingerprint(path) for path in _named_directories(directory)}
    except (FileNotFoundError, NotADirectoryError):
        versions = {}
    serving = tuple(entry for entry in fingerprint(directory) if entry[0] == SERVING_NAME)
    return NameOnDisk(directory=directory, versions=versions, serving=serving)


def fingerprint(directory: Path) -> Fingerprint:
    """Return the fingerprint of a directory; what cannot be looked at, as it was just removed, is left out."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    found.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        return ()
    return tuple(sorted(found))


def named_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle; BundleError unless name and version are those of its path."""
    manifest = load_manifest(directory)
    found, expected = f"{manifest.name}/{manifest.version}", f"{directory.parent.name}/{directory.name}"
    if found != expected:
        raise BundleError(str(directory / MANIFEST_NAME), found=found, expected=expected, what=_PLACE)
    return manifest


def is_misplaced(error: BundleError) -> bool:
    """Whether a bundle is in the directory of another version: copying the rest of it will not help."""
    return error.what == _PLACE


def open_version(directory: Path) -> Bundle:
    """Return the bundle of a version; BundleError unless it is the one of its path, and complete."""
    named_manifest(directory)
    return open_bundle(directory)


def _named_directories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and is_plain_name(path.name))
