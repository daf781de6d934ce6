"""Translation of uploaded files by the APIs of DeepL (`/v2/document`) and LibreTranslate (`/translate_file`)."""

import asyncio
import contextlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from pathlib import PurePath
from typing import Any, BinaryIO, Final
from urllib.parse import quote

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from dragoman_service.calls.pipeline import Call
from dragoman_service.calls.policy import (
    DOWNLOAD_DOCUMENT,
    GET_DOCUMENT_STATUS,
    UPLOAD_DOCUMENT,
    CallPolicy,
    TimeLimit,
)
from dragoman_service.errors import DragomanError, DrainingError, InvalidFieldError, RequestError, UnauthenticatedError
from dragoman_service.file_translation.jobs import DocumentJobs, DocumentRequest, suffix_of, supported_formats
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE
from dragoman_service.file_translation.store import INTERRUPTED, DocumentNotFoundError, DocumentState, DocumentStatus
from dragoman_service.file_translation.upload import MAX_UNAUTHENTICATED_BYTES, DocumentUpload
from dragoman_service.http_api.context import HttpContext
from dragoman_service.http_api.json_mapping import to_json
from dragoman_service.http_api.problem_details import Problem
from dragoman_service.http_api.routes import HttpApi, Respond, ResponseBody
from dragoman_service.security.authentication import peer_name
from dragoman_service.vendor_apis import deepl, libretranslate
from dragoman_service.vendor_apis.base import VendorApi
from dragoman_service.vendor_apis.parameters import body_fields, grouped

_SAME_FORMATS: Final = ({".htm", ".html"}, {".md", ".markdown"}, {".xlf", ".xliff"}, {".po", ".pot"})
_MAX_NAME_CHARACTERS: Final = 100
_CHUNK_BYTES: Final = 256 * 1024
_DOWNLOAD_NAME: Final = re.compile(r"(?P<id>[0-9a-f]{32})-(?P<key>[0-9a-f]{64})\.(?P<file>.{1,255})", re.DOTALL)
_NUM_OPEN_DOWNLOADS: Final = 4  # concurrent look-ups of files by callers without an API key

_DEEPL_PATHS: Final = ("/v2/document", "/v2/document/{document_id}", "/v2/document/{document_id}/result")
_UPLOAD_PATH: Final = "/translate_file"
_DOWNLOAD_PATH: Final = "/download_file/{name}"
_UNSAFE: Final = re.compile(r"[^\w. ()-]")  # characters that are replaced in stored file names
_DISABLED: Final = "translation of documents is not enabled on this server (setting documents.directory)"


class UploadParameters(deepl.TranslationParameters):
    """Fields of `/v2/document`, without the file."""

    filename: str = ""
    output_format: str = ""


class _DocumentRoutes:
    """Shared parts of the routes for documents of both APIs."""

    def __init__(self, api: VendorApi, jobs: DocumentJobs) -> None:
        self._api = api
        self._jobs = jobs

    async def answer(self, context: HttpContext, policy: CallPolicy, respond: Respond) -> None:
        """Answer a request as a method of TranslationService, with 404 if a document does not exist."""

        async def respond_if_found(_context: HttpContext, call: Call, body: bytes) -> ResponseBody:
            try:
                return await respond(context, call, body)
            except DocumentNotFoundError as error:
                context.http_status = HTTPStatus.NOT_FOUND
                raise RequestError("document_id", str(error)) from None

        await self._api.answer(context, policy, respond_if_found)

    async def store(
        self,
        call: Call,
        upload: DocumentUpload,
        make_request: Callable[[DocumentUpload], tuple[DocumentRequest, str]],
    ) -> tuple[DocumentState, str, DocumentRequest]:
        """Store and queue an uploaded document; return its state, its key and the request.

        `make_request` returns the request and the name of the file, or raises if the document cannot be translated.
        """
        store = self._jobs.store
        document_id, num_bytes = await upload.store(call.caller)
        call.request_bytes = upload.num_bytes
        try:
            request, file_name = make_request(upload)
            if request.template.source_language:  # raise the error of any translation with these options
                template = replace(request.template, texts=("",))
                async with self._api.pipeline.time_limit(call, TimeLimit.CALL):
                    await self._api.handlers.translate_texts(template, call)
            file_name = _UNSAFE.sub("_", PurePath(file_name).name)[-_MAX_NAME_CHARACTERS:]
            state, key = await asyncio.to_thread(
                partial(store.complete, document_id, file_name=file_name, num_bytes=num_bytes)
            )
        except BaseException:
            await asyncio.shield(asyncio.to_thread(store.remove, document_id))
            raise
        return state, key, request

    async def download(self, state: DocumentState) -> "_FileResponse":
        """Return the download of a translated document."""
        store = self._jobs.store
        file = await asyncio.to_thread(store.open_result, state.document_id)
        return _FileResponse(file, state.file_name, partial(store.downloaded, state.document_id))


