"""Authentication and authorization of calls by API key, token, client certificate or, if allowed, host."""

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.errors import ConfigError, PermissionDeniedError, UnauthenticatedError
from dragoman_service.observability.metrics import Metrics
from dragoman_service.security.api_keys import Caller, Callers, Permission, parse_callers
from dragoman_service.security.jwt_auth import KeySet, is_token, permissions, subject
from dragoman_service.security.rate_limits import Charge, RateLimiter
from dragoman_service.security.settings import AccessSettings
from dragoman_service.security.shared_quota import SharedQuota
from dragoman_service.security.tls import WatchedFiles

_SETTING = "access.callers_file"
_JWKS_SETTING = "access.jwks"
_MAX_NAME_CHARACTERS = 128
_MAX_KEY_CHARACTERS = 16 * 1024  # longer keys are rejected before they are hashed or parsed
_METADATA = "the metadata `authorization: Bearer KEY`"
_NUM_CACHED = 1024  # callers that are not in the callers file
_MAPPED_PEER = re.compile(r"ipv6:(?:\[|%5B)::ffff:([0-9.]+)(?:\]|%5D):")  # an IPv4 client of a port for IPv4 and IPv6
_IPV6_PREFIX_LENGTH = 64  # network of one host or one customer of a provider
_TRANSLATE_ONLY = frozenset({Permission.TRANSLATE})

_REQUIRED_PERMISSIONS: Mapping[str, Permission | None] = {
    pb.DESCRIPTOR.services_by_name["TranslationService"].full_name: Permission.TRANSLATE,
    pb.DESCRIPTOR.services_by_name["ModelService"].full_name: None,
}
"""Permission for the methods of each service; other services, such as ModelAdminService, need `admin`."""


def unmapped_peer(peer: str) -> str:
    """Return the address of a client as on a port for IPv4 only: `ipv4:10.0.0.7:54321` instead of an IPv6 address."""
    return _MAPPED_PEER.sub(r"ipv4:\1:", peer) if peer.startswith("ipv6:") else peer


def peer_name(peer: str) -> str:
    """Return the host of a gRPC peer: `ipv4:10.0.0.7` for `ipv4:10.0.0.7:54321`.

    An IPv6 host is identified by its /64 network, `ipv6:[2001:db8::/64]`, because it usually has all addresses of that
    network. A peer without a port, such as a Unix socket, is returned unchanged.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Credentials of a call."""

    peer: str  # host
    api_keys: tuple[str, ...] = field(default=(), repr=False)  # values of the metadata `authorization`
    certificate_names: tuple[str, ...] = ()  # of the verified certificate
    key_place: str = _METADATA  # where clients of this API send their key, for error messages


class ConnectionInfo(Protocol):
    """The data of a transport that identifies the caller."""

    def peer(self) -> str:
        """Return the address of the client, as gRPC writes it: `ipv4:10.0.0.7:54321`."""

    def invocation_metadata(self) -> Iterable[tuple[str, str | bytes]]:
        """Return the headers of the request, their names in lower case."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Return the properties of the TLS connection, with gRPC's names."""


