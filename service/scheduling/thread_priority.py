"""Who goes first when there are more threads to run than cores."""

import os
import sys
import threading
from typing import Final

_LOWEST: Final = 19


def lower_priority(niceness: int) -> None:
    """Let other threads run before the calling one, by so many steps of niceness; only Linux can, elsewhere nothing is.

    Decoding keeps every core busy. At the same priority, the thread that takes and refuses calls waits for its turn
    behind it, several times for each call, and under overload even refusals come late.
    """
    if sys.platform != "linux":
        return
    thread_id = threading.get_native_id()
    current = os.getpriority(os.PRIO_PROCESS, thread_id)  # the thread's own: Linux schedules threads, not processes
    os.setpriority(os.PRIO_PROCESS, thread_id, min(current + niceness, _LOWEST))
