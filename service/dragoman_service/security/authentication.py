"""Who calls, and whether they may: by API key, by client certificate, or unknown where the settings allow that."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.api_keys import Caller, Callers, Permission, parse_callers, peer_name
from dragoman_service.security.jwt_auth import KeySet, is_token, key_set, permissions, subject
from dragoman_service.security.rate_limits import Charge, RateLimiter
from dragoman_service.security.settings import AccessSettings
from dragoman_service.security.shared_quota import SharedQuota
from dragoman_service.security.tls import WatchedFiles

_SETTING = "access.callers_file"
_JWKS_SETTING = "access.jwks"
_MAX_NAME_CHARACTERS = 128
_MAX_KEY_CHARACTERS = 16 * 1024  # a longer key is unknown: it is neither hashed nor parsed
_METADATA = "the metadata `authorization: Bearer KEY`"
_GOOGLE_KEY_METADATA = "x-goog-api-key"  # sent by Google's clients
_NUM_REMEMBERED = 1024  # callers that no file lists
_TRANSLATE_ONLY = frozenset({Permission.TRANSLATE})

_NEEDED: Mapping[str, Permission | None] = {
    pb.DESCRIPTOR.services_by_name["TranslationService"].full_name: Permission.TRANSLATE,
    pb.DESCRIPTOR.services_by_name["ModelService"].full_name: None,
}
"""What the methods of a service need; those of any other, ModelAdminService among them, need the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a call shows of who makes it."""

    peer: str
    """Host it comes from."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    """Values of its `authorization` metadata."""

    certificate_names: tuple[str, ...] = ()
    """Common name, then alternative names, of the certificate that TLS has verified; empty without one."""

    key_place: str = _METADATA
    """Where the client sends its key, for errors."""


class ConnectionInfo(Protocol):
    """What a transport provides to identify the caller."""

    def peer(self) -> str:
        """Return the address of the client, as gRPC writes it: `ipv4:10.0.0.7:54321`."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the headers of the request, their names in lower case."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return what TLS has verified, by gRPC's names."""


