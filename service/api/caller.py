"""Who makes the call that the running task answers: the name under which it is served fairly and logged."""

from contextvars import ContextVar

_caller: ContextVar[str] = ContextVar("caller", default="")


def set_caller(name: str) -> None:
    """Note who calls; a task of its own runs each RPC."""
    _caller.set(name)


def current_caller() -> str:
    """Return who calls; empty outside of an RPC."""
    return _caller.get()


def peer_name(peer: str) -> str:
    """Return the host of a gRPC peer, which all its connections share: `ipv4:10.0.0.7` of `ipv4:10.0.0.7:54321`.

    A peer without a port, such as a Unix socket, is returned whole.
    """
    host, _, port = peer.rpartition(":")
    return host if host and port.isdigit() else peer
