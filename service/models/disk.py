"""The directory of models on the disk: names, versions, and whether their files have changed."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.bundle import MANIFEST_NAME, Bundle, Manifest, load_manifest, open_bundle
from service.errors import BundleError, ConfigError
from service.models.names import is_plain_name
from service.models.serving import SERVING_NAME

_PLACE = "name and version"

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
    """Return all names with at least one version; hidden directories and `lost+found` are ignored.

    Raises:
        ConfigError: if the directory is missing or unreadable, or has no bundle.
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
    """Return the fingerprint of a directory; files that are removed meanwhile are left out."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                if entry.is_file():
                    found.append((entry.name, status.st_ino, status.st_size, status.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
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
