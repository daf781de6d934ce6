import os
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from dragoman.admin import ModelAdminClient
from dragoman.calls import Calls, CallSettings
from dragoman.channel import ChannelSettings, RetrySettings
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.credentials import TlsOptions, is_local
from dragoman.errors import UnavailableError
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import EN_DE, ScriptedService, answers, running

KEY = "key-that-nobody-may-see"
ONE_ATTEMPT = ChannelSettings(retry=RetrySettings(max_attempts=1))
LOCAL = [
    "localhost:50051",
    "LOCALHOST:50051",
    "127.0.0.1:50051",
    "127.8.9.10",
    "[::1]:50051",
    "::1",
    "dns:localhost:50051",
    "dns:///localhost:50051",
    "ipv4:127.0.0.1:50051,127.0.0.2:50052",
    "ipv6:[::1]:50051",
    "unix:/run/dragoman.sock",
    "unix:///run/dragoman.sock",
    "unix-abstract:dragoman",
]
REMOTE = [
    "dragoman.example:50051",
    "dns:///dragoman.default.svc:50051",
    "dns://8.8.8.8/localhost:50051",
    "localhost.example:50051",
    "10.0.0.7:50051",
    "0.0.0.0:50051",
    "[2001:db8::1]:50051",
    "ipv4:127.0.0.1:50051,10.0.0.7:50051",
    "ipv4:",
    "xds:///localhost",
    "",
]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_certificate(authority: trustme.CA) -> trustme.LeafCert:
    return authority.issue_cert("dragoman.example", "127.0.0.1")


@pytest.mark.parametrize("target", LOCAL)
def test_a_target_on_this_machine_is_local(target: str) -> None:
    assert is_local(target)


@pytest.mark.parametrize("target", REMOTE)
def test_any_other_target_is_not_local(target: str) -> None:
    assert not is_local(target)


def test_the_api_key_goes_with_each_call(target: str, service: ScriptedService) -> None:
    service.script += [answers(pb.ListModelsResponse()), answers(pb.TranslateResponse())]

    with TranslationClient(target, api_key=KEY) as client:
        client.list_models()
        client.translate(["One."], **EN_DE)

    assert [call.metadata["authorization"] for call in service.calls] == [f"Bearer {KEY}"] * 2


async def test_the_api_key_goes_with_each_async_call(target: str, service: ScriptedService) -> None:
    service.script.append(answers(pb.ListModelsResponse()))

    async with AsyncTranslationClient(target, api_key=KEY) as client:
        await client.list_models()

    assert service.calls[0].metadata["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("client_class", [TranslationClient, AsyncTranslationClient, ModelAdminClient])
@pytest.mark.parametrize("secret", [{"api_key": KEY}, {"metadata": [("authorization", f"Bearer {KEY}")]}])
def test_a_credential_is_not_sent_to_another_machine_unencrypted(client_class: Any, secret: Any) -> None:
    with pytest.raises(ValueError, match="not encrypted") as caught:
        client_class("dragoman.example:50051", **secret)

    assert KEY not in str(caught.value)


def test_a_credential_of_one_call_is_not_sent_to_another_machine_unencrypted() -> None:
    with (
        TranslationClient("dragoman.example:50051") as client,
        pytest.raises(ValueError, match="not encrypted"),
    ):
        client.list_models(metadata=[("authorization", f"Bearer {KEY}")])


@pytest.mark.parametrize("options", [{"is_plaintext_trusted": True}, {"tls": TlsOptions()}])
def test_a_credential_may_be_sent_if_something_encrypts_it(options: Any) -> None:
    TranslationClient("dragoman.example:50051", api_key=KEY, **options).close()


@pytest.mark.parametrize("api_key", ["", "two words", "Schlüssel", "line\nbreak"])
def test_an_api_key_that_cannot_be_sent_is_refused_without_showing_it(api_key: str) -> None:
    with pytest.raises(ValueError, match="api_key must be") as caught:
        TranslationClient("localhost:1", api_key=api_key)

    assert not api_key or api_key not in str(caught.value)


def test_an_authorization_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="given twice"):
        TranslationClient("localhost:1", api_key=KEY, metadata=[("authorization", "Bearer other")])


@pytest.mark.parametrize(
    ("name", "value"),
    [("Upper", "a"), ("", "a"), ("grpc-timeout", "1S"), ("x-name", "ä"), ("x-name", b"a"), ("x-name-bin", "a")],
)
def test_metadata_that_cannot_be_sent_is_refused_by_name(target: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="metadata") as caught, TranslationClient(target, api_key=KEY) as client:
        client.list_models(metadata=[(name, value)])

    assert repr(name) in str(caught.value)
    assert KEY not in str(caught.value)


