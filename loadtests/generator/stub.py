"""A server that answers each Translate call with an empty response, to measure the generators of load.

python -m loadtests.generator.stub
"""

import asyncio
import json
import sys
from typing import Any

import grpc


class _Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ARG002 - named by gRPC
        async def answer(*_: object) -> bytes:
            return b""

        return grpc.unary_unary_rpc_method_handler(answer)


async def _serve() -> None:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((_Handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for record in ({"event": "listening", "grpc_port": port}, {"event": "ready"}):
        print(json.dumps(record), file=sys.stderr, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
