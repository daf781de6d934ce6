"""The model directory: bundles as `NAME/VERSION/`, and the settings of each model in `NAME/serving.toml`.

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

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationError

from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, load_manifest, open_bundle, read_file
from dragoman_service.bundle.manifest import Manifest
from dragoman_service.errors import BundleError, ConfigError
from dragoman_service.models.model import MAX_LABEL_CHARACTERS, MAX_LABELS, is_label, is_plain_name
from dragoman_service.toml import MAX_BYTES, SettingsSection, parse_toml


def bundled_models() -> Path:
    """Return the directory of the installed package `dragoman-models`, or `models` if it is not installed."""
    spec = find_spec("dragoman_models")  # a namespace package: it contains bundles and no code
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else Path("models")


class ModelSettings(SettingsSection):
    """Location, loading and unloading of models."""

    directory: Path = Field(default_factory=bundled_models)
    """Directory of the bundles, as NAME/VERSION/. All bundles are loaded unless NAME/serving.toml selects some.
    Default: the models of the package `dragoman-models`, or `models` if it is not installed."""

    glossaries_directory: Path | None = None
    """Directory of the named glossaries, as NAME.tsv or NAME.tbx. Changed files are read again. Default: the directory
    `glossaries` next to `directory`, if it exists."""

    poll_interval_s: float = Field(default=5.0, ge=0, le=3600)
    """Interval in seconds between checks of the directory for new and removed versions; 0: no checks."""

    settle_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds without a change after which loading a bundle whose checksums do not match fails. Before that, the bundle
    may still be being copied."""

    load_timeout_s: float = Field(default=120.0, gt=0, le=3600)
    """Seconds within which the worker process of a version must load its model and translate the warm-up texts. If it
    takes longer, the server kills it and the load fails. Ignored with `runtime.isolation` `none`."""

    unload_timeout_s: float = Field(default=300.0, ge=0, le=3600)
    """Seconds within which the requests of a version must finish when it is unloaded; then the remaining ones fail."""


SERVING_NAME = "serving.toml"  # name of the settings file of a model, in the directory of its versions

LATEST = "latest"  # value of `default_version`: the newest ready version

MAX_VERSIONS = 100  # maximum of N in `latest:N`, and of the versions in a list

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


class ServingSettings(SettingsSection):
    """Settings of a model: loaded versions, default version, labels, overrides of server settings."""

    model_config = ConfigDict(strict=True)

    versions: Annotated[str | tuple[str, ...], BeforeValidator(_checked_versions)] = "all"
    """Versions to load: `all`, `latest:N` (the newest N), or a list. Versions with a label and the default version are
    always loaded."""

    default_version: _DefaultVersion = LATEST
    """Version for requests that do not name one: `latest`, a version, or `@` and a label."""

    labels: dict[_Label, _Version] = Field(default_factory=dict, max_length=MAX_LABELS)
    """Label to version, for example `stable` and `canary`. `SetModelLabel` changes labels until the server stops."""

    scheduling: dict[str, Any] = Field(default_factory=dict)
    """Settings of the section `scheduling` that differ for this model."""

    runtime: dict[str, Any] = Field(default_factory=dict)
    """Settings of the section `runtime` that differ for this model."""

    @property
    def num_latest(self) -> int | None:
        """N of `latest:N`; None for other values of `versions`."""
        match = _LATEST_N.fullmatch(self.versions) if isinstance(self.versions, str) else None
        return int(match[1]) if match else None

    @property
    def overrides(self) -> Mapping[str, Mapping[str, Any]]:
        """Server settings that differ for this model, by section."""
        return {"scheduling": self.scheduling, "runtime": self.runtime}


def read_serving(directory: Path) -> ServingSettings:
    """Read `serving.toml` from the directory of a model; return the defaults if the file does not exist.

    Raises ConfigError with the file and the first invalid key. `config` validates the tables `scheduling` and
    `runtime`.
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
    except ValueError as error:  # invalid UTF-8 or TOML
        raise ConfigError("models.directory", str(path), f"TOML ({error})") from error


def check_on_disk(serving: ServingSettings, directory: Path, versions: Collection[str]) -> None:
    """Raise ConfigError if the settings of a model name versions that are not on disk."""
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
            raise ConfigError(f"{path}: {key}", version, f"one of the versions on disk: {', '.join(versions)}")


def _first_error(path: Path, error: ValidationError) -> ConfigError:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        return ConfigError.unknown(f"{path}: {key}", f"one of the keys {', '.join(ServingSettings.model_fields)}")
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return ConfigError(f"{path}: {key}", first["input"], expected)


Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and modification time in ns of each file in a directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOnDisk:
    """Snapshot of the directory of a model."""

    directory: Path
    versions: Mapping[str, Fingerprint]
    serving: Fingerprint  # fingerprint of `serving.toml`; empty if the file does not exist


def names_on_disk(directory: Path) -> dict[str, NameOnDisk]:
    """Return all models with at least one version; raises ConfigError if there are none.

    Raises ConfigError also if the directory cannot be read. Hidden directories and `lost+found` are ignored.
    """
    try:
        names = {path.name: name_on_disk(path) for path in _named_directories(directory)}
    except OSError as error:
        expected = f"a directory that exists and can be read ({error.strerror})"
        raise ConfigError("models.directory", str(directory), expected) from error
    non_empty = {name: on_disk for name, on_disk in names.items() if on_disk.versions}
    if not non_empty:
        raise ConfigError("models.directory", str(directory), "a directory with bundles as NAME/VERSION/")
    return non_empty


def name_on_disk(directory: Path) -> NameOnDisk:
    """Return a snapshot of a model; without versions if its directory does not exist."""
    try:
        versions = {path.name: fingerprint(path) for path in _named_directories(directory)}
    except (FileNotFoundError, NotADirectoryError):
        versions = {}
    serving = tuple(entry for entry in fingerprint(directory) if entry[0] == SERVING_NAME)
    return NameOnDisk(directory=directory, versions=versions, serving=serving)


def fingerprint(directory: Path) -> Fingerprint:
    """Return the fingerprint of a directory; files that were removed in the meantime are omitted."""
    files = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except OSError:
                    continue
                if not stat.S_ISDIR(status.st_mode):
                    files.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except OSError:
        return ()
    return tuple(sorted(files))


def named_manifest(directory: Path) -> Manifest:
    """Read the manifest of a bundle; raises BundleError if name and version differ from those of its path."""
    manifest = load_manifest(directory)
    found, expected = f"{manifest.name}/{manifest.version}", f"{directory.parent.name}/{directory.name}"
    if found != expected:
        raise BundleError(str(directory / MANIFEST_NAME), found=found, expected=expected, what=_PLACE)
    return manifest


def is_misplaced(error: BundleError) -> bool:
    """Return whether an error means that a bundle is in the directory of another version."""
    return error.what == _PLACE


def open_version(directory: Path) -> Bundle:
    """Open the bundle of a version; raises BundleError if it is damaged or in the wrong directory."""
    named_manifest(directory)
    return open_bundle(directory)


def _named_directories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and is_plain_name(path.name))
