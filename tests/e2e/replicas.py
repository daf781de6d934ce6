"""Replicas of the server with API keys, certificates and versions of the bundled model."""

import datetime as dt
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple, Self

import trustme

from dragoman_service.cli.keys import caller_entry
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.security.api_keys import new_key
from loadtests.generator.metrics import scrape
from tests.e2e.tools import DEPLOY
from tests.waiting import wait_until

MODELS: Final = DEPLOY / "models" / "dragoman_models"
MODEL: Final = "en-de"
_READY_TIMEOUT_S: Final = 90.0
_CONDITION_TIMEOUT_S: Final = 60.0


def make_key(name: str, **limits: float) -> tuple[str, str]:
    """Return a new API key and its entry for the callers file."""
    key = new_key()
    return key, caller_entry(name, "translate", key=key, **limits)


def write_certificate(certificate: Path, private_key: Path) -> bytes:
    """Write a certificate for localhost and its private key; return the certificate of the authority. All are PEM."""
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", not_after=dt.datetime.now(dt.UTC) + dt.timedelta(days=30))
    leaf.private_key_pem.write_to_path(str(private_key))
    certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    return authority.cert_pem.bytes()


def write_secrets(directory: Path) -> tuple[bytes, str]:
    """Write callers.toml, server.crt and server.key for a container; return the authority to trust and an API key."""
    key, callers = make_key("tester")
    (directory / "callers.toml").write_text(callers, encoding="utf-8")
    authority = write_certificate(directory / "server.crt", directory / "server.key")
    directory.chmod(0o755)  # the container runs as another user
    (directory / "server.key").chmod(0o644)
    return authority, key


class Ports(NamedTuple):
    """Ports of a replica."""

    grpc: int
    http: int
    metrics: int


class Replica:
    """A server process with its own models and callers file; a restart keeps given ports."""

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        callers: str,
        settings: Mapping[str, str],
        ports: Ports | None = None,
        has_tls: bool = False,
    ) -> None:
        """Write the files of the replica; `start` runs it.

        Args:
            name: prefix of its files.
            folder: holds its files.
            callers: content of its callers file.
            settings: environment variables without the prefix `DRAGOMAN_`.
            ports: free ones; without them the kernel chooses, and metrics are on the HTTP port.
            has_tls: serves gRPC with TLS.
        """
        self.authority = b""  # certificate that clients must trust, PEM; empty without TLS
        self._name, self._folder = name, folder
        self._flags = () if ports is None else ("--grpc-port", str(ports.grpc), "--http-port", str(ports.http))
        self._models = folder / f"models-{name}"
        self._callers, self._certificate = folder / f"callers-{name}.toml", folder / f"{name}.crt"
        self._settings = {**settings, "ACCESS__CALLERS_FILE": str(self._callers)}
        if ports is not None:
            self._settings["HTTP__METRICS_PORT"] = str(ports.metrics)
        self._num_starts = 0
        shutil.copytree(MODELS / MODEL, self._models / MODEL)
        (self._models / MODEL / "serving.toml").write_text('versions = "latest:1"\n', encoding="utf-8")
        self._callers.write_text(callers, encoding="utf-8")
        if has_tls:
            private_key = folder / f"{name}.key"
            self.authority = write_certificate(self._certificate, private_key)
            files = {"CERTIFICATE": self._certificate, "PRIVATE_KEY": private_key}
            self._settings |= {f"TLS__{kind}_FILE": str(path) for kind, path in files.items()}

    def start(self) -> None:
        """Start the server and wait until it accepts requests."""
        self._num_starts += 1
        self.server = ServerProcess(
            *self._flags,
            *("--models", str(self._models)),
            log=self._folder / f"replica-{self._name}-{self._num_starts}.log",
            environment={f"DRAGOMAN_{name}": value for name, value in self._settings.items()},
        )
        self.server.wait_until_ready(timeout_s=_READY_TIMEOUT_S)

    @property
    def ports(self) -> Ports:
        """Ports of the running server."""
        return Ports(int(self.server.target.rpartition(":")[2]), self.server.http_port, self.server.metrics_port)

    def kill(self) -> int:
        """Send SIGKILL while requests are in flight; return their number."""
        num_requests = wait_until(self.num_requests_in_flight, timeout_s=_CONDITION_TIMEOUT_S)
        os.kill(self.server.pid, signal.SIGKILL)
        self.server.__exit__(None, None, None)
        return num_requests

    def drain(self) -> None:
        """Send SIGTERM and assert that the server answered all admitted requests."""
        assert self.server.stop() == 0, f"replica {self._name} did not answer every admitted request"

    def add_version(self, version: str, *, is_broken: bool = False) -> None:
        """Copy the model under another version: into a hidden directory first, which is then renamed.

        Args:
            version: of the copy.
            is_broken: truncates its weights.
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
        """Add another version and wait until it is loaded."""
        self.add_version(version)
        is_ready = f'state="ready",version="{version}"'
        wait_until(lambda: self._sum("dragoman_model_state", is_ready), timeout_s=_CONDITION_TIMEOUT_S)

    def break_callers(self) -> None:
        """Make the callers file invalid."""
        self._callers.write_text("[[caller]]\n", encoding="utf-8")

    def break_certificate(self) -> None:
        """Make the certificate invalid."""
        self._certificate.write_text("not a certificate\n", encoding="utf-8")

    def num_requests_in_flight(self) -> int:
        """Return the number of requests that are being answered."""
        return int(self._sum("dragoman_requests_in_flight", "method="))

    def sample(self, name: str) -> float:
        """Return a metric by name with labels; 0 if it does not exist."""
        return scrape(self.server.metrics_url).get(name, 0.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__(None, None, None)

    def _sum(self, name: str, labels: str) -> float:
        samples = scrape(self.server.metrics_url)
        return sum(value for key, value in samples.items() if key.startswith(f"{name}{{") and labels in key)
