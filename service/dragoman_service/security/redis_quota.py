"""Token buckets in Redis or Valkey; the key of a bucket expires when the bucket is full."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from dragoman_service.errors import ConfigError
from dragoman_service.security.rate_limits import Charge
from dragoman_service.security.shared_quota import Shortfall
from dragoman_service.security.tls import WatchedFiles

log = logging.getLogger(__name__)

_SETTING = "access.quota_store_url_file"
_MAX_CONNECTIONS = 16  # of one replica; further calls wait for a connection until the timeout

SCRIPT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local used, rejected, wait, num_reset = {}, 0, 0, 0
local function is_valid(number)
  return number and number >= 0 and number <= 1e15
end
for i, key in ipairs(KEYS) do
  local rate, capacity, amount = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i - 1]), tonumber(ARGV[3 * i])
  local kept = redis.pcall('HMGET', key, 'used', 'at')
  local is_other_type = kept.err and string.find(kept.err, '^WRONGTYPE')
  if kept.err and not is_other_type then
    return kept
  end
  local stored, at = tonumber(kept[1] or 0), tonumber(kept[2] or now)
  if is_other_type or not (is_valid(stored) and is_valid(at)) then
    redis.call('DEL', key)
    stored, at, num_reset = 0, now, num_reset + 1
  end
  used[i] = math.max(0, stored - math.max(0, now - at) * rate)
  local missing = used[i] + math.min(amount, capacity) - capacity
  if amount > 0 and missing > 0 and rejected == 0 then
    rejected, wait = i, missing / rate
  end
end
for i, key in ipairs(KEYS) do
  local rate, amount = tonumber(ARGV[3 * i - 2]), tonumber(ARGV[3 * i])
  local left = rejected == 0 and math.max(0, used[i] + amount) or used[i]
  if left > 0 then
    redis.call('HSET', key, 'used', string.format('%.17g', left), 'at', string.format('%.17g', now))
    redis.call('PEXPIRE', key, string.format('%.0f', math.min(1e15, math.ceil(left / rate * 1000) + 1)))
  else
    redis.call('DEL', key)
  end
end
return {rejected, string.format('%.17g', wait), num_reset}
"""
"""Takes amounts from all buckets or from none.

KEYS are the buckets; ARGV has three values for each: rate in 1/s, capacity, amount (negative: a refund). A key stores
the used amount, so that an unused bucket needs no key and a changed limit does not change the used amount. Returns the
number of the first bucket without the amount (0: none), the seconds until it contains the amount, and the number of
buckets that were reset because their values were damaged: of another type, not finite, negative or above 1e15.
"""


class RedisBuckets:
    """`BucketStore` in the Redis or Valkey server whose URL a file contains."""

    def __init__(self, url_file: Path, *, timeout_s: float, fail: Callable[[], None]) -> None:
        """Read the URL; the first operation connects.

        Args:
            url_file: can contain a password and is never logged.
            timeout_s: limit of each operation.
            fail: called for each invalid change of the file.

        Raises:
            ConfigError: if the file cannot be read or contains no valid URL.
        """

        def client(contents: Mapping[str, bytes]) -> Redis:
            return _client(contents[_SETTING], url_file, timeout_s)

        self._clients = WatchedFiles({_SETTING: url_file}, client, fail=fail)
        self._use(self._clients.value)

    async def take(self, charges: Sequence[Charge]) -> Shortfall | None:
        """Take all charges, or none and return the first charge that its bucket cannot cover."""
        number, wait_s = await self._run(charges, 1)
        return Shortfall(charge=charges[number - 1], retry_after_s=wait_s) if number else None

    async def refund(self, charges: Sequence[Charge]) -> None:
        """Return the amounts of charges to their buckets."""
        await self._run(charges, -1)

    async def watch(self, interval_s: float) -> None:
        """Reload the URL at this interval; never returns."""
        await self._clients.watch(interval_s)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _use(self, client: Redis) -> None:
        self._client = client
        self._script = client.register_script(SCRIPT)

    async def _run(self, charges: Sequence[Charge], sign: int) -> tuple[int, float]:
        if self._client is not self._clients.value:
            previous = self._client
            self._use(self._clients.value)
            await previous.aclose()
        keys = [f"dragoman:{{{charge.caller}}}:{charge.unit.replace(' ', '_')}" for charge in charges]
        numbers = [
            number for charge in charges for number in (charge.rate_per_s, charge.capacity, sign * charge.amount)
        ]
        number, wait_s, num_reset = await self._script(keys=keys, args=numbers)
        if number not in range(len(charges) + 1):
            raise ValueError(f"the store returned bucket {number!r} of {len(charges)}")
        if num_reset:
            log.warning("damaged quota buckets reset", extra={"keys": keys, "num_reset": num_reset})
        return int(number), float(wait_s)


def _client(content: bytes, path: Path, timeout_s: float) -> Redis:
    try:
        (url,) = content.decode("utf-8-sig").split()
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=_MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            protocol=2,
            retry=Retry(NoBackoff(), 0),  # the next call retries
        )
        pool.make_connection()  # type: ignore[no-untyped-call]  # checks the options without connecting
        is_good = not {"host", "path"}.isdisjoint(pool.connection_kwargs)
    except Exception:  # noqa: BLE001 - messages of any error can contain parts of the password
        is_good = False
    if not is_good:
        expected = "one URL redis://, rediss:// or unix://, special characters of the password percent-encoded"
        raise ConfigError(_SETTING, str(path), f"a file with {expected}")
    return Redis.from_pool(pool)