class DeepLDocuments(_DocumentRoutes):
    """`/v2/document` of DeepL: upload, status and download."""

    _api: deepl.DeepLApi

    def routes(self) -> list[Route]:
        """Return the routes, which go before those of DeepL."""
        upload, status, result = _DEEPL_PATHS
        return [
            self._route(upload, UPLOAD_DOCUMENT, self._upload),
            self._route(status, GET_DOCUMENT_STATUS, self._get_status),
            self._route(result, DOWNLOAD_DOCUMENT, self._download),
        ]

    def _route(self, path: str, policy: CallPolicy, respond: Respond) -> Route:
        async def answer(context: HttpContext) -> None:
            await self.answer(context, policy, respond)

        media_types = (MULTIPART_MEDIA_TYPE,) if policy is UPLOAD_DOCUMENT else None
        return Route(path, self._api.endpoint(answer, media_types), methods=["POST"])

    async def _upload(self, context: HttpContext, call: Call, _no_body: bytes) -> bytes:
        upload = DocumentUpload(context, self._jobs)
        state, key, request = await self.store(call, upload, partial(self._request, call, context.query))
        self._jobs.submit(state, request)
        return to_json({"document_id": state.document_id, "document_key": key})

    def _request(self, call: Call, query: Mapping[str, str], upload: DocumentUpload) -> tuple[DocumentRequest, str]:
        parameters = UploadParameters.parse({**query, **grouped(upload.form.fields)})
        file_name = parameters.filename or upload.form.file_name or ""
        suffix, output = suffix_of(file_name), parameters.output_format.lower().removeprefix(".")
        if output and not any({suffix, f".{output}"} <= same for same in ({suffix}, *_SAME_FORMATS)):
            raise InvalidFieldError("output_format", repr(output[:16]), f"absent or {suffix[1:]}, as the file")
        return DocumentRequest(
            suffix=suffix,
            template=parameters.translation_request(()),
            request_id=call.request_id,
            count=partial(self._api.usage.add, call.caller),
        ), file_name

    async def _get_status(self, context: HttpContext, call: Call, body: bytes) -> bytes:
        return to_json(_status(await self._state(context, call, body)))

    async def _download(self, context: HttpContext, call: Call, body: bytes) -> Response:
        state = await self._state(context, call, body)
        if state.status is not DocumentStatus.DONE:
            has_failed = state.status is DocumentStatus.ERROR
            context.http_status = HTTPStatus.NOT_FOUND if has_failed else HTTPStatus.SERVICE_UNAVAILABLE
            raise RequestError("document_id", state.message or f"the document is not ready ({state.status})")
        return await self.download(state)

    async def _state(self, context: HttpContext, call: Call, body: bytes) -> DocumentState:
        key = body_fields(body, context.header("content-type")).get("document_key")
        if not isinstance(key, str):
            raise RequestError("document_key", "must be the key that the upload returned")
        document_id = context.path_parameters["document_id"]
        return await asyncio.to_thread(partial(self._jobs.store.get, document_id, key, owner=call.caller))


