"""What is made of files, and made anew when they change."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from service.errors import ConfigError

log = structlog.get_logger(__name__)

_Value = TypeVar("_Value")

_MAX_FILE_BYTES = 16 * 1024 * 1024


class WatchedFiles(Generic[_Value]):
    """Keeps the newest value that the files made; a change that makes none leaves the value as it was.

    What is compared is what the files hold, not their times: they are small, a time may be too coarse, and files that
    are links into a directory which is replaced, as Kubernetes mounts secrets, have nothing else to go by.
    """

    def __init__(
        self,
        paths: Mapping[str, Path],
        make: Callable[[Mapping[str, bytes]], _Value],
        *,
        fail: Callable[[], None],
    ) -> None:
        """Read the files for the first time.

        Args:
            paths: the files, by the name of the setting that names them.
            make: gets what they hold, by the same names; ConfigError if that is no good.
            fail: called for each change that made no value.

        Raises:
            ConfigError: if a file cannot be read or is no good.
        """
        self._paths = paths
        self._make = make
        self._fail = fail
        self._seen: Mapping[str, bytes] | str = self._read()
        self._value = make(self._seen)

    @property
    def value(self) -> _Value:
        """The newest."""
        return self._value

    def refresh(self) -> None:
        """Look whether the files have changed, and make the value anew if so; any thread may, one at a time."""
        try:
            seen: Mapping[str, bytes] | str = self._read()
        except ConfigError as error:
            seen = str(error)
        if seen != self._seen:  # so each change is tried, logged and counted once
            self._seen = seen
            self._renew(seen)

    async def watch(self, interval_s: float) -> None:
        """Refresh for ever."""
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.refresh)

    def _renew(self, seen: Mapping[str, bytes] | str) -> None:
        try:
            if isinstance(seen, str):
                self._keep(seen)
            else:
                self._value = self._make(seen)
                log.info("files reloaded", settings=list(self._paths))
        except ConfigError as error:
            self._keep(str(error))
        except Exception:  # whatever is wrong with a file, it must not end the watch
            log.exception("reading changed files failed", settings=list(self._paths))
            self._keep("internal error")

    def _keep(self, reason: str) -> None:
        self._fail()
        log.error("changed files are no good; what was read before stays in use", reason=reason)

    def _read(self) -> Mapping[str, bytes]:
        return {setting: _content(setting, path) for setting, path in self._paths.items()}


def _content(setting: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(setting, str(path), f"a readable file ({error.strerror})") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(setting, str(path), f"a file of at most {_MAX_FILE_BYTES} bytes")
    return content
