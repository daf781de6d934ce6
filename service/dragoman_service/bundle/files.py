"""Opening and checking of a bundle directory; reading of files with size limits."""

import errno
import hashlib
import math
import os
import stat
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import from_json

from dragoman_service.bundle.int8_weights import Int8Weights
from dragoman_service.bundle.manifest import SCHEMA_VERSION, FileEntry, GraphFiles, Manifest
from dragoman_service.errors import BundleError

_READABLE_VERSIONS: Final = (1, 2, 3, 4, 5, 6, SCHEMA_VERSION)

MANIFEST_NAME = "manifest.json"  # the only file without a checksum

_MAX_MANIFEST_BYTES: Final = 1 << 20

_MAX_INT8_WEIGHTS_BYTES: Final = 4 << 20  # several times the size for the maximum number of layers

# Two changes within one tick of the file system clock have the same timestamp. A change of a file that is younger than
# this could be missed.
_MIN_AGE_NS: Final = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A file with a correct checksum, and its metadata before the check; changed content has other metadata."""

    name: str
    sha256: str
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose files match the checksums of its manifest."""

    directory: Path
    manifest: Manifest
    checked_files: frozenset[CheckedFile] = frozenset()
    """Files that `open_bundle` need not read again; excludes files that have just been written."""

    @property
    def tokenizer_path(self) -> Path:
        """The SentencePiece model, or the merges of byte-level BPE."""
        return self.directory / self.manifest.tokenizer

    @property
    def shortlist_path(self) -> Path:
        """The shortlist file; raises BundleError if the bundle has no shortlist."""
        name = self.manifest.shortlist
        if name is None:
            raise _manifest_error(
                self.directory, "shortlist", None, "a file, which `dragoman export shortlist` creates"
            )
        return self.directory / name

    def graph_paths(self, precision: str) -> tuple[Path, Path]:
        """Return the encoder and decoder graph of a precision; raises BundleError if the precision does not exist."""
        files = self._files(precision)
        return self.directory / files.encoder, self.directory / files.decoder

    def attention_path(self, precision: str) -> Path:
        """Return the attention graph of a precision; raises BundleError if it does not exist."""
        name = self._files(precision).attention
        if name is None:
            raise self.missing_attention(precision)
        return self.directory / name

    def missing_attention(self, precision: str) -> BundleError:
        """Return the error for a precision without an attention graph."""
        what = f"precisions.{precision}.attention"
        return _manifest_error(self.directory, what, None, "a graph; export the model again to create it")

    def weights_bytes(self, precision: str) -> int:
        """Return the size of encoder, decoder and weights; raises BundleError if the precision does not exist."""
        files = self._files(precision)
        names = (files.encoder, files.decoder, files.weights)
        return sum((self.directory / name).stat().st_size for name in names if name is not None)

    def int8_weights(self, precision: str) -> Int8Weights | None:
        """Read the description of the int8 weights of a precision; None if the bundle has none.

        Raises BundleError if the precision does not exist, or if the description is invalid.
        """
        files = self._files(precision)
        if files.int8_weights is None or files.weights is None:
            return None
        path = self.directory / files.int8_weights
        content, _ = _read_object(path, max_bytes=_MAX_INT8_WEIGHTS_BYTES)
        try:
            weights = Int8Weights.model_validate_json(content)
        except ValidationError as error:
            raise _first_error(path, error) from error
        weights.check(path, self.manifest, files.weights)
        return weights

    def _files(self, precision: str) -> GraphFiles:
        files = self.manifest.precisions.get(precision)
        if files is None:
            available = ", ".join(sorted(self.manifest.precisions))
            raise _manifest_error(self.directory, "precision", precision, f"one of {available}")
        return files


def open_bundle(
    directory: Path, *, checked_files: Collection[CheckedFile] = (), clock_ns: Callable[[], int] = time.time_ns
) -> Bundle:
    """Check the manifest and all files in a directory and return the bundle.

    A file of `checked_files` is read again only if its metadata has changed. `clock_ns` returns the Unix time in
    nanoseconds. Raises BundleError with the first invalid file, the actual and the expected value.
    """
    manifest = load_manifest(directory)
    settled_ns = clock_ns() - _MIN_AGE_NS
    files = [_checked(directory / name, entry, checked_files) for name, entry in manifest.files.items()]
    settled = frozenset(file for file in files if file.changed_ns < settled_ns)
    return Bundle(directory=directory, manifest=manifest, checked_files=settled)


