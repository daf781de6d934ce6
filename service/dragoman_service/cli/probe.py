"""`probe`: health check of a server for containers. Imports few modules, so that it starts fast."""

import argparse
import http.client
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dragoman.cli.target import add_tls_flags, tls_options
from dragoman.client.credentials import TlsOptions
from dragoman_service.toml import parse_toml

_CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),  # a proxy cannot reach the loopback address
    ("grpc.enable_retries", 0),
)

_DESCRIPTION = """\
Checks with grpc.health.v1 whether a server accepts calls. The exit code is 0 if the server is serving, and 1 if the
server is not serving, is unreachable or does not answer in time; the cause is printed to standard error.

Without --target, the local server is checked. Its address is read from the environment and from the settings file in
DRAGOMAN_CONFIG. If the local server uses TLS and you set no TLS flag, /readyz on its HTTP port is checked instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnServer:
    """Addresses of the server on this machine."""

    grpc_address: str
    http_address: str  # of metrics and probes, which do not use TLS
    has_tls: bool  # on the gRPC port


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "probe",
        help="check whether a server accepts calls",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--target", metavar="HOST:PORT", help="the server; default: the local server")
    parser.add_argument("--service", default="", metavar="NAME", help="one gRPC service; default: the whole server")
    parser.add_argument("--timeout", type=float, default=2.0, metavar="S", help="timeout in s (%(default)s)")
    tls = parser.add_argument_group("for a server with TLS; the files are PEM")
    add_tls_flags(tls.add_argument)
    tls.add_argument("--server-name", metavar="NAME", help="name in the certificate; default: the host of --target")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Check the server once; return the exit code."""
    try:
        tls = tls_options(arguments, server_name=arguments.server_name)
        own = None if arguments.target else own_server(os.environ)
        if own and own.has_tls and tls is None:
            fault = http_fault(own.http_address, timeout_s=arguments.timeout)
        else:
            target = own.grpc_address if own else arguments.target
            fault = _fault_over_grpc(target, tls, service=arguments.service, timeout_s=arguments.timeout)
    except (OSError, ValueError) as error:
        fault = str(error)
    if fault is None:
        return 0
    print(f"dragoman: {fault}", file=sys.stderr)
    return 1


def own_server(environment: Mapping[str, str]) -> OwnServer:
    """Read the addresses of the local server from its settings; flags of `serve` are not considered.

    The settings are not validated: the server validates them, and importing the validation would take most of the time.

    Raises:
        OSError: if the settings file cannot be read.
        ValueError: if the settings file is not TOML.
    """
    path = environment.get("DRAGOMAN_CONFIG")
    tables = parse_toml(Path(path).read_bytes()) if path else {}

    def setting(section: str, name: str, default: object) -> str:
        table = tables.get(section)
        in_file = table.get(name, default) if isinstance(table, dict) else default
        return environment.get(f"DRAGOMAN_{section}__{name}".upper(), str(in_file))

    def address(section: str, default_port: int) -> str:
        return f"{reachable_host(setting(section, 'host', '127.0.0.1'))}:{setting(section, 'port', default_port)}"

    http_address, metrics_port = address("http", 9464), setting("http", "metrics_port", "")
    if metrics_port:
        metrics_host = setting("http", "metrics_host", setting("http", "host", "127.0.0.1"))
        http_address = f"{reachable_host(metrics_host)}:{metrics_port}"
    return OwnServer(
        grpc_address=address("grpc", 50051),
        http_address=http_address,
        has_tls=bool(setting("tls", "certificate_file", "")),
    )


def reachable_host(host: str) -> str:
    """Return the host under which this machine reaches an address, in brackets for IPv6.

    Wildcard addresses are reached on the loopback address.
    """
    own = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104 - listens there already
    return f"[{own}]" if ":" in own and not own.startswith("[") else own


def _fault_over_grpc(target: str, tls: TlsOptions | None, *, service: str, timeout_s: float) -> str | None:
    if tls is None:
        channel = grpc.insecure_channel(target, options=_CHANNEL_OPTIONS)
    else:
        name = () if tls.server_name is None else (("grpc.ssl_target_name_override", tls.server_name),)
        channel = grpc.secure_channel(target, tls.credentials(), options=(*_CHANNEL_OPTIONS, *name))
    try:
        with channel:
            request = health_pb2.HealthCheckRequest(service=service)
            response = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
    except grpc.RpcError as error:
        from dragoman.client.errors import UNREACHABLE_HINT  # noqa: PLC0415 - not needed by a successful probe

        hint = f"; {UNREACHABLE_HINT}" if error.code() is grpc.StatusCode.UNAVAILABLE else ""
        return f"{target}: {error.code().name}: {error.details()}{hint}"
    if response.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"{target} is {health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)}"


def http_fault(address: str, *, timeout_s: float) -> str | None:
    """Return the reason why the server with this HTTP address does not accept calls; None if it does."""
    connection = http.client.HTTPConnection(address, timeout=timeout_s)
    try:
        connection.request("GET", "/readyz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"http://{address}/readyz: {error}"
    finally:
        connection.close()
    return None if status == http.client.OK else f"http://{address}/readyz: {status} {http.client.responses[status]}"
