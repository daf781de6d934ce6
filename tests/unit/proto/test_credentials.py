import argparse
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from dragoman.cli.target import add_target_flags, call
from dragoman.client import TranslationClient
from dragoman.client.channel import ChannelSettings, RetrySettings
from dragoman.client.credentials import TlsOptions, is_local
from dragoman.client.errors import UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import Connect, ScriptedService, answers, running

KEY = "secret-key"
ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
LOCAL = [
    *("localhost:50051", "LOCALHOST:50051", "127.8.9.10", "[::1]:50051", "::1", "unix-abstract:dragoman"),
    *("dns:localhost:50051", "dns:///localhost:50051", "unix:/run/dragoman.sock"),
    *("ipv4:127.0.0.1:50051,127.0.0.2:50052", "ipv6:[::1]:50051"),
]
REMOTE = [
    *("dragoman.example:50051", "localhost.example:50051", "0.0.0.0:50051", "[2001:db8::1]:50051", ""),
    *("dns:///dragoman.default.svc:50051", "dns://8.8.8.8/a.localhost", "xds:///localhost"),
    *("ipv4:127.0.0.1:50051,10.0.0.7:50051", "ipv4:"),
]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.mark.parametrize("target", [*LOCAL, *REMOTE])
def test_loopback_targets_are_local(target: str) -> None:
    assert is_local(target) is (target in LOCAL)


@pytest.mark.parametrize("credential", [{"api_key": f"{KEY}\n"}, {"metadata": [("authorization", f"Bearer {KEY}")]}])
def test_credential_is_sent_with_each_call(
    target: str, service: ScriptedService, connect: Connect, credential: Any
) -> None:
    service.script += [answers(pb.ListModelsResponse())] * 2

    with connect(target, **credential) as client:
        client.list_models()
        client.list_models()

    assert [call.metadata["authorization"] for call in service.calls] == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize("credential", [{"api_key": KEY}, {"metadata": [("authorization", f"Bearer {KEY}")]}])
def test_credential_is_not_sent_unencrypted_to_another_machine(credential: Any) -> None:
    with pytest.raises(ValueError, match="not encrypted") as caught:
        TranslationClient("dragoman.example:50051", **credential)

    assert KEY not in str(caught.value)


@pytest.mark.parametrize("name", ["authorization", "proxy-authorization", "cookie"])
def test_credential_of_a_call_is_not_sent_unencrypted_to_another_machine(name: str) -> None:
    with TranslationClient("dragoman.example:50051") as client, pytest.raises(ValueError, match="not encrypted"):
        client.list_models(metadata=[(name, f"Bearer {KEY}")])


@pytest.mark.parametrize("options", [{"is_plaintext_trusted": True}, {"tls": TlsOptions()}])
def test_credential_may_be_sent_over_an_encrypted_connection(options: Any) -> None:
    TranslationClient("dragoman.example:50051", api_key=KEY, **options).close()


