"""The binary format of `model.bin`."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.files import open_file
from dragoman_service.bundle.manifest import MAX_FILE_BYTES

_VERSIONS: Final = range(2, 7)  # of the binary format
_MAX_VARIABLES: Final = 1 << 16
_MAX_RANK: Final = 4
# by number, from version 4
_DTYPES: Final = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
_DTYPES_BY_SIZE: Final = {4: torch.float32, 2: torch.int16, 1: torch.int8}  # by bytes per element, before version 4
# by specification, if the number is not stored
NUM_HEADS: Final = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
LAST_REVISION: Final = 7
_OTHER_SPECS: Final = {
    "WhisperSpec": "speech recognition",
    "TransformerDecoderSpec": "a language model without encoder",
    "TransformerEncoderSpec": "no decoder",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Binary:
    """Content of `model.bin`."""

    spec: str
    version: int
    revision: int
    tensors: Mapping[str, Tensor]  # stored variables; aliases share one tensor

    @classmethod
    def read(cls, path: Path) -> "Binary":
        """Read an untrusted file; every length is checked against the rest of the file."""
        try:
            with open_file(path, max_bytes=MAX_FILE_BYTES) as file:
                return cls._parse(_Reader(file, path), path)
        except OSError as error:
            raise ImportFormatError(f"cannot read {path}: {error.strerror or error}") from error

    @classmethod
    def _parse(cls, reader: "_Reader", path: Path) -> "Binary":
        version = reader.number("I")
        if version not in _VERSIONS:
            first, last = _VERSIONS[0], _VERSIONS[-1]
            raise ImportFormatError(f"{path} has version {version} of the binary format: expected {first} to {last}")
        spec, revision = reader.text(), reader.number("I")
        if spec not in NUM_HEADS:
            reason = _OTHER_SPECS.get(spec, "expected a Transformer with encoder and decoder")
            raise ImportFormatError(f"{path}: unsupported model {spec!r}: {reason}")
        if not 2 <= revision <= LAST_REVISION:
            raise ImportFormatError(f"{path}: revision {revision} of {spec}: expected 2 to {LAST_REVISION}")
        tensors: dict[str, Tensor] = {}
        for _ in range(reader.count()):
            name, tensor = reader.text(), reader.tensor(version)
            if name in tensors:
                raise reader.error(f"duplicate variable {name}")
            tensors[name] = tensor
        for _ in range(reader.count() if version >= 3 else 0):
            alias, name = reader.text(), reader.text()
            if name not in tensors or alias in tensors:
                raise reader.error(f"invalid alias {alias} of {name}")
            tensors[alias] = tensors[name]
            if f"{name}_scale" in tensors:
                tensors[f"{alias}_scale"] = tensors[f"{name}_scale"]
        reader.finish()
        return cls(spec=spec, version=version, revision=revision, tensors=tensors)


class _Reader:
    # Primitives of the binary format, little-endian.
    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = file.seek(0, 2)
        file.seek(0)

    def error(self, found: str) -> ImportFormatError:
        return ImportFormatError(f"{self._path} is damaged: {found}")

    def number(self, kind: str) -> int:
        (value,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))
        return int(value)

    def count(self) -> int:
        count = self.number("I")
        if count > _MAX_VARIABLES:
            raise self.error(f"{count} variables, limit {_MAX_VARIABLES}")
        return count

    def text(self) -> str:
        # zero-terminated
        content = self._take(self.number("H"))
        try:
            return content.rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise self.error(f"name is not UTF-8: {bytes(content[:40])!r}") from error

    def tensor(self, version: int) -> Tensor:
        # a variable after its name
        rank = self.number("B")
        if rank > _MAX_RANK:
            raise self.error(f"variable with {rank} dimensions")
        shape = [self.number("I") for _ in range(rank)]
        kind = self.number("B")
        known: Mapping[int, torch.dtype] = dict(enumerate(_DTYPES)) if version >= 4 else _DTYPES_BY_SIZE
        if kind not in known:
            raise self.error(f"unknown element type {kind}")
        dtype = known[kind]
        num_bytes = self.number("I") * (1 if version >= 4 else dtype.itemsize)
        if num_bytes != math.prod(shape) * dtype.itemsize or num_bytes == 0:
            raise self.error(f"{num_bytes} bytes for a variable of shape {shape}")
        return torch.frombuffer(self._take(num_bytes), dtype=dtype).reshape(shape)

    def finish(self) -> None:
        if self._left:
            raise self.error(f"{self._left} trailing bytes")

    def _take(self, num_bytes: int) -> bytearray:
        if num_bytes > self._left:
            raise self.error(f"length of {num_bytes} bytes exceeds the remaining {self._left}")
        self._left -= num_bytes
        content = bytearray(num_bytes)
        if self._file.readinto(content) != num_bytes:
            raise self.error("unexpected end of file")
        return content
