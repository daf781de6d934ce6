"""`demo`: start a server, translate texts in both directions, print metrics, stop the server."""

import argparse
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path
from typing import Any

from dragoman.client import TranslationClient
from dragoman.client.errors import DragomanError
from dragoman.client.results import TranslationResult
from dragoman_service.cli.server_process import ServerProcess, ServerProcessError
from dragoman_service.datatypes import Ports

# Title, text, source language (empty: detected) and target language.
_TEXTS = (
    ("a question", "Where is the train station?", "en", "de"),
    ("a question in German", "Wo ist der Bahnhof?", "de", "en"),
    (
        "a paragraph",
        "A man is sitting on a bench. He is reading a newspaper. Two dogs are playing in the snow.",
        "en",
        "de",
    ),
    ("an emoji and a number, language detected", "Wir haben 45 Minuten auf den Bus gewartet 😀", "", "en"),
    ("a short sentence, language detected", "The weather is nice today.", "", "de"),
)

_METRICS = (
    "dragoman_requests_total",
    "dragoman_request_duration_seconds_sum",
    "dragoman_segments_total",
    "dragoman_decoder_steps_total",
    "dragoman_source_tokens_total",
    "dragoman_target_tokens_total",
    "dragoman_model_info",
)


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        help="start a server with the bundled models, translate five texts, stop it",
        description="Starts `serve` as a child process on free ports with the bundled models, translates five texts "
        "between English and German with the gRPC client, two of them without a source language, prints metrics, and "
        "stops the server with SIGTERM. The exit code is 0 on success.",
    )
    parser.add_argument(
        "--models",
        type=Path,
        metavar="DIR",
        help="model directory; must contain models from English to German and from German to English",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return the exit code."""
    try:
        flags = ["--models", str(arguments.models.absolute())] if arguments.models else []
        with ServerProcess(*flags) as server:
            _run_demo(server)
    except (ServerProcessError, DragomanError, OSError) as error:
        print(f"dragoman: the demo failed: {error}", file=sys.stderr)
        return 1
    return 0


def _run_demo(server: ServerProcess) -> None:
    print("starting the server ...", flush=True)
    ports = server.wait_until_ready()
    print(f"gRPC on 127.0.0.1:{ports.grpc_port}, metrics on http://127.0.0.1:{ports.http_port}/metrics\n")
    _translate(ports)
    _print_metrics(ports)
    exit_code = server.stop()
    if exit_code != 0:
        raise ServerProcessError(f"the server ended with exit code {exit_code}; its log:\n{server.log}")
    print("SIGTERM: the server drained and ended with exit code 0")


def _translate(ports: Ports) -> None:
    with TranslationClient(f"127.0.0.1:{ports.grpc_port}") as client:
        for number, (title, text, source, target) in enumerate(_TEXTS, start=1):
            result = client.translate([text], source_language=source, target_language=target)
            print(f"{number}. {title} ({result.model_name}/{result.model_version})")
            detected = result.detected_language
            _print_result(text, result, source=detected.language if detected else source, target=target)


def _print_result(text: str, result: TranslationResult, *, source: str, target: str) -> None:
    (translation,) = result
    if not translation.text.strip():
        raise ServerProcessError(f"the translation of {text!r} is empty")
    print(f"   {source:5}  {text}")
    print(f"   {target:5}  {translation.text}")
    print(f"   score  {translation.score:.3f}   {result.num_source_tokens} -> {result.num_target_tokens} tokens")
    stages = [(each.name.removesuffix("_s"), getattr(result.timings, each.name)) for each in fields(result.timings)]
    print(f"   time   {', '.join(f'{stage} {seconds * 1000:.1f} ms' for stage, seconds in stages)}\n")


def _print_metrics(ports: Ports) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{ports.http_port}/metrics", timeout=10) as response:
        exposition = response.read().decode()
    print("some of /metrics:")
    for line in exposition.splitlines():
        if line.startswith(_METRICS):
            print(f"   {line}")
    print()
