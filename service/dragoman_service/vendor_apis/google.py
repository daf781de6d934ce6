"""The API of Google Cloud Translation, if it is on: its package is an extra, which is imported only then."""

from typing import TYPE_CHECKING

from dragoman_service.calls.handlers import Handlers
from dragoman_service.calls.pipeline import RequestPipeline
from dragoman_service.calls.settings import GrpcSettings
from dragoman_service.errors import ConfigError

if TYPE_CHECKING:
    from dragoman_service.http_api.routes import HttpApi
    from dragoman_service.vendor_apis.google_grpc import GoogleTranslation


def google_translation(settings: GrpcSettings, handlers: Handlers) -> "GoogleTranslation | None":
    """Return the service for clients of Google Cloud Translation, None if off; ConfigError without its package."""
    if not settings.google_translation:
        return None
    try:
        from dragoman_service.vendor_apis.google_grpc import GoogleTranslation  # noqa: PLC0415 - an extra
    except ImportError as error:
        expected = f"false without google-cloud-translate, which the extra `google` installs ({error})"
        raise ConfigError("grpc.google_translation", True, expected) from error
    return GoogleTranslation(handlers)


def google_apis(google: "GoogleTranslation | None", pipeline: RequestPipeline, handlers: Handlers) -> "list[HttpApi]":
    """Return the HTTP APIs for clients of Google Cloud Translation; an empty list if off."""
    if google is None:
        return []
    from dragoman_service.vendor_apis.google_rest import GoogleV2Api, GoogleV3Api  # noqa: PLC0415 - an extra

    return [GoogleV3Api(pipeline, handlers, google=google), GoogleV2Api(pipeline, handlers)]
