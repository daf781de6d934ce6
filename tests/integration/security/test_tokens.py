"""Tokens of an identity provider instead of API keys."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError
from tests.integration.running_server import TEST_TIMEOUT_S, RunningServer, rejection, running_server
from tests.waiting import until

ISSUER = "https://login.example.com"
OLD_KEY, NEW_KEY = ed25519.Ed25519PrivateKey.generate(), ed25519.Ed25519PrivateKey.generate()
TOKENS = {"access__jwt_issuer": ISSUER, "access__jwt_audience": "dragoman", "access__jwks_reload_interval_s": 0.01}
LISTED = '[[caller]]\nname = "shop"\nsubjects = ["client-42"]\npermissions = ["translate"]\nrequests_per_s = 0.001\n'


def key_set(**keys: ed25519.Ed25519PrivateKey) -> str:
    algorithm = jwt.get_algorithm_by_name("EdDSA")
    return json.dumps(
        {"keys": [algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": name} for name, key in keys.items()]}
    )


def bearer(
    *scopes: str, key: ed25519.Ed25519PrivateKey = OLD_KEY, key_id: str = "old", **claims: Any
) -> tuple[Any, ...]:
    body = {"iss": ISSUER, "aud": "dragoman", "sub": "client-42", "exp": time.time() + 600, "scope": " ".join(scopes)}
    token = jwt.encode({**body, **claims}, key, algorithm="EdDSA", headers={"kid": key_id})
    return (("authorization", f"Bearer {token}"),)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(key_set(old=OLD_KEY), encoding="utf-8")
    return path


async def translate(server: RunningServer, metadata: tuple[Any, ...]) -> Any:
    return await server.translate("A man.", metadata=metadata)


async def test_scopes_grant_permissions_to_tokens(tiny_model: Path, keys: Path) -> None:
    async with running_server(tiny_model, access__jwks=str(keys), **TOKENS) as server:
        assert (await translate(server, bearer("translate"))).translations
        denied = await rejection(translate(server, bearer("admin")))
        expired = await rejection(translate(server, bearer("translate", exp=time.time() - 60)))
        nobody = await rejection(translate(server, ()))
        unload = pb.UnloadModelRequest(model="tiny/1")
        kept = await rejection(server.admin.UnloadModel(unload, metadata=bearer("translate")))

    assert [denied.code, kept.code] == ["PERMISSION_DENIED"] * 2
    assert [expired.code, nobody.code] == ["UNAUTHENTICATED"] * 2
    assert "it has expired" in expired.message
    assert "no token" in nobody.message


async def test_listed_subject_has_its_quota(tiny_model: Path, keys: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.write_text(LISTED, encoding="utf-8")
    async with running_server(tiny_model, access__jwks=str(keys), access__callers_file=callers, **TOKENS) as server:
        await translate(server, bearer("translate", "admin"))
        limited = await rejection(translate(server, bearer("translate")))
        unload = pb.UnloadModelRequest(model="tiny/1")
        denied = await rejection(server.admin.UnloadModel(unload, metadata=bearer("admin", "translate")))

    assert (limited.code, limited.reason) == ("RESOURCE_EXHAUSTED", "RATE_LIMITED")
    assert "caller 'shop'" in limited.message
    assert denied.code == "PERMISSION_DENIED"  # a scope adds nothing to the entry


async def test_changed_provider_keys_apply_without_restart(tiny_model: Path, keys: Path) -> None:
    new = bearer("translate", key=NEW_KEY, key_id="new")
    async with running_server(tiny_model, access__jwks=str(keys), **TOKENS) as server:
        assert "an unknown key" in (await rejection(translate(server, new))).message

        keys.write_text(key_set(new=NEW_KEY), encoding="utf-8")
        async with asyncio.timeout(TEST_TIMEOUT_S):
            while True:  # until the server has read the file
                with contextlib.suppress(grpc.aio.AioRpcError):
                    await translate(server, new)
                    break
        assert "an unknown key" in (await rejection(translate(server, bearer("translate")))).message

        keys.write_text("{}", encoding="utf-8")
        await server.until_sample(1, "dragoman_callers_reload_failures_total")
        assert (await translate(server, new)).translations


@contextlib.contextmanager
def provider(answers: list[tuple[int, bytes]]) -> Iterator[str]:
    """Serve these responses in turn, then repeat the last one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            self.send_header("Location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/jwks"
        server.shutdown()


async def test_provider_keys_are_kept_while_the_url_fails(tiny_model: Path) -> None:
    answers = [(200, key_set(old=OLD_KEY).encode()), (500, b""), (302, b""), (200, b"[]")]
    with provider(answers) as url:
        async with running_server(tiny_model, access__jwks=url, **TOKENS) as server:
            await until(lambda: server.sample("dragoman_callers_reload_failures_total") >= 3)
            assert (await translate(server, bearer("translate"))).translations


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"access__jwks": "/nowhere.json"}, "access.jwks.*readable file"),
        ({"access__jwks": "http://login.example.com/jwks"}, "begins with https://"),
        ({"access__jwks": "ftp://127.0.0.1/jwks"}, "begins with https://"),
        ({"access__jwks": "http://127.0.0.1:1/jwks"}, "access.jwks.*readable URL"),
        (
            {"access__jwks": "/x", "access__jwt_audience": None, "access__jwt_issuer": None},
            "jwt_issuer and jwt_audience",
        ),
    ],
)
async def test_missing_provider_keys_prevent_startup(tiny_model: Path, settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        async with running_server(tiny_model, **{**TOKENS, **settings}):
            pass
