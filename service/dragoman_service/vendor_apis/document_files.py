"""Translation of uploaded files by the APIs of DeepL (`/v2/document`) and LibreTranslate (`/translate_file`)."""

import asyncio
import math
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import cached_property, partial
from http import HTTPStatus
from pathlib import PurePath
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import DragomanError, DrainingError, InvalidFieldError, RequestError, UnauthenticatedError
from dragoman_service.file_translation.jobs import DocumentJobs, DocumentRequest, suffix_of, supported_formats
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE
from dragoman_service.file_translation.state import DocumentState, DocumentStatus
from dragoman_service.file_translation.store import INTERRUPTED, DocumentNotFoundError
from dragoman_service.file_translation.upload import MAX_UNAUTHENTICATED_BYTES, DocumentUpload
from dragoman_service.http_api.context import HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.http_api.routes import TRANSLATION_SERVICE, HttpApi
from dragoman_service.middleware.flow_control import time_limit
from dragoman_service.request import RequestRecord
from dragoman_service.security.api_keys import peer_name
from dragoman_service.vendor_apis import deepl, libretranslate
from dragoman_service.vendor_apis.base import Answer, VendorApi, fields_of, translate

_SCHEME: Final = "DeepL-Auth-Key"
_SAME_FORMATS: Final = ({".htm", ".html"}, {".md", ".markdown"}, {".xlf", ".xliff"}, {".po", ".pot"})
_MAX_NAME_CHARACTERS: Final = 100
_CHUNK_BYTES: Final = 256 * 1024
_NAME: Final = re.compile(r"(?P<id>[0-9a-f]{32})-(?P<key>[0-9a-f]{64})\.(?P<file>.{1,255})", re.DOTALL)
_NUM_OPEN_DOWNLOADS: Final = 4
"""Look-ups of files at a time whose address is the credential."""

_DEEPL_PATHS: Final = ("/v2/document", "/v2/document/{document_id}", "/v2/document/{document_id}/result")
_UPLOAD_PATH: Final = "/translate_file"
_DOWNLOAD_PATH: Final = "/download_file/{name}"
_UNSAFE: Final = re.compile(r"[^\w. ()-]")
"""Characters that a stored file name does not keep."""

_DISABLED: Final = "translation of documents is not enabled on this server (setting documents.directory)"


class _DocumentApi(VendorApi):
    """What both APIs have in common."""

    def __init__(self, facade: VendorApi, jobs: DocumentJobs) -> None:
        """Answer as the other routes of `facade` do."""
        super().__init__(facade._pipeline, facade._backend, facade._settings)
        self.facade = facade
        self.jobs = jobs

    def failed(self, found: Problem, message: str) -> Response:
        """Return the response of a failed record, in the form of the service."""
        return self.facade.failed(found, message)

    async def answer_document(
        self,
        context: HttpContext,
        method: str,
        respond: Callable[[RequestRecord, bytes], Awaitable[Answer]],
        raw_request: bytes | None = None,
    ) -> None:
        """Answer a request as one of TranslationService; a document that is not there is 404."""

        async def found(record: RequestRecord, body: bytes) -> Answer:
            try:
                return await respond(record, body)
            except DocumentNotFoundError as error:
                context.http_status = HTTPStatus.NOT_FOUND
                raise RequestError("document_id", str(error)) from None

        await self._answer(context, f"/{TRANSLATION_SERVICE}/{method}", found, raw_request)

    async def stored(
        self,
        upload: DocumentUpload,
        context: HttpContext,
        record: RequestRecord,
        make_request: Callable[[DocumentUpload], DocumentRequest],
    ) -> tuple[DocumentState, str, DocumentRequest]:
        """Store an upload, and queue it if it can be translated; return its state and key, and what is asked for."""
        store = self.jobs.store
        document_id, num_bytes = await upload.store(record.caller)
        record.request_bytes = upload.num_bytes
        try:
            request = make_request(upload)
            if request.template.source_language:
                await self._check(request.template, record, self._settings.allowed_s(context.time_remaining()))
            file_name = PurePath(upload.form.fields.get("filename") or upload.form.file_name or "").name
            file_name = _UNSAFE.sub("_", file_name)[-_MAX_NAME_CHARACTERS:]
            state, key = await asyncio.to_thread(
                partial(store.complete, document_id, file_name=file_name, num_bytes=num_bytes)
            )
        except BaseException:
            await asyncio.to_thread(store.remove, document_id)
            raise
        return state, key, request

    async def _check(self, template: pb.TranslateRequest, record: RequestRecord, allowed_s: float) -> None:
        """Raise what any translation with these languages and options would."""
        request = pb.TranslateRequest()
        request.CopyFrom(template)
        request.texts[:] = [""]
        async with time_limit(allowed_s):
            await translate(self._backend, request, record)


