"""JSON Web Tokens (RFC 7519) of an identity provider (OpenID Connect), as an alternative to API keys.

The keys of the provider (a JWK Set, RFC 7517) come from a file or a URL and are reloaded at an interval: a provider
publishes a new key before it signs with it.
"""

from collections.abc import Mapping
from typing import Any

import jwt

from dragoman_service.errors import UnauthenticatedError
from dragoman_service.security.api_keys import Permission

_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric algorithms only: with a shared secret, every verifier could also issue tokens."""

_REQUIRED_CLAIMS = ("exp", "iss", "aud", "sub")
_LEEWAY_S = 30.0  # between the clocks of provider and server
_MAX_SUBJECT_CHARACTERS = 120

_FAULTS = (jwt.PyJWTError, ValueError, AttributeError, TypeError, RecursionError, NotImplementedError)
"""Errors of the library for invalid tokens and keys; the last two for nested brackets and the algorithm `none`."""


def is_token(key: str) -> bool:
    """Return True if a bearer credential has the form of a signed token; API keys contain no dots."""
    return key.count(".") == 2


class KeySet:
    """Public keys of an identity provider."""

    def __init__(self, content: bytes) -> None:
        """Parse a JWK Set; ValueError if it is invalid, or without a usable key, or with a key that is too short."""
        try:
            keys = jwt.PyJWKSet.from_json(content.decode("utf-8-sig")).keys
            self._keys = {
                key.key_id: key
                for key in keys
                if key.public_key_use in {None, "sig"} and key.algorithm_name in _ALGORITHMS
            }
        except _FAULTS as error:
            raise ValueError(f"not a JWK Set: {error}") from error
        if not self._keys:
            raise ValueError("a JWK Set without a public key that verifies signatures")
        for key in self._keys.values():
            if weakness := key.Algorithm.check_key_length(key.key):
                raise ValueError(f"not a usable JWK Set: key {str(key.key_id)[:64]!r}: {weakness}")

    def verified_claims(self, token: str, *, issuer: str, audience: str) -> Mapping[str, Any]:
        """Return the claims of a token that the provider signed for this audience and that has not expired.

        Raises:
            UnauthenticatedError: if the token is invalid; the message does not quote the token.
        """
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = self._keys[key_id] if key_id is not None or len(self._keys) > 1 else next(iter(self._keys.values()))
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=issuer,
                audience=audience,
                leeway=_LEEWAY_S,
                options={"require": list(_REQUIRED_CLAIMS)},
            )
        except KeyError:
            raise UnauthenticatedError("the token is signed with an unknown key") from None
        except _FAULTS as error:
            raise UnauthenticatedError(f"the token is not valid: {_reason(error)}") from None


def subject(claims: Mapping[str, Any]) -> str:
    """Return the claim `sub` of a token; UnauthenticatedError if it is not usable as the name of a caller."""
    name = claims["sub"]
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_SUBJECT_CHARACTERS or not name.isprintable():
        limit = f"1 to {_MAX_SUBJECT_CHARACTERS} printable characters"
        raise UnauthenticatedError(f"the token is not valid: its claim 'sub' must be {limit}")
    return name


def permissions(claims: Mapping[str, Any], scopes: Mapping[str, Permission]) -> frozenset[Permission]:
    """Return the permissions of the scopes of a token: claim `scope` (RFC 8693) or `scp` (also a list)."""
    given = claims.get("scope", claims.get("scp", ""))
    names = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    return frozenset(scopes[name] for name in names if isinstance(name, str) and name in scopes)


def _reason(error: Exception) -> str:
    """Return a short reason; messages of the library can quote the token."""
    reasons: tuple[tuple[type[jwt.PyJWTError], str], ...] = (
        (jwt.ExpiredSignatureError, "it has expired"),
        (jwt.ImmatureSignatureError, "it is not valid yet"),
        (jwt.InvalidAudienceError, "it is for another audience"),
        (jwt.InvalidIssuerError, "it is from another issuer"),
        (jwt.MissingRequiredClaimError, f"it lacks one of the claims {', '.join(_REQUIRED_CLAIMS)}"),
        (jwt.InvalidSignatureError, "its signature is invalid"),
        (jwt.InvalidAlgorithmError, "its algorithm does not match its key"),
    )
    return next((text for kind, text in reasons if isinstance(error, kind)), "it is malformed")
