"""Reads files of other systems without running code from them.

Only regular files inside the directory are read, and tensors are bounded by the size of the file. Weights come from
safetensors, or from PyTorch pickles restricted to tensors and plain values. Every key of a configuration must be read
or be known to have no effect.
"""

import json
import re
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.files import open_file, read_file
from dragoman_service.bundle.manifest import MAX_FILE_BYTES

_MAX_PLAIN_BYTES: Final = 256 << 20  # of configurations, vocabularies and SentencePiece models
_T = TypeVar("_T")

_REJECTED_CLASS: Final = re.compile(r"GLOBAL ([\w.]+)")  # part of PyTorch's message about a rejected class or function
_FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)


def read_plain(path: Path) -> bytes:
    """Return the content of a file; ImportFormatError if it is missing, too large, or not a regular file."""
    try:
        return read_file(path, max_bytes=_MAX_PLAIN_BYTES)
    except OSError as error:
        raise ImportFormatError(f"cannot read {path}: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; ImportFormatError if it is invalid or has duplicate keys."""

    def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields = dict(pairs)
        if len(fields) != len(pairs):
            raise ValueError("duplicate key in an object")
        return fields

    try:
        fields = json.loads(read_plain(path), object_pairs_hook=distinct)
    except (ValueError, RecursionError) as error:
        raise ImportFormatError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ImportFormatError(f"{path} contains {type(fields).__name__}: expected an object")
    return fields


def dotted(fields: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested fields by dotted paths, with lists as values; ValueError if it is not an object."""
    if not isinstance(fields, dict):
        raise ValueError(f"{type(fields).__name__} instead of fields")  # noqa: TRY004  handled as a parse error
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the float tensors of a safetensors file or a PyTorch checkpoint; ImportFormatError on other content."""
    content = _load(path, load_file if path.suffix == ".safetensors" else _unpickle)
    return float_tensors(content, path)


def float_tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Return tensors by name in float32; ImportFormatError if a value is not a float tensor."""
    if not isinstance(content, dict):
        raise ImportFormatError(f"{path} contains {type(content).__name__}: expected tensors by name")
    for name, tensor in content.items():
        if not isinstance(tensor, Tensor) or tensor.dtype not in _FLOATS:
            found = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise ImportFormatError(f"{path}: {name} is {found}: expected a tensor of floats")
    return {str(name): tensor.float() for name, tensor in content.items()}


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a PyTorch checkpoint: tensors, plain values and options (`fields_of`).

    The only permitted class is `argparse.Namespace`, which runs no code; ImportFormatError on others.
    """
    with torch.serialization.safe_globals([Namespace]):
        content = _load(path, _unpickle)
    if not isinstance(content, dict):
        raise ImportFormatError(f"{path} contains {type(content).__name__}: expected a dictionary")
    return content


def fields_of(options: object) -> dict[str, Any] | None:
    """Return options, a dictionary or `argparse.Namespace`, by name; None if they are neither."""
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
    # Reads the zip format and the format before PyTorch 1.6 with PyTorch's restricted unpickler.
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        # PyTorch's message is not shown: it recommends running the code of the file.
        rejected = _REJECTED_CLASS.search(str(error))
        reason = (
            f"it contains {rejected[1]}; code of a file is never run"
            if rejected
            else f"not a PyTorch checkpoint of tensors and plain values, or damaged ({type(error).__name__})"
        )
        raise ImportFormatError(f"cannot read {path}: {reason}") from error
    _check_size(content, path)
    return content


def _check_size(content: object, path: Path) -> None:
    # Tensors larger than the file are rejected: a pickle declares the size of a storage, and can repeat one value in a
    # tensor of any size, so that a small file could fill the memory.
    limit = path.stat().st_size
    seen, num_bytes = set(), 0
    for tensor in _tensors_in(content):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            num_bytes += storage.nbytes()
        if max(tensor.nbytes, num_bytes) > limit:
            raise ImportFormatError(f"cannot read {path}: its tensors are larger than the file ({limit} bytes)")


def _tensors_in(content: object) -> Iterator[Tensor]:
    # each object once
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


class Tensors:
    """The tensors of a checkpoint; each must be used once. `left` are the unread ones."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.left = dict(tensors)
        self.path = path

    def take(self, name: str) -> Tensor:
        """Return a tensor; ImportFormatError if it is missing."""
        if name not in self.left:
            raise ImportFormatError(f"{self.path}: missing tensor {name}")
        return self.left.pop(name)

    def linear(self, *names: str) -> dict[str, Tensor]:
        """Return the concatenated weights of products of one input, and their biases if there are any."""
        weights = [self.take(f"{name}.weight") for name in names]
        if len({weight.shape[1:] for weight in weights}) > 1:
            raise ImportFormatError(f"{self.path}: {', '.join(names)} have inputs of different widths")
        if not any(f"{name}.bias" in self.left for name in names):
            return {"weight": torch.cat(weights)}
        biases = [
            self.left.pop(f"{name}.bias", weight.new_zeros(len(weight)))
            for name, weight in zip(names, weights, strict=True)
        ]
        return {"weight": torch.cat(weights), "bias": torch.cat(biases)}

    def norm(self, name: str) -> dict[str, Tensor]:
        """Return a normalisation, by the names of CTranslate2."""
        parts = {"gamma": self.take(f"{name}.weight")}
        return {**parts, **({"beta": self.take(f"{name}.bias")} if f"{name}.bias" in self.left else {})}

    def finish(self) -> None:
        """Raise ImportFormatError for the first unread tensor."""
        for name in sorted(self.left):
            raise ImportFormatError(f"{self.path}: unknown tensor {name}")


class ForeignConfig:
    """The configuration of another system; every key must be consumed."""

    def __init__(self, path: Path, fields: dict[str, Any]) -> None:
        self.path = path
        self._left = dict(fields)

    @classmethod
    def read(cls, path: Path, *, is_optional: bool = False) -> "ForeignConfig":
        """Read a JSON file; an optional file that is missing has no keys."""
        return cls(path, {} if is_optional and not path.exists() else read_json(path))

    def take(self, key: str, kind: type[_T], default: _T | None = None) -> _T:
        """Return a value, or the default if it is absent or null; ImportFormatError on another type."""
        value = self._left.pop(key, None)
        if value is None:
            value = default
        if kind is float and type(value) is int:
            value = float(value)
        if isinstance(value, bool) != (kind is bool) or not isinstance(value, kind):
            raise self.error(key, value, f"a value of type {kind.__name__}")
        return value

    def take_optional(self, key: str, kind: type[_T]) -> _T | None:
        """Return a value; None if it is absent or null."""
        return self.take(key, kind) if self._left.get(key) is not None else self._left.pop(key, None)

    def choose(self, key: str, choices: Mapping[str, _T], default: str) -> _T:
        """Return the value of a named choice; ImportFormatError on another name."""
        name = self.take(key, str, default)
        if name not in choices:
            raise self.error(key, name, ", ".join(choices))
        return choices[name]

    def require(self, key: str, *allowed: object) -> None:
        """Reject a value other than null and the allowed ones."""
        value = self._left.pop(key, None)
        if value is not None and value not in allowed:
            raise self.error(key, value, " or ".join(map(repr, allowed)) or "none")

    def ignore(self, keys: Iterable[str]) -> None:
        """Skip keys that do not affect the model."""
        for key in keys:
            self._left.pop(key, None)

    def finish(self, known: Collection[str] = (), *, prefixes: tuple[str, ...] = ("",)) -> None:
        """Raise ImportFormatError for the first unread key with one of these prefixes."""
        self.ignore(known)
        for key, value in self._left.items():
            if key.startswith(prefixes):
                raise self.error(key, value, "a supported option")

    def error(self, key: str, value: object, expected: str) -> ImportFormatError:
        """Return an error about a value."""
        return ImportFormatError(f"{self.path}: {key} is {repr(value)[:200]}: expected {expected}")
