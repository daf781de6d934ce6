"""Settings of requests: limits, and defaults of options."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from dragoman.option_ranges import option_range
from dragoman_service.request import ProtectedKind
from dragoman_service.toml import SettingsSection

# Upper limit of the setting: positions in the translation, which may be longer, must fit 32 bits.
MAX_DOCUMENT_CHARACTERS = 2**28

MAX_TEXTS: Any = option_range("texts").max_items
MAX_FORM_FIELDS = MAX_TEXTS + 64  # of a query or form, which can contain the texts


class TranslationLimits(SettingsSection):
    """Limits of one request."""

    max_texts: int = Field(default=MAX_TEXTS, ge=1, le=MAX_TEXTS)
    """Maximum number of texts of a request."""

    max_text_characters: int = Field(default=10_000, ge=1)
    """Maximum length of each text, in characters (Unicode code points)."""

    max_request_characters: int = Field(default=100_000, ge=1)
    """Maximum length of all texts of a request together, in characters."""

    max_request_sentences: int = Field(default=2048, ge=1)
    """Maximum number of sentences of all texts of a request together. Each part of a split sentence counts."""

    max_request_source_tokens: int = Field(default=65_536, ge=1)
    """Maximum number of source tokens of all texts of a request together, including EOS of each sentence."""

    max_request_decode_cost: int = Field(default=2_162_688, ge=1)
    """Maximum decode cost of all texts of a request together. The decode cost of a sentence is its number of source
    tokens, plus its beam size times the decoder steps: two for each source token, or more if `min_target_tokens` or a
    prefix forces them. The default is the cost of the maximum number of source tokens with the widest beam."""

    max_document_characters: int = Field(default=1_000_000, ge=1, le=MAX_DOCUMENT_CHARACTERS)
    """Maximum length of a document, in characters. The server needs a few times its size in memory. A message has up to
    4 bytes per character, so increase `grpc.max_message_bytes` accordingly."""

    document_window_segments: int = Field(default=64, ge=1, le=1024)
    """Maximum number of sentences of a document that are queued or decoded at a time, or finished and waiting for an
    earlier sentence or a slow reader. Each part of a split sentence counts."""


def _kind_names(value: object) -> object:
    # Text with commas is from an environment variable.
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple):
        return value
    return [name.strip().lower() if isinstance(name, str) else name for name in names if name != ""]


def _default_of(name: str) -> Any:
    option = option_range(f"options.{name}")
    bounds: dict[str, Any] = {} if option.type is bool else {"ge": option.minimum, "le": option.maximum}
    return Field(default=option.default, **bounds)


class TranslationDefaults(SettingsSection):
    """Defaults of request options."""

    beam_size: int = _default_of("beam_size")
    """Live hypotheses of each sentence; 1 is greedy search. A request for more hypotheses gets a larger beam."""

    length_penalty: float = _default_of("length_penalty")
    """Exponent of the length penalty; 0 disables it."""

    repetition_guard: bool = _default_of("repetition_guard")
    """Decode a sentence again if its translation is a loop or has an implausible length."""

    early_stopping: bool = _default_of("early_stopping")
    """End the search of a sentence when as many hypotheses as the beam size have finished, instead of when no live
    hypothesis can be better. Saves a tenth of the steps with the bundled `en-de` model."""

    unprotected_kinds: Annotated[tuple[ProtectedKind, ...], BeforeValidator(_kind_names)] = ()
    """Kinds of spans that requests do not protect unless they enable them: names of `ProtectedKind` in lower case, such
    as `["number", "accelerator"]`. Also applies to the APIs of other vendors, whose requests cannot enable kinds."""

    number_format: Literal["localized", "as_written"] = "localized"
    """Format of protected numbers: `localized`, with the decimal and grouping separators of the target language, or
    `as_written`. Also applies to the APIs of other vendors."""
