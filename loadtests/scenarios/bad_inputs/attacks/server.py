"""The attacked server and the process that attacks it."""

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
from typing import Final, Self

from loadtests.generator.server import CHECKOUT, SERVICE, ServerError, ServerProcess
from loadtests.scenarios.bad_inputs.attacks.attack import Port
from loadtests.scenarios.bad_inputs.attacks.payload import Credentials
from loadtests.scenarios.bad_inputs.attacks.results import DRAIN_TIMEOUT_S, MAX_END_S
from loadtests.scenarios.bad_inputs.attacks.send import Addresses, Attacker
from loadtests.scenarios.bad_inputs.attacks.watch import Watched
from loadtests.scenarios.stress_server import log_errors, started

_KEY_ID: Final = "stress"
_GLOSSARY_SOURCES: Final = (*("a" * count for count in range(1, 150)), "(a+)+$", ".*", "[a", "station")


class AttackedServer:
    """A server and an attacker, which run between `start` and `end`."""

    def __init__(self, output: Path, models: Path) -> None:
        self.faults: list[str] = []  # exit codes, errors in the log
        self._output, self._models = output, models
        self._settings, self._client_key, self._credentials = prepare(output / "attacked")
        self._stack = ExitStack()
        self._running: tuple[ServerProcess, Attacker] | None = None

    def start(self) -> None:
        """Start both, unless they run."""
        if self._running:
            return
        server = self._stack.enter_context(started(self._output, models=self._models, settings=self._settings))
        grpc_port = int(server.target.rpartition(":")[2])
        ports = {Port.HTTP: server.http_port, Port.METRICS: server.metrics_port, Port.GRPC: grpc_port}
        attacker = self._stack.enter_context(Attacker(Addresses(ports=ports, credentials=self._credentials)))
        self._running = server, attacker

    @property
    def is_running(self) -> bool:
        """Return whether the server was started."""
        return self._running is not None

    @property
    def process(self) -> ServerProcess:
        """The running server; raises ServerError."""
        return self._pair()[0]

    @property
    def attacker(self) -> Attacker:
        """The running attacker; raises ServerError."""
        return self._pair()[1]

    @property
    def watched(self) -> Watched:
        """Addresses for well-behaved clients."""
        server = self.process
        health, http = ("127.0.0.1", server.metrics_port), ("127.0.0.1", server.http_port)
        return Watched(health=health, http=http, grpc=server.target, key=self._client_key)

    def end(self) -> float | None:
        """End the server with SIGTERM; return the time that it took, None if it was killed after a timeout."""
        began_s, end_s = time.monotonic(), None
        try:
            if (exit_code := self.process.stop(timeout_s=MAX_END_S)) != 0:
                self.faults.append(f"the server exited with {exit_code}")
            end_s = time.monotonic() - began_s
        except ServerError:  # it is killed below
            pass
        self.kill()
        return end_s

    def kill(self) -> None:
        """End both processes, and read the errors in the log."""
        self._stack.close()
        self._running = None
        self.faults += [f"server log: {_shown(line)}" for line in log_errors(self._output)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _pair(self) -> tuple[ServerProcess, Attacker]:
        if self._running is None:
            raise ServerError("the server is not started")
        return self._running


def _shown(line: str) -> str:
    """Return event and end of the exception of an error record, or the beginning of another line."""
    try:
        record = json.loads(line)
        return f"{record['event']} ...{record.get('exception', '')[-400:]}"
    except (ValueError, KeyError, TypeError):
        return line[:400]


def prepare(directory: Path) -> tuple[dict[str, str], str, Credentials]:
    """Write keys, key set and glossary; return settings, the key of well-behaved clients, and the attacker's."""
    glossaries, documents = directory / "glossaries", directory / "documents"
    for folder in (glossaries, documents):
        folder.mkdir(parents=True, exist_ok=True)
    (client_key, of_client), (key, of_attacker) = _new_key("client"), _new_key("attacker")
    (directory / "callers.toml").write_text(of_client + of_attacker, encoding="utf-8")
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
    return variables, client_key, Credentials(key=key, key_id=_KEY_ID)


def _new_key(name: str) -> tuple[str, str]:
    """Return a new API key and its entry in the callers file."""
    command = (sys.executable, "-m", SERVICE, "keys", "new", name)
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return done.stdout.strip(), done.stderr[done.stderr.index("[[caller]]") :]


def _public_key() -> Mapping[str, str]:
    """Return an RSA key with a random modulus, for which no signature exists."""
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
