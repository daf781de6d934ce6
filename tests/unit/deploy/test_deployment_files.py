"""Files of the image, Compose, Envoy and Kubernetes agree with each other and with the server."""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from prometheus_client import CollectorRegistry

from dragoman_service.config import Settings, load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.http_api.playground import playground_routes
from dragoman_service.http_api.routes import TranslationApi
from dragoman_service.vendor_apis.azure import AzureApi
from dragoman_service.vendor_apis.deepl import DeepLApi
from dragoman_service.vendor_apis.document_files import document_routes
from dragoman_service.vendor_apis.google_rest import GoogleV2Api, GoogleV3Api
from dragoman_service.vendor_apis.libretranslate import LibreTranslateApi
from tests.http_in_thread import monitoring_server
from tests.unit.deploy.image_settings import DOCKERFILE, image_environment

CHECKOUT = Path(__file__).resolve().parents[3]
DEPLOY = CHECKOUT / "deploy"
COMPOSE_FILE = CHECKOUT / "docker-compose.yml"
SERVERS = ("dragoman", "dragoman-gpu")
FLUSH_S = 5.0  # the server sends its last traces for at most this time after a drain


def load_yaml(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text(encoding="utf-8"))


def load_project(directory: str) -> Any:
    return tomllib.loads((CHECKOUT / directory / "pyproject.toml").read_text(encoding="utf-8"))


PROJECT, MODELS, NATIVE = map(load_project, (".", "deploy/models", "service/native"))
SERVICES: Mapping[str, Mapping[str, Any]] = load_yaml("../docker-compose.yml")["services"]


def pins(lock: str) -> dict[str, str]:
    """Return the version of each package of a lock file."""
    text = (DEPLOY / "image" / f"{lock}.lock").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+)==(\S+) .*\n    --hash=sha256:", text, re.MULTILINE)
    assert len(entries) == len(re.findall("==", text)), "a package has no hash"
    return {canonicalize_name(name): version for name, version in entries}


def requirements(*extras: str) -> list[Requirement]:
    """Return the requirements of the project with extras, with its own extras resolved."""
    lines = [*PROJECT["project"]["dependencies"]]
    for extra in extras:
        lines += PROJECT["project"]["optional-dependencies"][extra]
    parsed = list(map(Requirement, lines))
    own = [requirement for requirement in parsed if requirement.name == "dragoman"]
    nested = [part for requirement in own for part in requirements(*requirement.extras)]
    return [*(item for item in parsed if item.name not in {"dragoman", "dragoman-models"}), *nested]


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("cpu", ("serve-onnx", "files", "google")),
        ("gpu", ("gpu", "files", "google")),
        ("convert", ("convert",)),
        ("tools", ()),
    ],
)
def test_lock_satisfies_the_requirements(lock: str, extras: tuple[str, ...]) -> None:
    versions = pins(lock)
    if extras:
        wanted = requirements(*extras)
    else:
        wanted = [Requirement(line) for part in (PROJECT, NATIVE) for line in part["build-system"]["requires"]]

    outdated = [item for item in wanted if not item.specifier.contains(versions.get(canonicalize_name(item.name), "0"))]
    assert outdated == [], "run make lock"


def test_locks_of_both_images_differ_in_the_runtime_only() -> None:
    cpu, gpu = pins("cpu"), pins("gpu")
    cuda = {name for name in gpu if name.startswith("nvidia-")}

    assert cuda
    assert cpu["onnxruntime"] == gpu["onnxruntime-gpu"]
    assert {name: version for name, version in cpu.items() if name != "onnxruntime"} == {
        name: version for name, version in gpu.items() if name not in {"onnxruntime-gpu", *cuda}
    }
    assert not {"torch", "onnx", "transformers", "ctranslate2", "matplotlib"} & gpu.keys()


def test_versions_of_the_distributions_overlays_and_the_chart_agree() -> None:
    version = PROJECT["project"]["version"]
    assert {part["project"]["version"] for part in (MODELS, NATIVE)} == {version}
    assert MODELS["build-system"] == PROJECT["build-system"]
    for overlay, tag in (("cpu", version), ("gpu", f"{version}-gpu")):
        kustomization = load_yaml(f"kubernetes/overlays/{overlay}/kustomization.yaml")
        assert kustomization["images"][0]["newTag"] == tag
    chart = load_yaml("helm/dragoman/Chart.yaml")
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_server_requires_the_native_engine_of_its_version_on_the_platforms_that_it_supports() -> None:
    build = (CHECKOUT / "service" / "native" / "CMakeLists.txt").read_text(encoding="utf-8")
    supported = set(re.findall(r"^set\(kernels_(\w+) ", build, re.MULTILINE))
    (requirement,) = [item for item in requirements("serve") if item.name == "dragoman-native"]
    marker = requirement.marker
    platforms = [
        (system, processor)
        for system in ("linux", "darwin", "win32")
        for processor in ("x86_64", "aarch64", "arm64", "riscv64")
        if marker is None or marker.evaluate({"sys_platform": system, "platform_machine": processor})
    ]

    assert str(requirement.specifier) == f"=={PROJECT['project']['version']}"
    assert sorted(platforms) == sorted(("linux", processor) for processor in supported)


