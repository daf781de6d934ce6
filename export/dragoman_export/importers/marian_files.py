"""Reads Marian's model files: npz archives and binary models.

Every count, size and shape is compared with the size of the file before memory is allocated.
"""

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import yaml
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_service.bundle.files import read_file
from dragoman_service.bundle.manifest import MAX_FILE_BYTES

_CONFIG: Final = "special:model.yml"
_MAX_CONFIG_BYTES: Final = 64 << 10
_MAX_RANK: Final = 4
_ENCRYPTED: Final = 1  # flag of a member of a zip archive

# types of items in binary models
_INT8, _FLOAT32 = 0x101, 0x404
_REJECTED_TYPES: Final[Mapping[int, str]] = {
    0x402: "float16",
    **dict.fromkeys((0x4101, 0x10001), "intgemm8"),
    **dict.fromkeys((0x4102, 0x10002), "intgemm16"),
    **dict.fromkeys((0x18001, 0x11001, 0x12001), "intgemm8 for one instruction set"),
    **dict.fromkeys((0x18002, 0x11002, 0x12002), "intgemm16 for one instruction set"),
    **dict.fromkeys((0x802, 0x1801, 0x2801), "packed for FBGEMM"),
}


def read_model(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the configuration and the float32 tensors of a model; ImportFormatError if the file is invalid."""
    if path.suffix not in (".npz", ".bin"):
        raise ImportFormatError(f"{path}: expected a Marian model, .npz or .bin")
    try:
        content = read_file(path, max_bytes=MAX_FILE_BYTES)
    except OSError as error:
        raise ImportFormatError(f"cannot read {path}: {error.strerror}") from error
    try:
        arrays = _checked(_npz_items(content) if path.suffix == ".npz" else _binary_items(content))
        config = _parsed(arrays.pop(_CONFIG).tobytes())
    except (ValueError, struct.error, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise ImportFormatError(f"{path} is not a supported Marian model: {error}") from error
    return config, {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}


def read_yaml(text: bytes) -> dict[str, Any]:
    """Return the fields of a YAML document; ValueError if it is too large or has no fields."""
    if len(text) > _MAX_CONFIG_BYTES:
        raise ValueError(f"the configuration has {len(text)} bytes: expected at most {_MAX_CONFIG_BYTES}")
    try:
        fields = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"invalid YAML: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("the configuration has no fields")  # noqa: TRY004  handled as a parse error
    return {str(name): value for name, value in fields.items()}


def _checked(items: Iterator[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, array in items:
        if name in arrays:
            raise ValueError(f"duplicate item {name}")
        if array.dtype != (np.int8 if name == _CONFIG else np.float32):
            raise ValueError(f"{name} has type {array.dtype}")
        arrays[name] = array
    if _CONFIG not in arrays:
        raise ValueError(f"missing item {_CONFIG}")
    return arrays


def _parsed(content: bytes) -> dict[str, Any]:
    # The text ends at the first zero byte; padding may follow.
    return read_yaml(content.split(b"\0", 1)[0])


def _npz_items(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                raise ValueError(f"{name} is compressed")
            if member.flag_bits & _ENCRYPTED:
                raise ValueError(f"{name} is encrypted")
            yield name, _npy_array(name, archive.read(member))


def _npy_array(name: str, content: bytes) -> np.ndarray:
    file = io.BytesIO(content)
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{name} is not in version 1.0 of the npy format")
    shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
    if is_fortran or dtype not in (np.dtype("<f4"), np.dtype("i1")):
        raise ValueError(f"{name} has type {dtype}: expected float32 rows")
    return _array(name, content[file.tell() :], shape, dtype)


def _array(name: str, content: bytes, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    count = math.prod(shape)
    if min(shape, default=1) < 1 or len(shape) > _MAX_RANK or count * np.dtype(dtype).itemsize > len(content):
        raise ValueError(f"{name} has the shape {list(shape)} in {len(content)} bytes")
    return np.frombuffer(content, dtype, count).reshape(shape)


def _binary_items(content: bytes) -> Iterator[tuple[str, np.ndarray]]:
    version, count = struct.unpack_from("<QQ", content)
    if version != 1:
        raise ValueError(f"version {version}: expected 1")
    if count > len(content) // 32:
        raise ValueError(f"{count} items in {len(content)} bytes")
    headers = list(struct.iter_unpack("<4Q", content[16 : 16 + 32 * count]))
    if len(headers) != count:
        raise ValueError("truncated")
    reader = _Reader(content, 16 + 32 * count)
    names = [reader.take(length).split(b"\0", 1)[0].decode() for length, *_ in headers]
    shapes = []
    for name, (_, _, rank, _) in zip(names, headers, strict=True):
        if rank > _MAX_RANK:
            raise ValueError(f"{name} has {rank} dimensions")
        shapes.append(struct.unpack(f"<{rank}i", reader.take(4 * rank)))
    reader.take(*struct.unpack("<Q", reader.take(8)))  # aligns the data
    for name, shape, (_, kind, _, num_bytes) in zip(names, shapes, headers, strict=True):
        if kind not in (_INT8, _FLOAT32):
            raise ValueError(f"{name} has type {_REJECTED_TYPES.get(kind, hex(kind))}: expected float32")
        yield name, _array(name, reader.take(num_bytes), shape, "<f4" if kind == _FLOAT32 else "i1")
    if reader.position != len(content):
        raise ValueError(f"{len(content) - reader.position} bytes after the last item")


class _Reader:
    def __init__(self, content: bytes, position: int) -> None:
        self._content = content
        self.position = position

    def take(self, num_bytes: int) -> bytes:
        start, end = self.position, self.position + num_bytes
        if end > len(self._content):
            raise ValueError("truncated")
        self.position = end
        return self._content[start:end]
