"""The server between batches: healthy, at rest, nothing wrong in its log, and translating as it did."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import grpc
from dragoman.v1 import translation_pb2 as pb

from loadtests import wire
from loadtests.bad_inputs.answers import serialized_translations
from loadtests.target import ServerProcess, wait_until_idle

_SERVING: Final = b"\x08\x01"
_SETTLE_TIMEOUT_S: Final = 30.0
_CALL_TIMEOUT_S: Final = 60.0
_BAD_LEVELS: Final = frozenset({"error", "critical"})
_NUM_PROBES: Final = 4
_MAX_SHOWN: Final = 400


class Watch:
    """Looks at a server that nobody else uses."""

    def __init__(self, server: ServerProcess, log: Path, *, seed: int) -> None:
        """`log` is where the server writes."""
        self._server = server
        self._log = log
        self._num_read = 0
        self._channel = grpc.insecure_channel(server.target, options=[("grpc.use_local_subchannel_pool", 1)])
        self._requests = wire.translate_requests(seed, count=_NUM_PROBES, texts=2)
        self._translations: list[list[bytes]] = []

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def models(self) -> pb.ListModelsResponse:
        """Return what the server has."""
        raw = self._channel.unary_unary(wire.Method.LIST_MODELS.path)(b"", timeout=_CALL_TIMEOUT_S)
        return pb.ListModelsResponse.FromString(raw)

    def faults(self) -> Iterator[str]:
        """Yield what is wrong with the server now, and in its log since the last look."""
        left = wait_until_idle(self._server, timeout_s=_SETTLE_TIMEOUT_S)
        if left:
            yield f"work is left on the server: {left}"
        yield from self._health_faults()
        yield from self._log_faults()
        translations = [self._translated(request) for request in self._requests]
        if self._translations and translations != self._translations:
            yield "the server translates the same sentences otherwise than at first"
        self._translations = self._translations or translations

    def _health_faults(self) -> Iterator[str]:
        try:
            answer = self._channel.unary_unary(wire.Method.CHECK.path)(b"", timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            yield f"the server's health is not told: {error.code().name}"
            return
        if answer != _SERVING:
            yield "the server says that it does not serve"

    def _log_faults(self) -> Iterator[str]:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        yield from log_faults(lines[self._num_read :])
        self._num_read = len(lines)

    def _translated(self, request: bytes) -> list[bytes]:
        return serialized_translations(self._channel.unary_unary(wire.TRANSLATE)(request, timeout=_CALL_TIMEOUT_S))


def log_faults(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a log that tell of errors, or are no records, such as a traceback."""
    for line in lines:
        try:
            is_bad = json.loads(line).get("level") in _BAD_LEVELS
        except (ValueError, AttributeError):
            is_bad = True
        if is_bad:
            yield f"the server's log has: {line[:_MAX_SHOWN]}"
