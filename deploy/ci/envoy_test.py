"""`python -m deploy.ci.envoy_test`: kill, drain and upgrade replicas behind Envoy while twenty callers go on.

Starts two replicas of the server on free ports of this machine and Envoy in front of them, with the configuration that
ships in deploy/envoy (only addresses differ). Checks that deadlines, rejections, streams and ids come through. Then
twenty callers of the shipped client send calls without a pause, while one replica is killed (kill -9) and restarted,
the other is drained (SIGTERM) and restarted, and both get a new version of the model, one after the other.

What must hold: no call fails, the killed replica had calls under way, the drained one answered all it had, and in the
end every answer is of the new version.

exit codes: 0 all of it held, or Envoy cannot be had here (the line begins with SKIPPED), 1 it did not hold, 2 called
wrongly
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from deploy.ci import processes
from deploy.ci.callers import EN_DE, SteadyCallers, Tally
from deploy.ci.servers import Keys, Replica, ReplicaError, make_callers
from dragoman.client import ModelAdminClient, TranslationClient, errors
from dragoman.client.request import TranslationRequest
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from loadtests.hostile.resets import flood_with_resets
from loadtests.generator.server import ServerError
from loadtests.generator.texts import SENTENCES
from loadtests.generator.calls import Method

_NUM_CALLERS: Final = 20
_NUM_DOCUMENT_CALLERS: Final = 2
_HEALTHY_TIMEOUT_S: Final = 30.0
_NEW_VERSION: Final = "2"
_LIMITED_REQUESTS_PER_S: Final = 0.02
_CALL_S: Final = 20.0
_TOO_SHORT_S: Final = 0.25
"""For a request that keeps an idle server busy for several times as long."""
_NUM_HOPELESS: Final = 60
"""Enough in a row to have every replica ejected, if their answers counted as its faults."""
_NUM_FLOODING: Final = 16
_FLOOD_S: Final = 5.0
_MIN_RESETS: Final = 10_000
_DOCUMENT_REPEATS: Final = 80
"""Of all sentences: a document that takes seconds."""
_REQUEST_ID: Final = "3f0c1d52-9a60-4c57-8a55-1f6f3a3f7a10"
_SETTINGS: Final = {
    "MODELS__POLL_INTERVAL_S": "0.5",
    # As in deploy/compose/dragoman.env: all callers behind Envoy count as one.
    "SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",
    "SCHEDULING__NUM_WORKERS": "1",
}


class CheckError(Exception):
    """A call does not come through Envoy as it should."""


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


class Checks:
    """What comes through Envoy unchanged and what must not, while there are no other callers."""

    def __init__(self, envoy: processes.EnvoyProcess, replicas: Sequence[Replica], keys: Keys) -> None:
        """Of the limited caller each replica admits one call within the next seconds."""
        self._envoy, self._replicas, self._keys = envoy, replicas, keys

    def run(self) -> list[str]:
        """Run all of them; return their names; CheckError if one fails."""
        checks: Sequence[Callable[[], None]] = (
            self.every_replica_answers,
            self.streams_come_through,
            self.request_ids_come_through,
            self.keys_are_asked_for,
            self.the_server_sees_the_deadline,
            self.a_rejection_says_when_to_retry_and_is_not_repeated,
            self.models_are_not_managed_through_envoy,
            self.operators_can_only_read,
            self.a_flood_of_resets_is_cut_off_and_hits_nobody_else,
            self.an_answer_that_has_begun_is_not_repeated,
        )
        for check in checks:
            check()
        return [check.__name__.replace("_", " ") for check in checks]

    def every_replica_answers(self) -> None:
        """Of a few calls each replica gets some."""
        with self._client() as client:
            for _ in range(8):
                client.translate(SENTENCES[:2], **EN_DE)
        counts = [
            replica.sample('dragoman_requests_total{method="Translate",status="OK"}') for replica in self._replicas
        ]
        _require(min(counts) >= 2, f"8 calls went to the replicas as {counts}")

    def streams_come_through(self) -> None:
        """Documents sentence by sentence, streams both ways."""
        with self._client() as client:
            num_sentences = len(list(client.translate_document(" ".join(SENTENCES), **EN_DE)))
            _require(num_sentences == len(SENTENCES), f"{num_sentences} of {len(SENTENCES)} sentences of a document")
            requests = [
                TranslationRequest(texts=[text], source_language="en", target_language="de", request_id=f"r-{number}")
                for number, text in enumerate(SENTENCES[:8])
            ]
            answers = {answer.request_id: answer.result() for answer in client.translate_stream(requests)}
            _require(len(answers) == len(requests), f"{len(answers)} of {len(requests)} answers of a stream")

    def request_ids_come_through(self) -> None:
        """The id of a caller is the server's; a call without one gets one."""
        kept = self._translate(self._keys.api_key, ("x-request-id", _REQUEST_ID)).request_id
        _require(kept == _REQUEST_ID, f"request id {_REQUEST_ID} came back as {kept}")
        _require(bool(self._translate(self._keys.api_key).request_id), "a call without a request id got none")

    def keys_are_asked_for(self) -> None:
        """`authorization` reaches the server, and so does its absence."""
        with TranslationClient(self._envoy.target) as client:
            _raised(errors.UnauthenticatedError, lambda: client.translate(["Hi."], **EN_DE))

    def the_server_sees_the_deadline(self) -> None:
        """A deadline that cannot be kept is rejected by the server, before any work and not by a clock on the way."""
        name = 'dragoman_deadline_misses_total{stage="admission"}'
        before, retries = self._sum(name), self._num_retries()
        with self._client() as client:
            kinds = (errors.DeadlineExceededError, errors.ExhaustedError)
            call = partial(client.translate, [" ".join(SENTENCES)] * 25, timeout_s=_TOO_SHORT_S, **EN_DE)
            raised = [_raised(kinds, call) for _ in range(_NUM_HOPELESS)]
        stages = {str(getattr(error, "stage", error.reason)) for error in raised}
        _require("admission" in stages, f"deadlines that cannot be kept were answered as {stages}")
        _require(self._sum(name) > before, f"{name} counts nothing")
        _require(self._num_retries() == retries, "Envoy repeated a call that ran out of time")
        ejected = self._envoy.stats()["outlier_detection.ejections_enforced_total"]
        _require(ejected == 0, f"deadlines of a caller made Envoy eject a replica {ejected} times")

    def a_rejection_says_when_to_retry_and_is_not_repeated(self) -> None:
        """RESOURCE_EXHAUSTED comes with trailer and details, and from one replica only."""
        name = 'dragoman_rejected_requests_total{reason="rate_limited"}'
        before, retries = self._sum(name), self._num_retries()
        error = self._rejection()
        _require(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error.code()} instead of RESOURCE_EXHAUSTED")
        pushback_ms = int(dict(error.trailing_metadata()).get("grpc-retry-pushback-ms", 0))
        _require(pushback_ms > 1000, f"grpc-retry-pushback-ms is {pushback_ms}")
        retry = error_details_pb2.RetryInfo()
        _require(any(detail.Unpack(retry) for detail in rpc_status.from_call(error).details), "there is no RetryInfo")
        _require(retry.retry_delay.ToMilliseconds() == pushback_ms, "RetryInfo and grpc-retry-pushback-ms differ")
        _require(self._sum(name) == before + 1, "the rejected call was made more than once")
        _require(self._num_retries() == retries, "Envoy repeated a call that was rejected for load")

    def models_are_not_managed_through_envoy(self) -> None:
        """A change would reach one replica or the other."""
        with ModelAdminClient(self._envoy.target, api_key=self._keys.api_key) as client:
            _raised(errors.UnsupportedError, lambda: client.load_model("en-de/1"))

    def operators_can_only_read(self) -> None:
        """The port that others reach shows figures and accepts no commands."""
        status, figures = self._envoy.operators("/stats/prometheus")
        _require(status == 200 and "envoy_cluster_upstream_rq_retry{" in figures, f"/stats/prometheus says {status}")
        _require(self._envoy.operators("/ready") == (200, "LIVE\n"), "/ready is not LIVE")
        for path in ("/quitquitquit", "/config_dump", "/stats"):
            _require(self._envoy.operators(path)[0] == 404, f"{path} is open to all clients")

    def a_flood_of_resets_is_cut_off_and_hits_nobody_else(self) -> None:
        """Calls come through while others are begun and reset without an end."""
        cut_off = 'envoy_http_downstream_rq_too_many_premature_resets{envoy_http_conn_manager_prefix="grpc"}'
        with ThreadPoolExecutor(max_workers=1) as pool:
            flood = pool.submit(
                flood_with_resets,
                self._envoy.target,
                Method.TRANSLATE.path,
                num_connections=_NUM_FLOODING,
                seconds=_FLOOD_S,
                extra=(("authorization", f"Bearer {self._keys.api_key}"),),
            )
            num_answered = 0
            while not flood.done():
                self._translate(self._keys.api_key)
                num_answered += 1
        _require(num_answered > 0 and flood.result() > _MIN_RESETS, f"{num_answered} calls beside {flood.result()}")
        figures = self._envoy.operators("/stats/prometheus")[1]
        num_cut_off = sum(int(line.split()[-1]) for line in figures.splitlines() if line.startswith(cut_off))
        _require(num_cut_off > 0, f"of {flood.result()} resets none cost its caller the connection")
        print(f"envoy resets={flood.result()} connections_cut_off={num_cut_off} answered={num_answered}", flush=True)

    def an_answer_that_has_begun_is_not_repeated(self) -> None:
        """A caller that loses the replica within a document gets an error; no sentence comes twice.

        Envoy can only break such an answer off, which gRPC reads as INTERNAL.
        """
        retries = self._num_retries()
        with self._client() as client:
            document = client.translate_document(" ".join(SENTENCES * _DOCUMENT_REPEATS), **EN_DE)
            indexes = [next(document).index]
            (busy,) = [replica for replica in self._replicas if replica.num_calls()]
            busy.kill()
            _raised(errors.ServerError, lambda: indexes.extend(sentence.index for sentence in document))
        busy.start()
        self._envoy.wait_for_replicas(len(self._replicas), timeout_s=_CALL_S)
        _require(indexes == list(range(len(indexes))), f"sentences came as {indexes}")
        _require(self._num_retries() == retries, "Envoy repeated a call that was answered in part")

    def _client(self) -> TranslationClient:
        return TranslationClient(self._envoy.target, api_key=self._keys.api_key)

    def _translate(self, api_key: str, *metadata: tuple[str, str]) -> Any:
        """Call once, without the client's retries."""
        sent = (("authorization", f"Bearer {api_key}"), *metadata)
        request = pb.TranslateRequest(texts=SENTENCES[:1], **EN_DE)
        with grpc.insecure_channel(self._envoy.target, options=[("grpc.enable_retries", 0)]) as channel:
            return pb_grpc.TranslationServiceStub(channel).Translate(request, timeout=_CALL_S, metadata=sent)

    def _rejection(self) -> Any:
        """Call as the limited caller until that fails; each replica admits one call."""
        for _ in range(len(self._replicas) + 1):
            try:
                self._translate(self._keys.limited_key)
            except grpc.RpcError as error:
                return error
        raise CheckError("a caller over its limit is admitted")

    def _sum(self, name: str) -> float:
        return sum(replica.sample(name) for replica in self._replicas)

    def _num_retries(self) -> int:
        return self._envoy.stats()["upstream_rq_retry"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; return the exit code."""
    options = _parser().parse_args(arguments)
    began_s = time.monotonic()
    try:
        binary = processes.find_envoy(options.output.parent)
        tally, outcome = _run(binary, options.output.resolve(), steady_s=options.steady)
    except processes.ToolMissingError as error:
        print(f"SKIPPED: {error}")
        return 0
    except (CheckError, processes.ProcessError, ReplicaError, ServerError) as error:
        print(f"envoy_test: {error}", file=sys.stderr)
        return 1
    print(f"{_line(tally, outcome)} seconds={time.monotonic() - began_s:.0f}")
    broken = broken_promises(tally, outcome)
    for sentence in broken:
        print(f"broken: {sentence}", file=sys.stderr)
    return 1 if broken else 0


def broken_promises(tally: Tally, outcome: Outcome) -> list[str]:
    """Name what did not hold."""
    promises = (
        (not tally.failures, f"{len(tally.failures)} calls failed, the first with {tally.failures[:1]}"),
        (bool(tally.durations_s and tally.documents), "no call was answered"),
        (outcome.interrupted > 0, "the killed replica had no calls under way"),
        (outcome.retried_by_envoy + outcome.retried_by_client > 0, "no call was repeated, so nothing was tested"),
        (outcome.versions_at_last == (_NEW_VERSION,), f"in the end versions {outcome.versions_at_last} answered"),
    )
    return [sentence for holds, sentence in promises if not holds]


def _run(binary: Path, directory: Path, *, steady_s: float) -> tuple[Tally, Outcome]:
    directory.mkdir(parents=True, exist_ok=True)
    grpc_port, operators_port, admin_port, *replica_ports = processes.free_ports(5)
    addresses = processes.Addresses(
        grpc=grpc_port, operators=operators_port, admin=admin_port, replicas=tuple(replica_ports)
    )
    processes.validate_envoy(binary, processes.ENVOY_CONFIG)
    keys, callers = make_callers(limited_requests_per_s=_LIMITED_REQUESTS_PER_S)
    replicas = [
        Replica(name, directory, callers=callers, settings=_SETTINGS, port=port)
        for name, port in zip("ab", replica_ports, strict=True)
    ]
    with ExitStack() as stack:
        for replica in replicas:
            stack.enter_context(replica)
        envoy = stack.enter_context(processes.EnvoyProcess(binary, addresses, folder=directory))
        envoy.wait_for_replicas(len(replicas), timeout_s=_HEALTHY_TIMEOUT_S)
        checks = Checks(envoy, replicas, keys).run()
        print(f"envoy checks={len(checks)}: {', '.join(checks)}", flush=True)
        tally, outcome = _disturb(envoy, replicas, keys, steady_s=steady_s)
        outcome.retried_by_envoy = envoy.stats()["upstream_rq_retry"]
        repeated = [line for line in envoy.access_log() if line["attempts_before"]]
        outcome.retried_by_client = len({line["request_id"] for line in repeated})
    return tally, outcome


def _disturb(
    envoy: processes.EnvoyProcess, replicas: Sequence[Replica], keys: Keys, *, steady_s: float
) -> tuple[Tally, Outcome]:
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


def _raised(kinds: type[errors.DragomanError] | tuple[type[errors.DragomanError], ...], call: Callable[[], Any]) -> Any:
    try:
        answer = call()
    except kinds as error:
        return error
    raise CheckError(f"no error but {answer!r:.200}")


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise CheckError(otherwise)


def _line(tally: Tally, outcome: Outcome) -> str:
    return (
        f"envoy calls={len(tally.durations_s)} documents={tally.documents} failed={len(tally.failures)}"
        f" retried={outcome.retried_by_envoy + outcome.retried_by_client}"
        f" retried_by_envoy={outcome.retried_by_envoy} retried_by_client={outcome.retried_by_client}"
        f" killed={outcome.killed} interrupted={outcome.interrupted} drained={outcome.drained}"
        f" upgraded={outcome.upgraded} p99_ms={tally.p99_ms():.0f}"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steady", type=float, default=2.0, metavar="S", help="seconds between two events (2)")
    parser.add_argument("--output", type=Path, default=Path("build/envoy-test"), metavar="DIR", help="(%(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
