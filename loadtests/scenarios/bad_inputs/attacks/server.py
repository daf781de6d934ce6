"""The attacked server, the process that attacks it, and their credentials."""

import base64
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadtests.generator.server import CHECKOUT, SERVICE, ServerError, ServerProcess
from loadtests.scenarios.bad_inputs.attacks.attack import Port
from loadtests.scenarios.bad_inputs.attacks.payload import Credentials
from loadtests.scenarios.bad_inputs.attacks.results import DRAIN_TIMEOUT_S, MAX_END_S
from loadtests.scenarios.bad_inputs.attacks.send import Addresses, Attacker
from loadtests.scenarios.bad_inputs.attacks.watch import Watched
from loadtests.scenarios.stress_server import log_errors, started

_KEY_ID: Final = "stress"
_GLOSSARY_SOURCES: Final = (*("a" * count for count in range(1, 150)), "(a+)+$", ".*", "[a", "station")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedServer:
    """A running server and the process that attacks it."""

    process: ServerProcess
    attacker: Attacker
    watched: Watched
    faults: list[str]  # exit codes, errors in the log

    def end(self) -> float | None:
        """End the server with SIGTERM; return the time that it took, None if it was killed after a timeout."""
        began_s = time.monotonic()
        try:
            if (exit_code := self.process.stop(timeout_s=MAX_END_S)) != 0:
                self.faults.append(f"the server exited with {exit_code}")
        except ServerError:
            self.process.kill()
            return None
        return time.monotonic() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Settings of an attacked server and credentials for its callers."""

    settings: Mapping[str, str]
    client_key: str
    credentials: Credentials  # of the attacker

    @contextmanager
    def start(self, output: Path, models: Path, faults: list[str]) -> Iterator[AttackedServer]:
        """Start a server and an attacker; at the end, add the errors in the log to the faults."""
        try:
            with started(output, models=models, settings=self.settings) as process:
                health, http = ("127.0.0.1", process.metrics_port), ("127.0.0.1", process.http_port)
                grpc_port = int(process.target.rpartition(":")[2])
                ports = {Port.HTTP: http[1], Port.METRICS: health[1], Port.GRPC: grpc_port}
                watched = Watched(health=health, http=http, grpc=process.target, key=self.client_key)
                with Attacker(Addresses(ports=ports, credentials=self.credentials)) as attacker:
                    yield AttackedServer(process=process, attacker=attacker, watched=watched, faults=faults)
        finally:
            faults += [f"server log: {_shown(line)}" for line in log_errors(output)]


def _shown(line: str) -> str:
    """Return event and end of the exception of an error record, or the beginning of another line."""
    try:
        record = json.loads(line)
        return f"{record['event']} ...{record.get('exception', '')[-400:]}"
    except (ValueError, KeyError, TypeError):
        return line[:400]


def prepare(directory: Path) -> Setup:
    """Write keys, key set and glossary."""
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
    return Setup(settings=variables, client_key=client_key, credentials=Credentials(key=key, key_id=_KEY_ID))


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