class DeepLDocuments(_DocumentApi):
    """Answers `/v2/document` of DeepL: upload, status and download."""

    field_names = deepl.DeepLApi.field_names
    key_place = deepl.DeepLApi.key_place
    media_types = deepl.DeepLApi.media_types

    def __init__(self, facade: deepl.DeepLApi, jobs: DocumentJobs) -> None:
        super().__init__(facade, jobs)
        self._count = facade.count_characters

    def routes(self) -> list[Route]:
        """Return what to add to the application, before the routes of DeepL."""
        upload, status, result = _DEEPL_PATHS
        return [
            Route(upload, self.endpoint(self._upload, (MULTIPART_MEDIA_TYPE,)), methods=["POST"]),
            Route(status, self.endpoint(self._tell_status), methods=["POST"]),
            Route(result, self.endpoint(self._download), methods=["POST"]),
        ]

    async def _upload(self, context: HttpContext) -> None:
        context.take_scheme(_SCHEME)

        async def respond(record: RequestRecord, _no_body: bytes) -> bytes:
            upload = DocumentUpload(context, self.jobs)
            state, key, request = await self.stored(upload, context, record, partial(self._request, record=record))
            self.jobs.submit(state, request)
            return to_json({"document_id": state.document_id, "document_key": key})

        await self.answer_document(context, "UploadDocument", respond, b"")

    def _request(self, upload: DocumentUpload, *, record: RequestRecord) -> DocumentRequest:
        fields: dict[str, Any] = dict(upload.form.fields)
        suffix = suffix_of(fields.pop("filename", "") or upload.form.file_name or "")
        output = fields.pop("output_format", "").lower().removeprefix(".")
        if output and not any({suffix, f".{output}"} <= same for same in ({suffix}, *_SAME_FORMATS)):
            raise InvalidFieldError("output_format", repr(output[:16]), f"absent or {suffix[1:]}, as the file")
        template, _ = deepl.translate_request({**fields, "text": [""]}, max_characters=self.max_text_characters)
        return DocumentRequest(
            suffix=suffix,
            template=template,
            peer=record.peer,
            request_id=record.request_id,
            count=partial(self._count, record.caller),
        )

    async def _tell_status(self, context: HttpContext) -> None:
        context.take_scheme(_SCHEME)

        async def respond(record: RequestRecord, body: bytes) -> bytes:
            return to_json(_status(await self._state(context, record, body)))

        await self.answer_document(context, "GetDocumentStatus", respond)

    async def _download(self, context: HttpContext) -> None:
        context.take_scheme(_SCHEME)

        async def respond(record: RequestRecord, body: bytes) -> Response:
            state = await self._state(context, record, body)
            if state.status is not DocumentStatus.DONE:
                is_failed = state.status is DocumentStatus.ERROR
                context.http_status = HTTPStatus.NOT_FOUND if is_failed else HTTPStatus.SERVICE_UNAVAILABLE
                raise RequestError("document_id", state.message or f"the document is not ready ({state.status})")
            file = await asyncio.to_thread(self.jobs.store.claim, state.document_id)
            return _FileResponse(file, state.file_name)

        await self.answer_document(context, "DownloadDocument", respond)

    async def _state(self, context: HttpContext, record: RequestRecord, body: bytes) -> DocumentState:
        fields = fields_of(body, context.header("content-type"), repeated=())
        key = fields.get("document_key")
        if not isinstance(key, str):
            raise InvalidFieldError("document_key", "absent or not a string", "the key that the upload returned")
        document_id = context.path_parameters["document_id"]
        return await asyncio.to_thread(partial(self.jobs.store.get, document_id, key, owner=record.caller))


