from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from dragoman_service.errors import PermissionDeniedError, UnauthenticatedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.api_keys import StoredKey, new_key
from dragoman_service.security.authentication import Access, credentials_of
from dragoman_service.security.settings import AccessSettings

KEY = new_key()
TRANSLATE = "/dragoman.v1.TranslationService/Translate"
LIST_MODELS = "/dragoman.v1.ModelService/ListModels"
UNLOAD = "/dragoman.v1.ModelAdminService/UnloadModel"
UNHEARD_OF = "/dragoman.v1.NewService/Explode"


def call(*authorization: str, names: dict[str, list[bytes]] | None = None, **metadata: str) -> Any:
    return SimpleNamespace(
        peer=lambda: "ipv4:10.0.0.7:5000",
        invocation_metadata=lambda: (*(("authorization", value) for value in authorization), *metadata.items()),
        auth_context=lambda: names or {},
    )


def access(
    callers_file: Path | None = None, *, asks_certificates: bool = False, is_reachable_remotely: bool = False
) -> Access:
    settings, metrics = AccessSettings(callers_file=callers_file), Metrics(CollectorRegistry())
    return Access(settings, metrics, asks_certificates=asks_certificates, is_reachable_remotely=is_reachable_remotely)


@pytest.fixture
def callers_file(tmp_path: Path) -> Path:
    path = tmp_path / "callers.toml"
    path.write_text(f'[[caller]]\nname = "shop"\nkeys = ["{StoredKey.of(KEY)}"]\npermissions = ["translate"]\n')
    return path


async def test_local_hosts_have_all_permissions_by_default() -> None:
    assert {await access().admit(method, call()) for method in (TRANSLATE, LIST_MODELS, UNLOAD)} == {"ipv4:10.0.0.7"}


async def test_remote_hosts_can_only_translate() -> None:
    exposed = access(is_reachable_remotely=True)

    assert await exposed.admit(TRANSLATE, call()) == await exposed.admit(LIST_MODELS, call()) == "ipv4:10.0.0.7"
    with pytest.raises(PermissionDeniedError, match="caller 'ipv4:10\\.0\\.0\\.7' has no permission 'admin'"):
        await exposed.admit(UNLOAD, call())


async def test_unlisted_service_requires_admin_permission(callers_file: Path) -> None:
    with pytest.raises(PermissionDeniedError):
        await access(callers_file).admit(UNHEARD_OF, call(f"Bearer {KEY}"))


@pytest.mark.parametrize(
    ("context", "is_accepted"),
    [(call(vendor=KEY), True), (call("Bearer wrong", vendor=KEY), False), (call(vendor="wrong"), False)],
)
async def test_vendor_header_has_the_key_in_the_absence_of_authorization(
    callers_file: Path, context: Any, is_accepted: bool
) -> None:
    listed = access(callers_file)

    with pytest.raises(UnauthenticatedError):
        await listed.admit(TRANSLATE, context)
    with nullcontext() if is_accepted else pytest.raises(UnauthenticatedError):
        assert await listed.admit(TRANSLATE, context, "vendor") == "shop"


async def test_wrong_key_is_rejected_despite_valid_certificate(tmp_path: Path) -> None:
    path = tmp_path / "callers.toml"
    path.write_text('[[caller]]\nname = "ops"\ncertificates = ["ops"]\npermissions = ["translate"]\n')
    names = {"x509_common_name": [b"ops"]}
    listed = access(path, asks_certificates=True)

    assert await listed.admit(TRANSLATE, call(names=names)) == "ops"
    with pytest.raises(UnauthenticatedError):
        await listed.admit(TRANSLATE, call(f"Bearer {KEY}", names=names))


SPIFFE_ID = b"spiffe://example.org/ns/shop/sa/web"


@pytest.mark.parametrize(
    ("common", "alternative", "is_accepted"),
    [
        ([SPIFFE_ID], [], True),
        ([], [b"web.example.org", SPIFFE_ID], True),
        ([b"web"], [SPIFFE_ID], True),
        ([SPIFFE_ID], [b"spiffe://example.org/ns/shop/sa/other"], False),
        ([SPIFFE_ID], [b""], False),
    ],
)
async def test_common_name_counts_only_without_alternative_names(
    common: list[bytes], alternative: list[bytes], is_accepted: bool, tmp_path: Path
) -> None:
    path = tmp_path / "callers.toml"
    path.write_text(f'[[caller]]\nname = "web"\ncertificates = ["{SPIFFE_ID.decode()}"]\npermissions = ["translate"]\n')
    names = {"x509_common_name": common, "x509_subject_alternative_name": alternative}

    with nullcontext() if is_accepted else pytest.raises(UnauthenticatedError):
        assert await access(path, asks_certificates=True).admit(TRANSLATE, call(names=names)) == "web"


async def test_long_key_is_rejected_without_hashing(callers_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_service.security.api_keys._digest", lambda _key: pytest.fail("was hashed"))

    with pytest.raises(UnauthenticatedError, match="at most 16384"):
        await access(callers_file).admit(TRANSLATE, call(f"Bearer {KEY}{'x' * 16_384}"))


@pytest.mark.parametrize("names", [{}, {"x509_common_name": [b""]}])
async def test_certificate_without_name_is_rejected(names: dict[str, list[bytes]]) -> None:
    with pytest.raises(UnauthenticatedError, match="neither a common nor an alternative name"):
        await access(asks_certificates=True).admit(TRANSLATE, call(names=names))


async def test_certificate_name_is_truncated() -> None:
    name = await access(asks_certificates=True).admit(
        TRANSLATE, call(names={"x509_common_name": [b"\xff" + b"a" * 500]})
    )

    assert len(name) == 128


def test_repr_of_credentials_has_no_key() -> None:
    shown = credentials_of(call(f"Bearer {KEY}"))

    assert shown.api_keys == (f"Bearer {KEY}",)
    assert KEY not in repr(shown)


async def test_unlisted_callers_have_no_token_quota(callers_file: Path) -> None:
    for some in (access(), access(callers_file)):
        await some.take_tokens("ipv4:10.0.0.7", 10**9)
        await some.take_tokens("ipv4:10.0.0.7", 10**9, lambda: 10**12)  # nothing is used up
