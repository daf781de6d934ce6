"""Number of calls in progress in all processes of a server, in shared memory."""

import fcntl
import mmap
import os
from typing import Final

_COUNT_BYTES: Final = 8


class SharedCallCount:
    """Implements `middleware.pipeline.CallCount`: one count for each process, which only that process changes.

    A lock of the kernel, which ends with the process that holds it, makes the limit exact.
    """

    def __init__(self, descriptor: int, own_index: int) -> None:
        """Use the memory of `create`, with the count of this process at an index."""
        self.descriptor = descriptor
        self._own_index = own_index
        self._counts = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size)).cast("q")

    @classmethod
    def create(cls, num_processes: int) -> "SharedCallCount":
        """Return the count of process 0 in new memory, which child processes can inherit."""
        descriptor = os.memfd_create("dragoman-calls")
        os.ftruncate(descriptor, num_processes * _COUNT_BYTES)
        return cls(descriptor, 0)

    def take(self, limit: int) -> int:
        """Count a call, unless `limit` calls are in progress; return the number of other calls in progress."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
        try:
            num_calls = sum(self._counts)
            if num_calls < limit:
                self._counts[self._own_index] += 1
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN)
        return num_calls

    def release(self) -> None:
        """End a call that this process has counted."""
        self._counts[self._own_index] -= 1

    def clear(self, index: int) -> None:
        """End all calls of a process that has exited."""
        self._counts[index] = 0
