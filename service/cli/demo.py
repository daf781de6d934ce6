"""`demo`: the whole way once, from an empty machine's point of view: start, translate, measure, stop."""

import argparse
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

from dragoman.client import TranslationClient
from dragoman.errors import DragomanError
from dragoman.results import StageTimings, TranslationResult

from service.cli.server_process import Ports, ServerProcess, ServerProcessError

_TEXTS = {
    "a short sentence": "The weather is nice today.",
    "a question": "Where is the train station?",
    "a paragraph": "A man is sitting on a bench. He is reading a newspaper. Two dogs are playing in the snow.",
    "an emoji and a number": "We waited 45 minutes for the bus 😀",
}

_METRICS = (
    "mt_requests_total",
    "mt_request_duration_seconds_sum",
    "mt_segments_total",
    "mt_decoder_steps_total",
    "mt_source_tokens_total",
    "mt_target_tokens_total",
    "mt_model_info",
)

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        help="start the server on the shipped model, translate four texts, stop it",
        description="Starts `serve` as a child process on free ports with the model that ships, translates four texts "
        "through the gRPC client, shows some of its metrics, and stops it by SIGTERM. Exit code 0 if all went well.",
    )
    parser.add_argument("--models", type=Path, metavar="DIR", help="other models, one of them from English to German")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show everything; return the exit code."""
    try:
        flags = ["--models", str(arguments.models.absolute())] if arguments.models else []
        with ServerProcess(*flags) as server:
            _show(server)
    except (ServerProcessError, DragomanError, OSError) as error:
        print(f"dragoman: the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _show(server: ServerProcess) -> None:
    print("starting the server ...", flush=True)
    ports = server.wait_until_ready(timeout_s=_START_TIMEOUT_S)
    print(f"gRPC on 127.0.0.1:{ports.grpc_port}, metrics on http://127.0.0.1:{ports.http_port}/metrics\n")
    _translate(ports)
    _print_metrics(ports)
    server.send(signal.SIGTERM)
    exit_code = server.wait(timeout_s=_STOP_TIMEOUT_S)
    if exit_code != 0:
        raise ServerProcessError(f"the server ended with exit code {exit_code}; it said:\n{server.log}")
    print("SIGTERM: the server drained and ended with exit code 0")


def _translate(ports: Ports) -> None:
    with TranslationClient(f"127.0.0.1:{ports.grpc_port}") as client:
        for number, (title, text) in enumerate(_TEXTS.items(), start=1):
            result = client.translate([text], source_language="en", target_language="de")
            print(f"{number}. {title} ({result.model_name}/{result.model_version})")
            _print_result(text, result)


def _print_result(text: str, result: TranslationResult) -> None:
    (translation,) = result
    if not translation.text.strip():
        raise ServerProcessError(f"the server translated {text!r} with nothing")
    print(f"   en     {text}")
    print(f"   de     {translation.text}")
    print(f"   score  {translation.score:.3f}   {result.num_source_tokens} -> {result.num_target_tokens} tokens")
    print(f"   time   {_described(result.timings)}\n")


def _described(timings: StageTimings) -> str:
    stages = {
        "queue": timings.queue_s,
        "encode": timings.encode_s,
        "decode": timings.decode_s,
        "text": timings.text_s,
    }
    return ", ".join(f"{stage} {seconds * 1000:.1f} ms" for stage, seconds in stages.items())


def _print_metrics(ports: Ports) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.http_port}/metrics", timeout=10) as response:
        exposition = response.read().decode()
    print("some of /metrics:")
    for line in exposition.splitlines():
        if line.startswith(_METRICS):
            print(f"   {line}")
    print()
