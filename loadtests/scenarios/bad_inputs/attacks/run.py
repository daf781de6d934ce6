"""Runs the attacks: measures the growth of their work, then attacks a server with well-behaved clients."""

import base64
import importlib.util
import json
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from loadtests.generator.server import CHECKOUT
from loadtests.scenarios.bad_inputs.attacks.attack import Attack, Port
from loadtests.scenarios.bad_inputs.attacks.payload import Credentials
from loadtests.scenarios.bad_inputs.attacks.results import (
    DRAIN_TIMEOUT_S,
    MAX_END_S,
    Campaign,
    Limits,
    Result,
    Work,
    failures_of,
    limits_of,
)
from loadtests.scenarios.bad_inputs.attacks.send import NOTHING_SENT, Addresses, Attacker
from loadtests.scenarios.bad_inputs.attacks.watch import Watch
from loadtests.scenarios.stress_server import log_errors, started

_KEY_ID: Final = "stress"
_GLOSSARY_SOURCES: Final = (*("a" * count for count in range(1, 150)), "(a+)+$", ".*", "[a", "station")
_BASELINE_S: Final = 4.0
_SETTLE_S: Final = 0.3  # after an attack, for delayed calls
_RECOVERY_S: Final = 5.0  # within which ordinary requests must be answered after an attack
_AFTER_SIGTERM_S: Final = 2.0  # duration of the attack around SIGTERM
_KILLED: Final = f"the process still runs {MAX_END_S:g} s after SIGTERM, and was killed"
_MAX_TRIES: Final = 3
_UNCLEAR_FACTOR: Final = 3.0  # up to this multiple of a limit, latency may be noise: the attack is repeated

_MAX_CPU_S: Final = 0.5  # of one input; larger inputs of the attack are skipped
_NUM_DOUBLINGS: Final = 6  # from the smallest size to the largest
_CLEAR_RATIO: Final = 2.5  # smaller growth is not measured again
_CLEAR_CPU_S: Final = 0.02  # less work is not measured again
_SMALL_CPU_S: Final = 0.005  # below it, the next size is four times the size
_IDLE_SHARE: Final = 0.2  # of a core; below it, the server has finished its work
_POLL_S: Final = 0.02
_NUM_IDLE: Final = 3  # consecutive idle polls
_IDLE_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedServer:
    """A running server and the process that attacks it."""

    process: ServerProcess
    attacker: Attacker
    client_key: str  # of well-behaved clients
    faults: list[str]  # exit codes, errors in the log

    def watch(self) -> Watch:
        """Return well-behaved clients."""
        return Watch(self.process, self.client_key)

    def end(self) -> float | None:
        """End the server with SIGTERM; return the time that it took, None if it was killed after a timeout."""
        began_s = time.monotonic()
        try:
            if (exit_code := self.process.stop(timeout_s=MAX_END_S)) != 0:
                self.faults.append(f"the server exited with {exit_code}")
        except ServerProcessError:
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
                grpc_port = int(process.target.rpartition(":")[2])
                ports = {Port.HTTP: process.http_port, Port.METRICS: process.metrics_port, Port.GRPC: grpc_port}
                with Attacker(Addresses(ports=ports, credentials=self.credentials)) as attacker:
                    yield AttackedServer(process=process, attacker=attacker, client_key=self.client_key, faults=faults)
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
    """Write keys, key set and glossary; return the settings that use them."""
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
    command = (sys.executable, "-m", "dragoman_service", "keys", "new", name)
    completed = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    return completed.stdout.strip(), completed.stderr[completed.stderr.index("[[caller]]") :]


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


def run_attacks(
    attacks: Sequence[Attack],
    output: Path,
    *,
    models: Path,
    seconds: float,
    is_short: bool,
    max_s: float = float("inf"),
) -> Campaign:
    """Run each attack for `seconds`, on one server as long as it survives; skip those after `max_s`."""
    began_s, left = time.monotonic(), deque(attacks)
    until_s = began_s + max_s
    setup, campaign = prepare(output / "attacked"), Campaign()
    with tqdm(total=len(attacks), unit="attacks", disable=None) as bar:
        while left and time.monotonic() <= until_s:
            with setup.start(output, models, campaign.server_faults) as server:
                if not campaign.results:
                    with server.watch() as watch:
                        time.sleep(_BASELINE_S)
                    campaign.quiet, campaign.limits = watch.seen, limits_of(watch.seen, is_short=is_short)
                while left and server.process.exit_code is None and time.monotonic() <= until_s:
                    campaign.results.append(_run(server, left.popleft(), campaign.limits, seconds=seconds))
                    bar.update()
                if server.process.exit_code is None and server.end() is None:
                    server.faults.append(_KILLED)
    campaign.skipped += [one.name for one in left]
    campaign.elapsed_s = time.monotonic() - began_s
    return campaign


