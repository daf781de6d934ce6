"""Two replicas behind Envoy with deploy/envoy: gRPC and HTTP pass through, and do not fail when replicas change.

The tests run in this order: the last two kill replicas.
"""

import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import deepl
import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from libretranslatepy import LibreTranslateAPI  # type: ignore[import-untyped]

from dragoman.client import ModelAdminClient, TranslationClient, errors
from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from loadtests.generator.texts import SENTENCES, sample
from loadtests.hostile.http2 import flood_with_resets
from tests.e2e.callers import SteadyCallers
from tests.e2e.processes import ENVOY_CONFIG, Envoy, envoy_binary, validate_envoy
from tests.e2e.replicas import Ports, Replica, make_key
from tests.e2e.tools import get
from tests.integration.real_process import free_ports
from tests.unit.proto.scripted_server import EN_DE, text_request
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TRANSLATED_WORD: Final = "Bahnhof"
METHOD: Final = "/dragoman.v1.TranslationService/Translate"
NUM_CALLERS: Final = 20
NUM_DOCUMENT_CALLERS: Final = 2
NUM_HTTP_CALLERS: Final = 4
CALL_TIMEOUT_S: Final = 20.0
HEALTHY_TIMEOUT_S: Final = 30.0
SETTLE_S: Final = 2.0  # between two changes
EXPIRING_SHARE: Final = 0.3  # timeout of a request, as a share of its duration on an idle server
NUM_EXPIRED: Final = 60  # would eject every replica if Envoy counted expired deadlines as its faults
MIN_RESETS: Final = 10_000
REQUEST_ID: Final = "3f0c1d52-9a60-4c57-8a55-1f6f3a3f7a10"
SETTINGS: Final = {
    "HTTP__PLAYGROUND": "true",
    "MODELS__POLL_INTERVAL_S": "0.5",
    "SCHEDULING__MAX_CALLER_QUEUE_SHARE": "1",  # as in deploy/compose/dragoman.env
    "SCHEDULING__NUM_WORKERS": "1",
}


class Deployment(NamedTuple):
    """Envoy, its replicas and API keys."""

    envoy: Envoy
    replicas: tuple[Replica, Replica]
    api_key: str
    limited_key: str  # each replica admits one call within the test

    def client(self) -> TranslationClient:
        return TranslationClient(self.envoy.target, api_key=self.api_key)

    def translate(self, api_key: str, *metadata: tuple[str, str]) -> Any:
        """Call once, without the client's retries."""
        sent = (("authorization", f"Bearer {api_key}"), *metadata)
        request = pb.TranslateRequest(texts=SENTENCES[:1], **EN_DE)
        with grpc.insecure_channel(self.envoy.target, options=[("grpc.enable_retries", 0)]) as channel:
            return pb_grpc.TranslationServiceStub(channel).Translate(request, timeout=CALL_TIMEOUT_S, metadata=sent)

    def total(self, metric: str) -> float:
        return sum(replica.sample(metric) for replica in self.replicas)

    def num_retries(self) -> int:
        return self.envoy.stats()["upstream_rq_retry"]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("envoy")
    binary = envoy_binary()
    validate_envoy(binary, ENVOY_CONFIG)
    api_key, entry = make_key("test")
    limited_key, limited_entry = make_key("limited", requests_per_s=0.02)
    numbers = iter(free_ports(6))
    ports = [Ports(*triple) for triple in zip(numbers, numbers, numbers, strict=True)]
    with ExitStack() as stack:
        first, second = [
            stack.enter_context(
                Replica(
                    f"replica{each.grpc}", folder, callers=f"{entry}\n{limited_entry}", settings=SETTINGS, ports=each
                )
            )
            for each in ports
        ]
        envoy = stack.enter_context(Envoy(binary, ports, folder=folder))
        envoy.wait_for_replicas(2, timeout_s=HEALTHY_TIMEOUT_S)
        yield Deployment(envoy, (first, second), api_key, limited_key)


def test_calls_are_balanced_over_replicas(deployment: Deployment) -> None:
    with deployment.client() as client:
        for _ in range(8):
            client.translate(SENTENCES[:2], **EN_DE)

    counts = [
        replica.sample('dragoman_requests_total{method="Translate",status="OK"}') for replica in deployment.replicas
    ]
    assert min(counts) >= 2


