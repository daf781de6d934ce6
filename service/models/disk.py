"""What lies in the directory of models: names, versions, and whether their files change."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.bundle import MANIFEST_NAME, Manifest, load_manifest, open_bundle
from service.errors import BundleError, ConfigError
from service.models.names import is_plain_name
from service.models.serving import SERVING_NAME

Fingerprint = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of every file of a directory: as long as it is the same, so are the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NameOnDisk:
    """One name and its versions, at one moment."""

    directory: Path
    versions: Mapping[str, Fingerprint]
    serving: Fingerprint
    """Of the file of settings; empty without one."""


def names_on_disk(directory: Path) -> dict[str, NameOnDisk]:
    """Return what can be a model; mounted volumes hold `lost+found` and hidden directories, too.

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
    """Return the versions of one name; none if its directory has just gone."""
    try:
        versions = {path.name: fingerprint(path) for path in _named_directories(directory)}
    except (FileNotFoundError, NotADirectoryError):
        versions = {}
    serving = tuple(entry for entry in fingerprint(directory) if entry[0] == SERVING_NAME)
    return NameOnDisk(directory=directory, versions=versions, serving=serving)


def fingerprint(directory: Path) -> Fingerprint:
    """Return what changes when a file of a directory does; files that go meanwhile are left out."""
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
    """Read the manifest of a bundle, which must be the one its path says; BundleError if it is not."""
    manifest = load_manifest(directory)
    found, expected = f"{manifest.name}/{manifest.version}", f"{directory.parent.name}/{directory.name}"
    if found != expected:
        raise BundleError(str(directory / MANIFEST_NAME), found=found, expected=expected, what="name and version")
    return manifest


def check_complete(directory: Path) -> None:
    """Raise BundleError unless all files of a bundle are there, and are those that its manifest lists."""
    named_manifest(directory)
    open_bundle(directory)


def _named_directories(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.is_dir() and is_plain_name(path.name))
