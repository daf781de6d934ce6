"""What everybody is owed while a fault is done, and what may be left of it."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What must hold for those who are not hit, and of the server afterwards; each is what its fault makes likely."""

    max_bystander_s: float = 2.0
    """Longest translation of a bystander. It takes some 50 ms alone; this is for a machine that the fault itself, or
    the client that makes it, keeps busy."""

    max_check_s: float = 1.0
    """Longest wait for the server's health."""

    max_recovery_s: float = 5.0
    """From the end of the fault to a right answer on a new connection."""

    max_rss_growth_mb: float = 64.0
    max_thread_growth: int = 16
    max_file_growth: int = 8


DEFAULT_LIMITS: Final = Limits()
