"""API keys: made here, shown once, kept as a hash.

A key is `dgm_ID_SECRET`. The ID is public: it finds the one stored hash to compare with. The secret is 256 random
bits, so nobody can try them out, and one round of SHA-256 keeps it as well as a slow password hash would: those slow
down guessing, which makes sense only where people choose the secret. It costs microseconds, and each call pays it.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

_PREFIX = "dgm"  # lets scanners for leaked secrets tell what they found
_ID_BYTES = 6
_SECRET_BYTES = 32

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
    """Return a key that nobody has."""
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
        raise ValueError("must be ID:SHA256, as `python -m service keys new` prints it")
    return StoredKey(key_id=match["key_id"], digest=bytes.fromhex(match["digest"]))


def key_id(key: str) -> str:
    """Return the public part of a key; empty if it is no key of this server."""
    prefix, _, rest = key.partition("_")
    return rest.partition("_")[0] if prefix == _PREFIX else ""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
