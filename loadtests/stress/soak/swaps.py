"""Model swaps all along: an operator adds one version after the other, by the directory and by calls."""

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import Message

from loadtests.stress.callers import TIMEOUT_S, connect
from loadtests.stress.calls import call_unary
from loadtests.stress.server import Versions
from loadtests.stress.soak.judging import Judged, Notes
from loadtests.stress.soak.ledger import UNSEEN, Entry
from loadtests.stress.soak.plan import LABEL

_POLL_S: Final = 0.2
_BROKEN: Final = 1_000_000
"""Added to the number of a version that cannot be loaded."""
_ADMIN: Final = "/dragoman.v1.ModelAdminService/"
_MODELS: Final = "/dragoman.v1.ModelService/"


class SwapError(RuntimeError):
    """A version did not come or go as it should have."""


class Operator:
    """Swaps versions, one after the other; every call is noted like that of any other caller."""

    def __init__(self, target: str, versions: Versions, notes: Notes, *, name: str) -> None:
        """Connect; version 1 of `versions` is loaded. `name` begins the ids of the calls."""
        self._channel = connect(target)
        self._versions = versions
        self._notes = notes
        self._name = name
        self._numbers = itertools.count()
        self._version = 1
        self.num_swaps = 0
        self.num_broken = 0
        """Versions added that cannot be loaded."""

    def begin(self) -> None:
        """Let the label point to the first version."""
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
            self._call(f"{_ADMIN}LoadModel", pb.LoadModelRequest(model=self._versions.full_name(new)))
        self._label(new)
        if way == 0:
            self._call(f"{_ADMIN}UnloadModel", pb.UnloadModelRequest(model=self._versions.full_name(old)))
        self._versions.remove(old)
        self._wait(lambda states: str(old) not in states, f"version {old} is gone")
        self._version = new
        self.num_swaps += 1

    def close(self) -> None:
        """Disconnect."""
        self._channel.close()

    def _add_broken(self) -> None:
        broken = _BROKEN + self._version
        self._versions.add(broken, is_broken=True)
        name = self._versions.full_name(broken)
        self.num_broken += 1
        self._call(f"{_ADMIN}LoadModel", pb.LoadModelRequest(model=name), expected="FAILED_PRECONDITION")
        self._versions.remove(broken)
        self._wait(lambda states: str(broken) not in states, f"{name}, which is broken, is gone")

    def _label(self, version: int) -> None:
        request = pb.SetModelLabelRequest(model=self._versions.full_name(version), label=LABEL)
        self._call(f"{_ADMIN}SetModelLabel", request)

    def _wait(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while True:
            response = pb.GetModelResponse.FromString(
                self._call(f"{_MODELS}GetModel", pb.GetModelRequest(model=self._versions.name))
            )
            states = {version.version: version.state for version in response.model.versions}
            if holds(states):
                return
            if time.monotonic() > until_s:
                raise SwapError(f"not within {TIMEOUT_S:g} s: {what}; there are {sorted(states)}")
            time.sleep(_POLL_S)

    def _call(self, path: str, request: Message, *, expected: str = "OK") -> bytes:
        """Make a call and note it; return the answer, empty if a refusal was expected."""
        method, request_id = path.rpartition("/")[2], f"{self._name}-{next(self._numbers)}"
        ended = call_unary(self._channel, path, request.SerializeToString(), request_id=request_id)
        possible = frozenset({ended.status}) if ended.is_of_server else frozenset({ended.status, UNSEEN})
        told = f"{method} {request_id}: {ended.status} instead of {expected}: {ended.details}"
        errors = [told] if ended.status != expected else []
        entry = Entry(request_id=request_id, method=method, possible=possible)
        self._notes.add(Judged(kind=f"swap {method}", status=ended.status, entries=[entry], errors=errors))
        if errors:
            raise SwapError(told)
        return ended.messages[0] if ended.messages else b""


class Swapping:
    """Swaps from a thread of its own as long as it is entered; an error is noted and ends it."""

    def __init__(self, operator: Operator, notes: Notes, *, each_s: float) -> None:
        """Begin a swap each so many seconds, or as soon as the last is done."""
        self._operator = operator
        self._notes = notes
        self._each_s = each_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._swap, name="swaps", daemon=True)

    def __enter__(self) -> "Swapping":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _swap(self) -> None:
        next_s = time.monotonic()
        while not self._is_over.wait(max(0.0, next_s - time.monotonic())):
            next_s += self._each_s
            try:
                self._operator.swap()
            except (SwapError, OSError) as error:
                self._notes.add_errors([f"a swap failed: {error}"])
                return
