"""The two replicas that are watched: one behind Envoy whose queue is small, one that speaks TLS."""

import datetime as dt
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trustme

from deploy.ci.model_versions import MODEL, MODELS, bring_version
from service.cli.server_process import Ports, ServerProcess

_LIFETIME: Final = dt.timedelta(days=30)
_START_TIMEOUT_S: Final = 90.0
_MOST_WORK_OF_A_TOKEN: Final = 33  # beams times steps, and the token itself; a request within the limits must fit
_MAX_SENTENCES: Final = 96
_MAX_TOKENS: Final = 4096
_SETTINGS: Final = {
    "DRAGOMAN_MODELS__POLL_INTERVAL_S": "1",
    "DRAGOMAN_MODELS__SETTLE_S": "1",
    "DRAGOMAN_ACCESS__RELOAD_INTERVAL_S": "1",
    "DRAGOMAN_TLS__RELOAD_INTERVAL_S": "1",
    "DRAGOMAN_SCHEDULING__NUM_DECODING_THREADS": "1",
    # Small, so that a few callers overload it.
    "DRAGOMAN_SCHEDULING__MAX_QUEUE_SEGMENTS": str(_MAX_SENTENCES),
    "DRAGOMAN_SCHEDULING__MAX_QUEUE_WORK_TOKENS": str(_MAX_TOKENS * _MOST_WORK_OF_A_TOKEN),
    "DRAGOMAN_LIMITS__MAX_REQUEST_SENTENCES": str(_MAX_SENTENCES),
    "DRAGOMAN_LIMITS__MAX_REQUEST_SOURCE_TOKENS": str(_MAX_TOKENS),
    "DRAGOMAN_TRACING__SAMPLE_RATIO": "1",
}


class WatchedReplica:
    """A server with a directory of models and a callers file of its own."""

    def __init__(self, name: str, folder: Path, *, callers: str, tracing: str, has_tls: bool) -> None:
        """Prepare its files; nothing runs yet.

        Args:
            name: for its files.
            folder: where they are.
            callers: who may call.
            tracing: the collector's endpoint.
            has_tls: whether it shows a certificate.
        """
        self._models = folder / f"models-{name}"
        self._callers = folder / f"callers-{name}.toml"
        self._callers.write_text(callers, encoding="utf-8")
        shutil.rmtree(self._models, ignore_errors=True)
        shutil.copytree(MODELS, self._models)
        (self._models / MODEL / "serving.toml").write_text('versions = "latest:1"\n', encoding="utf-8")
        self._certificate, self._private_key = folder / f"{name}.crt", folder / f"{name}.key"
        self._authority = trustme.CA()
        self._tracing = tracing
        self._has_tls = has_tls
        if has_tls:
            leaf = self._authority.issue_cert("localhost", not_after=dt.datetime.now(dt.UTC) + _LIFETIME)
            leaf.private_key_pem.write_to_path(str(self._private_key))
            self._certificate.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))

    @property
    def authority(self) -> bytes:
        """Whom a client must trust, as PEM."""
        return self._authority.cert_pem.bytes()

    def process(self) -> ServerProcess:
        """Start it."""
        return ServerProcess("--models", str(self._models), environment={**_SETTINGS, **self._own_settings()})

    def swap(self, version: str) -> None:
        """Give it the model under another version, as an operator does."""
        bring_version(self._models, version)

    def break_model(self, version: str) -> None:
        """Give it a version whose weights lack their end."""
        bring_version(self._models, version, is_broken=True)

    def break_callers(self) -> None:
        """Make its callers file no good."""
        self._callers.write_text("[[caller]]\n", encoding="utf-8")

    def break_certificate(self) -> None:
        """Make its certificate no good."""
        self._certificate.write_text("no certificate\n", encoding="utf-8")

    def _own_settings(self) -> Mapping[str, str]:
        tls = {"CERTIFICATE_FILE": self._certificate, "PRIVATE_KEY_FILE": self._private_key} if self._has_tls else {}
        return {
            "DRAGOMAN_ACCESS__CALLERS_FILE": str(self._callers),
            "DRAGOMAN_TRACING__ENDPOINT": self._tracing,
            **{f"DRAGOMAN_TLS__{name}": str(path) for name, path in tls.items()},
        }


def wait_for(server: ServerProcess) -> Ports:
    """Return the ports of a server once it takes calls."""
    return server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
