"""Who may call: the callers file, with the keys, certificates, permissions and limits of each.

[[caller]]
name = "shop"
keys = ["3f9a5c0d1e2b:8f4e..."]     # one line of `dragoman keys new`; two while a key is replaced
certificates = ["shop.example.com"]  # common or alternative name of a client certificate, instead of a key
subjects = ["client-42"]             # claim `sub` of a token, instead of a key
permissions = ["translate"]          # and "admin" for who may load and unload models
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
from ipaddress import IPv6Address, IPv6Network
from typing import Annotated, Self
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dragoman_service.toml import parse_toml

_PREFIX = "dgm"  # lets scanners for leaked secrets tell what they found
_ID_BYTES = 6
_SECRET_BYTES = 32
_IPV6_PREFIX_LENGTH = 64  # of what one host, or one customer of a provider, has

_STORED = re.compile(r"(?P<key_id>[0-9a-f]{12}):(?P<digest>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """What the server keeps of a key: enough to recognize it, not enough to send it."""

    key_id: str
    digest: bytes = field(repr=False)
    """SHA-256 of the whole key."""

    def matches(self, key: str) -> bool:
        """Return whether this is the key, in a time that does not tell how much of it is right."""
        return hmac.compare_digest(self.digest, _digest(key))

    def __str__(self) -> str:
        """Return the entry of the callers file: `ID:SHA256`."""
        return f"{self.key_id}:{self.digest.hex()}"


def new_key() -> str:
    """Return a new random key."""
    return f"{_PREFIX}_{secrets.token_hex(_ID_BYTES)}_{secrets.token_urlsafe(_SECRET_BYTES)}"


def store(key: str) -> StoredKey:
    """Return what to keep of a key that `new_key` made."""
    return StoredKey(key_id=key_id(key), digest=_digest(key))


def parse_stored(entry: str) -> StoredKey:
    """Return an entry of the callers file.

    Raises:
        ValueError: if it is none; the message does not show it, as it may be a key.
    """
    match = _STORED.fullmatch(entry)
    if match is None:
        raise ValueError("must be ID:SHA256, as `dragoman keys new` prints it")
    return StoredKey(key_id=match["key_id"], digest=bytes.fromhex(match["digest"]))


def key_id(key: str) -> str:
    """Return the public part of a key; empty if it is no key of this server."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == _PREFIX else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def peer_name(peer: str) -> str:
    """Return the host of a gRPC peer, which all its connections share: `ipv4:10.0.0.7` of `ipv4:10.0.0.7:54321`.

    Hosts of IPv6 go by their network, `ipv6:[2001:db8::/64]`: a host usually has all of its addresses. A peer without a
    port, such as a Unix socket, is returned whole.
    """
    host, _, port = peer.rpartition(":")
    if not (host and port.isdigit()):
        return peer
    if not host.startswith("ipv6:"):
        return host
    try:
        address = IPv6Address(unquote(host.removeprefix("ipv6:")).strip("[]").partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped:
        return f"ipv4:{address.ipv4_mapped}"
    network = IPv6Network((address, _IPV6_PREFIX_LENGTH), strict=False)
    return f"ipv6:[{address if address.is_loopback else network}]"


_Identifier = Annotated[str, Field(min_length=1, max_length=256)]


class Permission(StrEnum):
    """What a caller may do; telling what models there are needs none of them."""

    TRANSLATE = "translate"
    ADMIN = "admin"
    """Load and unload models."""


class Caller(BaseModel):
    """One entry of the file; without a limit a caller may ask for as much as the server can do."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # No colon, slash or space: a name is never mistaken for the address of a caller who has none.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,127}$")
    keys: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    certificates: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    subjects: tuple[_Identifier, ...] = Field(default=(), max_length=16)
    """Claims `sub` of tokens; their scopes can take permissions away, not add any."""

    permissions: frozenset[Permission] = Field(min_length=1)
    requests_per_s: float | None = Field(default=None, gt=0, le=1e6)
    """RPCs, with a burst of one second's, at least one."""

    tokens_per_min: float | None = Field(default=None, gt=0, le=1e9)
    """Source tokens, with a burst of one minute's."""

    decode_cost_per_min: float | None = Field(default=None, gt=0, le=1e11)
    """Decode cost (source tokens, plus beam size times expected decoder steps), with a burst of one minute's."""

    @model_validator(mode="after")
    def _can_be_recognized(self) -> Self:
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
    """Finds a caller by what it shows."""

    def __init__(self, callers: Sequence[Caller]) -> None:
        """Take callers whose names, keys and certificates differ; ValueError names the first two that do not."""
        _check_distinct("name", (caller.name for caller in callers))
        keys = [(parse_stored(entry), caller) for caller in callers for entry in caller.keys]
        _check_distinct("key id", (stored.key_id for stored, _ in keys))
        _check_distinct("certificate", (name for caller in callers for name in caller.certificates))
        _check_distinct("subject", (name for caller in callers for name in caller.subjects))
        self._by_name = {caller.name: caller for caller in callers}
        self._by_key_id: dict[str, tuple[StoredKey, Caller]] = {stored.key_id: (stored, by) for stored, by in keys}
        self._by_certificate = {name: caller for caller in callers for name in caller.certificates}
        self._by_subject = {name: caller for caller in callers for name in caller.subjects}

    def with_key(self, key: str) -> Caller | None:
        """Return the caller with this key; None if there is none."""
        stored, caller = self._by_key_id.get(key_id(key), (None, None))
        return caller if stored is not None and stored.matches(key) else None

    def with_certificate(self, names: Iterable[str]) -> Caller | None:
        """Return the caller of a certificate with these names, if any; the first name that is listed decides."""
        return next((self._by_certificate[name] for name in names if name in self._by_certificate), None)

    def with_subject(self, name: str) -> Caller | None:
        """Return the caller that a token is about, if it is listed."""
        return self._by_subject.get(name)

    def named(self, name: str) -> Caller | None:
        """Return a caller by name, if there is one."""
        return self._by_name.get(name)


def parse_callers(content: bytes) -> Callers:
    """Return the callers of a callers file.

    Raises:
        ValueError: names the entry and field that is wrong, without its value.
    """
    try:
        tables = parse_toml(content)
    except ValueError as error:  # neither UTF-8 nor TOML; of the former, Python would show what it found
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise ValueError(f"no TOML: {reason}") from None
    try:
        return Callers(_CallersFile.model_validate(tables).caller)
    except ValidationError as error:
        raise ValueError(_described(error)) from None  # pydantic's own message shows the values


def _described(error: ValidationError) -> str:
    found = error.errors(include_input=False, include_url=False)[0]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"]).removeprefix(".")
    return f"{path}: {found['msg'].removeprefix('Value error, ')}"


def _check_distinct(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{what} {value!r} is there twice")
        seen.add(value)