class LibreTranslateFiles(_DocumentRoutes):
    """`/translate_file` and `/download_file` of LibreTranslate."""

    _api: libretranslate.LibreTranslateApi

    def __init__(self, api: libretranslate.LibreTranslateApi, jobs: DocumentJobs) -> None:
        super().__init__(api, jobs)
        self._downloads = asyncio.Semaphore(_NUM_OPEN_DOWNLOADS)
        api.file_formats = supported_formats()

    def routes(self) -> list[Route]:
        """Return the routes, which go before those of LibreTranslate."""
        return [
            Route(_UPLOAD_PATH, self._api.endpoint(self._translate, (MULTIPART_MEDIA_TYPE,)), methods=["POST"]),
            Route(_DOWNLOAD_PATH, self._api.endpoint(self._download), methods=["GET"]),
        ]

    async def _translate(self, context: HttpContext) -> None:
        upload = await self._open(context)

        async def respond(_context: HttpContext, call: Call, _no_body: bytes) -> bytes:
            if isinstance(upload, DragomanError):
                raise upload
            state, key, request = await self.store(call, upload, partial(self._request, call, context.query))
            work = self._jobs.submit(state, request)
            try:
                async with self._api.pipeline.time_limit(call, TimeLimit.STREAM):
                    await asyncio.wait((work,))
                state = _translated(await asyncio.to_thread(self._jobs.store.get, state.document_id, key))
            except BaseException:
                await self._jobs.remove(state.document_id)
                raise
            name = quote(f"{state.document_id}-{key}.{state.file_name}", safe="")
            content = {"translatedFileUrl": f"{context.public_url}/download_file/{name}"}
            return to_json({**content, "warning": state.message} if state.message else content)

        await self.answer(context, UPLOAD_DOCUMENT, respond)

    async def _open(self, context: HttpContext) -> DocumentUpload | DragomanError:
        """Return the upload of a caller that sent its key, or an error, which is logged with the request."""
        try:
            upload = DocumentUpload(context, self._jobs)
            if not self._api.is_known(context):
                await self._read_key(upload, context)
        except DragomanError as error:
            return error
        return upload

    async def _read_key(self, upload: DocumentUpload, context: HttpContext) -> None:
        """Read the key from the form, within the limits of unknown callers."""

        class Prefix:
            @staticmethod
            async def read() -> bytes:
                key = await upload.read_key("api_key")
                if key is None and upload.num_bytes > MAX_UNAUTHENTICATED_BYTES:
                    limit = f"the first {MAX_UNAUTHENTICATED_BYTES} bytes of the form"
                    raise UnauthenticatedError(f"no `api_key` in a header, in the query or in {limit}")
                context.authorize(key or "")
                return b""

        await self._api.pipeline.bounds.anonymous_receiver.receive(Prefix, peer_name(context.peer()))

    def _request(self, call: Call, query: Mapping[str, str], upload: DocumentUpload) -> tuple[DocumentRequest, str]:
        parameters = libretranslate.TranslationParameters.parse({**query, **grouped(upload.form.fields)})
        file_name = upload.form.file_name or ""
        return DocumentRequest(
            suffix=suffix_of(file_name),
            template=parameters.translation_request(()),
            request_id=call.request_id,
        ), file_name

    async def _download(self, context: HttpContext) -> None:
        """Answer the URL that an upload returned: it contains the key of the document and needs no API key."""
        not_found = Problem(status=HTTPStatus.NOT_FOUND, members={}, headers={})
        response: Response = self._api.error_response(not_found, "file not found")
        if name := _DOWNLOAD_NAME.fullmatch(context.path_parameters["name"]):
            with contextlib.suppress(DocumentNotFoundError):
                async with self._downloads:
                    state = await asyncio.to_thread(self._jobs.store.get, name["id"], name["key"])
                    if state.status is DocumentStatus.DONE:
                        response = await self.download(state)
        await context.respond(response)


def document_routes(jobs: DocumentJobs | None, apis: Iterable[HttpApi]) -> list[Route]:
    """Return the routes for documents, which go before those of the APIs; without `jobs` they reject all requests."""
    routes: list[Route] = []
    for api in apis:
        if isinstance(api, deepl.DeepLApi):
            reject = api.rejection(HTTPStatus.NOT_FOUND, _DISABLED)
            disabled = [Route(path, reject, methods=["POST"]) for path in _DEEPL_PATHS]
            routes += DeepLDocuments(api, jobs).routes() if jobs else disabled
        elif isinstance(api, libretranslate.LibreTranslateApi):
            reject = api.rejection(HTTPStatus.FORBIDDEN, _DISABLED)
            disabled = [Route(_UPLOAD_PATH, reject, methods=["POST"]), Route(_DOWNLOAD_PATH, reject, methods=["GET"])]
            routes += LibreTranslateFiles(api, jobs).routes() if jobs else disabled
            routes += api.rejections({_UPLOAD_PATH: "POST"})
    return routes


class _FileResponse(Response):
    """Download of a stored file, which is closed afterwards; browsers save it and do not show it.

    `completed` is called in a thread after the whole file was sent, not for HEAD.
    """

    def __init__(self, file: BinaryIO, name: str, completed: Callable[[], None]) -> None:
        headers = {
            "content-length": str(os.fstat(file.fileno()).st_size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
            "content-security-policy": "sandbox",
            "x-content-type-options": "nosniff",
        }
        super().__init__(headers=headers, media_type="application/octet-stream")
        self._file = file
        self._completed = completed

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send the file in chunks."""
        with self._file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            if scope["method"] != "HEAD":
                while chunk := await asyncio.to_thread(self._file.read, _CHUNK_BYTES):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if not scope["state"]["connection"].disconnected.is_set():
                    await asyncio.to_thread(self._completed)
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _translated(state: DocumentState) -> DocumentState:
    """Return the state of a document; raise an error unless it is translated."""
    if state.message == INTERRUPTED:
        raise DrainingError
    if state.status is not DocumentStatus.DONE:
        raise RequestError("file", state.message or "was not translated")
    return state


def _status(state: DocumentState) -> dict[str, Any]:
    content: dict[str, Any] = {"document_id": state.document_id, "status": state.status.value}
    if state.status is DocumentStatus.TRANSLATING:
        remaining = state.seconds_remaining(time.time())
        content |= {} if remaining is None else {"seconds_remaining": math.ceil(remaining)}
    if state.status is DocumentStatus.DONE:
        content["billed_characters"] = state.num_characters
    if state.message:
        content |= {"error_message": state.message, "message": state.message}
    return content