def test_nothing_prints_the_credential() -> None:
    tls = TlsOptions(certificate=b"-----BEGIN c", private_key=f"-----BEGIN {KEY}".encode())
    client = TranslationClient("localhost:1", api_key=KEY)
    calls: Calls = client._calls
    call = calls.list_models(CallSettings(metadata=[("authorization", KEY)]))
    client.close()

    assert all(KEY not in repr(value) for value in (tls, client, calls, call, CallSettings(metadata=[("a", KEY)])))


def test_an_encrypted_call_is_answered(
    service: ScriptedService, authority: trustme.CA, server_certificate: trustme.LeafCert
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    tls = TlsOptions(ca=authority.cert_pem.bytes())

    with (
        running(service, _server_credentials(server_certificate)) as target,
        TranslationClient(target, api_key=KEY, tls=tls) as client,
    ):
        client.list_models()

    assert service.calls[0].metadata["authorization"] == f"Bearer {KEY}"


def test_a_server_whom_the_authority_does_not_vouch_for_is_not_talked_to(
    service: ScriptedService, server_certificate: trustme.LeafCert
) -> None:
    stranger = TlsOptions(ca=trustme.CA().cert_pem.bytes())

    with (
        running(service, _server_credentials(server_certificate)) as target,
        TranslationClient(target, tls=stranger, channel=ONE_ATTEMPT) as client,
        pytest.raises(UnavailableError),
    ):
        client.list_models()

    assert not service.calls


@pytest.mark.parametrize(("server_name", "is_answered"), [("dragoman.example", True), ("other.example", False)])
def test_the_certificate_must_hold_the_name_of_the_server(
    service: ScriptedService,
    authority: trustme.CA,
    server_certificate: trustme.LeafCert,
    server_name: str,
    *,
    is_answered: bool,
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    tls = TlsOptions(ca=authority.cert_pem.bytes(), server_name=server_name)

    with (
        running(service, _server_credentials(server_certificate)) as target,
        TranslationClient(f"ipv4:{target}", tls=tls, channel=ONE_ATTEMPT) as client,
    ):
        assert _is_answered(client) is is_answered


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_server_that_asks_for_a_certificate_gets_it(
    service: ScriptedService,
    authority: trustme.CA,
    server_certificate: trustme.LeafCert,
    tmp_path: Path,
    *,
    is_known: bool,
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    tls = _tls_files(tmp_path, authority, authority.issue_cert("caller.example") if is_known else None)
    credentials = _server_credentials(server_certificate, client_authority=authority)

    with running(service, credentials) as target:
        async with AsyncTranslationClient(target, tls=tls, channel=ONE_ATTEMPT) as client:
            if is_known:
                assert await client.list_models() == ()
            else:
                with pytest.raises(UnavailableError):
                    await client.list_models()


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(ValueError, match="certificate and private_key go together"):
        TlsOptions(certificate=b"-----BEGIN CERTIFICATE-----")


def test_what_is_not_pem_is_refused_by_name_without_showing_it() -> None:
    with pytest.raises(ValueError, match="private_key holds no PEM") as caught:
        TranslationClient("localhost:1", tls=TlsOptions(certificate=b"-----BEGIN ", private_key=KEY.encode()))

    assert KEY not in str(caught.value)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.pem"):
        TranslationClient("localhost:1", tls=TlsOptions(ca=tmp_path / "missing.pem"))


def test_a_call_to_this_machine_does_not_take_the_proxy_of_the_environment(
    target: str, service: ScriptedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.script.append(answers(pb.ListModelsResponse()))
    monkeypatch.setitem(os.environ, "grpc_proxy", "http://127.0.0.1:1")

    with TranslationClient(target, channel=ONE_ATTEMPT) as client:
        client.list_models()

    assert len(service.calls) == 1


def _server_credentials(
    certificate: trustme.LeafCert, client_authority: trustme.CA | None = None
) -> grpc.ServerCredentials:
    pair = (certificate.private_key_pem.bytes(), b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    roots = client_authority.cert_pem.bytes() if client_authority else None
    return grpc.ssl_server_credentials([pair], root_certificates=roots, require_client_auth=roots is not None)


def _tls_files(directory: Path, authority: trustme.CA, certificate: trustme.LeafCert | None) -> TlsOptions:
    (directory / "ca.pem").write_bytes(authority.cert_pem.bytes())
    if certificate is None:
        return TlsOptions(ca=directory / "ca.pem")
    (directory / "key.pem").write_bytes(certificate.private_key_pem.bytes())
    (directory / "certificate.pem").write_bytes(certificate.cert_chain_pems[0].bytes())
    return TlsOptions(
        ca=directory / "ca.pem",
        certificate=str(directory / "certificate.pem"),
        private_key=directory / "key.pem",
    )


def _is_answered(client: TranslationClient) -> bool:
    try:
        client.list_models()
    except UnavailableError:
        return False
    return True
