"""What must come through Envoy unchanged: deadlines, refusals with their details, streams, ids; and what must not."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import grpc
from dragoman.admin import ModelAdminClient
from dragoman.client import TranslationClient
from dragoman.credentials import Metadata
from dragoman.errors import (
    DeadlineExceededError,
    DragomanError,
    ExhaustedError,
    ServerError,
    UnauthenticatedError,
    UnsupportedError,
)
from dragoman.requests import TranslationRequest
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from deploy.ci.processes import EnvoyProcess
from deploy.ci.servers import Replica
from loadtests.texts import SENTENCES

_CALL_S: Final = 20.0
_TOO_SHORT_S: Final = 0.25
"""For a request that keeps an idle server busy for several times as long."""
_NUM_HOPELESS: Final = 60
"""Enough in a row to have every replica taken out, if their answers counted as its faults."""
_DOCUMENT_REPEATS: Final = 20
"""Of all sentences: a document that takes seconds."""
_REQUEST_ID: Final = "3f0c1d52-9a60-4c57-8a55-1f6f3a3f7a10"


class CheckError(Exception):
    """Something does not come through as it should."""


class Checks:
    """Calls through Envoy, and what the replicas and Envoy count of them. There must be no other callers meanwhile."""

    def __init__(self, envoy: EnvoyProcess, replicas: Sequence[Replica], *, api_key: str, limited_key: str) -> None:
        """`limited_key` belongs to a caller whom each replica lets in once within the next seconds."""
        self._envoy = envoy
        self._replicas = replicas
        self._api_key = api_key
        self._limited_key = limited_key

    def run(self) -> list[str]:
        """Run all of them; return their names.

        Raises:
            CheckError: if one fails.
        """
        checks: Sequence[Callable[[], None]] = (
            self.every_replica_answers,
            self.streams_come_through,
            self.request_ids_come_through,
            self.keys_are_asked_for,
            self.the_server_sees_the_deadline,
            self.a_refusal_says_when_to_come_back_and_is_not_repeated,
            self.models_are_not_managed_through_envoy,
            self.operators_read_and_give_no_orders,
            self.an_answer_that_has_begun_is_not_repeated,
        )
        for check in checks:
            check()
        return [check.__name__.replace("_", " ") for check in checks]

    def every_replica_answers(self) -> None:
        """Of a few calls each replica gets some."""
        with self._client() as client:
            for _ in range(8):
                client.translate(SENTENCES[:2], source_language="en", target_language="de")
        counts = [replica.sample('mt_requests_total{method="Translate",status="OK"}') for replica in self._replicas]
        _require(min(counts) >= 2, f"8 calls went to the replicas as {counts}")

    def streams_come_through(self) -> None:
        """Documents sentence by sentence, streams both ways."""
        with self._client() as client:
            document = client.translate_document(" ".join(SENTENCES), source_language="en", target_language="de")
            num_sentences = len(list(document))
            _require(num_sentences == len(SENTENCES), f"{num_sentences} of {len(SENTENCES)} sentences of a document")
            requests = [
                TranslationRequest(texts=[text], source_language="en", target_language="de", request_id=f"r-{number}")
                for number, text in enumerate(SENTENCES[:8])
            ]
            answers = {answer.request_id: answer.result() for answer in client.translate_stream(requests)}
            _require(len(answers) == len(requests), f"{len(answers)} of {len(requests)} answers of a stream")

    def request_ids_come_through(self) -> None:
        """The id of a caller is the server's; a call without one gets one."""
        kept = self._translate(self._api_key, metadata=(("x-request-id", _REQUEST_ID),)).request_id
        _require(kept == _REQUEST_ID, f"request id {_REQUEST_ID} came back as {kept}")
        _require(bool(self._translate(self._api_key).request_id), "a call without a request id got none")

    def keys_are_asked_for(self) -> None:
        """`authorization` reaches the server, and so does its absence."""
        with TranslationClient(self._envoy.target) as client:
            _raised(UnauthenticatedError, lambda: client.translate(["Hi."], source_language="en", target_language="de"))

    def the_server_sees_the_deadline(self) -> None:
        """A deadline that cannot be kept is refused by the server, before any work and not by a clock on the way."""
        name = 'mt_deadline_misses_total{stage="admission"}'
        before, retries = self._sum(name), self._num_retries()
        with self._client() as client:
            stages = [self._stage_of_a_hopeless_call(client) for _ in range(_NUM_HOPELESS)]
        _require("admission" in stages, f"deadlines that cannot be kept were answered as {set(stages)}")
        _require(self._sum(name) > before, f"{name} counts nothing")
        _require(self._num_retries() == retries, "Envoy repeated a call that ran out of time")
        ejected = self._envoy.stats()["outlier_detection.ejections_enforced_total"]
        _require(ejected == 0, f"deadlines of a caller had Envoy take a replica out {ejected} times")

    def a_refusal_says_when_to_come_back_and_is_not_repeated(self) -> None:
        """RESOURCE_EXHAUSTED comes with trailer and details, and from one replica only."""
        name = 'mt_rejected_requests_total{reason="rate_limited"}'
        before, retries = self._sum(name), self._num_retries()
        error = self._refusal()
        _require(error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, f"{error.code()} instead of RESOURCE_EXHAUSTED")
        pushback_ms = int(dict(error.trailing_metadata()).get("grpc-retry-pushback-ms", 0))
        _require(pushback_ms > 1000, f"grpc-retry-pushback-ms is {pushback_ms}")
        retry = error_details_pb2.RetryInfo()
        _require(any(detail.Unpack(retry) for detail in rpc_status.from_call(error).details), "there is no RetryInfo")
        _require(retry.retry_delay.ToMilliseconds() == pushback_ms, "RetryInfo and grpc-retry-pushback-ms differ")
        _require(self._sum(name) == before + 1, "the refused call was made more than once")
        _require(self._num_retries() == retries, "Envoy repeated what was refused for load")

    def models_are_not_managed_through_envoy(self) -> None:
        """A change would reach one replica or the other."""
        with ModelAdminClient(self._envoy.target, api_key=self._api_key) as client:
            _raised(UnsupportedError, lambda: client.load_model("en-de/1"))

    def operators_read_and_give_no_orders(self) -> None:
        """The port that others reach shows figures and accepts no commands."""
        status, figures = self._envoy.operators("/stats/prometheus")
        _require(status == 200 and "envoy_cluster_upstream_rq_retry{" in figures, f"/stats/prometheus says {status}")
        _require(self._envoy.operators("/ready") == (200, "LIVE\n"), "/ready is not LIVE")
        for path in ("/quitquitquit", "/config_dump", "/stats"):
            _require(self._envoy.operators(path)[0] == 404, f"{path} is open to all clients")

    def an_answer_that_has_begun_is_not_repeated(self) -> None:
        """Who has read a sentence of a document, and loses the replica, is told; no sentence comes twice.

        Envoy can only break such an answer off, which gRPC reads as INTERNAL.
        """
        retries = self._num_retries()
        with self._client() as client:
            text = " ".join(SENTENCES * _DOCUMENT_REPEATS)
            document = client.translate_document(text, source_language="en", target_language="de")
            indexes = [next(document).index]
            (busy,) = [replica for replica in self._replicas if replica.num_calls()]
            busy.kill()
            _raised(ServerError, lambda: indexes.extend(sentence.index for sentence in document))
        busy.start()
        self._envoy.wait_for_replicas(len(self._replicas), timeout_s=_CALL_S)
        _require(indexes == list(range(len(indexes))), f"sentences came as {indexes}")
        _require(self._num_retries() == retries, "Envoy repeated a call that was answered in part")

    def _client(self) -> TranslationClient:
        return TranslationClient(self._envoy.target, api_key=self._api_key)

    def _translate(self, api_key: str, *, metadata: Metadata = ()) -> pb.TranslateResponse:
        """Call once, without the client's retries, whatever comes of it."""
        sent = (("authorization", f"Bearer {api_key}"), *metadata)
        request = pb.TranslateRequest(texts=SENTENCES[:1], source_language="en", target_language="de")
        with grpc.insecure_channel(self._envoy.target, options=[("grpc.enable_retries", 0)]) as channel:
            response: pb.TranslateResponse = pb_grpc.TranslationServiceStub(channel).Translate(
                request, timeout=_CALL_S, metadata=sent
            )
        return response

    def _refusal(self) -> Any:
        """Call as the limited caller until that fails; each replica lets it in once."""
        for _ in range(len(self._replicas) + 1):
            try:
                self._translate(self._limited_key)
            except grpc.RpcError as error:
                return error
        raise CheckError("a caller over its limit is let in")

    @staticmethod
    def _stage_of_a_hopeless_call(client: TranslationClient) -> str:
        error = _raised(
            (DeadlineExceededError, ExhaustedError),
            lambda: client.translate(SENTENCES * 5, timeout_s=_TOO_SHORT_S, source_language="en", target_language="de"),
        )
        return str(getattr(error, "stage", error.reason))

    def _sum(self, name: str) -> float:
        return sum(replica.sample(name) for replica in self._replicas)

    def _num_retries(self) -> int:
        return self._envoy.stats()["upstream_rq_retry"]


def _raised(kinds: type[DragomanError] | tuple[type[DragomanError], ...], call: Callable[[], Any]) -> Any:
    try:
        answer = call()
    except kinds as error:
        return error
    raise CheckError(f"no error but {answer!r:.200}")


def _require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise CheckError(otherwise)