def load_manifest(directory: Path) -> Manifest:
    """Read `manifest.json` without checking other files; raises BundleError if it is invalid."""
    path = directory / MANIFEST_NAME
    content, fields = _read_object(path, max_bytes=_MAX_MANIFEST_BYTES)
    version = fields.get("schema_version")  # checked first, because other versions have other fields
    if version not in _READABLE_VERSIONS:
        raise _manifest_error(directory, "schema_version", version, " or ".join(map(str, _READABLE_VERSIONS)))
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise _first_error(path, error) from error


def _read_object(path: Path, *, max_bytes: int) -> tuple[bytes, dict[str, Any]]:
    # Returns the content of a JSON file and the parsed object.
    try:
        content = read_file(path, max_bytes=max_bytes)
        fields = from_json(content)
    except OSError as error:
        raise BundleError.unreadable(str(path), error) from error
    except ValueError as error:  # invalid UTF-8 or JSON, or nested too deeply
        raise BundleError(str(path), found=str(error), expected="JSON", what="content") from error
    if not isinstance(fields, dict):
        raise BundleError(str(path), found=type(fields).__name__, expected="an object", what="content")
    return content, fields


def open_file(path: Path, *, max_bytes: float = math.inf) -> BufferedReader:
    """Open a regular file for reading, without blocking.

    Raises OSError if it is not a regular file, larger than `max_bytes`, or a link to a target outside its directory.
    """
    target = os.path.realpath(path, strict=True)
    if not Path(target).is_relative_to(os.path.realpath(path.parent)):
        raise OSError(errno.EPERM, "a link to a target outside its directory")
    file = open(target, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW))  # noqa: SIM115
    status = os.fstat(file.fileno())
    fault = "" if stat.S_ISREG(status.st_mode) else "not a regular file"
    if fault or status.st_size > max_bytes:
        file.close()
        raise OSError(errno.EINVAL, fault or f"{status.st_size} bytes, more than {max_bytes}")
    return file


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a file; raises the errors of `open_file`."""
    with open_file(path, max_bytes=max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def file_entry(path: Path) -> FileEntry:
    """Return the checksum and size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(sha256=digest, bytes=path.stat().st_size)


def _checked(path: Path, entry: FileEntry, known: Collection[CheckedFile]) -> CheckedFile:
    try:
        with open_file(path) as content:
            status = os.fstat(content.fileno())  # before reading: the next check detects a later change
            file = CheckedFile(
                name=path.name,
                sha256=entry.sha256,
                inode=status.st_ino,
                bytes=status.st_size,
                modified_ns=status.st_mtime_ns,
                changed_ns=status.st_ctime_ns,
            )
            if file.bytes != entry.bytes:
                raise BundleError(str(path), found=file.bytes, expected=entry.bytes, what="size in bytes")
            if file in known:
                return file
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise BundleError.unreadable(str(path), error) from error
    if digest != entry.sha256:
        raise BundleError(str(path), found=digest, expected=entry.sha256, what="SHA-256")
    return file


def _manifest_error(directory: Path, what: str, found: object, expected: object) -> BundleError:
    return BundleError(str(directory / MANIFEST_NAME), found=repr(found), expected=expected, what=what)


def _first_error(path: Path, error: ValidationError) -> BundleError:
    first: Any = error.errors()[0]
    what = ".".join(str(part) for part in first["loc"]) or path.stem
    found, expected = repr(first["input"]), first["msg"]
    if first["type"] == "missing":
        found, expected = "'missing'", "a value"
    elif first["type"] == "extra_forbidden":
        expected = "only known fields"
    elif not first["loc"] or first["type"] == "value_error":
        found, expected = first["msg"].removeprefix("Value error, "), "consistent"
    return BundleError(str(path), found=found, expected=expected, what=what)
