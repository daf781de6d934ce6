"""Parameters of vendor requests: reads them from JSON, forms and queries, and validates them with pydantic models."""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationError, ValidationInfo
from pydantic import model_validator as validates_model

from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.file_translation.multipart import MULTIPART_MEDIA_TYPE, multipart_fields
from dragoman_service.http_api.bodies import FORM_MEDIA_TYPE, check_unicode, form_fields, json_content, shown_name
from dragoman_service.translation.settings import MAX_TEXTS

log = logging.getLogger(__name__)

_MAX_SHOWN_CHARACTERS = 64
_MAX_FIELDS = 64  # pydantic builds an error for each unknown one
_TEXT_FIELDS = {"q", "text"}  # an empty text is a text; other empty parameters are absent
_PYDANTIC_PREFIX = "Input should be "


class Parameters(BaseModel):
    """Parameters of a request. A parameter that is null or empty, as forms send it, counts as absent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @validates_model(mode="before")
    @classmethod
    def _without_empty(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping):
            return fields
        if len(fields) > _MAX_FIELDS:
            raise RequestError("request", f"an object has {len(fields)} fields, at most {_MAX_FIELDS} are allowed")
        return {
            name: value for name, value in fields.items() if value is not None and (value != "" or name in _TEXT_FIELDS)
        }

    @classmethod
    def parse(cls, fields: Mapping[str, Any], *, max_text_characters: int = 0) -> Self:
        """Validate fields by the vendor's names.

        Raises:
            RequestError: names the first invalid field, as the vendor calls it.
        """
        try:
            return cls.model_validate(fields, context={"max_text_characters": max_text_characters})
        except ValidationError as error:
            raise _request_error(error.errors(include_url=False)[0], cls) from None


def check_texts(field: str, texts: object, *, max_characters: int) -> list[str]:
    """Return the texts of a request; InvalidFieldError if the number, a type or a length is not allowed."""
    if not isinstance(texts, list) or not texts:
        raise InvalidFieldError(field, _shown(texts), f"a string or a list of 1 to {MAX_TEXTS} strings")
    if len(texts) > MAX_TEXTS:
        raise InvalidFieldError(field, f"a list of {len(texts)}", f"at most {MAX_TEXTS} texts")
    for index, text in enumerate(texts):
        item = f"{field}[{index}]" if len(texts) > 1 else field
        if not isinstance(text, str):
            raise InvalidFieldError(item, _shown(text), "a string")
        if len(text) > max_characters:
            raise InvalidFieldError(item, f"{len(text)} characters", f"at most {max_characters}")
    return texts


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, anything else as the only item of a list."""
    return value if isinstance(value, list) else [value]


def _checked_texts(value: object, info: ValidationInfo) -> list[str]:
    return check_texts(_name(info), as_list(value), max_characters=_max_characters(info))


def _checked_text(value: object, info: ValidationInfo) -> str:
    (text,) = check_texts(_name(info), [value], max_characters=_max_characters(info))
    return text


def _rejected(value: object, info: ValidationInfo) -> None:
    if value != []:
        raise RequestError(_name(info), "not supported")


def _ignored(_value: object, info: ValidationInfo) -> None:
    _log_ignored(_name(info))


@cache
def _log_ignored(name: str) -> None:
    log.info("parameter ignored", extra={"parameter": name})  # once, as clients send it with each request


def _max_characters(info: ValidationInfo) -> int:
    context: Any = info.context
    return int(context["max_text_characters"])


def _name(info: ValidationInfo) -> str:
    return info.field_name or "request"


Text = Annotated[str, PlainValidator(_checked_text)]
Texts = Annotated[list[str], PlainValidator(_checked_texts)]
"""One or more texts; only their number, types and lengths are checked."""

StringList = Annotated[list[str], Field(max_length=MAX_TEXTS), BeforeValidator(as_list)]
AnyCase = BeforeValidator(lambda value: str(value).lower() if isinstance(value, str | bool) else value)
Unsupported = Annotated[None, PlainValidator(_rejected)]
Ignored = Annotated[None, PlainValidator(_ignored)]
"""A parameter of the vendor's clients that has no meaning here; its name is logged once."""

JsonFormat = Annotated[Literal["json"], BeforeValidator(lambda value: str(value).partition(";")[0])]


def body_fields(body: bytes, content_type: str) -> dict[str, Any]:
    """Return the fields of a JSON object or a form; a form field that is repeated is a list.

    Raises:
        InvalidFieldError: if the body cannot be parsed or contains text that is not Unicode.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == FORM_MEDIA_TYPE:
        return grouped(form_fields(body))
    if media_type == MULTIPART_MEDIA_TYPE:
        return grouped(multipart_fields(body, content_type))
    fields = json_content(body)
    if not isinstance(fields, dict):
        raise InvalidFieldError("request", _shown(fields), "a JSON object")
    check_unicode(fields)
    return fields


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return values by name; the values of a repeated name are a list."""
    values: dict[str, list[str]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: given if len(given) > 1 else given[0] for name, given in values.items()}


def _request_error(detail: Any, model: type[BaseModel]) -> RequestError:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{shown_name(part)}" for part in detail["loc"])
    field = path.removeprefix(".") or "request"
    if detail["type"] in {"missing", "too_short"}:
        return RequestError(field, "is required")
    if detail["type"] == "extra_forbidden":
        known = [info.alias or name for name, info in model.model_fields.items()] if len(detail["loc"]) == 1 else []
        return RequestError(field, f"unknown field; expected one of {', '.join(known)}" if known else "unknown field")
    if detail["type"] == "too_long":
        return InvalidFieldError(field, f"a list of {len(detail['input'])}", f"at most {detail['ctx']['max_length']}")
    if detail["type"] in {"model_type", "model_attributes_type"}:
        return InvalidFieldError(field, _shown(detail["input"]), "an object")
    if not detail["msg"].startswith(_PYDANTIC_PREFIX):
        return RequestError(field, detail["msg"])
    return InvalidFieldError(field, _shown(detail["input"]), detail["msg"].removeprefix(_PYDANTIC_PREFIX))


def _shown(value: object) -> str:
    """Return a value of the caller for an error: strings shortened, lists and objects by their kind."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list" if value else "an empty list"
    return repr(value[:_MAX_SHOWN_CHARACTERS] if isinstance(value, str) else value)
