"""Model swaps all along: an operator adds one version after the other, by the directory and by calls."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.stress.callers import REQUEST_ID_KEY, TIMEOUT_S, Client
from loadtests.stress.server import Versions, poll
from loadtests.stress.soak.judging import Notes
from loadtests.stress.soak.ledger import UNSEEN, Entry
from loadtests.wire import Method

LABEL: Final = "stable"
"""Always points to a version that is ready."""

_POLL_S: Final = 0.2
_BROKEN: Final = 1_000_000
"""Added to the number of a version that cannot be loaded."""


class SwapError(RuntimeError):
    """A version did not come or go as it should have."""


class Operator:
    """Swaps versions, one after the other; every call is noted like that of any other caller."""

    def __init__(self, client: Client, versions: Versions, notes: Notes) -> None:
        """Let the label point to version 1 of `versions`, which is loaded."""
        self._client = client
        self._versions = versions
        self._notes = notes
        self._numbers = itertools.count()
        self._version = 1
        self.num_swaps = 0
        self.num_broken = 0

        self._label(self._version)

    def swap(self) -> None:
        """Add the next version and remove the former: by calls, by the directory, or after one that is broken.

        Raises:
            SwapError: if something does not come about.
        """
        way = self.num_swaps % 3
        if way == 2:
            self._add_broken()
        old, new = self._version, self._version + 1
        self._versions.add(new)
        if way == 1:
            self._wait(lambda states: states.get(str(new)) == pb.MODEL_STATE_READY, f"version {new} is ready")
        else:
            self._call(Method.LOAD_MODEL, pb.LoadModelRequest(model=self._versions.full_name(new)))
        self._label(new)
        if way == 0:
            self._call(Method.UNLOAD_MODEL, pb.UnloadModelRequest(model=self._versions.full_name(old)))
        self._remove(old)
        self._version = new
        self.num_swaps += 1

    @contextmanager
    def swapping(self, *, each_s: float) -> Iterator[None]:
        """Swap from a thread of its own, each so many seconds or as soon as the last is done; an error ends it."""
        is_over = threading.Event()

        def swap_on() -> None:
            next_s = time.monotonic()
            while not is_over.wait(max(0.0, next_s - time.monotonic())):
                next_s += each_s
                try:
                    self.swap()
                except (SwapError, OSError) as error:
                    self._notes.add(Notes(errors=[f"a swap failed: {error}"]))
                    return

        thread = threading.Thread(target=swap_on, name="swaps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _add_broken(self) -> None:
        broken = _BROKEN + self._version
        self._versions.add(broken, is_broken=True)
        self.num_broken += 1
        request = pb.LoadModelRequest(model=self._versions.full_name(broken))
        self._call(Method.LOAD_MODEL, request, expected="FAILED_PRECONDITION")
        self._remove(broken)

    def _remove(self, version: int) -> None:
        self._versions.remove(version)
        self._wait(lambda states: str(version) not in states, f"version {version} is gone")

    def _label(self, version: int) -> None:
        request = pb.SetModelLabelRequest(model=self._versions.full_name(version), label=LABEL)
        self._call(Method.SET_MODEL_LABEL, request)

    def _wait(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        def states() -> dict[str, Any]:
            (answer,) = self._call(Method.GET_MODEL, pb.GetModelRequest(model=self._versions.name))
            return {one.version: one.state for one in pb.GetModelResponse.FromString(answer).model.versions}

        if not holds(found := poll(states, holds, timeout_s=TIMEOUT_S, each_s=_POLL_S)):
            raise SwapError(f"not within {TIMEOUT_S:g} s: {what}; there are {sorted(found)}")

    def _call(self, method: Method, request: Message, *, expected: str = "OK") -> tuple[bytes, ...]:
        """Make a call and note it; return the answer, none if a refusal was expected."""
        request_id = f"swap-{next(self._numbers)}"
        reply = self._client.call(method, request.SerializeToString(), metadata=((REQUEST_ID_KEY, request_id),))
        possible = frozenset({reply.status} if reply.is_of_server else {reply.status, UNSEEN})
        told = f"{method.value} {request_id}: {reply.status} instead of {expected}: {reply.message}"
        errors = [told] if reply.status != expected else []
        entry = Entry(request_id=request_id, method=method.value, possible=possible)
        self._notes.add(Notes(ends=Counter([(f"swap {method.value}", reply.status)]), entries=[entry], errors=errors))
        if errors:
            raise SwapError(told)
        return reply.messages