class Access:
    """Authenticates and authorizes calls, and enforces quotas."""

    def __init__(
        self,
        settings: AccessSettings,
        metrics: Metrics,
        *,
        asks_certificates: bool = False,
        is_reachable_remotely: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the files of the settings; ConfigError if one cannot be read or is invalid.

        Without a callers file, a caller is identified by its certificate if TLS `asks_certificates`, else by its host.
        Hosts can only translate if other machines can connect (`is_reachable_remotely`).
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

    async def admit(self, method: str, context: ConnectionInfo, key_header: str | None = None) -> str:
        """Count a call of `/package.Service/Method` against the quota of its caller, and return the caller.

        Without an `authorization` header, the API key is in `key_header`.

        Raises:
            UnauthenticatedError: if the caller is unknown.
            PermissionDeniedError: if the caller does not have the permission for this method.
            RateLimitedError: if the caller exceeds its quota of requests.
        """
        caller = self._identify(credentials_of(context, key_header))
        permission = _REQUIRED_PERMISSIONS.get(method.strip("/").partition("/")[0], Permission.ADMIN)
        if permission is not None and permission not in caller.permissions:
            raise PermissionDeniedError(caller=caller.name, permission=permission.value)
        if caller.requests_per_s is not None:
            await self._confirmed(self._limiter.take_request(caller.name, caller.requests_per_s))
        return caller.name

    @property
    def needs_key(self) -> bool:
        """True if callers must send a key, a token or a client certificate."""
        return self._callers is not None or self._keys is not None or self._asks_certificates

    def check_known(self, context: ConnectionInfo) -> None:
        """Raise UnauthenticatedError if the caller is unknown; permissions are not checked."""
        self._identify(credentials_of(context))

    async def take_tokens(
        self, caller: str, num_tokens: int, decode_cost: Callable[[], int] | None = None
    ) -> Callable[[], None]:
        """Charge a caller as `RateLimiter.take_tokens`; return the function that refunds the charges."""
        if self._callers is None:  # without quotas
            return lambda: None
        limits = self._callers.value.named(caller)
        return await self._confirmed(self._limiter.take_tokens(caller, limits, num_tokens, decode_cost=decode_cost))

    async def watch(self) -> None:
        """Reload the files and the keys of the identity provider when they change; never returns if there are any."""
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
        """Charge the shared quota store as well, if configured; return the function that refunds the charges."""
        if self._shared is None or not charges:
            return partial(self._limiter.refund, charges)
        return await self._shared.confirm(charges)

    def _identify(self, credentials: Credentials) -> Caller:
        if self._keys is not None and credentials.api_keys and is_token(token := _api_key(credentials)):
            return self._of_token(token, self._keys.value)
        if self._callers is not None:
            return _listed(self._callers.value, credentials)
        if self._keys is not None and not (self._asks_certificates and credentials.certificate_names):
            raise UnauthenticatedError(f"no token in {credentials.key_place}")
        if self._asks_certificates:
            name = next(filter(None, credentials.certificate_names), "")
            if not name:
                raise UnauthenticatedError("the client certificate has neither a common nor an alternative name")
            return _unlisted(name[:_MAX_NAME_CHARACTERS], _TRANSLATE_ONLY)
        return _unlisted(credentials.peer, _TRANSLATE_ONLY if self._is_reachable_remotely else frozenset(Permission))

    def _of_token(self, token: str, keys: KeySet) -> Caller:
        """Return the subject of a token, with the permissions of its scopes; a listed caller keeps only its own."""
        issuer, audience = self._settings.jwt_issuer or "", self._settings.jwt_audience or ""
        claims = keys.verified_claims(token, issuer=issuer, audience=audience)
        name, allowed = subject(claims), permissions(claims, self._scopes)
        if self._callers and (listed := self._callers.value.with_subject(name)):
            return listed.model_copy(update={"permissions": listed.permissions & allowed})
        return _unlisted(f"jwt:{name}", allowed)


def credentials_of(context: ConnectionInfo, key_header: str | None = None) -> Credentials:
    """Return the credentials of a call; without an `authorization` header, the API key is in `key_header`.

    The common name of a certificate counts only without alternative names (RFC 9525): authorities often check only the
    alternative names that a client requests.
    """
    properties: Mapping[str, Iterable[bytes]] = context.auth_context()
    alternative = tuple(properties.get("x509_subject_alternative_name", ()))
    names = alternative or properties.get("x509_common_name", ())
    metadata = tuple(context.invocation_metadata() or ())
    api_keys = tuple(str(value) for key, value in metadata if key == "authorization")
    return Credentials(
        peer=peer_name(context.peer()),
        api_keys=api_keys or tuple(f"Bearer {value!s}" for key, value in metadata if key == key_header),
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
        try:
            return KeySet(contents[_JWKS_SETTING])
        except ValueError as error:
            raise ConfigError(_JWKS_SETTING, source, f"a JWK Set ({error})") from None

    place = source if "://" in source else Path(source)
    return WatchedFiles({_JWKS_SETTING: place}, make, fail=metrics.callers_reload_failures.inc)


def _shared_quota(
    settings: AccessSettings, limiter: RateLimiter, metrics: Metrics, clock: Callable[[], float]
) -> SharedQuota | None:
    if settings.quota_store_url_file is None:
        return None
    from dragoman_service.security.redis_quota import RedisBuckets  # noqa: PLC0415 - optional dependency

    timeout_s = settings.quota_store_timeout_s
    store = RedisBuckets(settings.quota_store_url_file, timeout_s=timeout_s, fail=metrics.callers_reload_failures.inc)
    return SharedQuota(limiter, store, metrics, timeout_s=timeout_s, clock=clock)


def _listed(callers: Callers, credentials: Credentials) -> Caller:
    if credentials.api_keys:
        caller = callers.with_key(_api_key(credentials))
        if caller is None:
            raise UnauthenticatedError("unknown API key")
        return caller
    caller = callers.with_certificate(credentials.certificate_names)
    if caller is None:
        certificate = (
            ", and the client certificate does not belong to a known caller" if credentials.certificate_names else ""
        )
        raise UnauthenticatedError(f"no API key in {credentials.key_place}{certificate}")
    return caller


def _api_key(credentials: Credentials) -> str:
    value, *others = credentials.api_keys
    if len(value) > _MAX_KEY_CHARACTERS:
        raise UnauthenticatedError(
            f"the API key has {len(value)} characters; at most {_MAX_KEY_CHARACTERS} are allowed"
        )
    scheme, _, key = value.strip().partition(" ")
    if others or scheme.lower() != "bearer" or not key.strip():
        raise UnauthenticatedError(f"send exactly one key, in {credentials.key_place}")
    return key.strip()


@lru_cache(maxsize=_NUM_CACHED)
def _unlisted(name: str, permissions: frozenset[Permission]) -> Caller:
    return Caller.model_construct(name=name, permissions=permissions)
