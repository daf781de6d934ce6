"""Server reflection for those only whom the server knows: it lists every method there is."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection

from service.api import status
from service.api.access import Access
from service.api.streams import wait_for_first_message
from service.errors import UnauthenticatedError


class ReflectionGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Asks callers of reflection who they are, and nobody else."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None if there is no such method
        """Return the handler of the method, guarded if it is reflection's."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(f"/{reflection.SERVICE_NAME}/"):
            return handler

        async def answer(requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            await self._check(requests, context)
            async for response in handler.stream_stream(requests, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(answer, handler.request_deserializer, handler.response_serializer)

    async def _check(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        try:
            self._access.check_known(context)
        except UnauthenticatedError as error:
            refusal = status.answer(error)
            await wait_for_first_message(anext(requests))
            await context.abort(refusal.code, refusal.message, refusal.trailing_metadata)
