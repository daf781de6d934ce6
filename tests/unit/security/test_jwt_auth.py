"""Tokens of an identity provider: valid, invalid and forged."""

import base64
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given
from hypothesis import strategies as st

from dragoman_service.errors import UnauthenticatedError
from dragoman_service.security.api_keys import Permission
from dragoman_service.security.jwt_auth import KeySet, is_token, permissions, subject

ISSUER, AUDIENCE = "https://login.example.com", "dragoman"
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
SCOPES = {"translate": Permission.TRANSLATE, "admin": Permission.ADMIN}


def public_key(algorithm: str, key: Any, key_id: str, **fields: str) -> dict[str, Any]:
    made = jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key(), as_dict=True)
    return {**made, "kid": key_id, "use": "sig", **fields}


def key_set(*keys: dict[str, Any]) -> KeySet:
    return KeySet(json.dumps({"keys": list(keys)}).encode())


KEYS = key_set(
    public_key("RS256", RSA_KEY, "rsa"), public_key("ES256", EC_KEY, "ec"), public_key("EdDSA", ED_KEY, "ed")
)


def token(*, key: Any = RSA_KEY, key_id: str | None = "rsa", algorithm: str = "RS256", **claims: Any) -> str:
    body = {"iss": ISSUER, "aud": AUDIENCE, "sub": "client-42", "exp": time.time() + 86_400, **claims}
    present = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(present, key, algorithm=algorithm, headers={"kid": key_id} if key_id else None)


def claims_of(text: str, keys: KeySet = KEYS) -> Any:
    return keys.verified_claims(text, issuer=ISSUER, audience=AUDIENCE)


@pytest.mark.parametrize(
    ("key", "key_id", "algorithm"), [(RSA_KEY, "rsa", "RS256"), (EC_KEY, "ec", "ES256"), (ED_KEY, "ed", "EdDSA")]
)
def test_signed_token_is_accepted(key: Any, key_id: str, algorithm: str) -> None:
    claims = claims_of(token(key=key, key_id=key_id, algorithm=algorithm, scope="translate other"))

    assert subject(claims) == "client-42"
    assert permissions(claims, SCOPES) == {Permission.TRANSLATE}


def test_byte_order_mark_before_a_key_set_is_skipped() -> None:
    content = json.dumps({"keys": [public_key("RS256", RSA_KEY, "rsa")]}).encode("utf-8-sig")

    assert claims_of(token(), KeySet(content))["sub"] == "client-42"


def test_single_key_needs_no_id() -> None:
    only = key_set(public_key("RS256", RSA_KEY, "rsa"))

    assert claims_of(token(key_id=None), only)["sub"] == "client-42"
    with pytest.raises(UnauthenticatedError, match="an unknown key"):
        claims_of(token(key_id=None), KEYS)


def encoded(part: object) -> str:
    content = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def unsigned() -> str:
    _, body, _ = token().split(".")
    return f"{encoded({'alg': 'none', 'kid': 'rsa'})}.{body}."


def signed_with_public_key() -> str:
    """Return a token signed with the public key as a shared secret."""
    shared = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header, body, _ = token().split(".")
    signed = f"{encoded({**json.loads(base64.urlsafe_b64decode(header + '==')), 'alg': 'HS256'})}.{body}"
    return f"{signed}.{encoded(hmac.digest(shared, signed.encode(), 'sha256'))}"


OTHER_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (token(exp=time.time() - 31), "it has expired"),
        (token(nbf=time.time() + 86_400), "it is not valid yet"),
        (token(aud="another"), "it is for another audience"),
        (token(iss="https://evil.example.com"), "it is from another issuer"),
        (token(exp=None), "it lacks one of the claims exp, iss, aud, sub"),
        (token(sub=None), "it lacks one of the claims"),
        (token(aud=None), "it lacks one of the claims|another audience"),
        (token(key=OTHER_KEY), "its signature is invalid"),
        (token(key_id="other"), "an unknown key"),
        (unsigned(), "its algorithm does not match its key"),
        (signed_with_public_key(), "its algorithm does not match its key"),
        (token(key=EC_KEY, key_id="rsa", algorithm="ES256"), "its algorithm does not match its key"),
        (token()[:-4] + "AAAA", "its signature is invalid"),
        ("a.b.c", "it is malformed"),
    ],
)
def test_invalid_token_is_rejected_and_not_quoted(forged: str, reason: str) -> None:
    with pytest.raises(UnauthenticatedError, match=reason) as caught:
        claims_of(forged)

    assert forged not in str(caught.value)
    assert "client-42" not in str(caught.value)


@given(st.text(), st.text(), st.text())
def test_any_other_text_is_rejected_as_token(header: str, body: str, signature: str) -> None:
    with pytest.raises(UnauthenticatedError):
        claims_of(f"{header}.{body}.{signature}")


@pytest.mark.parametrize("name", ["", "x" * 121, "a\nb", 7, None])
def test_invalid_subject_is_rejected(name: object) -> None:
    with pytest.raises(UnauthenticatedError, match="claim 'sub'"):
        subject({"sub": name})


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({"scope": "admin translate"}, {Permission.ADMIN, Permission.TRANSLATE}),
        ({"scp": ["translate", 7]}, {Permission.TRANSLATE}),
        ({"scope": ""}, set()),
        ({"scope": {"translate": 1}}, set()),
        ({}, set()),
    ],
)
def test_scopes_grant_permissions(claims: dict[str, Any], expected: set[Permission]) -> None:
    assert permissions(claims, SCOPES) == expected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "a"}]}',
        json.dumps({"keys": [public_key("RS256", RSA_KEY, "rsa", use="enc")]}).encode(),
    ],
)
def test_key_set_without_usable_key_is_rejected(content: bytes) -> None:
    with pytest.raises(ValueError, match="JWK Set"):
        KeySet(content)


@pytest.mark.parametrize("num_others", [0, 1])
def test_short_rsa_key_is_rejected(num_others: int) -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - the key under test
    weak = public_key("RS256", short, "weak")

    with pytest.raises(ValueError, match=r"JWK Set: key 'weak': .* 1024 bits .* 2048"):
        key_set(*[public_key("ES256", EC_KEY, "ec")] * num_others, weak)


def test_api_keys_are_not_tokens() -> None:
    assert not is_token("dgm_0123456789ab_x")
    assert is_token(token())
