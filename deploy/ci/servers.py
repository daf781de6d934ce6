"""Replicas of the server for the tests of deployments: keys, certificates, versions of the model, start and end."""

import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

import trustme

from loadtests.generator.server import ServerProcess

REPOSITORY: Final = Path(__file__).resolve().parents[2]
MODELS: Final = REPOSITORY / "deploy" / "models" / "dragoman_models"
"""What ships."""

MODEL: Final = "en-de"

_CERTIFICATE_LIFETIME: Final = dt.timedelta(days=30)
_READY_TIMEOUT_S: Final = 90.0
_LOAD_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


class ReplicaError(Exception):
    """A replica did not do what it was asked to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """API keys of the two callers that replicas know."""

    api_key: str
    limited_key: str
    """Of one that may call rarely."""


def new_key(*arguments: str) -> tuple[str, str]:
    """Return a new key and its entry for the callers file, as `python -m dragoman_service keys new` makes them."""
    command = [sys.executable, "-m", "dragoman_service", "keys", "new", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return done.stdout.strip(), done.stderr[done.stderr.index("[[caller]]") :]


def make_callers(*, limited_requests_per_s: float) -> tuple[Keys, str]:
    """Return new keys, and the callers file that knows them."""
    api_key, entry = new_key("test")
    limited_key, limited_entry = new_key("limited", "--requests-per-s", str(limited_requests_per_s))
    return Keys(api_key=api_key, limited_key=limited_key), f"{entry}\n{limited_entry}"


def write_certificate(certificate: Path, private_key: Path) -> bytes:
    """Write a certificate for localhost and its private key; return the authority to trust, all as PEM."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", not_after=dt.datetime.now(dt.UTC) + _CERTIFICATE_LIFETIME)
    leaf.private_key_pem.write_to_path(str(private_key))
    certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    return authority.cert_pem.bytes()


def write_secrets(directory: Path) -> tuple[bytes, str]:
    """Write what a container with TLS and keys mounts; return the authority to trust and the key of a caller."""
    key, entry = new_key("tester")
    (directory / "callers.toml").write_text(entry, encoding="utf-8")
    authority = write_certificate(directory / "server.crt", directory / "server.key")
    directory.chmod(0o755)  # the container's user is another than ours
    (directory / "server.key").chmod(0o644)
    return authority, key


class Replica:
    """One server with models and a callers file of its own; restarts on the port that it had, where one is given."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        callers: str,
        settings: Mapping[str, str],
        port: int = 0,
        has_tls: bool = False,
    ) -> None:
        """Write its files; nothing runs yet.

        Args:
            name: for its files.
            folder: where they are.
            callers: the content of its callers file.
            settings: as environment variables, without the prefix `DRAGOMAN_`.
            port: of gRPC; 0 lets the kernel choose.
            has_tls: whether it shows a certificate.
        """
        self.name = name
        self.authority = b""
        """What a client must trust, as PEM; empty without TLS."""
        self._folder, self._port = folder, port
        self._models = folder / f"models-{name}"
        self._callers, self._certificate = folder / f"callers-{name}.toml", folder / f"{name}.crt"
        self._settings = {**settings, "ACCESS__CALLERS_FILE": str(self._callers)}
        self._num_starts = 0
        self._server: ServerProcess | None = None
        shutil.rmtree(self._models, ignore_errors=True)
        shutil.copytree(MODELS, self._models)
        (self._models / MODEL / "serving.toml").write_text('versions = "latest:1"\n', encoding="utf-8")
        self._callers.write_text(callers, encoding="utf-8")
        if has_tls:
            private_key = folder / f"{name}.key"
            self.authority = write_certificate(self._certificate, private_key)
            files = {"CERTIFICATE": self._certificate, "PRIVATE_KEY": private_key}
            self._settings |= {f"TLS__{name}_FILE": str(path) for name, path in files.items()}

    @property
    def server(self) -> ServerProcess:
        """Its process; ReplicaError if it was never started."""
        if self._server is None:
            raise ReplicaError(f"replica {self.name} was never started")
        return self._server

    def start(self) -> None:
        """Start it and wait until it takes calls."""
        self._num_starts += 1
        self._server = ServerProcess(
            self._folder / f"replica-{self.name}-{self._num_starts}.log",
            *("--grpc-port", str(self._port), "--models", str(self._models)),
            environment={f"DRAGOMAN_{name}": value for name, value in self._settings.items()},
        )
        self._server.wait_until_ready(timeout_s=_READY_TIMEOUT_S)

    def kill(self) -> int:
        """End it at once, while it has calls; return how many it had; ReplicaError if it never has any."""
        num_calls = self._wait_for(self.num_calls, "gets no calls")
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.__exit__(None, None, None)
        return num_calls

    def drain(self) -> None:
        """Send SIGTERM and wait for its end; ReplicaError if it left a call that it had admitted unanswered."""
        if exit_code := self.server.stop():
            raise ReplicaError(f"replica {self.name} ended its drain with exit code {exit_code}")

    def bring_version(self, version: str, *, is_broken: bool = False) -> None:
        """Let the model appear under another version, as an operator does: hidden first, then renamed.

        Args:
            version: of the copy.
            is_broken: whether its weights lack their end.
        """
        hidden = self._models / MODEL / f".{version}"
        shutil.copytree(MODELS / MODEL / "1", hidden)
        manifest = json.loads((hidden / "manifest.json").read_text(encoding="utf-8"))
        (hidden / "manifest.json").write_text(json.dumps({**manifest, "version": version}), encoding="utf-8")
        if is_broken:
            weights = next(hidden.glob("weights.*.bin"))
            weights.write_bytes(weights.read_bytes()[:-1])
        hidden.rename(hidden.with_name(version))

    def upgrade(self, version: str) -> None:
        """Bring another version and wait until it answers; ReplicaError if it never loads it."""
        self.bring_version(version)
        is_ready = partial(self._sum, "dragoman_model_state", f'state="ready",version="{version}"')
        self._wait_for(is_ready, f"does not load version {version}")

    def break_callers(self) -> None:
        """Make its callers file invalid."""
        self._callers.write_text("[[caller]]\n", encoding="utf-8")

    def break_certificate(self) -> None:
        """Make its certificate invalid."""
        self._certificate.write_text("no certificate\n", encoding="utf-8")

    def num_calls(self) -> int:
        """Return how many calls it is answering."""
        return int(self._sum("dragoman_requests_in_flight", "method="))

    def sample(self, name: str) -> float:
        """Return one metric, by name with labels; 0 if there is none."""
        return self.server.samples().get(name, 0.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.__exit__(None, None, None)

    def _wait_for(self, number: Callable[[], float], fault: str) -> int:
        """Return a number as soon as it is not 0; ReplicaError with the fault if it stays 0."""
        until_s = time.monotonic() + _LOAD_TIMEOUT_S
        while not (found := int(number())):
            if time.monotonic() > until_s:
                raise ReplicaError(f"replica {self.name} {fault}")
            time.sleep(_POLL_S)
        return found

    def _sum(self, name: str, labels: str) -> float:
        samples = self.server.samples()
        return sum(value for key, value in samples.items() if key.startswith(f"{name}{{") and labels in key)
