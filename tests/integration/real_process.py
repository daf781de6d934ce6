"""The server as a process of its own, and calls that keep it busy."""

import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import grpc

from dragoman.v1 import translation_pb2 as pb
from dragoman.v1 import translation_pb2_grpc as pb_grpc
from dragoman_service.app import Ports
from dragoman_service.cli.demo import ServerProcess

CHECKOUT = Path(__file__).resolve().parents[2]
START_S = STOP_S = 60.0  # only reached by a test that would otherwise fail anyway
CALL_S = 120.0  # likewise; below the time limit of a test
ONE_BY_ONE = {"DRAGOMAN_SCHEDULING__NUM_WORKERS": "1", "DRAGOMAN_SCHEDULING__MAX_BATCH_SEGMENTS": "1"}
"""Settings with which a call of many sentences takes long."""


def process(*flags: str, **environment: str) -> ServerProcess:
    return ServerProcess(*flags, environment=environment)


def connect(ports: Ports) -> grpc.Channel:
    """A connection of its own."""
    return grpc.insecure_channel(f"127.0.0.1:{ports.grpc_port}", options=[("grpc.use_local_subchannel_pool", 1)])


def long_request(num_sentences: int) -> pb.TranslateRequest:
    """A request that keeps one decoding thread busy for long."""
    return pb.TranslateRequest(
        texts=[long_text(num_sentences)], source_language="en", target_language="de", options=LONG_OPTIONS
    )


LONG_OPTIONS = pb.DecodingOptions(beam_size=16, min_target_tokens=60, max_target_tokens=63)


def long_text(num_sentences: int) -> str:
    return "A man rides a bicycle. " * num_sentences


def begin(channel: grpc.Channel, *, num_sentences: int) -> Any:
    """Begin a call that keeps one decoding thread busy for long."""
    return pb_grpc.TranslationServiceStub(channel).Translate.future(long_request(num_sentences), timeout=CALL_S)


def get(ports: Ports, path: str) -> tuple[int, str]:
    """Ask the HTTP port; return status and body."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports.http_port}{path}") as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def wait_until_in_flight(ports: Ports) -> None:
    """Return once the server works on one call of Translate."""
    wait_for_sample(ports, 'dragoman_requests_in_flight{method="Translate"} 1.0')


def wait_for_sample(ports: Ports, line: str) -> None:
    """Return once the server exposes a sample as this line."""
    until_s = time.monotonic() + START_S
    while line not in get(ports, "/metrics")[1].splitlines():
        assert time.monotonic() < until_s, f"never exposed: {line}"
