"""Command-line flags in addition to those of Locust."""

import argparse
from typing import Any, Final

from loadtests.generator.flags import add_workload_flags
from loadtests.generator.records import MAX_GENERATOR_LAG_P99_MS
from loadtests.generator.server import add_access_flags
from loadtests.generator.slo import GRAMMAR
from loadtests.generator.workload import Workload

USERS: Final = {  # name of the class by the value of --texts
    "chat": "ChatUser",
    "sentence": "SentenceUser",
    "paragraph": "ParagraphUser",
    "document": "DocumentUser",
    "mixed": "MixedUser",
    "lines": "LinesUser",
    "http": "HttpApiUser",
}
SHAPES: Final = ("steps", "ramp", "spike", "daily")
DESCRIPTION: Final = """\
Flags in addition to those of Locust. Without --host a server with the bundled models is started on free local ports,
and its metrics are included. The API key is the value of DRAGOMAN_API_KEY.

exit codes: 0 the thresholds hold; 1 a threshold does not hold, the generator was too late, a worker was lost, the
server failed, or, without --slo, any call failed"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser, or to the parser of Locust."""
    slo = f"thresholds that set the exit code: {GRAMMAR}".replace("%", "%%")
    lag = f"allowed lag of the generator at p99 ({MAX_GENERATOR_LAG_P99_MS:g} with --slo, otherwise no limit)"
    rate = "calls per second of each user, at random times; 0: the next call follows the response, after --pause (1)"
    add = parser.add_argument  # the web page can change these
    add("--rate", type=float, default=1.0, metavar="N", help=rate)
    add("--pause", type=float, default=0.1, metavar="S", help="mean pause of a user with --rate 0 (0.1)")
    add("--slo", default="", metavar="BOUNDS", help=slo)
    add("--max-lag", type=float, metavar="MS", help=lag)
    add("--seed", type=int, default=1, metavar="N", help="seed of the texts (1)")
    add_workload_flags(parser, Workload(), without="--profile")
    group: Any = parser.add_argument_group("Dragoman")  # known at the start; Locust leaves groups out of the page
    texts = "users if no user class is named: %(choices)s (%(default)s)"
    shape = "--users over --run-time: %(choices)s (constant)"
    add = group.add_argument
    add("--texts", default="sentence", choices=tuple(USERS), help=texts)
    add("--shape", default="constant", choices=("constant", *SHAPES), help=shape)
    add("--metrics-url", default="", metavar="URL", help="metrics of --host, such as http://localhost:9464/metrics")
    add("--http-url", default="", metavar="URL", help="HTTP API of --host, such as http://localhost:9464")
    add("--models", default="", metavar="DIR", help="models of a started server (the bundled models)")
    add_access_flags(group)
