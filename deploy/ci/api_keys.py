"""API keys made as an operator makes them, by `python -m service keys new`."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """API keys of the two callers that replicas know."""

    api_key: str
    limited_key: str
    """Of one who may call rarely."""


def make_callers(*, limited_requests_per_s: float) -> tuple[Keys, str]:
    """Return new keys, and the callers file that knows them."""
    api_key, entry = new_key("everybody")
    limited_key, limited_entry = new_key("limited", "--requests-per-s", str(limited_requests_per_s))
    return Keys(api_key=api_key, limited_key=limited_key), f"{entry}\n{limited_entry}"


def new_key(*arguments: str) -> tuple[str, str]:
    """Return a new key and its entry for the callers file; arguments as of the command."""
    command = [sys.executable, "-m", "service", "keys", "new", *arguments]
    done = subprocess.run(command, cwd=_REPOSITORY, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return done.stdout.strip(), done.stderr[done.stderr.index("[[caller]]") :]
