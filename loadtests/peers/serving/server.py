"""The server itself: port, health, an end in which whoever waits is answered."""

import asyncio
import json
import signal
import sys

import grpc
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from loadtests.peers.serving.batcher import DynamicBatcher
from loadtests.peers.serving.servicer import PeerServicer
from loadtests.peers.serving.settings import BatchingSettings
from loadtests.peers.systems import System
from service.bundle import Bundle

_GRACE_S = 5.0
"""For those who wait for an answer when the server is told to end."""

_SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["TranslationService"].full_name


class PeerServer:
    """Answers over gRPC; made and used within a running event loop."""

    def __init__(self, bundle: Bundle, system: System, settings: BatchingSettings) -> None:
        """Build it; the system stays its maker's."""
        self._batcher = DynamicBatcher(
            lambda sources, search: system.translate(sources, search, batch_size=settings.max_batch_size), settings
        )
        self._health = health.aio.HealthServicer()
        self._server = grpc.aio.server()
        pb_grpc.add_TranslationServiceServicer_to_server(PeerServicer(bundle, self._batcher), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, *, host: str, port: int) -> int:
        """Take calls; return the bound port. RuntimeError if the address cannot be listened on."""
        bound: int = self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()
        for name in (health.OVERALL_HEALTH, _SERVICE_NAME):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return bound

    async def stop(self) -> None:
        """Answer who waits, for a few seconds, and end."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_S)
        self._batcher.close()


async def serve_until_told(server: PeerServer, *, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT; says in its log, as `python -m service serve` does, where and since when."""
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    _log("listening", grpc_port=await server.start(host=host, port=port))
    _log("ready")
    await told.wait()
    await server.stop()
    _log("stopped")


def _log(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, **facts}), file=sys.stderr, flush=True)
