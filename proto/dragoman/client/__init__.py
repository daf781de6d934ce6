"""The client: `from dragoman.client import TranslationClient`, or the same names from `dragoman`.

A name is imported on first use, so that a program that needs one module loads no other.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dragoman.client.channel import ChannelSettings, RetrySettings
    from dragoman.client.clients import (
        AsyncModelAdminClient,
        AsyncTranslationClient,
        ModelAdminClient,
        TranslationClient,
    )
    from dragoman.client.credentials import TlsOptions
    from dragoman.client.enums import (
        AttentionDetail,
        LongSentencePolicy,
        ModelState,
        NumberFormat,
        Precision,
        Priority,
        ProtectedKind,
        TextFormat,
        WarningKind,
    )
    from dragoman.client.errors import (
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
    from dragoman.client.models import Glossary, Model, ModelVersion
    from dragoman.client.request import DecodingOptions, ProtectionOptions, SamplingOptions, Term, TranslationRequest
    from dragoman.client.results import (
        DetectedLanguage,
        Hypothesis,
        Pivot,
        Span,
        StreamAnswer,
        TranslatedSentence,
        Translation,
        TranslationResult,
        TranslationWarning,
    )

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
    "NumberFormat",
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
    "Span",
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
    "TranslationWarning",
    "UnauthenticatedError",
    "UnavailableError",
    "UnsupportedError",
    "WarningKind",
]

_MODULES = ("clients", "channel", "credentials", "enums", "errors", "models", "request", "results")


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in _MODULES:
            loaded = import_module(f"dragoman.client.{module}")
            if hasattr(loaded, name):
                return getattr(loaded, name)
    raise AttributeError(f"module 'dragoman.client' has no attribute {name!r}")