@pytest.mark.parametrize("content", [f"{KEY}\r\n", f"\ufeff{KEY}"])
def test_key_file_from_windows_is_read(content: str, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    add_target_flags(parser)
    file = tmp_path / "shop.key"
    file.write_text(content, encoding="utf-8")

    def connect(_: str, *, api_key: str, **__: object) -> AbstractContextManager[str]:
        return nullcontext(api_key)

    assert call(parser.parse_args(["--api-key-file", str(file)]), connect, lambda key: int(key != KEY)) == 0


@pytest.mark.parametrize("api_key", ["", "two words", "Schlüssel", "line\nbreak"])
def test_invalid_api_key_is_rejected_but_not_shown(api_key: str) -> None:
    with pytest.raises(ValueError, match="api_key") as caught:
        TranslationClient("localhost:1", api_key=api_key)

    assert not api_key or api_key not in str(caught.value)


def test_two_authorizations_are_rejected() -> None:
    with pytest.raises(ValueError, match="authorization"):
        TranslationClient("localhost:1", api_key=KEY, metadata=[("authorization", "Bearer other")])


@pytest.mark.parametrize(
    ("name", "value"),
    [("Upper", "a"), ("", "a"), ("grpc-timeout", "1S"), ("x-name", "ä"), ("x-name", b"a"), ("x-name-bin", "a")],
)
def test_invalid_metadata_is_rejected_by_name(target: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="metadata") as caught, TranslationClient(target, api_key=KEY) as client:
        client.list_models(metadata=[(name, value)])

    assert repr(name) in str(caught.value)
    assert KEY not in str(caught.value)


def test_credentials_are_not_printed() -> None:
    tls = TlsOptions(certificate=b"-----BEGIN c", private_key=f"-----BEGIN {KEY}".encode())
    with TranslationClient("localhost:1", api_key=KEY) as client:
        call = client._calls.list_models(metadata=[("authorization", KEY)])

    assert all(KEY not in repr(value) for value in (tls, client, client._calls, call))


@pytest.mark.parametrize(
    ("server_name", "is_trusted", "is_answered"),
    [(None, True, True), ("dragoman.example", True, True), ("other.example", True, False), (None, False, False)],
)
def test_server_certificate_is_verified(
    service: ScriptedService,
    connect: Connect,
    authority: trustme.CA,
    server_name: str | None,
    *,
    is_trusted: bool,
    is_answered: bool,
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    trusted = authority if is_trusted else trustme.CA()
    tls = TlsOptions(ca=trusted.cert_pem.bytes(), server_name=server_name)

    with running(service, _server_credentials(authority)) as target:
        assert _is_answered(connect, target, tls, api_key=KEY) is is_answered

    assert [call.metadata["authorization"] for call in service.calls] == [f"Bearer {KEY}"] * is_answered


@pytest.mark.parametrize("has_certificate", [True, False])
def test_client_certificate_is_sent(
    service: ScriptedService, connect: Connect, authority: trustme.CA, tmp_path: Path, *, has_certificate: bool
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    certificate = authority.issue_cert("caller.example")
    pair: dict[str, Any] = {"certificate": str(tmp_path / "certificate.pem"), "private_key": tmp_path / "key.pem"}
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    certificate.private_key_pem.write_to_path(pair["private_key"])
    certificate.cert_chain_pems[0].write_to_path(pair["certificate"])
    tls = TlsOptions(ca=tmp_path / "ca.pem", **(pair if has_certificate else {}))

    with running(service, _server_credentials(authority, is_mutual=True)) as target:
        assert _is_answered(connect, target, tls) is has_certificate


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"certificate": b"-----BEGIN CERTIFICATE-----"}, ValueError, "private_key"),
        ({"certificate": b"-----BEGIN ", "private_key": KEY.encode()}, ValueError, "private_key"),
        ({"ca": "missing.pem"}, FileNotFoundError, r"missing\.pem"),
    ],
    ids=["certificate without key", "not PEM", "missing file"],
)
def test_invalid_tls_options_are_rejected_but_not_shown(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        TranslationClient("localhost:1", tls=TlsOptions(**options))

    assert KEY not in str(caught.value)


def test_local_target_bypasses_the_proxy(
    target: str, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    monkeypatch.setenv("grpc_proxy", "http://127.0.0.1:1")

    with TranslationClient(target, channel=ONE_ATTEMPT) as client:
        client.list_models()

    assert len(service.calls) == 1


def _server_credentials(authority: trustme.CA, *, is_mutual: bool = False) -> grpc.ServerCredentials:
    certificate = authority.issue_cert("dragoman.example", "127.0.0.1")
    pair = (certificate.private_key_pem.bytes(), b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    roots = authority.cert_pem.bytes() if is_mutual else None
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=is_mutual)


def _is_answered(connect: Connect, target: str, tls: TlsOptions, **options: Any) -> bool:
    with connect(target, tls=tls, channel=ONE_ATTEMPT, **options) as client:
        try:
            client.list_models()
        except UnavailableError:
            return False
    return True
