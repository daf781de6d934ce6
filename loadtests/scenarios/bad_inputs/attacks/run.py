"""The run: each attack on a server that others use, after a look at how its work grows with the size of the input."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tqdm import tqdm

from loadtests.generator.server import ServerError
from loadtests.scenarios.bad_inputs.attacks.arena import Arena
from loadtests.scenarios.bad_inputs.attacks.attack import Attack
from loadtests.scenarios.bad_inputs.attacks.results import (
    MAX_END_S,
    Campaign,
    Limits,
    Result,
    Work,
    broken,
    limits_of,
)
from loadtests.scenarios.bad_inputs.attacks.send import NOTHING_SENT, Attacker
from loadtests.scenarios.bad_inputs.attacks.watch import Watch

_BASELINE_S: Final = 4.0
_SETTLE_S: Final = 0.3  # after an attack, for calls that it has delayed
_RECOVERY_S: Final = 5.0  # within which honest requests must be answered after an attack
_AFTER_SIGTERM_S: Final = 2.0  # how long an attack goes on
_MAX_TRIES: Final = 3
_UNCLEAR: Final = 3.0
"""Up to so many times a limit, latency may come from other work on the machine: the attack is repeated."""

_MAX_CPU_S: Final = 0.5  # of one input; a larger one of the same attack is not tried
_NUM_DOUBLINGS: Final = 6  # from the smallest size to the largest
_CLEAR_RATIO: Final = 2.5  # growth below it is not measured again
_CLEAR_CPU_S: Final = 0.02  # nor is work below it
_SMALL_CPU_S: Final = 0.005  # below it the next size is four times as large
_IDLE_SHARE: Final = 0.2  # of a core: below it the server has ended its work for a request
_POLL_S: Final = 0.02
_NUM_IDLE: Final = 3  # looks in a row; on a busy machine an idle one may be a process that waits for a core
_IDLE_TIMEOUT_S: Final = 15.0


def run_attacks(
    attacks: Sequence[Attack],
    output: Path,
    *,
    models: Path,
    seconds: float,
    is_short: bool,
    max_s: float = float("inf"),
) -> Campaign:
    """Run attacks one after the other, each for so long, against one server as long as it survives them.

    After `max_s` no further attack begins.
    """
    began_s = time.monotonic()
    with Arena(output, models) as arena:
        arena.start()
        with Watch(arena.watched) as watch:
            time.sleep(_BASELINE_S)
        campaign = Campaign(quiet=watch.seen, limits=limits_of(watch.seen, is_short=is_short))
        for number, attack in enumerate(tqdm(attacks, unit="attacks", disable=None)):
            if time.monotonic() > began_s + max_s:
                campaign.skipped += [one.name for one in attacks[number:]]
                break
            arena.start()
            campaign.results.append(_run(arena, attack, campaign.limits, seconds=seconds))
        if arena.is_running and arena.end() is None:
            arena.faults.append(f"the process runs {MAX_END_S:g} s after SIGTERM, and is killed")
        campaign.server_faults += arena.faults
    campaign.elapsed_s = time.monotonic() - began_s
    return campaign


def _run(arena: Arena, attack: Attack, limits: Limits, *, seconds: float) -> Result:
    """Run an attack, at times again; what the server no longer does afterwards is a fault, and it is killed."""
    try:
        works = list(_works(arena.server.pid, arena.attacker, attack)) if attack.grows else []
    except (ServerError, ProcessLookupError) as error:
        return _ended(arena, Result(attack=attack, faults=[str(error)]))
    result = Result(attack=attack)
    for _ in range(_MAX_TRIES):
        result = _watched(arena, attack, works, seconds=0.0 if attack.is_once else seconds)
        unclear = Limits(stall_ms=_UNCLEAR * limits.stall_ms, p99_ms=_UNCLEAR * limits.p99_ms)
        is_slow = broken(result, limits).keys() & {"stall", "p99"}
        if not is_slow or result.faults or any(result.seen.lost.values()) or broken(result, unclear).keys() & is_slow:
            break
    return _ended(arena, result)


def _watched(arena: Arena, attack: Attack, works: Sequence[Work], *, seconds: float) -> Result:
    """Attack a server that others call meanwhile."""
    sent, faults = NOTHING_SENT, list[str]()
    with Watch(arena.watched) as watch:
        try:
            arena.attacker.begin(attack.name, seconds=seconds)
            sent = arena.attacker.wait()
            time.sleep(_SETTLE_S)
        except ServerError as error:
            faults.append(str(error))
    if wrong := sorted(sent.statuses.keys() - attack.expected):
        faults.append(f"answered {', '.join(wrong)}, expected {' or '.join(sorted(attack.expected))}")
    return Result(attack=attack, seen=watch.seen, sent=sent, works=works, faults=faults)


def _ended(arena: Arena, result: Result) -> Result:
    """Look at the server after an attack; end it with SIGTERM under attack where that is part of it."""
    server, attack = arena.server, result.attack
    if server.exit_code is not None:
        arena.kill()
        return result.with_faults(f"the server has ended with {server.exit_code}")
    if attack.is_stopped and result.sent.statuses:
        arena.attacker.begin(attack.name, seconds=_AFTER_SIGTERM_S)
        time.sleep(_AFTER_SIGTERM_S / 2)
        end_s = arena.end()
        ended = result.with_end(MAX_END_S if end_s is None else end_s)
        return ended if end_s else ended.with_faults(f"the process runs {MAX_END_S:g} s after SIGTERM, and is killed")
    if not _is_well(arena):
        arena.kill()
        return result.with_faults(f"honest requests are not answered within {_RECOVERY_S:g} s after the attack")
    return result


def _is_well(arena: Arena) -> bool:
    """Return whether honest requests are answered in time."""
    with Watch(arena.watched) as watch:
        pass
    latencies_ms = [visit.latency_ms for visits in watch.seen.visits.values() for visit in visits]
    return not any(watch.seen.lost.values()) and max(latencies_ms) < 1000 * _RECOVERY_S


def _works(pid: int, attacker: Attacker, attack: Attack) -> Iterator[Work]:
    """Yield the least work of some tries for inputs of growing size, as long as it takes little time."""
    largest, half_s = attack.grown_size or attack.size, 0.0

    def work(size: int) -> float:
        before_s = cpu_s(pid)
        attacker.send_once(attack.name, size)
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
    """Return the processor time that a process has taken, without its children; ProcessLookupError if it has ended."""
    try:
        return time.clock_gettime(~pid << 3 | 2)  # the clock of a process, as clock_getcpuclockid(3) returns it
    except OSError as error:
        raise ProcessLookupError(f"process {pid} has ended") from error


def _idle_cpu_s(pid: int) -> float:
    """Wait until a process is idle for some moments; return the processor time that it has taken."""
    until_s, before_s, num_idle = time.monotonic() + _IDLE_TIMEOUT_S, cpu_s(pid), 0
    while time.monotonic() < until_s and num_idle < _NUM_IDLE:
        time.sleep(_POLL_S)
        now_s = cpu_s(pid)
        num_idle = num_idle + 1 if now_s - before_s < _IDLE_SHARE * _POLL_S else 0
        before_s = now_s
    return before_s
