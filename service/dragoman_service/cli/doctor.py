"""`doctor`: check an installation and its settings."""

import argparse
import http.client
import json
import os
import platform
import resource
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from prometheus_client import CollectorRegistry

from dragoman_service.config import CONFIG_VARIABLE, Settings, load_settings, settings_of_model
from dragoman_service.errors import BundleError, ConfigError, EngineError
from dragoman_service.http_api.server import listening_socket
from dragoman_service.models.registry import VersionPolicy
from dragoman_service.models.serving import SERVING_NAME, check_on_disk, names_on_disk, open_version, read_serving
from dragoman_service.observability.metrics import Metrics
from dragoman_service.runtimes.native.library import BackendUnsupportedError, load_library
from dragoman_service.runtimes.onnx.session import cuda_fault, place
from dragoman_service.security.authentication import Access
from dragoman_service.security.settings import UNIX_SCHEME, address_of, is_loopback
from dragoman_service.security.tls import TlsIdentityFiles
from dragoman_service.threads import control_groups, num_cores

_MIN_CERTIFICATE_DAYS = 14
_PROBE_TIMEOUT_S = 1.0
_MIB = 1 << 20
_MEMORY_FILES = ("memory.max", "memory.limit_in_bytes")  # cgroup versions 2, 1

_DESCRIPTION = """\
Checks an installation: versions of the packages, CPU and native engine, settings, models, ports, keys, TLS, GPU,
memory and open files. Starts no server and translates nothing.

Settings come from flags, the environment and a TOML file, as in `serve`; run it as the user that runs the server.

Prints one line for each check: OK, WARN (the server starts, but something is worth a change) or FAIL (the server does
not start, or not as configured), with what to do. The exit status is 1 if a check is FAIL, otherwise 0."""


class Finding(NamedTuple):
    """Result of a check."""

    status: Literal["OK", "WARN", "FAIL"]
    detail: str


