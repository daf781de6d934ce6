"""Runs the attacks: measures the growth of their work, then attacks a server with well-behaved clients."""

import base64
import importlib.util
import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tqdm import tqdm

from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from loadtests.generator.server import CHECKOUT
from loadtests.hostile.attacks import Attack, Credentials
from loadtests.scenarios.bad_inputs.monitor import Monitor
from loadtests.scenarios.bad_inputs.results import (
    DRAIN_TIMEOUT_S,
    MAX_END_S,
    Campaign,
    Limits,
    Result,
    Work,
    failures_of,
    limits_of,
)
from loadtests.scenarios.bad_inputs.send import Addresses, Attacker
from loadtests.scenarios.stages import run_stages
from loadtests.scenarios.stress_server import log_errors, started

_KEY_ID: Final = "stress"
_GLOSSARY_SOURCES: Final = (*("a" * count for count in range(1, 150)), "(a+)+$", ".*", "[a", "station")
_SETTLE_S: Final = 0.3  # after an attack, for delayed calls
_RECOVERY_S: Final = 5.0  # within which ordinary requests must be answered after an attack
_AFTER_SIGTERM_S: Final = 2.0  # duration of the attack around SIGTERM
_MAX_TRIES: Final = 3
_UNCLEAR_FACTOR: Final = 3.0  # up to this multiple of a limit, latency may be noise: the attack is repeated

_MAX_CPU_S: Final = 0.5  # of one input; larger inputs of the attack are skipped
_CLEAR_RATIO: Final = 2.5  # smaller growth is not measured again
_CLEAR_CPU_S: Final = 0.02  # less work is not measured again
_SMALL_CPU_S: Final = 0.005  # below it, the next size is four times the size
_IDLE_SHARE: Final = 0.2  # of a core; below it, the server has finished its work
_POLL_S: Final = 0.02
_NUM_IDLE: Final = 3  # consecutive idle polls
_IDLE_TIMEOUT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mode:
    """Extent of a run."""

    baseline_s: float  # without attacks
    attack_s: float
    max_s: float  # later attacks are skipped
    num_parallel: int  # attacks at the same time
    num_doublings: int  # from the smallest size to the largest