class Access:
    """Authenticates and authorizes calls, and holds callers to their rates."""

    def __init__(
        self,
        settings: AccessSettings,
        metrics: Metrics,
        *,
        asks_certificates: bool = False,
        is_reachable_remotely: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files that the settings name; ConfigError if one cannot be read or is invalid.

        Without a callers file, callers go by the names of their certificates if TLS `asks_certificates`, else by their
        hosts, and if other machines can connect (`is_reachable_remotely`) they may only translate.
        """
        self._settings = settings
        self._asks_certificates = asks_certificates
        self._is_reachable_remotely = is_reachable_remotely
        self._limiter = RateLimiter(clock)
        self._callers = _watched(settings.callers_file, metrics) if settings.callers_file else None
        self._shared = _shared_quota(settings, self._limiter, metrics, clock)
        self._keys = _watched_keys(settings.jwks, metrics) if settings.jwks else None
        self._scopes = {
            settings.jwt_translate_scope: Permission.TRANSLATE,
            settings.jwt_admin_scope: Permission.ADMIN,
        }

    async def admit(self, method: str, context: ConnectionInfo) -> str:
        """Return the name of the caller of `/package.Service/Method`, and count the call against its limit.

        Raises:
            UnauthenticatedError: if the caller is unknown.
            PermissionDeniedError: if the caller may not call this method.
            RateLimitedError: if it has called too often.
        """
        caller = self._identify(credentials(context))
        needed = _NEEDED.get(method.strip("/").partition("/")[0], Permission.ADMIN)
        if needed is not None and needed not in caller.permissions:
            raise PermissionDeniedError(caller=caller.name, permission=needed.value)
        await self._confirmed(self._limiter.take_request(caller))
        return caller.name

    @property
    def needs_key(self) -> bool:
        """Whether callers must send a key, a token or a client certificate."""
        return self._callers is not None or self._keys is not None or self._asks_certificates

    def check_known(self, context: ConnectionInfo) -> None:
        """Raise UnauthenticatedError unless the caller is one that the server serves, whatever its permissions."""
        self._identify(credentials(context))

    async def take_tokens(
        self, caller: str, num_tokens: int, *, work: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        """Count source tokens and work of a caller, as `RateLimiter.take_tokens`; return what puts them back."""
        limits = self._callers.value.named(caller) if self._callers else None
        return await self._confirmed(self._limiter.take_tokens(caller, limits, num_tokens, work=work))

    async def watch(self) -> None:
        """Reload the files and the provider's keys whenever they change; never returns if there are any."""
        watches = []
        if self._callers:
            watches.append(self._callers.watch(self._settings.reload_interval_s))
        if self._shared:
            watches.append(self._shared.watch(self._settings.reload_interval_s))
        if self._keys:
            watches.append(self._keys.watch(self._settings.jwks_reload_interval_s))
        await asyncio.gather(*watches)

    async def close(self) -> None:
        """Close the connections to the store of quotas, if there is one."""
        if self._shared:
            await self._shared.close()

    async def _confirmed(self, charges: tuple[Charge, ...]) -> Callable[[], None]:
        """Charge the store of all replicas too, if there is one; return what gives the charges back."""
        if self._shared is None or not charges:
            return partial(self._limiter.give_back, charges)
        return await self._shared.confirm(charges)

    def _identify(self, shown: Credentials) -> Caller:
        if self._keys is not None and shown.api_keys and is_token(token := _api_key(shown)):
            return self._of_token(token, self._keys.value)
        if self._callers is not None:
            return _listed(self._callers.value, shown)
        if self._keys is not None and not (self._asks_certificates and shown.certificate_names):
            raise UnauthenticatedError(f"no token in {shown.key_place}")
        if self._asks_certificates:
            return _certified(shown)
        return _unlisted(shown.peer, _TRANSLATE_ONLY if self._is_reachable_remotely else frozenset(Permission))

    def _of_token(self, token: str, keys: KeySet) -> Caller:
        """Return the bearer of a token, listed or not, with the permissions that its scopes give."""
        issuer, audience = self._settings.jwt_issuer or "", self._settings.jwt_audience or ""
        claims = keys.verified_claims(token, issuer=issuer, audience=audience)
        name, allowed = subject(claims), permissions(claims, self._scopes)
        if self._callers and (listed := self._callers.value.with_subject(name)):
            return listed.model_copy(update={"permissions": listed.permissions & allowed})
        return _unlisted(f"jwt:{name}", allowed)


def credentials(context: ConnectionInfo) -> Credentials:
    """Return the credentials of a call; `x-goog-api-key` counts in the absence of `authorization`."""
    shown: Mapping[str, Iterable[bytes]] = context.auth_context()
    names = (*shown.get("x509_common_name", ()), *shown.get("x509_subject_alternative_name", ()))
    metadata = tuple(context.invocation_metadata() or ())
    api_keys = tuple(str(value) for key, value in metadata if key == "authorization")
    return Credentials(
        peer=peer_name(context.peer()),
        api_keys=api_keys or tuple(f"Bearer {value!s}" for key, value in metadata if key == _GOOGLE_KEY_METADATA),
        certificate_names=tuple(name.decode("utf-8", "replace") for name in names),
        key_place=getattr(context, "key_place", _METADATA),
    )


def _watched(path: Path, metrics: Metrics) -> WatchedFiles[Callers]:
    def make(contents: Mapping[str, bytes]) -> Callers:
        try:
            return parse_callers(contents[_SETTING])
        except ValueError as error:
            raise ConfigError(_SETTING, str(path), f"a list of callers ({error})") from None

    return WatchedFiles({_SETTING: path}, make, fail=metrics.callers_reload_failures.inc)


def _watched_keys(source: str, metrics: Metrics) -> WatchedFiles[KeySet]:
    def make(contents: Mapping[str, bytes]) -> KeySet:
        return key_set(_JWKS_SETTING, source, contents[_JWKS_SETTING])

    place = source if "://" in source else Path(source)
    return WatchedFiles({_JWKS_SETTING: place}, make, fail=metrics.callers_reload_failures.inc)


def _shared_quota(
    settings: AccessSettings, limiter: RateLimiter, metrics: Metrics, clock: Callable[[], float]
) -> SharedQuota | None:
    if settings.quota_store_url_file is None:
        return None
    from dragoman_service.security.redis_quota import RedisBuckets  # noqa: PLC0415 - the client is imported only where it is used

    timeout_s = settings.quota_store_timeout_s
    store = RedisBuckets(settings.quota_store_url_file, timeout_s=timeout_s, fail=metrics.callers_reload_failures.inc)
    return SharedQuota(limiter, store, metrics, timeout_s=timeout_s, clock=clock)


def _listed(callers: Callers, shown: Credentials) -> Caller:
    """Find a caller in the file: by key if it sends one, else by certificate."""
    if shown.api_keys:
        caller = callers.with_key(_api_key(shown))
        if caller is None:
            raise UnauthenticatedError("unknown API key")
        return caller
    caller = callers.with_certificate(shown.certificate_names)
    if caller is None:
        certificate = ", and the client certificate names no known caller" if shown.certificate_names else ""
        raise UnauthenticatedError(f"no API key in {shown.key_place}{certificate}")
    return caller


def _api_key(shown: Credentials) -> str:
    value, *others = shown.api_keys
    if len(value) > _MAX_KEY_CHARACTERS:
        raise UnauthenticatedError(f"an API key of {len(value)} characters, at most {_MAX_KEY_CHARACTERS}")
    scheme, _, key = value.strip().partition(" ")
    if others or scheme.lower() != "bearer" or not key.strip():
        raise UnauthenticatedError(f"the key must be sent once, in {shown.key_place}")
    return key.strip()


def _certified(shown: Credentials) -> Caller:
    """Take a caller by the name that a trusted authority gave it."""
    name = next((name for name in shown.certificate_names if name), "")
    if not name:
        raise UnauthenticatedError("the client certificate has neither a common nor an alternative name")
    return _unlisted(name[:_MAX_NAME_CHARACTERS], _TRANSLATE_ONLY)


@lru_cache(maxsize=_NUM_REMEMBERED)
def _unlisted(name: str, permissions: frozenset[Permission]) -> Caller:
    return Caller.model_construct(name=name, permissions=permissions)
