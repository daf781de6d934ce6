"""`python -m deploy.ci.envoy_test`: kill, drain and upgrade replicas behind Envoy while twenty callers go on."""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deploy.ci.callers import SteadyCallers, Tally
from deploy.ci.envoy_checks import CheckError, Checks
from deploy.ci.processes import (
    ENVOY_CONFIG,
    Addresses,
    EnvoyProcess,
    ProcessError,
    ToolMissingError,
    find_envoy,
    free_ports,
    validate_envoy,
)
from deploy.ci.servers import Keys, Replica, ReplicaError, make_callers
from loadtests.target import ServerError

_DESCRIPTION: Final = """\
Starts two replicas of the server on free ports of this machine and Envoy in front of them, with the configuration that
ships in deploy/envoy (only addresses differ). Checks that deadlines, refusals, streams and ids come through. Then lets
twenty callers of the shipped client ask without a pause, while one replica is killed (kill -9) and comes back, the
other is drained (SIGTERM) and comes back, and both get a new version of the model, one after the other.

What must hold: no call fails, the killed replica had calls under way, the drained one answered all it had, and in the
end every answer is of the new version.

exit codes: 0 all of it held, or Envoy cannot be had here (the line begins with SKIPPED), 1 it did not hold, 2 called
wrongly"""

_NUM_CALLERS: Final = 20
_NUM_DOCUMENT_CALLERS: Final = 2
_HEALTHY_TIMEOUT_S: Final = 30.0
_NEW_VERSION: Final = "2"
_LIMITED_REQUESTS_PER_S: Final = 0.02
_SETTINGS: Final = {
    "MODELS__POLL_INTERVAL_S": "0.5",
    # As in deploy/compose/dragoman.env: all callers behind Envoy count as one.
    "SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",
    "SCHEDULING__NUM_DECODING_THREADS": "1",
}


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What happened to the replicas while callers went on."""

    interrupted: int = 0
    """Calls that the killed replica had under way."""

    killed: int = 0
    drained: int = 0
    upgraded: int = 0
    versions_at_last: tuple[str, ...] = ()
    retried_by_envoy: int = 0
    retried_by_client: int = 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    options = _parser().parse_args(arguments)
    began_s = time.monotonic()
    try:
        binary = find_envoy(options.output.parent)
        tally, outcome = _run(binary, options.output.resolve(), steady_s=options.steady)
    except ToolMissingError as error:
        print(f"SKIPPED: {error}")
        return 0
    except (CheckError, ProcessError, ReplicaError, ServerError) as error:
        print(f"envoy_test: {error}", file=sys.stderr)
        return 1
    print(_line(tally, outcome, duration_s=time.monotonic() - began_s))
    broken = broken_promises(tally, outcome)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def broken_promises(tally: Tally, outcome: Outcome) -> list[str]:
    """Say what did not hold."""
    promises = (
        (not tally.failures, f"{len(tally.failures)} calls failed, the first with {tally.failures[:1]}"),
        (bool(tally.durations_s and tally.documents), "no call was answered"),
        (outcome.interrupted > 0, "the killed replica had no calls under way"),
        (outcome.retried_by_envoy + outcome.retried_by_client > 0, "no call was repeated: nothing was put to the test"),
        (outcome.versions_at_last == (_NEW_VERSION,), f"in the end versions {outcome.versions_at_last} answered"),
    )
    return [sentence for holds, sentence in promises if not holds]


def _run(binary: Path, directory: Path, *, steady_s: float) -> tuple[Tally, Outcome]:
    directory.mkdir(parents=True, exist_ok=True)
    grpc_port, operators_port, admin_port, *replica_ports = free_ports(5)
    addresses = Addresses(grpc=grpc_port, operators=operators_port, admin=admin_port, replicas=tuple(replica_ports))
    validate_envoy(binary, ENVOY_CONFIG)
    keys, callers = make_callers(limited_requests_per_s=_LIMITED_REQUESTS_PER_S)
    replicas = [
        Replica(name, directory, callers=callers, settings=_SETTINGS, port=port)
        for name, port in zip("ab", replica_ports, strict=True)
    ]
    with ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(replica)
        envoy = stack.enter_context(EnvoyProcess(binary, addresses, folder=directory))
        envoy.wait_for_replicas(len(replicas), timeout_s=_HEALTHY_TIMEOUT_S)
        checks = Checks(envoy, replicas, api_key=keys.api_key, limited_key=keys.limited_key).run()
        print(f"envoy checks={len(checks)}: {', '.join(checks)}", flush=True)
        tally, outcome = _storm(envoy, replicas, keys, steady_s=steady_s)
        outcome.retried_by_envoy = envoy.stats()["upstream_rq_retry"]
        repeated = [line for line in envoy.access_log() if line["attempts_before"]]
        outcome.retried_by_client = len({line["request_id"] for line in repeated})
    return tally, outcome


def _storm(envoy: EnvoyProcess, replicas: Sequence[Replica], keys: Keys, *, steady_s: float) -> tuple[Tally, Outcome]:
    """Let callers ask without a pause while things happen to the replicas; each is followed by a steady time."""
    outcome = Outcome()
    first, second = replicas

    def settle() -> None:
        time.sleep(steady_s)
        envoy.wait_for_replicas(len(replicas), timeout_s=_HEALTHY_TIMEOUT_S)

    with SteadyCallers(envoy.target, keys.api_key, num_texts=_NUM_CALLERS) as callers:
        settle()
        outcome.interrupted = first.kill()
        outcome.killed += 1
        time.sleep(steady_s)
        first.start()
        settle()
        # A document that has begun to arrive cannot be repeated, so it survives a drain but no kill.
        callers.begin_documents(_NUM_DOCUMENT_CALLERS)
        time.sleep(steady_s)
        second.drain()
        outcome.drained += 1
        time.sleep(steady_s)
        second.start()
        settle()
        for replica in replicas:
            replica.upgrade(_NEW_VERSION)
            outcome.upgraded += 1
            time.sleep(steady_s)
        callers.forget_versions()
        time.sleep(steady_s)
        outcome.versions_at_last = tuple(sorted(callers.tally.versions))
    return callers.tally, outcome


def _line(tally: Tally, outcome: Outcome, *, duration_s: float) -> str:
    return (
        f"envoy calls={len(tally.durations_s)} documents={tally.documents} failed={len(tally.failures)}"
        f" retried={outcome.retried_by_envoy + outcome.retried_by_client}"
        f" retried_by_envoy={outcome.retried_by_envoy} retried_by_client={outcome.retried_by_client}"
        f" killed={outcome.killed} interrupted={outcome.interrupted} drained={outcome.drained}"
        f" upgraded={outcome.upgraded} p99_ms={tally.p99_ms():.0f} seconds={duration_s:.0f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.ci.envoy_test",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--steady", type=float, default=2.0, metavar="S", help="seconds between two events (2)")
    parser.add_argument("--output", type=Path, default=Path("build/envoy-test"), metavar="DIR", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