def test_documents_and_streams_pass_through(deployment: Deployment) -> None:
    requests = [text_request(f"r-{number}", text) for number, text in enumerate(SENTENCES[:8])]

    with deployment.client() as client:
        sentences = list(client.translate_document(" ".join(SENTENCES), **EN_DE))
        answers = {answer.request_id: answer.result() for answer in client.translate_stream(requests)}

    assert len(sentences) == len(SENTENCES)
    assert len(answers) == len(requests)


def test_request_ids_pass_through_or_are_added(deployment: Deployment) -> None:
    assert deployment.translate(deployment.api_key, ("x-request-id", REQUEST_ID)).request_id == REQUEST_ID
    assert deployment.translate(deployment.api_key).request_id


def test_missing_key_and_management_of_models_are_rejected(deployment: Deployment) -> None:
    target = deployment.envoy.target

    with TranslationClient(target) as client, pytest.raises(errors.UnauthenticatedError):
        client.translate(["Hi."], **EN_DE)
    with ModelAdminClient(target, api_key=deployment.api_key) as admin, pytest.raises(errors.UnsupportedError):
        admin.load_model("en-de/1")


def test_vendor_clients_and_the_playground_are_served(deployment: Deployment) -> None:
    url = deployment.envoy.url
    client = deepl.DeepLClient(deployment.api_key, server_url=url)
    libre = LibreTranslateAPI(url, deployment.api_key)

    translation = client.translate_text("Where is the station?", source_lang="EN", target_lang="DE")

    assert TRANSLATED_WORD in str(translation)
    assert TRANSLATED_WORD in libre.translate("Where is the station?", "en", "de")
    assert get(f"{url}/playground")[0] == get(f"{url}/openapi.json")[0] == HTTPStatus.OK
    for path in ("/metrics", "/readyz", "/", "/v1x", "/v1/../metrics"):
        assert get(url + path)[0] == HTTPStatus.NOT_FOUND


def test_server_rejects_deadlines_and_envoy_ejects_no_replica(deployment: Deployment) -> None:
    metric = 'dragoman_deadline_misses_total{stage="admission"}'
    misses, retries = deployment.total(metric), deployment.num_retries()

    stages = set()
    texts = [" ".join(SENTENCES)] * 25
    with deployment.client() as client:
        began_s = time.monotonic()
        client.translate(texts, timeout_s=CALL_TIMEOUT_S, **EN_DE)
        timeout_s = EXPIRING_SHARE * (time.monotonic() - began_s)
        for _ in range(NUM_EXPIRED):
            with pytest.raises((errors.DeadlineExceededError, errors.ExhaustedError)) as raised:
                client.translate(texts, timeout_s=timeout_s, **EN_DE)
            stages.add(getattr(raised.value, "stage", None))

    assert "admission" in stages
    assert deployment.total(metric) > misses
    assert deployment.num_retries() == retries
    assert deployment.envoy.stats()["outlier_detection.ejections_enforced_total"] == 0


def test_rejection_has_retry_delay_and_is_not_retried_by_envoy(deployment: Deployment) -> None:
    metric = 'dragoman_rejected_requests_total{reason="rate_limited"}'
    rejections, retries = deployment.total(metric), deployment.num_retries()

    def exhaust_quota() -> None:
        for _ in range(len(deployment.replicas) + 1):
            deployment.translate(deployment.limited_key)

    with pytest.raises(grpc.RpcError) as raised:
        exhaust_quota()

    error: Any = raised.value
    pushback_ms = int(dict(error.trailing_metadata())["grpc-retry-pushback-ms"])
    retry = error_details_pb2.RetryInfo()
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert pushback_ms > 1000
    assert any(detail.Unpack(retry) for detail in rpc_status.from_call(error).details)
    assert retry.retry_delay.ToMilliseconds() == pushback_ms
    assert deployment.total(metric) == rejections + 1
    assert deployment.num_retries() == retries


def test_operators_port_is_read_only(deployment: Deployment) -> None:
    status, metrics = deployment.envoy.operators("/stats/prometheus")

    assert status == 200
    assert "envoy_cluster_upstream_rq_retry{" in metrics
    assert deployment.envoy.operators("/ready") == (200, "LIVE\n")
    for path in ("/quitquitquit", "/config_dump", "/stats"):
        assert deployment.envoy.operators(path)[0] == 404