def test_pods_run_as_the_user_of_the_image() -> None:
    deployment = load_yaml("kubernetes/base/deployment.yaml")
    context = deployment["spec"]["template"]["spec"]["securityContext"]

    assert f"USER {context['runAsUser']}:{context['runAsGroup']}" in DOCKERFILE


@pytest.mark.parametrize("component", ["models-init", "models-oci", "models-pvc"])
def test_models_of_component_are_mounted_where_the_server_reads_them(component: str) -> None:
    deployment = load_yaml(f"kubernetes/components/{component}/deployment.yaml")
    (server,) = deployment["spec"]["template"]["spec"]["containers"]
    (directory,) = [item["value"] for item in server["env"] if item["name"] == "DRAGOMAN_MODELS__DIRECTORY"]

    assert server["volumeMounts"][0]["mountPath"] == directory


@pytest.mark.parametrize("name", SERVICES)
def test_compose_service_is_hardened_and_limited(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert {"memory", "pids"} <= service["deploy"]["resources"]["limits"].keys()
    assert all(mount["read_only"] for mount in service.get("volumes", ()) if mount["type"] == "bind")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


@pytest.mark.parametrize("name", SERVERS)
def test_compose_replica_starts_has_time_to_drain_and_can_require_keys(name: str) -> None:
    override = load_yaml("compose/keys.yml")["services"][name]
    settings = load_settings(environment=environment(name))
    hosts = override["environment"].pop("DRAGOMAN_HTTP__ALLOWED_HOSTS")
    with_keys = load_settings(environment={**environment(name), **override["environment"]}).access

    assert settings.access.allow_unauthenticated
    assert seconds(SERVICES[name]["stop_grace_period"]) >= settings.grpc.drain_timeout_s + FLUSH_S
    assert (with_keys.callers_file, with_keys.allow_unauthenticated) == (Path("/run/secrets/callers"), False)
    assert override["secrets"] == ["callers"]
    assert hosts == f"${{ALLOWED_HOSTS:-{','.join(settings.http.allowed_hosts)}}}"


def test_example_environment_lists_every_variable_with_its_default() -> None:
    lines = (DEPLOY / "compose" / ".env.example").read_text(encoding="utf-8").splitlines()
    listed = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    assert listed == dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", COMPOSE_FILE.read_text(encoding="utf-8")))


def test_envoy_agrees_with_the_limits_of_the_server() -> None:
    config = load_yaml("envoy/envoy.yaml")["static_resources"]
    manager = config["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    admin_route, route, _ = manager["route_config"]["virtual_hosts"][0]["routes"]
    upstream, http = [next(iter(each["typed_extension_protocol_options"].values())) for each in config["clusters"][:2]]
    (per_host,) = config["clusters"][1]["circuit_breakers"]["per_host_thresholds"]
    http2 = upstream["explicit_http_config"]["http2_protocol_options"]
    grpc = Settings().grpc

    assert manager["http2_protocol_options"]["max_concurrent_streams"] == grpc.max_connection_streams
    assert http2["max_concurrent_streams"] == grpc.max_connection_streams
    assert seconds(manager["stream_idle_timeout"]) > max(grpc.max_timeout_s, grpc.stream_idle_timeout_s)
    assert seconds(route["route"]["timeout"]) == 0
    assert seconds(route["route"]["max_stream_duration"]["grpc_timeout_header_max"]) == grpc.max_stream_timeout_s
    assert seconds(upstream["common_http_protocol_options"]["idle_timeout"]) < grpc.max_connection_idle_s
    assert seconds(http2["connection_keepalive"]["interval"]) > grpc.min_ping_interval_s
    assert set(route["route"]["retry_policy"]["retry_on"].split(",")) == {
        *("connect-failure", "refused-stream", "reset", "unavailable", "cancelled")
    }
    assert "route" not in admin_route
    assert per_host["max_connections"] < Settings().http.max_connections
    assert seconds(http["common_http_protocol_options"]["idle_timeout"]) < Settings().http.keep_alive_s


def test_all_deployments_use_the_ports_of_the_image() -> None:
    settings = load_settings(environment=environment("dragoman"))
    ports = {"grpc": settings.grpc.port, "http": settings.http.port, "metrics": settings.http.metrics_port}
    pod = load_yaml("kubernetes/base/deployment.yaml")["spec"]["template"]["spec"]
    clusters = load_yaml("envoy/envoy.yaml")["static_resources"]["clusters"][:2]
    endpoints = [each["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"] for each in clusters]
    listeners = load_yaml("envoy/envoy.yaml")["static_resources"]["listeners"]

    assert settings.http.serves_api(settings.tls)
    assert {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]} == ports
    assert SERVICES["dragoman"]["expose"] == list(map(str, ports.values()))
    assert f"EXPOSE {' '.join(map(str, ports.values()))}\n" in DOCKERFILE
    assert [each["address"]["socket_address"]["port_value"] for each in endpoints] == [ports["grpc"], ports["http"]]
    assert endpoints[1]["health_check_config"]["port_value"] == ports["metrics"]
    assert [each["address"]["socket_address"]["port_value"] for each in listeners[:2]] == [ports["grpc"], ports["http"]]


def python_health_checks() -> list[list[str]]:
    """Return the arguments of Python in the health checks of the image and of the load test."""
    (of_image,) = re.findall(r"^HEALTHCHECK .*\\\n    CMD (\[(?:.|\n)*?\])$", DOCKERFILE, re.MULTILINE)
    return [json.loads(of_image.replace("\\\n", ""))[1:], SERVICES["load"]["healthcheck"]["test"][2:]]


@pytest.mark.parametrize("arguments", python_health_checks())
@pytest.mark.parametrize("is_ready", [True, False])
def test_health_check_ignores_proxy_variables(arguments: list[str], is_ready: bool) -> None:
    """Docker puts the proxy variables of its configuration into containers."""
    proxies = dict.fromkeys(("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")

    with monitoring_server(CollectorRegistry(), is_ready=lambda: is_ready) as server:
        environment = {**proxies, "DRAGOMAN_HTTP__METRICS_PORT": str(server.port)}
        words = [word.replace("8089'", f"{server.port}/readyz'") for word in arguments]
        checked = subprocess.run(
            [sys.executable, *words], env=environment, stderr=subprocess.DEVNULL, check=False, timeout=10
        )

    assert (checked.returncode == 0) == is_ready


@pytest.mark.parametrize("name", SERVICES)
def test_compose_health_check_with_a_command_ignores_proxy_variables(name: str) -> None:
    words = SERVICES[name].get("healthcheck", {}).get("test", [])

    assert "wget" not in words or words[2:4] == ["-Y", "off"]
    assert "curl" not in words or words[2:4] == ["--noproxy", "*"]


def test_image_does_not_start_without_credentials_of_callers() -> None:
    with pytest.raises(ConfigError, match=r"grpc\.host.*access\.callers_file.*access\.allow_unauthenticated = true"):
        load_settings(environment=image_environment())


def test_routes_of_envoy_and_gateway_are_equal_and_reach_every_path_of_the_server() -> None:
    listener = load_yaml("envoy/envoy.yaml")["static_resources"]["listeners"][1]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = manager["route_config"]["virtual_hosts"][0]["routes"]
    of_envoy = [route["match"]["path_separated_prefix"] for route in routes]
    rules = load_yaml("kubernetes/components/gateway/http-route.yaml")["spec"]["rules"]
    of_gateway = [match["path"] for rule in rules for match in rule["matches"]]
    part: Any = MagicMock()
    apis = [api(part, part) for api in (TranslationApi, AzureApi, LibreTranslateApi, DeepLApi, GoogleV2Api)]
    served = [
        *(route.path for api in apis for route in api.routes()),
        *(route.path for route in GoogleV3Api(part, part, google=part).routes()),
        *(route.path for route in (*document_routes(None, apis), *playground_routes())),
    ]

    assert of_gateway == [{"type": "PathPrefix", "value": path} for path in of_envoy]
    assert [path for path in served if not any(f"{path}/".startswith(f"{prefix}/") for prefix in of_envoy)] == []
    assert [prefix for prefix in of_envoy if not any(f"{path}/".startswith(f"{prefix}/") for path in served)] == []


def environment(name: str) -> dict[str, str]:
    """Return the variables of a replica: of its image, of its file, then its own with their defaults."""
    (file,) = SERVICES[name]["env_file"]
    lines = (CHECKOUT / file).read_text(encoding="utf-8").splitlines()
    from_file = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    own = SERVICES[name].get("environment", {})
    defaults = {key: re.sub(r"\$\{\w+:-(.*?)\}", r"\1", value) for key, value in own.items()}
    return {**image_environment(), **from_file, **defaults}


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))
