"""Which faults there are, in the order in which they are done, and which of them are asked for."""

import difflib
from collections.abc import Sequence
from pathlib import Path

from loadtests.chaos.fault import Fault
from loadtests.chaos.faults import bundles, connections, floods, logs, network, process, readers
from loadtests.chaos.faults.clock import clock_jump
from loadtests.chaos.scale import Scale


def all_faults(scale: Scale, *, output: Path, compiler: str | None) -> list[Fault]:
    """Return every fault; those that damage most come last, and those with a server of their own at the very end.

    Args:
        scale: says how long they last, which some limits follow.
        output: for files that steer a fault.
        compiler: of C, which a clock that jumps needs; None: that fault is left out.
    """
    return [
        network.STEP_RAISES,
        network.RUNTIME_FAILS,
        network.hanging(scale.hang_s),
        logs.DISK_FULL,
        logs.PIPE_BLOCKED,
        process.stopping(scale.stop_s),
        process.DECODING_KILLED,
        readers.NEVER_READ,
        connections.DROPPED,
        connections.SLOW,
        floods.METADATA,
        floods.LARGE,
        floods.PINGS,
        floods.RESETS,
        floods.GARBAGE,
        bundles.BROKEN_VERSION,
        bundles.DELETED,
        bundles.TRUNCATED,
        *([clock_jump(output, compiler)] if compiler else []),
    ]


def chosen(faults: Sequence[Fault], names: Sequence[str]) -> list[Fault]:
    """Return the faults of these names in the order of the plan; all of them if there are no names.

    Raises:
        ValueError: names the first one that is unknown, and one that is like it.
    """
    known = {fault.name for fault in faults}
    for name in names:
        if name not in known:
            similar = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {similar[0]}?" if similar else ""
            raise ValueError(f"there is no fault {name!r}{hint} --list shows all of them")
    return [fault for fault in faults if not names or fault.name in names]
