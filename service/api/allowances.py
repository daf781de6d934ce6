"""What each caller has used of its limits. Every replica counts for itself."""

import contextlib
import time
from collections.abc import Callable, Iterator

from service.api.callers import Caller, Limits
from service.api.token_bucket import TokenBucket
from service.errors import RateLimitedError

_S_PER_MIN = 60.0


class _Allowance:
    """The buckets of one caller; None where it has no limit."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.requests: TokenBucket | None = None
        self.tokens: TokenBucket | None = None
        if limits.requests_per_s is not None:
            rate_per_s = limits.requests_per_s
            self.requests = TokenBucket(rate_per_s=rate_per_s, capacity=max(1.0, rate_per_s), clock=clock)
        if limits.tokens_per_min is not None:
            per_min = limits.tokens_per_min
            self.tokens = TokenBucket(rate_per_s=per_min / _S_PER_MIN, capacity=per_min, clock=clock)


class Allowances:
    """The buckets of all callers; to be used in one thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_name: dict[str, _Allowance] = {}

    def take_request(self, caller: Caller) -> None:
        """Count one request; RateLimitedError if it is one too many."""
        requests = self._of(caller).requests
        wait_s = requests.take(1) if requests else 0.0
        if wait_s > 0:
            raise RateLimitedError(
                caller=caller.name, limit=caller.requests_per_s or 0.0, unit="requests/s", retry_after_s=wait_s
            )

    @contextlib.contextmanager
    def tokens_taken(self, caller: Caller, num_tokens: int) -> Iterator[None]:
        """Count source tokens, but not if what they are for fails inside; RateLimitedError if they are too many."""
        tokens = self._of(caller).tokens
        wait_s = tokens.take(num_tokens) if tokens else 0.0
        if wait_s > 0:
            raise RateLimitedError(
                caller=caller.name, limit=caller.tokens_per_min or 0.0, unit="source tokens/min", retry_after_s=wait_s
            )
        try:
            yield
        except BaseException:
            if tokens:
                tokens.give_back(num_tokens)
            raise

    def _of(self, caller: Caller) -> _Allowance:
        """Return its buckets, made anew when its limits have changed."""
        allowance = self._by_name.get(caller.name)
        if allowance is None or allowance.limits != caller.limits:
            allowance = self._by_name[caller.name] = _Allowance(caller.limits, self._clock)
        return allowance
