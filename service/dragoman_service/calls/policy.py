"""The policy of each method: steps of the pipeline around its handler."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from dragoman.v1 import translation_pb2 as pb

_SERVICES = pb.DESCRIPTOR.services_by_name


class TimeLimit(enum.Enum):
    """Settings that limit the time of a call."""

    NONE = "none"
    CALL = "call"  # `default_timeout_s` and `max_timeout_s`
    STREAM = "stream"  # `default_stream_timeout_s` and `max_stream_timeout_s`


class Streaming(enum.Enum):
    """Streams of a call; a call with a stream counts against `max_streams` until its last message is sent."""

    NONE = "none"
    RESPONSES = "responses"
    REQUESTS = "requests"  # each request is a call of its own, which is authenticated, counted and logged


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy:
    """Steps of the pipeline for the calls of a method."""

    path: str  # `/package.Service/Method`, which determines the permission
    method: str  # last part of the path; metrics and the access log count the call as this method
    authenticates: bool = True  # False: the host of the client is the caller
    key_header: str | None = None  # metadata with the API key of calls without `authorization`
    reads_message: bool = True  # False: the handler reads the body, or the call has none
    is_translation: bool  # True: counts against `max_concurrent_requests`; False: at most `max_control_message_bytes`
    time_limit: TimeLimit = TimeLimit.NONE
    streaming: Streaming = Streaming.NONE

    def anonymous(self) -> "CallPolicy":
        """Return the policy of a route without a key, whose body is not read."""
        return replace(self, authenticates=False, reads_message=False)


def _translation(
    method: str,
    time_limit: TimeLimit = TimeLimit.NONE,
    streaming: Streaming = Streaming.NONE,
    *,
    reads_message: bool = True,
) -> CallPolicy:
    return CallPolicy(
        path=f"/{_SERVICES['TranslationService'].full_name}/{method}",
        method=method,
        reads_message=reads_message,
        is_translation=True,
        time_limit=time_limit,
        streaming=streaming,
    )


def _control(service: str, method: str) -> CallPolicy:
    return CallPolicy(path=f"/{_SERVICES[service].full_name}/{method}", method=method, is_translation=False)


TRANSLATE = _translation("Translate", TimeLimit.CALL)
DETECT_LANGUAGE = _translation("DetectLanguage", TimeLimit.CALL)
TRANSLATE_DOCUMENT = _translation("TranslateDocument", TimeLimit.STREAM, Streaming.RESPONSES)
TRANSLATE_STREAM = _translation("TranslateStream", TimeLimit.STREAM, Streaming.REQUESTS, reads_message=False)
STREAM_REQUEST = _translation("TranslateStream")  # ends with the stream

# Files, only over HTTP. The handlers limit their time.
UPLOAD_DOCUMENT = _translation("UploadDocument", reads_message=False)
GET_DOCUMENT_STATUS = _translation("GetDocumentStatus")
DOWNLOAD_DOCUMENT = _translation("DownloadDocument")

LIST_MODELS = _control("ModelService", "ListModels")
GET_MODEL = _control("ModelService", "GetModel")
LIST_GLOSSARIES = _control("ModelService", "ListGlossaries")

LOAD_MODEL = _control("ModelAdminService", "LoadModel")
UNLOAD_MODEL = _control("ModelAdminService", "UnloadModel")
SET_MODEL_LABEL = _control("ModelAdminService", "SetModelLabel")

POLICIES: Mapping[str, CallPolicy] = {
    policy.path: policy
    for policy in (
        TRANSLATE,
        DETECT_LANGUAGE,
        TRANSLATE_DOCUMENT,
        TRANSLATE_STREAM,
        LIST_MODELS,
        GET_MODEL,
        LIST_GLOSSARIES,
        LOAD_MODEL,
        UNLOAD_MODEL,
        SET_MODEL_LABEL,
    )
}
"""Policies of the methods of the contract, by path."""
