"""Swaps of the model's versions during a soak."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from google.protobuf.message import Message

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.calls import Method
from loadtests.generator.client import TIMEOUT_S
from loadtests.scenarios.soak.accounting import Accounting
from loadtests.scenarios.soak.calls import ExpectedCall, Kind, SoakClient
from loadtests.scenarios.soak.memory import SWAPS_PER_PHASE
from loadtests.scenarios.stress_server import add_version, poll, remove_version

LABEL: Final = "stable"  # always points to a version that is ready
_BROKEN: Final = 1_000_000  # added to the number of a broken version


@dataclass(slots=True, kw_only=True)
class ModelSwaps:
    """Swaps versions of a model; its calls are recorded like those of any other client."""

    caller: SoakClient
    models: Path  # contains version 1
    bundle: Path
    accounting: Accounting
    num_swaps: int = 0
    num_broken_versions: int = 0  # added on purpose
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    @contextmanager
    def in_background(self, *, each_s: float) -> Iterator[None]:
        """Swap in another thread, as often as in a phase, at most once every `each_s` seconds; wait for its end."""

        def swap_repeatedly() -> None:
            next_s = time.monotonic()
            for _ in range(SWAPS_PER_PHASE):
                time.sleep(max(0.0, next_s - time.monotonic()))
                next_s += each_s
                self.swap()

        with ThreadPoolExecutor(1, thread_name_prefix="swaps") as pool:
            swaps = pool.submit(swap_repeatedly)
            yield
        if error := swaps.exception():
            self.accounting.errors.append(f"a swap failed: {error}")

    def swap(self) -> None:
        """Add the next version, through the API, the directory, or after a broken version; remove the old one."""
        old, new = self.num_swaps + 1, self.num_swaps + 2
        way = ("API", "directory", "broken version")[self.num_swaps % 3]
        if way == "broken version":
            add_version(self.bundle, self.models, _BROKEN + old, is_broken=True)
            self.num_broken_versions += 1
            self._call(Method.LOAD_MODEL, _BROKEN + old, expected="FAILED_PRECONDITION")
            self._remove(_BROKEN + old)
        add_version(self.bundle, self.models, new)
        if way == "directory":
            self._wait(lambda states: states.get(str(new)) == pb.MODEL_STATE_READY, f"version {new} is ready")
        else:
            self._call(Method.LOAD_MODEL, new)
        self.label(new)
        if way == "API":
            self._call(Method.UNLOAD_MODEL, old)
        self._remove(old)
        self.num_swaps += 1

    def label(self, version: int) -> None:
        """Point the label to a version."""
        self._call(Method.SET_MODEL_LABEL, version, label=LABEL)

    def limits(self) -> pb.ModelLimits:
        """Return the limits of the model."""
        (answer,) = self._call(Method.GET_MODEL)
        return pb.GetModelResponse.FromString(answer).model.versions[0].limits

    def _remove(self, version: int) -> None:
        remove_version(self.models / self.bundle.parent.name / str(version))
        self._wait(lambda states: str(version) not in states, f"version {version} is gone")

    def _wait(self, holds: Callable[[dict[str, int]], bool], condition: str) -> None:
        def states() -> dict[str, int]:
            (answer,) = self._call(Method.GET_MODEL)
            return {one.version: one.state for one in pb.GetModelResponse.FromString(answer).model.versions}

        if not holds(versions := poll(states, holds, timeout_s=TIMEOUT_S, each_s=0.2)):
            raise RuntimeError(f"timeout of {TIMEOUT_S:g} s until {condition}; versions: {sorted(versions)}")

    def _call(self, method: Method, *version: int, expected: str = "OK", **fields: str) -> tuple[bytes, ...]:
        """Make and record a call about the model or a version; return the response, empty for a rejection."""
        message: Message = getattr(pb, f"{method.value}Request")(
            model="/".join(map(str, (self.bundle.parent.name, *version))), **fields
        )
        planned = ExpectedCall(
            request_id=f"swap-{next(self._numbers)}",
            kind=Kind.SWAP,
            method=method,
            raw=(message.SerializeToString(),),
            answers=(expected,),
        )
        self.accounting.record(planned, reply := self.caller.perform(planned))
        if reply.status != expected:
            raise RuntimeError(f"{method.value}: {reply.status} instead of {expected}: {reply.message}")
        return reply.messages
