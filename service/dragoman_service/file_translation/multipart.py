"""Incremental parser of multipart forms (RFC 7578): fields are kept in memory, the content of a file is handed over."""

import logging
from email.message import Message as Headers
from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dragoman_service.errors import InvalidFieldError, RequestError
from dragoman_service.translation.settings import MAX_FORM_FIELDS

MULTIPART_MEDIA_TYPE = "multipart/form-data"

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs a warning for each invalid form

_MAX_HEADER_BYTES: Final = 4096
_MAX_HEADERS: Final = 8  # of a part
_PLAIN_ENCODINGS: Final = (b"", b"7bit", b"8bit", b"binary")


class MultipartForm:
    """Parses one form."""

    def __init__(self, content_type: str, *, file_field: str | None = None, max_value_bytes: int | None = None) -> None:
        """Create a parser; InvalidFieldError if the content type is not that of a multipart form.

        Args:
            content_type: value of the header, with the boundary.
            file_field: name of the part that is a file; None: no file is accepted.
            max_value_bytes: limit of the value of each field.
        """
        parsed = Headers()
        parsed["content-type"] = content_type
        boundary = parsed.get_param("boundary")
        if parsed.get_content_type() != MULTIPART_MEDIA_TYPE or not isinstance(boundary, str) or not boundary.isascii():
            raise InvalidFieldError("content-type", repr(content_type[:64]), f"{MULTIPART_MEDIA_TYPE} with a boundary")
        self.fields: list[tuple[str, str]] = []  # complete fields, in order
        self.file_name: str | None = None  # None until the part of the file begins
        self.is_complete = False
        self._file_field = file_field
        self._max_value_bytes = max_value_bytes
        self._file = bytearray()
        self._num_parts = 0
        self._headers: dict[bytes, bytes] = {}
        self._header_name = bytearray()
        self._header_value = bytearray()
        self._name = ""
        self._value = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": lambda data, start, end: self._header_name.extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header_value.extend(data[start:end]),
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
        """Number of bytes that `take_file_bytes` returns."""
        return len(self._file)

    def feed(self, data: bytes) -> None:
        """Parse a chunk of the body; RequestError if the form is invalid or exceeds a limit."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _invalid(error) from None

    def take_file_bytes(self) -> bytes:
        """Return the content of the file that arrived since the last call."""
        data = bytes(self._file)
        self._file.clear()
        return data

    def check_complete(self) -> None:
        """Raise RequestError if the end of the form has not arrived."""
        if not self.is_complete:
            raise RequestError("request", "the multipart form ends before its last boundary")

    def _begin_part(self) -> None:
        self._num_parts += 1
        if self._num_parts > MAX_FORM_FIELDS:
            raise RequestError("request", f"the form has more than {MAX_FORM_FIELDS} parts")
        self._headers = {}
        self._value.clear()

    def _end_header(self) -> None:
        self._headers[bytes(self._header_name.lower())] = bytes(self._header_value.strip())
        self._header_name.clear()
        self._header_value.clear()

    def _end_headers(self) -> None:
        if self._headers.get(b"content-transfer-encoding", b"").lower() not in _PLAIN_ENCODINGS:
            raise RequestError("request", "content-transfer-encoding: not supported in a form")
        _, options = parse_options_header(self._headers.get(b"content-disposition", b"").decode("latin-1"))
        if b"name" not in options:
            raise RequestError("request", "a part of the form has no name")
        self._name = _text(options[b"name"])
        if self._name == self._file_field:
            if self.file_name is not None:
                raise RequestError(self._name, "the form has more than one file")
            self.file_name = _text(options.get(b"filename", b""))
        elif b"filename" in options:
            raise RequestError("request", "the form has a file in a part that takes none")

    def _add_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self._file += data[start:end]
            return
        self._value += data[start:end]
        if self._max_value_bytes is not None and len(self._value) > self._max_value_bytes:
            raise RequestError("request", f"a field of the form is longer than {self._max_value_bytes} bytes")

    def _end_part(self) -> None:
        if self._name != self._file_field:
            self.fields.append((self._name, _text(bytes(self._value))))

    def _end(self) -> None:
        self.is_complete = True


def multipart_fields(body: bytes, content_type: str) -> list[tuple[str, str]]:
    """Return the fields of a whole form without files; RequestError if it is invalid or exceeds a limit."""
    form = MultipartForm(content_type)
    form.feed(body)
    form.check_complete()
    return form.fields


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RequestError("request", "the form is not valid UTF-8") from None


def _invalid(error: Exception) -> RequestError:
    return RequestError("request", f"invalid multipart form ({error})")