def _run(server: AttackedServer, attack: Attack, limits: Limits, *, seconds: float) -> Result:
    """Run an attack, again if the result is unclear; a server that fails afterwards is killed."""
    try:
        works = list(_works(server.process.pid, server.attacker, attack)) if attack.grows else []
    except (ServerProcessError, ProcessLookupError) as error:
        return _finish(server, Result(attack=attack, faults=[str(error)]))
    unclear = Limits(stall_ms=_UNCLEAR_FACTOR * limits.stall_ms, p99_ms=_UNCLEAR_FACTOR * limits.p99_ms)
    for _ in range(_MAX_TRIES):
        result = _watched(server, attack, works, seconds=0.0 if attack.is_once else seconds)
        is_slow = failures_of(result, limits).keys() & {"stall", "p99"}
        is_clear = failures_of(result, unclear).keys() & is_slow
        if not is_slow or result.faults or any(result.seen.lost.values()) or is_clear:
            break
    return _finish(server, result)


def _watched(server: AttackedServer, attack: Attack, works: Sequence[Work], *, seconds: float) -> Result:
    """Attack a server that well-behaved clients call meanwhile."""
    sent, faults = NOTHING_SENT, list[str]()
    with server.watch() as watch:
        try:
            sent = server.attacker.begin(attack, seconds=seconds)()
            time.sleep(_SETTLE_S)
        except ServerProcessError as error:
            faults.append(str(error))
    if wrong := sorted(sent.statuses.keys() - attack.expected):
        faults.append(f"statuses {', '.join(wrong)}, expected {' or '.join(sorted(attack.expected))}")
    return Result(attack=attack, seen=watch.seen, sent=sent, works=works, faults=faults)


def _finish(server: AttackedServer, result: Result) -> Result:
    """Check the server after an attack; end it with SIGTERM if the attack says so."""
    attack, fault = result.attack, ""
    if server.process.exit_code is not None:
        fault = f"the server exited with {server.process.exit_code}"
    elif attack.is_stopped and result.sent.statuses:
        server.attacker.begin(attack, seconds=_AFTER_SIGTERM_S)
        time.sleep(_AFTER_SIGTERM_S / 2)
        end_s = server.end()
        result, fault = replace(result, end_s=end_s or MAX_END_S), "" if end_s else _KILLED
    elif not _is_healthy(server):
        server.process.kill()
        fault = f"ordinary requests are not answered within {_RECOVERY_S:g} s after the attack"
    return replace(result, faults=[*result.faults, fault]) if fault else result


def _is_healthy(server: AttackedServer) -> bool:
    with server.watch() as watch:
        pass
    latencies_s = [call.latency_s for calls in watch.seen.calls.values() for call in calls]
    return not any(watch.seen.lost.values()) and max(latencies_s) < _RECOVERY_S


def _works(pid: int, attacker: Attacker, attack: Attack) -> Iterator[Work]:
    """Yield the minimum work of some tries for inputs of growing size, while it is small."""
    largest, half_s = attack.grown_size or attack.size, 0.0

    def work(size: int) -> float:
        before_s = cpu_s(pid)
        attacker.begin(attack, seconds=None, size=size)()
        return _idle_cpu_s(pid) - before_s

    doublings = _NUM_DOUBLINGS
    while doublings >= 0:
        size = max(1, largest >> doublings)
        whole_s = work(size)
        for _ in range(_MAX_TRIES - 1):
            if whole_s < _CLEAR_CPU_S or (half_s and whole_s <= _CLEAR_RATIO * half_s):
                break
            whole_s = min(whole_s, work(size))
        yield Work(size, whole_s)
        if whole_s > _MAX_CPU_S:
            return
        half_s = whole_s
        doublings -= 1 if whole_s > _SMALL_CPU_S or doublings == 1 else 2


def cpu_s(pid: int) -> float:
    """Return the CPU time of a process without its children; raises ProcessLookupError if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock that clock_getcpuclockid(3) returns
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _idle_cpu_s(pid: int) -> float:
    """Wait until a process is idle; return its CPU time."""
    until_s, before_s, num_idle = time.monotonic() + _IDLE_TIMEOUT_S, cpu_s(pid), 0
    while time.monotonic() < until_s and num_idle < _NUM_IDLE:
        time.sleep(_POLL_S)
        now_s = cpu_s(pid)
        num_idle = num_idle + 1 if now_s - before_s < _IDLE_SHARE * _POLL_S else 0
        before_s = now_s
    return before_s
