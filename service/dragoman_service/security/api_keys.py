"""API keys, and the callers file with the keys, certificates, permissions and quotas of each caller.

[[caller]]
name = "shop"
keys = ["3f9a5c0d1e2b:8f4e..."]     # output of `dragoman keys new`; two keys during a rotation
certificates = ["shop.example.com"]  # alternative name of a client certificate, instead of a key
subjects = ["client-42"]             # claim `sub` of a token, instead of a key
permissions = ["translate"]          # "admin": load and unload models
requests_per_s = 50
tokens_per_min = 200000
decode_cost_per_min = 2000000
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dragoman_service.toml import parse_toml

_PREFIX = "dgm"  # identifies leaked keys in secret scanners
_ID_BYTES = 6
_SECRET_BYTES = 32

_STORED = re.compile(r"(?P<key_id>[0-9a-f]{12}):(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """The id and the hash of a key: enough to verify the key, not enough to send it."""

    key_id: str
    digest: bytes = field(repr=False)  # SHA-256 of the whole key

    @classmethod
    def of(cls, key: str) -> Self:
        """Return the stored form of a key."""
        return cls(key_id=key_id(key), digest=_digest(key))

    def matches(self, key: str) -> bool:
        """Compare a key in constant time."""
        return hmac.compare_digest(self.digest, _digest(key))

    def __str__(self) -> str:
        """Return the entry of the callers file: `ID:SHA256`."""
        return f"{self.key_id}:{self.digest.hex()}"


def new_key() -> str:
    """Return a new random key."""
    return f"{_PREFIX}_{secrets.token_hex(_ID_BYTES)}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def parse_stored(entry: str) -> StoredKey:
    """Parse an entry of the callers file.

    Raises:
        ValueError: if it is invalid; the message does not contain the entry, which may be a key.
    """
    match = _STORED.fullmatch(entry)
    if match is None:
        raise ValueError("must be ID:SHA256, as `dragoman keys new` prints it")
    return StoredKey(key_id=match["key_id"], digest=bytes.fromhex(match["digest"]))


def key_id(key: str) -> str:
    """Return the public part of a key; empty if the text is not a key of this server."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == _PREFIX else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


_Identifier = Annotated[str, Field(min_length=1, max_length=256)]


class Permission(StrEnum):
    """Permission of a caller. Listing models requires none."""

    TRANSLATE = "translate"
    ADMIN = "admin"  # load and unload models


class Caller(BaseModel):
    """One entry of the callers file; a quota that is None is unlimited."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Without colons, slashes and spaces, so that a name never equals an address.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$")
    keys: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    certificates: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    subjects: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    """Claims `sub` of tokens. The scopes of a token can only remove permissions."""

    permissions: frozenset[Permission] = Field(min_length=1)
    requests_per_s: float | None = Field(default=None, gt=0, le=1e6)
    """RPCs; the burst is the quota of one second, at least one RPC."""

    tokens_per_min: float | None = Field(default=None, gt=0, le=1e9)
    """Source tokens; the burst is the quota of one minute."""

    decode_cost_per_min: float | None = Field(default=None, gt=0, le=1e11)
    """Source tokens plus beam size times expected decoder steps; the burst is the quota of one minute."""

    @model_validator(mode="after")
    def _check_credentials(self) -> Self:
        if not (self.keys or self.certificates or self.subjects):
            raise ValueError("must have keys, certificates or subjects")
        for position, entry in enumerate(self.keys):
            try:
                parse_stored(entry)
            except ValueError as error:
                raise ValueError(f"keys[{position}] {error}") from error
        return self


class _CallersFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    caller: tuple[Caller, ...] = Field(min_length=1, max_length=10_000)


class Callers:
    """Finds a caller by its credentials."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        """Index the callers; ValueError if two have the same name, key, certificate or subject."""
        _check_distinct("name", (caller.name for caller in callers))
        keys = [(parse_stored(entry), caller) for caller in callers for entry in caller.keys]
        _check_distinct("key id", (stored.key_id for stored, _ in keys))
        _check_distinct("certificate", (name for caller in callers for name in caller.certificates))
        _check_distinct("subject", (name for caller in callers for name in caller.subjects))
        self._by_name = {caller.name: caller for caller in callers}
        self._by_key_id: dict[str, tuple[StoredKey, Caller]] = {
            stored.key_id: (stored, caller) for stored, caller in keys
        }
        self._by_certificate = {name: caller for caller in callers for name in caller.certificates}
        self._by_subject = {name: caller for caller in callers for name in caller.subjects}

    def with_key(self, key: str) -> Caller | None:
        """Return the caller with this key, if any."""
        stored, caller = self._by_key_id.get(key_id(key), (None, None))
        return caller if stored is not None and stored.matches(key) else None

    def with_certificate(self, names: Iterable[str]) -> Caller | None:
        """Return the caller of a certificate with these names, if any; the first listed name decides."""
        return next((self._by_certificate[name] for name in names if name in self._by_certificate), None)

    def with_subject(self, name: str) -> Caller | None:
        """Return the caller with this claim `sub`, if any."""
        return self._by_subject.get(name)

    def named(self, name: str) -> Caller | None:
        """Return the caller with this name, if any."""
        return self._by_name.get(name)


def parse_callers(content: bytes) -> Callers:
    """Parse a callers file.

    Raises:
        ValueError: names the invalid entry and field, without its value.
    """
    try:
        tables = parse_toml(content)
    except ValueError as error:  # not UTF-8 or not TOML; the message of UnicodeDecodeError contains the content
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ValueError(f"not TOML: {reason}") from None
    try:
        return Callers(_CallersFile.model_validate(tables).caller)
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fault["loc"]).removeprefix(".")
        # Without the message of pydantic, which contains the values.
        raise ValueError(f"{path}: {fault['msg'].removeprefix('Value error, ')}") from None


def _check_distinct(name: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"duplicate {name} {value!r}")
        seen.add(value)