class LibreTranslateFiles(_DocumentApi):
    """Answers `/translate_file` and `/download_file` of LibreTranslate."""

    field_names = libretranslate.LibreTranslateApi.field_names
    key_place = libretranslate.LibreTranslateApi.key_place

    def __init__(self, facade: libretranslate.LibreTranslateApi, jobs: DocumentJobs) -> None:
        super().__init__(facade, jobs)
        self._is_known = facade.is_known
        facade.file_formats = supported_formats()

    @cached_property
    def _downloads(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(_NUM_OPEN_DOWNLOADS)

    def routes(self) -> list[Route]:
        """Return what to add to the application, before the routes of LibreTranslate."""
        return [
            Route(_UPLOAD_PATH, self.endpoint(self._translate, (MULTIPART_MEDIA_TYPE,)), methods=["POST"]),
            Route(_DOWNLOAD_PATH, self.endpoint(self._download), methods=["GET"]),
        ]

    async def _translate(self, context: HttpContext) -> None:
        upload = await self._opened(context)

        async def respond(record: RequestRecord, _no_body: bytes) -> bytes:
            if isinstance(upload, DragomanError):
                raise upload
            state, key, request = await self.stored(upload, context, record, partial(self._request, record=record))
            work = self.jobs.submit(state, request)
            try:
                async with time_limit(self._settings.allowed_stream_s(context.time_remaining())):
                    await asyncio.wait((work,))
                state = _translated(await asyncio.to_thread(self.jobs.store.get, state.document_id, key))
            except BaseException:
                await self.jobs.remove(state.document_id)
                raise
            name = quote(f"{state.document_id}-{key}.{state.file_name}", safe="")
            answered = {"translatedFileUrl": f"{context.origin}/download_file/{name}"}
            return to_json({**answered, "warning": state.message} if state.message else answered)

        await self.answer_document(context, "UploadDocument", respond, b"")

    async def _opened(self, context: HttpContext) -> DocumentUpload | DragomanError:
        """Return an upload whose caller has shown its key, or why there is none, for the caller's log line."""
        try:
            if key := context.query.get("api_key"):
                context.authorize(key)
            upload = DocumentUpload(context, self.jobs)
            if not self._is_known(context):
                await self._read_key(upload, context)
        except DragomanError as error:
            return error
        return upload

    async def _read_key(self, upload: DocumentUpload, context: HttpContext) -> None:
        """Read the key of an unknown caller from the form, within the bounds of such callers."""

        class Prefix:
            @staticmethod
            async def read() -> bytes:
                key = await upload.read_key("api_key")
                if key is None and upload.num_bytes > MAX_UNAUTHENTICATED_BYTES:
                    limit = f"the first {MAX_UNAUTHENTICATED_BYTES} bytes of the form"
                    raise UnauthenticatedError(f"there is no `api_key` in a header, in the query or in {limit}")
                context.authorize(key or "")
                return b""

        await self._pipeline.bounds.open_receiver.receive(Prefix, peer_name(context.peer()))

    def _request(self, upload: DocumentUpload, *, record: RequestRecord) -> DocumentRequest:
        fields: dict[str, Any] = {name: value for name, value in upload.form.fields.items() if name != "api_key"}
        return DocumentRequest(
            suffix=suffix_of(upload.form.file_name or ""),
            template=libretranslate.translate_request({**fields, "q": ""}, max_characters=self.max_text_characters),
            peer=record.peer,
            request_id=record.request_id,
        )

    async def _download(self, context: HttpContext) -> None:
        """Answer the address that an upload returned: it has the key of the document and needs no other."""
        response: Response = self.failed(Problem(status=HTTPStatus.NOT_FOUND, members={}, headers={}), "no such file")
        if name := _NAME.fullmatch(context.path_parameters["name"]):
            try:
                async with self._downloads:
                    state = await asyncio.to_thread(self.jobs.store.get, name["id"], name["key"])
                    if state.status is DocumentStatus.DONE:
                        response = _FileResponse(
                            await asyncio.to_thread(self.jobs.store.claim, state.document_id), state.file_name
                        )
            except DocumentNotFoundError:
                pass
        await context.respond(response)


def document_routes(jobs: DocumentJobs | None, apis: Iterable[HttpApi]) -> list[Route]:
    """Return the routes for documents, which go before those of the APIs; without `jobs` they refuse all requests."""
    routes: list[Route] = []
    for api in apis:
        if isinstance(api, deepl.DeepLApi):
            refuse = api.refusal(HTTPStatus.NOT_FOUND, _DISABLED)
            disabled = [Route(path, refuse, methods=["POST"]) for path in _DEEPL_PATHS]
            routes += DeepLDocuments(api, jobs).routes() if jobs else disabled
        elif isinstance(api, libretranslate.LibreTranslateApi):
            refuse = api.refusal(HTTPStatus.FORBIDDEN, _DISABLED)
            disabled = [Route(_UPLOAD_PATH, refuse, methods=["POST"]), Route(_DOWNLOAD_PATH, refuse, methods=["GET"])]
            routes += LibreTranslateFiles(api, jobs).routes() if jobs else disabled
            routes += api.refusals({_UPLOAD_PATH: ("POST",)})
    return routes


class _FileResponse(Response):
    """A stored file, which is closed afterwards; browsers save it and do not show it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        headers = {
            "content-length": str(os.fstat(file.fileno()).st_size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": "sandbox",
            "x-content-type-options": "nosniff",
        }
        super().__init__(headers=headers, media_type="application/octet-stream")
        self._file = file

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the file in pieces."""
        with self._file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while chunk := await asyncio.to_thread(self._file.read, _CHUNK_BYTES):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _translated(state: DocumentState) -> DocumentState:
    """Return the state of a document; raise unless it is translated."""
    if state.message == INTERRUPTED:
        raise DrainingError
    if state.status is not DocumentStatus.DONE:
        raise RequestError("file", state.message or "is not translated")
    return state


def _status(state: DocumentState) -> dict[str, Any]:
    """Return what DeepL answers about a document."""
    answered: dict[str, Any] = {"document_id": state.document_id, "status": state.status.value}
    if state.status is DocumentStatus.TRANSLATING:
        remaining = state.seconds_remaining(time.time())
        answered |= {} if remaining is None else {"seconds_remaining": math.ceil(remaining)}
    if state.status is DocumentStatus.DONE:
        answered["billed_characters"] = state.num_characters
    if state.message:
        answered |= {"error_message": state.message, "message": state.message}
    return answered