def test_flood_of_resets_is_cut_off_and_other_callers_are_served(deployment: Deployment) -> None:
    metric = 'envoy_http_downstream_rq_too_many_premature_resets{envoy_http_conn_manager_prefix="grpc"}'
    extra = (("authorization", f"Bearer {deployment.api_key}"),)

    num_answered = 0
    with ThreadPoolExecutor(max_workers=1) as pool:
        target = deployment.envoy.target
        flood = pool.submit(flood_with_resets, target, METHOD, num_connections=16, seconds=5.0, extra=extra)
        while not flood.done():
            deployment.translate(deployment.api_key)
            num_answered += 1

    lines = deployment.envoy.operators("/stats/prometheus")[1].splitlines()
    num_cut_off = sum(int(line.split()[-1]) for line in lines if line.startswith(metric))
    print(f"resets={flood.result()} connections_cut_off={num_cut_off} answered={num_answered}")
    assert num_answered > 0
    assert flood.result() > MIN_RESETS
    assert num_cut_off > 0


def test_partial_answer_is_not_retried(deployment: Deployment) -> None:
    """A document whose replica dies ends with INTERNAL, as Envoy resets the stream, and repeats no sentence."""
    retries = deployment.num_retries()

    with deployment.client() as client:
        document = client.translate_document(" ".join(SENTENCES * 80), **EN_DE)
        indexes = [next(document).index]
        (busy,) = [replica for replica in deployment.replicas if replica.num_requests_in_flight()]
        busy.kill()
        with pytest.raises(errors.ServerError):
            indexes.extend(sentence.index for sentence in document)

    assert indexes == list(range(len(indexes)))
    assert deployment.num_retries() == retries
    busy.start()
    deployment.envoy.wait_for_replicas(2, timeout_s=HEALTHY_TIMEOUT_S)


def test_no_call_fails_while_replicas_are_killed_drained_and_upgraded(deployment: Deployment) -> None:
    envoy, (first, second) = deployment.envoy, deployment.replicas

    def settle() -> None:
        time.sleep(SETTLE_S)
        envoy.wait_for_replicas(2, timeout_s=HEALTHY_TIMEOUT_S)

    def translate_over_http(generator: random.Random) -> None:
        body = {"text": sample(generator, 2), "target_lang": "DE"}
        headers = {"Authorization": f"DeepL-Auth-Key {deployment.api_key}"}
        try:
            response = httpx.post(f"{envoy.url}/v2/translate", json=body, headers=headers, timeout=CALL_TIMEOUT_S)
        except httpx.HTTPError as error:
            raise AssertionError(error) from error
        assert response.status_code == HTTPStatus.OK, response.text

    with SteadyCallers(envoy.target, deployment.api_key, num_texts=NUM_CALLERS) as callers:
        for number in range(NUM_HTTP_CALLERS):
            callers.begin(f"http-{number}", translate_over_http)
        settle()
        num_interrupted = first.kill()
        time.sleep(SETTLE_S)
        first.start()
        settle()
        # A document that has begun to arrive cannot be retried, so it survives a drain but not a kill.
        callers.begin_documents(NUM_DOCUMENT_CALLERS)
        time.sleep(SETTLE_S)
        second.drain()
        time.sleep(SETTLE_S)
        second.start()
        settle()
        for replica in deployment.replicas:
            replica.upgrade("2")
            time.sleep(SETTLE_S)
        wait_until(lambda: set(callers.recent_versions) == {"2"}, timeout_s=HEALTHY_TIMEOUT_S)

    retried_by_envoy = deployment.num_retries()
    retried_by_client = {record["request_id"] for record in envoy.access_log() if record.get("attempts_before")}
    print(
        f"calls: {dict(callers.outcomes)} interrupted={num_interrupted} retried_by_envoy={retried_by_envoy}"
        f" retried_by_client={len(retried_by_client)}"
    )
    assert callers.failures == []
    assert callers.outcomes["text ok"] > 0
    assert callers.outcomes["document ok"] > 0
    assert callers.outcomes["http ok"] > 0
    assert num_interrupted > 0
    assert retried_by_envoy + len(retried_by_client) > 0
