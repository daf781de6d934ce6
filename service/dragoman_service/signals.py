"""Signals of the server and its worker processes. Imports little, because it runs before all other modules."""

import os
import signal

DRAIN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
UNUSED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""Ignored, as they would end the process by default."""


def drain_signals() -> tuple[signal.Signals, ...]:
    """Return the signals that drain this server: without SIGHUP if its parent ignores it, as `nohup` does.

    Shells ignore SIGINT and SIGQUIT for each program that a script starts in the background. They still drain a server.
    """
    is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return tuple(number for number in DRAIN_SIGNALS if not (is_detached and number is signal.SIGHUP))


def exit_on_signals() -> None:
    """Let signals end a process that imports its modules; in a container, they have no effect by default."""
    for number in drain_signals():
        signal.signal(number, lambda *_: os._exit(0))


def ignore(*numbers: signal.Signals) -> None:
    """Ignore signals from now on, also in child processes."""
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)