def add_parser(commands: Any) -> None:
    """Declare the command and its flags."""
    parser = commands.add_parser(
        "doctor",
        help="check an installation and its settings",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help=f"settings in TOML (default: ${CONFIG_VARIABLE})")
    parser.add_argument("--models", metavar="DIR", help="models.directory: directory of the bundles, as NAME/VERSION/")
    parser.add_argument("--json", action="store_true", help="print a JSON object with the list of checks")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run all checks; return the exit status."""
    listed = []
    for name, finding, fix in findings(file=arguments.config, models=arguments.models):
        check = {"name": name, **finding._asdict(), "fix": "" if finding.status == "OK" else fix}
        listed.append(check)
        if not arguments.json:
            suffix = f"; fix: {check['fix']}" if check["fix"] else ""
            print(f"{finding.status:4}  {name:11}  {finding.detail}{suffix}", flush=True)
    has_failed = any(check["status"] == "FAIL" for check in listed)
    if arguments.json:
        print(json.dumps({"ok": not has_failed, "checks": listed}))
    return int(has_failed)


def findings(*, file: Path | None, models: str | None) -> Iterator[tuple[str, Finding, str]]:
    """Yield name, result and fix of each check. Invalid settings end the checks, because the others depend on them."""
    yield "packages", packages(), "in a new environment, install dragoman[serve] or dragoman[gpu]"
    origin = str(file or os.environ.get(CONFIG_VARIABLE) or "defaults, environment and flags")
    try:
        settings = load_settings(file=file, environment=os.environ, flags={"models.directory": models})
    except ConfigError as error:
        yield "settings", Finding("FAIL", str(error)), f"change {error.setting}"
        return
    yield "settings", Finding("OK", f"{origin}: valid"), ""
    for check, fix in CHECKS.items():
        try:
            yield from ((check.__name__, finding, fix) for finding in check(settings))
        except ConfigError as error:
            yield check.__name__, Finding("FAIL", str(error)), f"change {error.setting}"
        except OSError as error:
            yield check.__name__, Finding("FAIL", str(error)), fix


def packages(version_of: Callable[[str], str] = version) -> Finding:
    """Check that the distributions belong together. Client and server are one distribution."""
    found = {}
    for name in ("dragoman", "dragoman-native", "dragoman-models", "onnxruntime", "onnxruntime-gpu"):
        with suppress(PackageNotFoundError):
            found[name] = version_of(name)
    detail = ", ".join(f"{name} {number}" for name, number in found.items())
    detail = f"{detail}; Python {platform.python_version()} on {platform.machine()}"
    own = found.get("dragoman")
    if own is None:
        return Finding("WARN", f"dragoman is not installed: {detail}")
    if "onnxruntime" in found and "onnxruntime-gpu" in found:
        return Finding("FAIL", f"two distributions of ONNX Runtime overwrite each other: {detail}")
    has_models = found.get("dragoman-models", own).split(".")[:2] == own.split(".")[:2]
    if found.get("dragoman-native", own) != own or not has_models:
        return Finding("FAIL", f"versions differ: {detail}")
    return Finding("OK", detail)


def engine(settings: Settings) -> Iterator[Finding]:
    """Load the native engine, whose self-test orders the instruction sets of the CPU."""
    runtime = settings.runtime
    if runtime.engine == "onnxruntime":
        yield Finding("OK", "ONNX Runtime (runtime.engine)")
        return
    is_required = runtime.engine == "native" or runtime.instruction_set != "auto"
    try:
        available = load_library().instruction_sets
    except (BackendUnsupportedError, EngineError) as error:
        has_failed = is_required or isinstance(error, EngineError)  # an error of the self-test ends the server
        yield Finding("FAIL" if has_failed else "WARN", f"the native engine is not usable: {error}")
        return
    chosen = runtime.instruction_set if runtime.instruction_set != "auto" else next(iter(available), None)
    if chosen in available:
        yield Finding("OK", f"native engine with {chosen}; {num_cores()} cores with {' '.join(available)}")
    else:
        detail = f"runtime.instruction_set is {runtime.instruction_set}; the CPU has {' '.join(available) or 'none'}"
        yield Finding("FAIL" if is_required else "WARN", detail)


def gpu(settings: Settings, find_fault: Callable[[int], str | None] = cuda_fault) -> Iterator[Finding]:
    """Try to use each configured GPU."""
    runtime = settings.runtime
    if not runtime.device.startswith("cuda"):
        yield Finding("OK", f"not required (runtime.device is {runtime.device})")
        return
    for index in range(runtime.device_index, runtime.device_index + runtime.num_replicas):
        fault = find_fault(index)
        yield Finding("FAIL", fault) if fault else Finding("OK", f"GPU {index} is usable")


def bundles(settings: Settings) -> Iterator[Finding]:
    """Check the files of every version that the server would load, and the memory for them."""
    weights_bytes = 0
    for name, on_disk in names_on_disk(settings.models.directory).items():
        serving = read_serving(on_disk.directory)
        check_on_disk(serving, on_disk.directory, on_disk.versions)
        runtime = settings_of_model(settings, serving, origin=on_disk.directory / SERVING_NAME).runtime
        for number in sorted(VersionPolicy(serving=serving).selected(on_disk.versions.keys())):
            try:
                bundle = open_version(on_disk.directory / number)
                placement = place(bundle, runtime)
                size = bundle.weights_bytes(placement.precision)
            except (BundleError, ConfigError) as error:
                yield Finding("FAIL", f"{name}/{number}: {error}")
            else:
                weights_bytes += size * runtime.num_replicas
                pairs = [" to ".join(pair) for pair in bundle.manifest.languages().pairs_served()]
                languages = pairs[0] if len(pairs) == 1 else f"{len(pairs)} language pairs"
                detail = f"{placement.precision} on {placement.device}, {languages}, {size // _MIB} MiB"
                yield Finding("OK", f"{name}/{number}: checksums match; {detail}")
    yield memory(weights_bytes, available_memory())


def memory(weights_bytes: int, available_bytes: int) -> Finding:
    """Compare memory with twice the weights: a version that is replaced and its successor are loaded together."""
    detail = f"{available_bytes // _MIB} MiB of memory available, {weights_bytes // _MIB} MiB of weights"
    if available_bytes >= 2 * weights_bytes:
        return Finding("OK", detail)
    return Finding("WARN" if available_bytes >= weights_bytes else "FAIL", detail)


def available_memory() -> int:
    """Return the memory that is available on this machine, at most the limits of the control groups, in bytes."""
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    limits = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]  # in KiB
    for group, name in product(control_groups("memory"), _MEMORY_FILES):
        with suppress(OSError, ValueError):  # ValueError: `max`
            limits.append(int((group / name).read_text(encoding="ascii")))
    return min(limits)


def ports(settings: Settings) -> Iterator[Finding]:
    """Listen on each port."""
    grpc, http = settings.grpc, settings.http
    monitoring = http if http.metrics_port is None else http.of_monitoring()
    addresses = {"http.port": (http.host, http.port)} if http.serves_api(settings.tls) else {}
    addresses["http.port" if monitoring is http else "http.metrics_port"] = monitoring.host, monitoring.port
    if not grpc.host.startswith(UNIX_SCHEME):
        addresses["grpc.port"] = grpc.host, grpc.port
    for setting, (host, port) in addresses.items():
        address = address_of(host, port)
        try:
            listening_socket(host, port, setting=setting).close()
        except ConfigError as error:
            if _is_ready(monitoring.host, monitoring.port):
                yield Finding("OK", f"{setting}: {address} is in use, and a server on this machine is ready")
            else:
                yield Finding("FAIL", str(error))
        else:
            yield Finding("OK", f"{setting}: {address} is free")


def _is_ready(host: str, port: int) -> bool:
    # A wildcard address is reached on the loopback address.
    bare = host.strip("[]")
    reachable = "127.0.0.1" if bare in {"0.0.0.0", "::"} else bare  # noqa: S104 - no address to bind
    connection = http.client.HTTPConnection(reachable, port, timeout=_PROBE_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def callers(settings: Settings) -> Iterator[Finding]:
    """Read the files of access control as the server does."""
    access, has_certificates = settings.access, settings.tls.client_ca_file is not None
    Access(access, Metrics(CollectorRegistry()))
    sources = [str(source) for source in (access.callers_file, access.jwks) if source is not None]
    if sources:
        yield Finding("OK", f"{', '.join(sources)}: valid")
    elif has_certificates or is_loopback(settings.grpc.host):
        yield Finding("OK", "no keys are required (access.callers_file is unset)")
    else:
        yield Finding("WARN", "every client that reaches the port is accepted (access.allow_unauthenticated)")


def tls(settings: Settings) -> Iterator[Finding]:
    """Read the TLS files as the server does, and check when the certificates expire."""
    if not settings.tls.is_on:
        yield Finding("OK", "off (tls.certificate_file is unset)")
        return
    expiries_s = TlsIdentityFiles(settings.tls, Metrics(CollectorRegistry())).expiries_s
    for certificate, expiry_s in expiries_s.items():
        days = int((expiry_s - time.time()) // 86400)
        detail = f"{certificate} certificate: {days} days until it expires"
        yield Finding("OK" if days >= _MIN_CERTIFICATE_DAYS else "WARN", detail)


def connections(settings: Settings) -> Iterator[Finding]:
    """Compare the limit of open files with the connections that the settings allow."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)  # the server raises the soft limit
    needed = settings.max_open_files
    detail = f"{limit} open files allowed, {needed} needed for grpc.max_connections + http.max_connections"
    yield Finding("OK" if limit == resource.RLIM_INFINITY or limit >= needed else "WARN", detail)


def permissions(settings: Settings) -> Iterator[Finding]:
    """Check that only the server's user and group can read files with secrets."""
    access = settings.access
    for path in filter(None, (access.callers_file, access.quota_store_url_file, settings.tls.private_key_file)):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o027:
            yield Finding("WARN", f"{path} has mode {mode:o}: other users can read it, or its group can change it")
        else:
            yield Finding("OK", f"{path} has mode {mode:o}")


CHECKS: Final[Mapping[Callable[[Settings], Iterator[Finding]], str]] = {
    engine: 'reinstall dragoman-native, runtime.instruction_set = "auto", or runtime.engine = "onnxruntime"',
    gpu: 'correct the cause, or runtime.device = "cpu"',
    bundles: "copy the bundle again, raise the memory limit, or load fewer versions (`versions` in serving.toml)",
    ports: "stop the process on the port (ss -ltnp), or change the setting",
    callers: "access.callers_file; `dragoman keys new` creates keys",
    tls: "renew the certificate",
    permissions: "chmod 640",
    connections: "raise the hard limit (ulimit -Hn, LimitNOFILE of systemd), or allow fewer connections",
}
"""Checks of valid settings, with the fix if they find a fault."""
