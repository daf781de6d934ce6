"""Errors of the service; only `calls.error_mapping` maps them to gRPC statuses."""

import re
from os import PathLike
from typing import Any, Final

_MAX_RETRY_AFTER_S: Final = 86400.0
_MAX_LISTED: Final = 50  # available names in one message
_MAX_SHOWN: Final = 200  # characters of a value in one message
_URL_SECRETS: Final = ((re.compile(r"(:/{1,2})\S*@"), r"\1***@"), (re.compile(r"(:/.*?\?).*"), r"\1***"))


class DragomanError(Exception):
    """Base of all errors of the service; they can be pickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a recipe for pickle that bypasses the constructor."""
        return _restored, (type(self), self.args, vars(self))


def _restored(kind: type[DragomanError], args: tuple[object, ...], fields: dict[str, object]) -> DragomanError:
    error = kind.__new__(kind, *args)
    vars(error).update(fields)
    return error


class ConfigError(DragomanError):
    """A setting is unknown, unparsable or out of range."""

    def __init__(self, setting: str, value: object, expected: str) -> None:
        super().__init__(f"setting {setting!r} is {_without_secrets(value)}: expected {expected}")
        self.setting = setting
        self.value = value
        self.expected = expected

    @classmethod
    def unknown(cls, setting: str, expected: str) -> "ConfigError":
        """Return the error of an unknown setting. The message does not contain the value, which can be a secret."""
        made = cls(setting, None, expected)
        made.args = (f"setting {setting!r} is unknown: expected {expected}",)
        return made


def _without_secrets(value: object) -> str:
    # A setting can contain a URL with a password, or a private key in place of its path.
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}: {_without_secrets(part)}' for name, part in value.items())}}}"
    if not isinstance(value, str | PathLike):
        return repr(value)
    text = str(value)
    if len(text) > _MAX_SHOWN or "\n" in text:
        return f"a text of {len(text)} characters"
    for pattern, replacement in _URL_SECRETS:
        text = pattern.sub(replacement, text)
    return repr(text)


class BundleError(DragomanError):
    """A model bundle is incomplete, damaged or made for another service version."""

    def __init__(self, file: str, *, found: object, expected: object, what: str) -> None:
        super().__init__(f"bundle file {file}: {what:.500} is {found!s:.500}, expected {expected!s:.500}")
        self.file = file
        self.found = found
        self.expected = expected
        self.what = what

    @classmethod
    def unreadable(cls, file: str, error: OSError) -> "BundleError":
        """Return the error of a file that is missing, too large or otherwise unreadable."""
        made = cls(file, found=error.strerror, expected="a readable file", what="file")
        made.args = (f"cannot read bundle file {file}: {error.strerror}",)
        return made


class RequestError(DragomanError):
    """The caller must change the request before it retries."""

    def __init__(self, field: str, description: str) -> None:
        """Name the field of the wire message, such as `options.beam_size` or `texts[3]`."""
        super().__init__(f"{field}: {description}")
        self.field = field
        self.description = description


class InvalidFieldError(RequestError):
    """A field has a value that is never valid."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(field, f"is {value}, must be {limit}")


class UnsupportedFieldError(RequestError):
    """A documented field or method that this server does not implement."""

    def __init__(self, field: str, fault: str = "is not implemented by this server") -> None:
        super().__init__(field, fault)


class ModelNotFoundError(RequestError):
    """No such model, version or language pair."""

    def __init__(
        self, field: str, requested: str, available: tuple[str, ...], *, fault: str = "is not served here"
    ) -> None:
        """Build a message with the requested name, the cause and at most `_MAX_LISTED` available names."""
        listed = ", ".join(available[:_MAX_LISTED]) or "none"
        more = f", ... ({len(available)} in all)" if len(available) > _MAX_LISTED else ""
        super().__init__(field, f"{requested} {fault}; available: {listed}{more}")


class GlossaryNotFoundError(RequestError):
    """No such glossary."""

    def __init__(self, field: str, requested: str, available: tuple[str, ...]) -> None:
        """Build a message with the requested name and the available glossaries."""
        super().__init__(field, f"{requested!r} is not served here; available: {', '.join(available) or 'none'}")


class ModelStateError(DragomanError):
    """The state of the model does not allow the call."""

    def __init__(self, model: str, description: str) -> None:
        super().__init__(f"model {model} {description}")


class UnauthenticatedError(DragomanError):
    """The credentials are missing or unknown."""

    def __init__(self, description: str) -> None:
        """State the problem without the key."""
        super().__init__(f"authentication failed: {description}")


class PermissionDeniedError(DragomanError):
    """The caller does not have the permission for the call."""

    def __init__(self, *, caller: str, permission: str) -> None:
        super().__init__(f"caller {caller!r} has no permission {permission!r}")
        self.caller = caller


class RetryableError(DragomanError):
    """The same request may succeed later."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        # A shared store may hold any number, also NaN.
        self.retry_after_s = max(0.0, min(_MAX_RETRY_AFTER_S, retry_after_s))
        super().__init__(f"{message}; retry in {self.retry_after_s:.1f} s")


class OverloadedError(RetryableError):
    """A queue or another resource of the server is full."""

    def __init__(self, *, queued: int, limit: int, unit: str, retry_after_s: float) -> None:
        super().__init__(f"limit of {limit} {unit} reached ({queued} in use)", retry_after_s=retry_after_s)
        self.queued = queued
        self.limit = limit
        self.unit = unit


class QueueDelayError(OverloadedError):
    """Queued work delays the result of a request beyond its deadline."""

    def __init__(self, *, needed_s: float, allowed_s: float, retry_after_s: float) -> None:
        message = f"estimated completion in {needed_s:.1f} s exceeds the deadline of {allowed_s:.1f} s"
        RetryableError.__init__(self, message, retry_after_s=retry_after_s)
        self.needed_s = needed_s
        self.allowed_s = allowed_s


class RateLimitedError(RetryableError):
    """The caller exceeds its rate limit."""

    def __init__(self, *, caller: str, limit: float, unit: str, retry_after_s: float) -> None:
        """Name the caller, its limit with its unit such as `requests/s`, and the time after which to retry."""
        super().__init__(f"caller {caller!r} is limited to {limit:g} {unit}", retry_after_s=retry_after_s)
        self.caller = caller


class StartingError(DragomanError):
    """The server is still loading its models."""

    def __init__(self) -> None:
        super().__init__("the server is starting and takes no requests yet")


class DrainingError(DragomanError):
    """The server is shutting down and takes no new requests."""

    def __init__(self) -> None:
        super().__init__("the server is draining and takes no new requests")


class DeadlineExceededError(DragomanError):
    """The caller's deadline passed before the answer."""

    def __init__(self, stage: str, *, needed_s: float | None = None, allowed_s: float | None = None) -> None:
        """Name the stage of the request and, if it was not admitted, the expected and the allowed time.

        Args:
            stage: `text`, `admission`, `queue`, `decode` or `stream`.
            needed_s: expected time until the answer; given with `allowed_s`.
            allowed_s: remaining time until the deadline.
        """
        why = "" if needed_s is None else f": the answer would take {needed_s:.3f} s, {allowed_s:.3f} s are allowed"
        super().__init__(f"deadline exceeded in stage {stage}{why}")
        self.stage = stage
        self.needed_s = needed_s
        self.allowed_s = allowed_s


class IdleError(DeadlineExceededError):
    """A caller neither sends nor reads."""

    def __init__(self) -> None:
        super().__init__("stream")


class EngineError(DragomanError):
    """Encoding or decoding failed; details are in the server's log."""
