"""Language tags: what a tag may be served by."""

import re

from service.errors import InvalidFieldError

_LANGUAGE_TAG = re.compile(r"[A-Za-z]{2,8}(-[A-Za-z0-9]{1,8})*")
_SHOWN_CHARACTERS = 40  # of a value that is not even well-formed


def language_lookup(field: str, tag: str) -> list[str]:
    """Return what a language tag may be served by: itself in lower case, then ever shorter ones.

    Raises:
        InvalidFieldError: if it is no BCP-47 tag.
    """
    if not _LANGUAGE_TAG.fullmatch(tag):
        raise InvalidFieldError(field, repr(tag[:_SHOWN_CHARACTERS]), "a BCP-47 tag, such as `en` or `pt-BR`")
    subtags = tag.lower().split("-")
    shortened = ["-".join(subtags[:length]) for length in range(len(subtags), 0, -1)]
    return [shorter for shorter in shortened if shorter[-2:-1] != "-"]
