"""The RPC methods, and the interceptor that runs the request pipeline around them.

The interceptor also receives and parses the messages: a message is read after its caller is authenticated, and an
invalid message is answered like any other invalid request.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Protocol, TypeVar

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.grpc_api.streaming import RequestStream, Respond
from dragoman_service.middleware import conversion, error_mapping
from dragoman_service.middleware.flow_control import ResponseStream
from dragoman_service.middleware.pipeline import (
    REQUEST_ID_KEY,
    Backend,
    RequestPipeline,
    adopt_request_id,
    as_status,
    resolve_request_id,
)
from dragoman_service.request import WARNINGS_KEY, RequestRecord
from dragoman_service.threads import started_pool

_Result = TypeVar("_Result")

RawResponse = bytes | None  # serialized; None if a stream has sent all its messages

# Answers a call of `grpc.aio` that is neither deserialized nor serialized.
Handler = Callable[[Any, grpc.aio.ServicerContext], Awaitable[RawResponse]]


_NUM_ADMIN_THREADS = 4  # models that are loaded or unloaded at the same time


class TranslationServicer(pb_grpc.TranslationServiceServicer):
    """dragoman.v1.TranslationService; the interceptor passes a `RequestRecord` or a stream as gRPC's context."""

    def __init__(self, backend: Backend, *, max_stream_requests: int) -> None:
        self._translator = backend.translator
        self._max_stream_requests = max_stream_requests

    async def Translate(self, request: pb.TranslateRequest, record: RequestRecord) -> pb.TranslateResponse:
        """Translate all texts of the request."""
        record.priority = conversion.from_priority(request.priority)
        result = await self._translator.translate(conversion.from_translate_request(request), record)
        return conversion.to_translate_response(result, request_id=record.request_id)

    async def TranslateDocument(self, request: pb.TranslateDocumentRequest, stream: ResponseStream) -> None:
        """Translate a document and send its sentences."""
        record, index = stream.record, 0
        record.priority = conversion.from_priority(request.priority)
        document = conversion.from_translate_document_request(request)
        async with contextlib.aclosing(self._translator.translate_document(document, record)) as sentences:
            async for sentence in sentences:
                message = conversion.to_translated_sentence(sentence, index=index, request_id=record.request_id)
                await stream.write(message.SerializeToString())
                index += 1

    async def TranslateStream(self, requests: RequestStream, record: RequestRecord) -> None:
        """Answer requests as they arrive."""
        await requests.answer_all(self.Translate, max_unanswered=self._max_stream_requests)

    async def DetectLanguage(
        self, request: pb.DetectLanguageRequest, record: RequestRecord
    ) -> pb.DetectLanguageResponse:
        """Return the likely languages of each text."""
        texts, target_language = conversion.from_detect_language_request(request)
        detected = await self._translator.detect_languages(texts, record, target_language=target_language)
        return conversion.to_detect_language_response(detected)


class ModelServicer(pb_grpc.ModelServiceServicer):
    """dragoman.v1.ModelService."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def ListModels(self, request: pb.ListModelsRequest, record: RequestRecord) -> pb.ListModelsResponse:
        """List all models."""
        return conversion.to_list_models_response(self._backend.models.list_models(), self._backend.limits)

    async def GetModel(self, request: pb.GetModelRequest, record: RequestRecord) -> pb.GetModelResponse:
        """Describe one model."""
        statuses = self._backend.models.get_model(conversion.from_model_name(request.model))
        return pb.GetModelResponse(model=conversion.to_model(statuses, self._backend.limits))

    async def ListGlossaries(
        self, request: pb.ListGlossariesRequest, record: RequestRecord
    ) -> pb.ListGlossariesResponse:
        """List all glossaries."""
        return conversion.to_list_glossaries_response(self._backend.glossaries.all())


class ModelAdminServicer(pb_grpc.ModelAdminServiceServicer):
    """dragoman.v1.ModelAdminService; an operation completes even if its caller disconnects."""

    def __init__(self, backend: Backend) -> None:
        self._models = backend.models
        self._limits = backend.limits
        # Not the event loop's pool: a call may take minutes, and text work must not wait for it.
        self._threads = started_pool(_NUM_ADMIN_THREADS, name="model-admin")

    async def LoadModel(self, request: pb.LoadModelRequest, record: RequestRecord) -> pb.LoadModelResponse:
        """Load one version."""
        statuses = await self._run(partial(self._models.load, conversion.from_model_name(request.model)))
        return pb.LoadModelResponse(model=conversion.to_model(statuses, self._limits))

    async def UnloadModel(self, request: pb.UnloadModelRequest, record: RequestRecord) -> pb.UnloadModelResponse:
        """Unload one version."""
        await self._run(partial(self._models.unload, conversion.from_model_name(request.model)))
        return pb.UnloadModelResponse()

    async def SetModelLabel(self, request: pb.SetModelLabelRequest, record: RequestRecord) -> pb.SetModelLabelResponse:
        """Set or remove a label."""
        model = conversion.from_model_name(request.model)
        statuses = await self._run(partial(self._models.set_label, model, request.label))
        return pb.SetModelLabelResponse(model=conversion.to_model(statuses, self._limits))

    async def _run(self, change: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, change)


class GrpcExtension(Protocol):
    """A service of another API, whose methods count as methods of this API."""

    name: str  # full name of the service
    methods: Mapping[str, str]  # path -> path of the method that it counts as
    key_header: str  # metadata with the API key, in the absence of `authorization`

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register the methods with a server, and the service with reflection."""


class RequestInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Wraps the methods of the given services, and those of health and reflection."""

    def __init__(
        self,
        service_names: tuple[str, ...],
        pipeline: RequestPipeline,
        *,
        control: Callable[[str, Any], Any] = lambda _service, handler: handler,
        extension: GrpcExtension | None = None,
    ) -> None:
        """`control` wraps a method of another service."""
        self._service_names = frozenset(service_names)
        self._pipeline = pipeline
        self._control = control
        self._extension = extension
        self.num_calls = 0  # of all services

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:  # a grpc.RpcMethodHandler, or None for an unknown method
        """Return the wrapped handler of a method."""
        self.num_calls += 1
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        path, key_header = handler_call_details.method, None
        if self._extension and path in self._extension.methods:
            path, key_header = self._extension.methods[path], self._extension.key_header
        service = path.strip("/").partition("/")[0]
        if service not in self._service_names:
            return self._control(service, handler)
        if handler.request_streaming:
            wrapped = self._many_requests(path, handler)
        else:
            wrapped = self._one_request(path, handler, key_header)
        has_many = handler.request_streaming or handler.response_streaming
        make_handler = grpc.stream_stream_rpc_method_handler if has_many else grpc.stream_unary_rpc_method_handler
        return make_handler(without_traceback(wrapped))  # without codecs, before a message is read

    def _one_request(self, path: str, handler: Any, key_header: str | None) -> Handler:
        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)

            async def respond(raw_request: bytes) -> RawResponse:
                request = conversion.parse_message(raw_request, handler.request_deserializer)
                resolve_request_id(record, request)
                if handler.response_streaming:
                    stream = ResponseStream(record, context, self._pipeline.bounds.settings.stream_idle_timeout_s)
                    await handler.unary_stream(request, stream)
                    return None
                raw_response: bytes = handler.response_serializer(await handler.unary_unary(request, record))
                return raw_response

            with ExitStack() as slots:
                streams = slots if handler.response_streaming else None
                outcome = await self._pipeline.answer(
                    record, context, respond, as_status, streams=streams, key_header=key_header
                )
                return await _sent(record, context, outcome)

        return answer

    def _many_requests(self, path: str, handler: Any) -> Handler:
        """Answer each request like a call of its own, in a task of its own, with errors in the response."""

        async def answer(_requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
            record = self._pipeline.start(path, context)
            record.is_stream = True

            async def answer_raw(raw_request: bytes, request: Any, respond: Respond) -> bytes:
                own_record = self._pipeline.start(path, context, deadline_s=record.deadline_s)

                async def responded(_raw_request: bytes) -> bytes:
                    adopt_request_id(own_record, request.request_id)
                    return (await respond(own_record)).SerializeToString()

                def to_response(error: error_mapping.RpcError) -> bytes:
                    return pb.TranslateResponse(request_id=request.request_id, error=error.status).SerializeToString()

                return await self._pipeline.answer(own_record, context, responded, to_response, raw_request=raw_request)

            idle_timeout_s = self._pipeline.bounds.settings.stream_idle_timeout_s
            stream = RequestStream(
                record,
                context,
                idle_timeout_s=idle_timeout_s,
                limiter=self._pipeline.limiter,
                deserialize=handler.request_deserializer,
                answer_raw=answer_raw,
            )

            async def respond(_no_request: bytes) -> None:
                await handler.stream_stream(stream, record)

            with ExitStack() as slots:
                outcome = await self._pipeline.answer(
                    record, context, respond, as_status, raw_request=b"", streams=slots
                )
                if isinstance(outcome, error_mapping.RpcError) and not stream.has_begun:
                    await self._pipeline.bounds.open_receiver.read_before_rejection(context)
                return await _sent(record, context, outcome)

        return answer


async def _sent(
    record: RequestRecord, context: grpc.aio.ServicerContext, outcome: RawResponse | error_mapping.RpcError
) -> RawResponse:
    request_id = (REQUEST_ID_KEY, record.request_id)
    if not isinstance(outcome, error_mapping.RpcError):
        warnings = ((WARNINGS_KEY, record.warning_header),) if record.warnings else ()
        context.set_trailing_metadata((request_id, *warnings))
        return outcome
    await context.abort(outcome.code, outcome.message, (*outcome.trailing_metadata, request_id))
    raise AssertionError("abort returned")


def without_traceback(handler: Handler) -> Handler:
    """Return a handler whose aborted calls are freed by reference counting.

    The error that `abort` raises is kept with the call, and its traceback keeps every frame, one of which keeps the
    call. At thousands of rejections per second, the garbage collector would pause the server for tens of milliseconds.
    """

    async def answer(requests: Any, context: grpc.aio.ServicerContext) -> RawResponse:
        answering = handler(requests, context)
        del requests, context  # this frame stays with the error
        try:
            return await answering
        except grpc.aio.AbortError as error:
            raise error.with_traceback(None) from None

    return answer
