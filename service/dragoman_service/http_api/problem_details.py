"""Problem details (RFC 9457) with the codes, reasons, fields and retry delays of gRPC statuses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import grpc
from google.protobuf import duration
from starlette.responses import Response

from dragoman_service.calls import error_mapping
from dragoman_service.http_api.json_mapping import to_json

MEDIA_TYPE = "application/problem+json"

HTTP_STATUSES: Mapping[grpc.StatusCode, HTTPStatus] = {
    grpc.StatusCode.INVALID_ARGUMENT: HTTPStatus.BAD_REQUEST,
    grpc.StatusCode.UNIMPLEMENTED: HTTPStatus.UNPROCESSABLE_ENTITY,  # a field, not the method, is unsupported
    grpc.StatusCode.NOT_FOUND: HTTPStatus.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION: HTTPStatus.CONFLICT,
    grpc.StatusCode.UNAUTHENTICATED: HTTPStatus.UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: HTTPStatus.FORBIDDEN,
    grpc.StatusCode.RESOURCE_EXHAUSTED: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: HTTPStatus.GATEWAY_TIMEOUT,
    grpc.StatusCode.INTERNAL: HTTPStatus.INTERNAL_SERVER_ERROR,
}
_STATUSES_OF_REASONS: Mapping[str, HTTPStatus] = {"RATE_LIMITED": HTTPStatus.TOO_MANY_REQUESTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error response."""

    status: HTTPStatus
    members: Mapping[str, Any]  # of the JSON object
    headers: Mapping[str, str]

    def response(self) -> Response:
        """Return a response with this problem."""
        return Response(to_json(self.members), self.status, dict(self.headers), MEDIA_TYPE)


def problem(error: error_mapping.RpcError, *, request_id: str, http_status: HTTPStatus | None = None) -> Problem:
    """Return the problem of a failed call; `http_status` replaces the status of its gRPC code."""
    status = http_status or _STATUSES_OF_REASONS.get(error.reason) or HTTP_STATUSES[error.code]
    members: dict[str, Any] = {
        "code": error.code.name,
        "reason": error.reason,
        "domain": error_mapping.DOMAIN,
        "requestId": request_id,
    }
    headers = {"X-Error-Reason": error.reason}  # also for vendor APIs, whose bodies have no reason; proxies retry by it
    if error.metadata:
        members["metadata"] = error.metadata
    if error.violation:
        field, description = error.violation
        members["violations"] = [{"field": field, "description": description}]
    if error.retry_delay_ms is not None:
        members["retryDelay"] = duration.from_milliseconds(error.retry_delay_ms).ToJsonString()
        headers["Retry-After"] = str(math.ceil(error.retry_delay_ms / 1000))
    if status is HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return plain_problem(status, error.message, members=members, headers=headers)


def plain_problem(
    status: HTTPStatus,
    detail: str,
    *,
    members: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Problem:
    """Return a problem of type `about:blank` with further members and headers."""
    standard = {"type": "about:blank", "title": status.phrase, "status": int(status), "detail": detail}
    return Problem(status=status, members={**standard, **(members or {})}, headers=headers or {})
