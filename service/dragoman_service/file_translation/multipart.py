"""A form with a file (multipart/form-data), read while it arrives: fields are kept in memory, the file is passed on."""

import logging
from email.message import Message as Headers
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dragoman_service.errors import InvalidFieldError

MULTIPART_MEDIA_TYPE = "multipart/form-data"

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs a warning for each invalid form

_MAX_PARTS: Final = 32
_MAX_HEADER_BYTES: Final = 2048
_MAX_HEADERS: Final = 8
_MAX_VALUE_BYTES: Final = 16 * 1024
_FILE: Final = "file"


class FormWithFile:
    """Parses one body. The file is the part named `file`, the other parts are fields."""

    def __init__(self, content_type: str) -> None:
        """Take the boundary from a Content-Type; InvalidFieldError if there is none."""
        parsed = Headers()
        parsed["content-type"] = content_type
        boundary = parsed.get_param("boundary")
        if parsed.get_content_type() != MULTIPART_MEDIA_TYPE or not isinstance(boundary, str) or not boundary.isascii():
            raise InvalidFieldError("content-type", repr(content_type[:64]), f"{MULTIPART_MEDIA_TYPE} with a boundary")
        self.fields: dict[str, str] = {}
        """Whole fields."""

        self.file_name: str | None = None
        """Of the file; None before its part begins."""

        self.is_complete = False
        """Whether the end of the form has arrived."""

        self._file = bytearray()
        self._name = ""
        self._value = bytearray()
        self._num_parts = 0
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._disposition: dict[bytes, bytes] = {}
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": self._add_to_header_name,
                    "on_header_value": self._add_to_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._end_headers,
                    "on_part_data": self._add_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
                max_header_count=_MAX_HEADERS,
                max_header_size=_MAX_HEADER_BYTES,
            )
        except FormParserError as error:
            raise _invalid(error) from None

    @property
    def num_file_bytes(self) -> int:
        """Bytes of the file that `take_file_bytes` returns."""
        return len(self._file)

    def feed(self, data: bytes) -> None:
        """Parse a piece of the body; InvalidFieldError if it cannot be part of such a form."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _invalid(error) from None

    def take_file_bytes(self) -> bytes:
        """Return what has arrived of the file since the last call."""
        data, self._file = bytes(self._file), bytearray()
        return data

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > _MAX_PARTS:
            raise InvalidFieldError("request", f"a form of more than {_MAX_PARTS} parts", f"at most {_MAX_PARTS}")
        self._disposition = {}
        self._header_name.clear()
        self._header_value.clear()
        self._value.clear()

    def _add_to_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _add_to_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        if self._header_name.lower() == b"content-disposition":
            _, self._disposition = parse_options_header(self._header_value.decode("latin-1"))
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        self._name = _text("request", self._disposition.get(b"name", b""))
        if self._name in self.fields or (self._name == _FILE and self.file_name is not None):
            raise InvalidFieldError("request", "a form with a field more than once", "of each field once")
        if self._name == _FILE:
            self.file_name = _text(_FILE, self._disposition.get(b"filename", b""))

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == _FILE:
            self._file += data[start:end]
            return
        self._value += data[start:end]
        if len(self._value) > _MAX_VALUE_BYTES:
            raise InvalidFieldError("request", "a form with a longer field", f"at most {_MAX_VALUE_BYTES} bytes")

    def _end_part(self) -> None:
        if self._name != _FILE:
            self.fields[self._name] = _text("request", bytes(self._value))

    def _end(self) -> None:
        self.is_complete = True


def _text(field: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidFieldError(field, "not valid UTF-8", "text in UTF-8") from None


def _invalid(error: Exception) -> InvalidFieldError:
    return InvalidFieldError("request", f"not a valid form ({error})", MULTIPART_MEDIA_TYPE)
