"""The server under attack: its settings, the process that attacks it, and how both begin and end."""

import base64
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from loadtests.generator.server import ServerError, ServerProcess
from loadtests.scenarios.bad_inputs.attacks.attack import Credentials, Port
from loadtests.scenarios.bad_inputs.attacks.results import DRAIN_TIMEOUT_S, MAX_END_S
from loadtests.scenarios.bad_inputs.attacks.send import Addresses, Attacker
from loadtests.scenarios.bad_inputs.attacks.watch import Watched
from loadtests.scenarios.stress_server import log_path, read_log, started

_KEY_ID: Final = "stress"
_GLOSSARY_SOURCES: Final = (*("a" * count for count in range(1, 150)), "(a+)+$", ".*", "[a", "station")
_CHECKOUT: Final = Path(__file__).resolve().parents[4]


class Arena:
    """A server and the process that attacks it; both run only between `start` and `end`, and not after the exit."""

    def __init__(self, output: Path, models: Path) -> None:
        """Prepare keys, glossary and settings in a directory."""
        self.faults: list[str] = []  # of servers: exit codes, errors in the log
        self._output, self._models = output, models
        self._settings, self._friend, self._credentials = prepare(output / "attacked")
        self._stack = ExitStack()
        self._running: tuple[ServerProcess, Attacker] | None = None

    def start(self) -> None:
        """Start a server and what attacks it, unless they run."""
        if self._running:
            return
        server = self._stack.enter_context(started(self._output, models=self._models, settings=self._settings))
        grpc_port = int(server.target.rpartition(":")[2])
        ports = {Port.HTTP: server.http_port, Port.METRICS: server.metrics_port, Port.GRPC: grpc_port}
        attacker = self._stack.enter_context(Attacker(Addresses(ports=ports, credentials=self._credentials)))
        self._running = server, attacker

    @property
    def is_running(self) -> bool:
        """Whether there is a server."""
        return self._running is not None

    @property
    def server(self) -> ServerProcess:
        """The server that runs; ServerError if there is none."""
        return self._pair()[0]

    @property
    def attacker(self) -> Attacker:
        """What attacks it; ServerError if there is none."""
        return self._pair()[1]

    @property
    def watched(self) -> Watched:
        """Where well-behaved callers call."""
        server = self.server
        health, http = ("127.0.0.1", server.metrics_port), ("127.0.0.1", server.http_port)
        return Watched(health=health, http=http, grpc=server.target, key=self._friend)

    def end(self) -> float | None:
        """End the server with SIGTERM; return how long that took, None if it did not end in time and was killed."""
        began_s, end_s = time.monotonic(), None
        try:
            if (exit_code := self.server.stop(timeout_s=MAX_END_S)) != 0:
                self.faults.append(f"the server ended with {exit_code}")
            end_s = time.monotonic() - began_s
        except ServerError:  # it is killed below
            pass
        self.kill()
        return end_s

    def kill(self) -> None:
        """Kill the server if it still runs, and what attacks it; look at the log."""
        self._stack.close()
        self._running = None
        lines = log_path(self._output).read_text(encoding="utf-8", errors="replace").splitlines()
        self.faults += [f"the server's log has: {_shown(line)}" for line in read_log(lines)[1]]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _pair(self) -> tuple[ServerProcess, Attacker]:
        if self._running is None:
            raise ServerError("the server is not started")
        return self._running


def _shown(line: str) -> str:
    """Return the event of a record of an error and the end of its exception, or the beginning of any other line."""
    try:
        record = json.loads(line)
        return f"{record['event']} ...{record.get('exception', '')[-400:]}"
    except (ValueError, KeyError, TypeError):
        return line[:400]


def prepare(directory: Path) -> tuple[dict[str, str], str, Credentials]:
    """Write callers, key set and glossary; return settings, the key of friends, and what attackers have."""
    glossaries, documents = directory / "glossaries", directory / "documents"
    for folder in (glossaries, documents):
        folder.mkdir(parents=True, exist_ok=True)
    (friend, of_friend), (key, of_attacker) = _new_key("friend"), _new_key("attacker")
    (directory / "callers.toml").write_text(of_friend + of_attacker, encoding="utf-8")
    (directory / "jwks.json").write_text(json.dumps({"keys": [_public_key()]}), encoding="utf-8")
    entries = "".join(f"{source}\tz\n" for source in _GLOSSARY_SOURCES)
    (glossaries / "stress.tsv").write_text(f"en\tde\n{entries}", encoding="utf-8")
    settings = {
        "access.callers_file": str((directory / "callers.toml").resolve()),
        "access.jwks": str((directory / "jwks.json").resolve()),
        "access.jwt_issuer": "https://login.example",
        "access.jwt_audience": "dragoman",
        "documents.directory": str(documents.resolve()),
        "grpc.drain_timeout_s": str(DRAIN_TIMEOUT_S),
        "http.metrics_port": "0",
        "models.glossaries_directory": str(glossaries.resolve()),
    }
    if _has_google():
        settings["grpc.google_translation"] = "true"
    variables = {f"DRAGOMAN_{name.replace('.', '__').upper()}": value for name, value in settings.items()}
    return variables, friend, Credentials(key=key, key_id=_KEY_ID)


def _new_key(name: str) -> tuple[str, str]:
    """Return a key of a caller who may translate, and its entry of the callers file."""
    command = (sys.executable, "-m", "dragoman_service", "keys", "new", name)
    done = subprocess.run(command, cwd=_CHECKOUT, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return done.stdout.strip(), done.stderr[done.stderr.index("[[caller]]") :]


def _public_key() -> Mapping[str, str]:
    """Return an RSA key that nobody can sign with: a random modulus."""
    modulus = bytearray(random.Random(1).randbytes(256))
    modulus[0] |= 0x80
    modulus[-1] |= 0x01
    encoded = base64.urlsafe_b64encode(modulus).rstrip(b"=").decode()
    return {"kty": "RSA", "kid": _KEY_ID, "alg": "RS256", "use": "sig", "n": encoded, "e": "AQAB"}


def _has_google() -> bool:
    try:
        return importlib.util.find_spec("google.cloud.translate_v3") is not None
    except ModuleNotFoundError:
        return False
