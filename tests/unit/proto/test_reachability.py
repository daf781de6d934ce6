import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest
import trustme

from dragoman.admin import ModelAdminClient
from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.credentials import TlsOptions
from dragoman.errors import UnavailableError
from dragoman.reachability import likely_cause
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, refuses, running

EAGER = ChannelSettings(retry=RetrySettings(max_attempts=2, initial_backoff_s=0.01))
"""Retries without keeping a test waiting."""


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as bound_but_not_listening:
        bound_but_not_listening.bind(("127.0.0.1", 0))
        yield bound_but_not_listening.getsockname()[1]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls_target(service: ScriptedService, authority: trustme.CA) -> Iterator[str]:
    with running(service, _credentials(authority, "localhost")) as address:
        yield address.replace("127.0.0.1", "localhost")


def test_nothing_listens_at_any_address_of_localhost(closed_port: int) -> None:
    told = _told(f"localhost:{closed_port}")

    assert told.startswith(f"cannot reach localhost:{closed_port} (up to 2 attempts): nothing listens there (")
    assert f"127.0.0.1:{closed_port}: connection refused" in told


def test_a_change_of_models_has_one_attempt(closed_port: int) -> None:
    with ModelAdminClient(f"localhost:{closed_port}") as admin, pytest.raises(UnavailableError) as caught:
        admin.load_model("en-de/1")

    assert "(1 attempt): nothing listens there" in caught.value.message


async def test_asyncio_gets_the_same(closed_port: int) -> None:
    async with AsyncTranslationClient(f"localhost:{closed_port}", channel=EAGER) as client:
        with pytest.raises(UnavailableError, match="nothing listens there"):
            await client.list_models()
        with pytest.raises(UnavailableError, match="nothing listens there"):
            await anext(client.translate_document("One.", **EN_DE))


def test_the_port_of_the_metrics_is_named() -> None:
    class Metrics(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base
            pass

    with HTTPServer(("127.0.0.1", 0), Metrics) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        told = _told(f"localhost:{server.server_port}")
        server.shutdown()
        thread.join()

    assert "answers HTTP/1, not gRPC: is it the port of the metrics?" in told


def test_plain_text_to_a_server_with_tls_is_named(tls_target: str) -> None:
    assert "expects TLS, and this client sends plain text: give tls=TlsOptions()" in _told(tls_target)


def test_an_unknown_authority_is_named(tls_target: str) -> None:
    told = _told(tls_target, TlsOptions(ca=trustme.CA().cert_pem.bytes()))

    assert "is not trusted (" in told
    assert "TlsOptions(ca=...)" in told


def test_a_self_signed_server_is_not_trusted_by_default(tls_target: str) -> None:
    assert "is not trusted (" in _told(tls_target, TlsOptions())


def test_a_certificate_for_another_name_is_named(service: ScriptedService, authority: trustme.CA) -> None:
    with running(service, _credentials(authority, "dragoman.example")) as address:
        told = _told(address.replace("127.0.0.1", "localhost"), _trusting(authority))

    assert "is for another name than 'localhost'" in told
    assert "server_name" in told


def test_tls_to_a_server_without_it_is_named(target: str) -> None:
    assert "does not speak TLS" in _told(target, TlsOptions())


def test_a_server_that_asks_for_a_certificate_is_named(service: ScriptedService, authority: trustme.CA) -> None:
    with running(service, _credentials(authority, "localhost", asks_client=True)) as address:
        told = _told(address.replace("127.0.0.1", "localhost"), _trusting(authority))

    assert "if it asks for a client certificate: give TlsOptions(certificate=" in told


def test_a_certificate_that_the_server_does_not_accept_is_named(
    service: ScriptedService, authority: trustme.CA, tmp_path: Path
) -> None:
    stranger = trustme.CA().issue_cert("client.example")
    stranger.private_key_pem.write_to_path(tmp_path / "key.pem")
    stranger.cert_chain_pems[0].write_to_path(tmp_path / "certificate.pem")
    tls = TlsOptions(
        ca=authority.cert_pem.bytes(), certificate=tmp_path / "certificate.pem", private_key=tmp_path / "key.pem"
    )
    with running(service, _credentials(authority, "localhost", asks_client=True)) as address:
        told = _told(address.replace("127.0.0.1", "localhost"), tls)

    assert "does not accept the client certificate" in told


def test_a_port_that_is_silent_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cause = likely_cause(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)

    assert cause is not None
    assert "is open, but does not answer as gRPC does" in cause


def test_a_name_that_cannot_be_resolved_is_named() -> None:
    cause = likely_cause("dns:///no-such-host.invalid:50051")

    assert cause is not None
    assert cause.startswith("the name cannot be resolved (")


def test_a_name_that_takes_long_to_resolve_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    has_ended = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: has_ended.wait() and [])

    cause = likely_cause("dragoman.example:50051", timeout_s=0.05)
    has_ended.set()

    assert cause == "the name is not resolved within 0.05 s"


def test_a_port_that_is_silent_is_not_said_to_speak_no_tls() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        cause = likely_cause(f"127.0.0.1:{silent.getsockname()[1]}", TlsOptions(), timeout_s=0.1)

    assert cause is not None
    assert "does not answer the TLS handshake" in cause


def test_a_file_that_is_gone_since_leaves_the_message_of_grpc(closed_port: int, tmp_path: Path) -> None:
    assert likely_cause(f"localhost:{closed_port}", TlsOptions(ca=tmp_path / "gone.pem")) is None


def test_every_address_of_a_target_is_tried(closed_port: int, target: str) -> None:
    assert likely_cause(f"ipv4:127.0.0.1:{closed_port},{target}") is None
    assert likely_cause(f"ipv4:127.0.0.1:{closed_port},127.0.0.2:{closed_port}") == (
        f"nothing listens there (127.0.0.1:{closed_port}: connection refused, "
        f"127.0.0.2:{closed_port}: connection refused)"
    )


def test_a_socket_file_that_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dragoman.sock"

    assert likely_cause(f"unix:{path}") == f"nothing listens there ({path}: no such file or directory)"


@pytest.mark.parametrize("target", ["xds:///dragoman", "dns://8.8.8.8/dragoman:50051", "localhost:port"])
def test_of_a_target_that_only_grpc_can_resolve_nothing_is_said(target: str) -> None:
    assert likely_cause(target) is None


def test_a_proxy_of_the_environment_is_not_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")

    assert likely_cause("dragoman.invalid:50051") is None


def test_a_server_that_answers_speaks_for_itself(target: str, service: ScriptedService) -> None:
    service.script += [refuses(grpc.StatusCode.UNAVAILABLE)] * 2

    assert _told(target) == "refused"


def _told(target: str, tls: TlsOptions | None = None) -> str:
    with TranslationClient(target, tls=tls, channel=EAGER) as client, pytest.raises(UnavailableError) as caught:
        client.list_models()
    return caught.value.message


def _trusting(authority: trustme.CA) -> TlsOptions:
    return TlsOptions(ca=authority.cert_pem.bytes())


def _credentials(authority: trustme.CA, name: str, *, asks_client: bool = False) -> grpc.ServerCredentials:
    certificate = authority.issue_cert(name)
    pair = (certificate.private_key_pem.bytes(), b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    roots = authority.cert_pem.bytes() if asks_client else None
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=asks_client)
