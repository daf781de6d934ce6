"""Reads the files of other systems without running anything that they contain.

A file is read only if it is a regular one within its directory, and its content is bounded by its own size: weights
come from safetensors, or from PyTorch's pickles with nothing but tensors and plain values. Every key of a configuration
must be asked for, or be known to change nothing.
"""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.files import open_file, read_file
from dragoman_service.bundle.manifest import MAX_FILE_BYTES

_MAX_PLAIN_BYTES: Final = 256 << 20
"""Of a file that is read whole: configurations, vocabularies, SentencePiece models."""

_T = TypeVar("_T")

_REFUSED_CLASS: Final = re.compile(r"GLOBAL ([\w.]+)")
"""In the message of PyTorch about a class or function that it does not call."""

_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def read_plain(path: Path) -> bytes:
    """Return the content of a file; ImportFormatError if it is missing, too large, no file, or elsewhere."""
    try:
        return read_file(path, max_bytes=_MAX_PLAIN_BYTES)
    except OSError as error:
        raise ImportFormatError(f"cannot read {path}: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; ImportFormatError if there is none, or a key stands twice."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("a key that stands twice in an object")
        return fields

    try:
        fields = json.loads(read_plain(path), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise ImportFormatError(f"{path} holds no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ImportFormatError(f"{path} holds {type(fields).__name__}: expected an object")
    return fields


def read_yaml(path: Path) -> dict[str, Any]:
    """Return what a YAML file says by dotted paths, lists as they are; ImportFormatError if it says nothing so.

    Aliases, by which a small file can say very much, are refused.
    """
    try:
        content = read_plain(path).decode()
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(content, Loader=yaml.SafeLoader)):
            raise ImportFormatError(f"{path} has aliases (*name): write out what they stand for")
        return dict(dotted(yaml.safe_load(content)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ImportFormatError(f"{path} holds no YAML: {error}") from error


def dotted(fields: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what fields say by dotted paths, lists as they are; ValueError if they are none."""
    if not isinstance(fields, dict):
        raise ValueError(f"{type(fields).__name__} in place of fields")  # noqa: TRY004  as of what cannot be parsed
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the float tensors of a file of safetensors, or of a PyTorch checkpoint in which there is nothing else.

    Raises:
        ImportFormatError: if it cannot be read, is none, or holds what is no float tensor.
    """
    content = _load(path, load_file if path.suffix == ".safetensors" else _unpickle)
    return float_tensors(content, path)


def float_tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Return tensors by name in float32; ImportFormatError names what is no tensor of floats, and the file."""
    if not isinstance(content, dict):
        raise ImportFormatError(f"{path} holds {type(content).__name__}: expected tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _FLOATS:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ImportFormatError(f"{path}: {name} is {found}: expected a tensor of floats")
    return {str(name): tensor.float() for name, tensor in content.items()}


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return what a PyTorch checkpoint of a trainer holds by name: tensors, plain values, options (`fields_of`).

    Of classes only `argparse.Namespace` is made, which runs nothing.

    Raises:
        ImportFormatError: if it cannot be read, is none, or holds objects of other classes.
    """
    with torch.serialization.safe_globals([Namespace]):
        content = _load(path, _unpickle)
    if not isinstance(content, dict):
        raise ImportFormatError(f"{path} holds {type(content).__name__}: expected the parts of a checkpoint by name")
    return content


def fields_of(options: object) -> dict[str, Any] | None:
    """Return options of a checkpoint, a dictionary or `argparse.Namespace`, by name; None if there are none."""
    fields = vars(options) if isinstance(options, Namespace) else options
    return {str(name): value for name, value in fields.items()} if isinstance(fields, dict) else None


def _load(path: Path, load: Callable[[Path], Any]) -> Any:
    try:
        open_file(path, max_bytes=MAX_FILE_BYTES).close()
        return load(path)
    except OSError as error:
        raise ImportFormatError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise ImportFormatError(f"cannot read {path}: {error}") from error


def _unpickle(path: Path) -> Any:
    """Return the content of a PyTorch checkpoint, of the zip format or of the format before PyTorch 1.6.

    PyTorch's restricted unpickler makes tensors, plain values and the permitted classes, and calls nothing else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # The message of PyTorch is not shown: it advises to run the code that the file contains.
        refused = _REFUSED_CLASS.search(str(error))
        reason = (
            f"it names {refused[1]}, and an import runs no code of a file"
            if refused
            else f"not a PyTorch checkpoint of tensors and plain values, or damaged ({type(error).__name__})"
        )
        raise ImportFormatError(f"cannot read {path}: {reason}") from error
    _check_size(content, path)
    return content


def _check_size(content: object, path: Path) -> None:
    """Raise ImportFormatError if tensors take more memory than the file has bytes: a small file could fill the memory.

    A pickle declares the size of each storage, and can repeat a storage of one value in a tensor of any size.
    """
    limit = path.stat().st_size
    seen, num_bytes = set(), 0
    for tensor in _tensors_in(content):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            num_bytes += storage.nbytes()
        if max(tensor.nbytes, num_bytes) > limit:
            raise ImportFormatError(
                f"cannot read {path}: it declares more bytes of tensors than the file has ({limit})"
            )


def _tensors_in(content: object) -> Iterator[Tensor]:
    """Yield the tensors of a checkpoint, each object once."""
    waiting, seen = [content], set()
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, list | tuple | set):
            waiting.extend(value)
        elif isinstance(value, Namespace):
            waiting.append(vars(value))


class ForeignConfig:
    """The configuration of another system, of which no key may be left over."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self._left = dict(fields)

    @classmethod
    def read(cls, path: Path, *, is_optional: bool = False) -> "ForeignConfig":
        """Read a JSON file; one that is optional and missing has no keys."""
        return cls(path, {} if is_optional and not path.exists() else read_json(path))

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return a value, or the default if it is absent or null; ImportFormatError if it is of another type."""
        value = self._left.pop(key, None)
        if value is None:
            value = default
        if kind is float and type(value) is int:
            value = float(value)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            raise self._error(key, value, f"a value of type {kind.__name__}")
        return value

    def take_optional(self, key: str, kind: type[_T]) -> _T | None:
        """Return a value; None if it is absent or null."""
        return self.take(key, kind) if self._left.get(key) is not None else self._left.pop(key, None)

    def require(self, key: str, *allowed: object) -> None:
        """Refuse a value, if there is one, that is none of those allowed; null is."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            raise self._error(key, value, " or ".join(map(repr, allowed)) or "none")

    def ignore(self, keys: Iterable[str]) -> None:
        """Leave out keys that change nothing of what a model computes."""
        for key in keys:
            self._left.pop(key, None)

    def finish(self, known: Collection[str] = (), *, prefixes: tuple[str, ...] = ("",)) -> None:
        """Raise ImportFormatError, naming the first key with one of these prefixes that was not read."""
        self.ignore(known)
        for key, value in self._left.items():
            if key.startswith(prefixes):
                raise self._error(key, value, "an option that this importer knows")

    def _error(self, key: str, value: object, expected: str) -> ImportFormatError:
        told = repr(value)
        return ImportFormatError(f"{self.path}: {key} is {told[:200]}: expected {expected}")
