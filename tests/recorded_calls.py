"""Records calls of the native engine, so that `tests/e2e/replay.cpp` can repeat them on other instruction sets.

A recording is a sequence of calls: name, number of arguments, arguments, result. Numbers have 64 bits, and blobs begin
with their size. An argument begins with its kind. Memory is the content before the call, the content after it (empty if
equal), and the number of pointers in it, each with its offset and an argument.
"""

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ctypes import c_char_p, c_float, c_void_p
from pathlib import Path
from typing import Any, BinaryIO, Final
from unittest.mock import patch

from numpy.typing import NDArray

from dragoman_service.runtimes.native.library import Library

_NUMBER, _FLOAT, _HANDLE, _INSTRUCTION_SET, _MEMORY = range(5)  # kinds of arguments
_MODULES: Final = (
    "dragoman_service.runtimes.native.library",
    "dragoman_service.runtimes.native.step_model",
    "tests.reference_step",
)
"""Modules that pass the addresses of arrays to the library."""


@contextmanager
def recorded_calls(library: Library, path: Path) -> Iterator[Library]:
    """Write the calls of the returned library, until the end of the context, to a file."""
    with path.open("wb") as file, ExitStack() as patches:
        recording = _Recording(library._functions._name, file)
        patches.enter_context(patch("dragoman_service.runtimes.factory.load_library", lambda: recording))
        # Arrays do not overlap if each step has its own.
        patches.enter_context(patch("dragoman_service.runtimes.native.step_model._STEPS_OF_ROWS", 1))
        for module in _MODULES:
            patches.enter_context(patch(f"{module}.pointer", recording.pointer))
        yield recording


class _Recording(Library):
    def __init__(self, path: str, file: BinaryIO) -> None:
        super().__init__(path)
        self._file = file
        self._arrays: dict[int, NDArray[Any]] = {}  # by address; kept alive so that addresses are not reused
        self._handles: dict[int, int] = {}  # numbers of models and batches, by address
        self._num_handles = 0

    def pointer(self, array: NDArray[Any]) -> int:
        assert array.flags.c_contiguous
        address = array.ctypes.data
        if address not in self._arrays or self._arrays[address].nbytes < array.nbytes:
            self._arrays[address] = array
        return address

    def function(self, name: str) -> Callable[..., Any]:
        function: Any = super().function(name)

        def free(handle: int) -> None:  # not recorded
            del self._handles[handle]
            function(handle)

        def call(*values: Any) -> Any:
            if name == "batch_search":
                values[1].step_seconds = None  # times differ
            records = [self._argument(*each) for each in zip(function.argtypes, values, strict=True)]
            result = function(*values)
            arguments = [record() for record in records]
            is_new = name.endswith("_new")
            if is_new:
                self._handles[result] = self._num_handles
                self._num_handles += 1
            call = (_blob(name.encode()), _numbers(len(arguments)), *arguments, _numbers(0 if is_new else result))
            self._file.writelines(call)
            return result

        if name == "error":
            return super().function(name)
        return free if name.endswith("_free") else call

    def _argument(self, kind: Any, value: Any) -> Callable[[], bytes]:
        # Returns a function that is called after the call and returns the record of an argument.
        value = getattr(value, "_obj", value)  # of ctypes.byref
        if isinstance(value, ctypes.Structure | ctypes.Array):
            return self._memory(ctypes.addressof(value), ctypes.sizeof(value), _pointers(value))
        if kind is c_void_p and value is not None and value not in self._handles:
            return self._memory(value, self._arrays[value].nbytes)
        if kind is c_void_p and value is not None:
            content = _numbers(_HANDLE, self._handles[value])
        elif kind is c_char_p:
            content = _numbers(_INSTRUCTION_SET, 0)
        elif kind is c_float:
            content = _numbers(_FLOAT) + struct.pack("<d", value)
        else:
            content = _numbers(_NUMBER, value or 0)
        return lambda: content

    def _memory(self, address: int, size: int, pointers: Sequence[tuple[int, int | None]] = ()) -> Callable[[], bytes]:
        before = ctypes.string_at(address, size)
        records = [(offset, self._argument(c_void_p, target)) for offset, target in pointers]

        def record() -> bytes:
            after = ctypes.string_at(address, size)
            targets = [_numbers(offset) + target() for offset, target in records]
            contents = _blob(before), _blob(b"" if after == before else after)
            return b"".join((_numbers(_MEMORY), *contents, _numbers(len(targets)), *targets))

        return record


def _pointers(value: ctypes.Structure | ctypes.Array[Any]) -> list[tuple[int, int | None]]:
    # Returns the offsets and values of the pointers of a structure or of an array of pointers.
    if isinstance(value, ctypes.Array):
        return [(ctypes.sizeof(c_void_p) * index, address) for index, address in enumerate(value)]
    names = [name for name, type_, *_ in value._fields_ if type_ is c_void_p]
    return [(getattr(type(value), name).offset, getattr(value, name)) for name in names]


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


def _blob(content: bytes) -> bytes:
    return _numbers(len(content)) + content