_SHORT: Final = _Mode(baseline_s=2.0, attack_s=0.8, max_s=165.0, num_parallel=5, num_doublings=2)
_FULL: Final = _Mode(baseline_s=4.0, attack_s=1.0, max_s=7200.0, num_parallel=1, num_doublings=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackedServer:
    """A running server and the process that attacks it."""

    process: ServerProcess
    attacker: Attacker
    client_key: str  # of well-behaved clients

    def monitor(self) -> Monitor:
        """Return well-behaved clients."""
        return Monitor(self.process, self.client_key)

    def end(self) -> float | None:
        """End the server with SIGTERM; return the time that it took, None if it was killed after a timeout."""
        began_s = time.monotonic()
        try:
            self.process.stop(timeout_s=MAX_END_S)
        except ServerProcessError:
            self.process.kill()
            return None
        return time.monotonic() - began_s


def run_attacks(attacks: Sequence[Attack], output: Path, *, models: Path, is_short: bool) -> Campaign:
    """Run the attacks on one server as long as it survives; skip those for which no time is left."""
    mode, began_s, campaign = _SHORT if is_short else _FULL, time.monotonic(), Campaign()
    settings, client_key, credentials = _prepare(output / "attacked")

    @contextmanager
    def start() -> Iterator[AttackedServer]:
        with started(output, models=models, settings=settings) as process:
            grpc_port = int(process.target.rpartition(":")[2])
            ports = {"http": process.http_port, "metrics": process.metrics_port, "grpc": grpc_port}
            with Attacker(Addresses(ports=ports, credentials=credentials)) as attacker:
                server = AttackedServer(process=process, attacker=attacker, client_key=client_key)
                if not campaign.results:
                    with server.monitor() as monitor:
                        time.sleep(mode.baseline_s)
                    campaign.baseline = monitor.sample
                    campaign.limits = limits_of(monitor.sample, is_short=is_short)
                yield server
        campaign.server_faults += [f"server log: {_shown(line)}" for line in log_errors(output)]

    with tqdm(total=len(attacks), unit="attacks", disable=None) as bar:

        def run(server: AttackedServer, group: Sequence[Attack]) -> None:
            if time.monotonic() > began_s + mode.max_s:
                campaign.skipped += [attack.name for attack in group]
            else:
                campaign.results += _run(server, group, campaign.limits, mode)
            bar.update(len(group))

        _, campaign.exit_codes = run_stages(_groups(attacks, mode), start, run, stop_timeout_s=MAX_END_S)
    campaign.elapsed_s = time.monotonic() - began_s
    return campaign


def _groups(attacks: Sequence[Attack], mode: _Mode) -> Iterator[Sequence[Attack]]:
    """Yield attacks that are made at the same time; last those that stop the server."""
    for is_stopped in (False, True):
        left = iter([attack for attack in attacks if attack.is_stopped == is_stopped])
        while group := list(itertools.islice(left, mode.num_parallel)):
            yield group


def _shown(line: str) -> str:
    """Return event and end of the exception of an error record, or the beginning of another line."""
    try:
        record = json.loads(line)
        return f"{record['event']} ...{record.get('exception', '')[-400:]}"
    except (ValueError, KeyError, TypeError):
        return line[:400]


def _prepare(directory: Path) -> tuple[Mapping[str, str], str, Credentials]:
    """Write keys, key set and glossary; return the settings that use them, and the keys of clients and attacker."""
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


def _run(server: AttackedServer, group: Sequence[Attack], limits: Limits, mode: _Mode) -> Sequence[Result]:
    """Run attacks at the same time; again, each alone, if the results are unclear."""
    works: dict[str, Sequence[Work]] = {}
    try:
        for attack in group:
            works[attack.name] = list(_works(server, attack, mode.num_doublings)) if attack.grows else []
    except (ServerProcessError, ProcessLookupError) as error:
        return _finish(server, [Result(attack=attack, faults=[str(error)]) for attack in group])
    results = _observed(server, group, works, mode)
    is_slow = any(failures_of(result, limits).keys() & {"stall", "p99"} for result in results)
    if is_slow and (len(group) > 1 or _is_unclear(results[0], limits)) and not any(results[0].sample.lost.values()):
        results = [_observed_alone(server, attack, works, limits, mode) for attack in group]
    return _finish(server, results)


def _observed_alone(
    server: AttackedServer, attack: Attack, works: Mapping[str, Sequence[Work]], limits: Limits, mode: _Mode
) -> Result:
    for _ in range(_MAX_TRIES):
        (result,) = _observed(server, [attack], works, mode)
        if not _is_unclear(result, limits):
            break
    return result


def _is_unclear(result: Result, limits: Limits) -> bool:
    """Return whether only latency fails, and by so little that it may be noise."""
    unclear = Limits(stall_ms=_UNCLEAR_FACTOR * limits.stall_ms, p99_ms=_UNCLEAR_FACTOR * limits.p99_ms)
    is_slow, is_clear = (failures_of(result, bounds).keys() & {"stall", "p99"} for bounds in (limits, unclear))
    return bool(is_slow) and not (is_clear or result.faults or any(result.sample.lost.values()))


def _observed(
    server: AttackedServer, group: Sequence[Attack], works: Mapping[str, Sequence[Work]], mode: _Mode
) -> list[Result]:
    """Attack a server that well-behaved clients call meanwhile."""
    results, fault = [], ""
    with server.monitor() as monitor:
        try:
            sent = server.attacker.begin(group, seconds=mode.attack_s)()
            time.sleep(_SETTLE_S)
        except ServerProcessError as error:
            sent, fault = [{} for _ in group], str(error)
    for attack, statuses in zip(group, sent, strict=True):
        faults = [fault] if fault else []
        if wrong := sorted(statuses.keys() - attack.expected):
            faults.append(f"statuses {', '.join(wrong)}, expected {' or '.join(sorted(attack.expected))}")
        works_of = works[attack.name]
        results.append(Result(attack=attack, sample=monitor.sample, statuses=statuses, works=works_of, faults=faults))
    return results


def _finish(server: AttackedServer, results: Sequence[Result]) -> Sequence[Result]:
    """Check the server after attacks; end it with SIGTERM during further ones if the attacks say so."""
    end_s, fault = None, ""
    if server.process.exit_code is not None:
        fault = f"the server exited with {server.process.exit_code}"
    elif results[0].attack.is_stopped:
        server.attacker.begin([result.attack for result in results], seconds=_AFTER_SIGTERM_S)
        time.sleep(_AFTER_SIGTERM_S / 2)
        if (end_s := server.end()) is None:
            end_s, fault = MAX_END_S, f"the process still runs {MAX_END_S:g} s after SIGTERM, and was killed"
    elif not _is_healthy(server):
        server.process.kill()
        fault = f"ordinary requests are not answered within {_RECOVERY_S:g} s after the attack"
    more = [fault] if fault else []
    return [replace(result, end_s=end_s, faults=[*result.faults, *more]) for result in results]


def _is_healthy(server: AttackedServer) -> bool:
    with server.monitor() as monitor:
        pass
    latencies_s = [call.latency_s for calls in monitor.sample.calls.values() for call in calls]
    return not any(monitor.sample.lost.values()) and max(latencies_s) < _RECOVERY_S


def _works(server: AttackedServer, attack: Attack, num_doublings: int) -> Iterator[Work]:
    """Yield the minimum work of some tries for inputs of growing size, while it is small."""
    pid, largest, half_s = server.process.pid, attack.grown_size or attack.size, 0.0

    def work(size: int) -> float:
        before_s = _cpu_s(pid)
        server.attacker.begin([attack], seconds=None, size=size)()
        return _idle_cpu_s(pid) - before_s

    while num_doublings >= 0:
        size = max(1, largest >> num_doublings)
        whole_s = work(size)
        for _ in range(_MAX_TRIES - 1):
            if whole_s < _CLEAR_CPU_S or not half_s or whole_s <= _CLEAR_RATIO * half_s:
                break
            whole_s = min(whole_s, work(size))
        yield Work(size, whole_s)
        if whole_s > _MAX_CPU_S:
            return
        half_s = whole_s
        num_doublings -= 1 if whole_s > _SMALL_CPU_S or num_doublings == 1 else 2


def _cpu_s(pid: int) -> float:
    """Return the CPU time of a process without its children; raises ProcessLookupError if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock that clock_getcpuclockid(3) returns
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _idle_cpu_s(pid: int) -> float:
    """Wait until a process is idle; return its CPU time."""
    until_s, before_s, num_idle = time.monotonic() + _IDLE_TIMEOUT_S, _cpu_s(pid), 0
    while time.monotonic() < until_s and num_idle < _NUM_IDLE:
        time.sleep(_POLL_S)
        now_s = _cpu_s(pid)
        num_idle = num_idle + 1 if now_s - before_s < _IDLE_SHARE * _POLL_S else 0
        before_s = now_s
    return before_s
