"""The wire contract of Dragoman and the thin client that other services install.

from dragoman import TranslationClient

with TranslationClient("localhost:50051") as client:
    result = client.translate(["Hello, world."], source_language="en", target_language="de")
    print(result[0].text)

This is the one package whose top level gives names of its modules again: callers import from here, the rest of the
project from the modules. A name is imported when it is first asked for, so that a program that needs one module loads
no other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.admin import AsyncModelAdminClient, ModelAdminClient
    from dragoman.channel import ChannelSettings, RetrySettings
    from dragoman.client import AsyncTranslationClient, TranslationClient
    from dragoman.credentials import TlsOptions
    from dragoman.enums import (
        AttentionDetail,
        LongSentencePolicy,
        ModelState,
        Precision,
        Priority,
        ProtectedKind,
        TextFormat,
        WarningKind,
    )
    from dragoman.errors import (
        AccessError,
        CallCancelledError,
        DeadlineExceededError,
        DragomanError,
        DrainingError,
        EngineError,
        ExhaustedError,
        InvalidFieldError,
        InvalidRequestError,
        ModelNotFoundError,
        ModelStateError,
        OverloadedError,
        PermissionDeniedError,
        RateLimitedError,
        ServerError,
        StartingError,
        UnauthenticatedError,
        UnavailableError,
        UnsupportedError,
    )
    from dragoman.models import Glossary, Model, ModelVersion
    from dragoman.requests import DecodingOptions, ProtectionOptions, SamplingOptions, Term, TranslationRequest
    from dragoman.results import (
        DetectedLanguage,
        Hypothesis,
        Pivot,
        StreamAnswer,
        TranslatedSentence,
        Translation,
        TranslationResult,
    )

    __version__: str
    """Version of the installed package; `unknown` in a source tree that is not installed."""

__all__ = [
    "AccessError",
    "AsyncModelAdminClient",
    "AsyncTranslationClient",
    "AttentionDetail",
    "CallCancelledError",
    "ChannelSettings",
    "DeadlineExceededError",
    "DecodingOptions",
    "DetectedLanguage",
    "DragomanError",
    "DrainingError",
    "EngineError",
    "ExhaustedError",
    "Glossary",
    "Hypothesis",
    "InvalidFieldError",
    "InvalidRequestError",
    "LongSentencePolicy",
    "Model",
    "ModelAdminClient",
    "ModelNotFoundError",
    "ModelState",
    "ModelStateError",
    "ModelVersion",
    "OverloadedError",
    "PermissionDeniedError",
    "Pivot",
    "Precision",
    "Priority",
    "ProtectedKind",
    "ProtectionOptions",
    "RateLimitedError",
    "RetrySettings",
    "SamplingOptions",
    "ServerError",
    "StartingError",
    "StreamAnswer",
    "Term",
    "TextFormat",
    "TlsOptions",
    "TranslatedSentence",
    "Translation",
    "TranslationClient",
    "TranslationRequest",
    "TranslationResult",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "WarningKind",
    "__version__",
]

_MODULES = ("client", "admin", "channel", "credentials", "enums", "errors", "models", "requests", "results")
"""Where the names above are, in the order in which they are looked for."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in __all__:
        for module in _MODULES:
            loaded = import_module(f"dragoman.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module 'dragoman' has no attribute {name!r}")


def _version() -> str:
    metadata = import_module("importlib.metadata")
    try:
        return str(metadata.version("dragoman"))
    except metadata.PackageNotFoundError:
        return "unknown"
