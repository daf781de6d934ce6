"""Every overlay and component of deploy/kubernetes, rendered by kubectl and checked without a cluster."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from dragoman_service.config import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, load_settings
from dragoman_service.grpc_api.server import SERVICE_NAMES
from tests.e2e.tools import BUILD, DEPLOY, kustomize, python_tools, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

KUBERNETES: Final = DEPLOY / "kubernetes"
SCHEMAS: Final = Path(__file__).with_name("crd_schemas")
CUSTOM_GROUPS: Final = ("gateway.networking.k8s.io", "keda.sh", "monitoring.coreos.com")
VARIANTS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {  # a directory, and components on top of it
    "base": ("base", ()),
    "cpu": ("overlays/cpu", ()),
    "gpu": ("overlays/gpu", ()),
    "dev": ("overlays/dev", ()),
    "cpu-outside": ("overlays/cpu", ("gateway", "tls", "tracing")),
    "hpa": ("base", ("autoscaling-hpa", "monitoring", "models-pvc")),
    "models-oci": ("overlays/cpu", ("models-oci",)),
    "models-init": ("overlays/cpu", ("models-init",)),
}
OLDEST: Final = "1.30"  # enables preStop.sleep by default
OLDEST_WITH_IMAGE_VOLUMES: Final = "1.33"
NEWEST: Final = "1.37"
FLUSH_S: Final = 5.0  # the server sends its last traces for at most this time after a drain
OPERATOR_SECRETS: Final = frozenset({"dragoman-callers", "dragoman-tls", "dragoman-tracing"})

Object = dict[str, Any]


class Manifests:
    """The objects of one variant."""

    def __init__(self, objects: Sequence[Object]) -> None:
        self.objects = objects

    def of_kind(self, *kinds: str) -> list[Object]:
        return [item for item in self.objects if item["kind"] in kinds]

    def custom(self, *, is_custom: bool) -> list[Object]:
        groups = [(item, item["apiVersion"].partition("/")[0]) for item in self.objects]
        return [item for item, group in groups if (group in CUSTOM_GROUPS) is is_custom]

    def names(self, kind: str) -> set[str]:
        return {item["metadata"]["name"] for item in self.of_kind(kind)}

    @property
    def deployment(self) -> Object:
        (deployment,) = self.of_kind("Deployment")
        return deployment

    @property
    def pod(self) -> Object:
        pod: Object = self.deployment["spec"]["template"]["spec"]
        return pod

    @property
    def server(self) -> Object:
        return next(container for container in self.pod["containers"] if container["name"] == "server")

    def settings(self, directory: Path) -> Settings:
        """Parse the settings of the server as it would; ConfigError if it would not start."""
        mounted = {volume["configMap"]["name"] for volume in self.pod["volumes"] if "configMap" in volume}
        maps = [item["data"] for item in self.of_kind("ConfigMap") if item["metadata"]["name"] in mounted]
        file = directory / "service.toml"
        file.write_text(next(data["service.toml"] for data in maps if "service.toml" in data), encoding="utf-8")
        return load_settings(file=file, environment=dict(self._environment()))

    def _environment(self) -> Iterator[tuple[str, str]]:
        for variable in self.server.get("env", ()):
            name, source = variable["name"], variable.get("valueFrom", {})
            if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE:
                limit = source.get("resourceFieldRef", {}).get("resource", "").removeprefix("limits.")
                yield name, whole_cores(self.server["resources"]["limits"][limit]) if limit else variable["value"]


def whole_cores(quantity: str) -> str:
    """A limit of CPU as the kubelet passes it on: rounded up."""
    return str(math.ceil(float(quantity.removesuffix("m")) / (1000 if quantity.endswith("m") else 1)))


@pytest.fixture(scope="module")
def rendered() -> Mapping[str, Path]:
    """The file with the objects of each variant."""
    files = {}
    for name, (directory, components) in VARIANTS.items():
        files[name] = BUILD / "manifests" / name / "rendered.yaml"
        fields = (
            {"namespace": "dragoman", "images": [{"name": "dragoman", "newTag": "0"}]} if directory == "base" else {}
        )
        content = kustomize(files[name].parent, directory, components, **fields)
        files[name].write_text(content, encoding="utf-8")
    return files


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(rendered: Mapping[str, Path], variant: str) -> Manifests:
    objects = yaml.safe_load_all(rendered[variant].read_text(encoding="utf-8"))
    return Manifests([item for item in objects if item])


def test_every_component_is_rendered() -> None:
    overlays = [yaml.safe_load(path.read_text()) for path in (KUBERNETES / "overlays").glob("*/kustomization.yaml")]
    of_overlays = {Path(name).name for overlay in overlays for name in overlay.get("components", ())}
    of_variants = set(chain.from_iterable(components for _, components in VARIANTS.values()))

    assert of_overlays | of_variants == {path.name for path in (KUBERNETES / "components").iterdir()}


def test_checkov_accepts_the_manifests(rendered: Mapping[str, Path]) -> None:
    """Covers the restricted Pod Security Standard, resource limits and image tags; annotations explain exceptions."""
    checkov = python_tools("checkov", "checkov>=3.3,<4") / "bin" / "checkov"
    files = [argument for path in rendered.values() for argument in ("--file", path)]
    run(checkov, "--framework", "kubernetes", "--compact", "--quiet", "--skip-download", *files)


def test_core_objects_match_the_schemas_of_kubernetes(manifests: Manifests, variant: str, tmp_path: Path) -> None:
    validate = python_tools("kubernetes-validate", "kubernetes-validate>=1.37,<2") / "bin" / "kubernetes-validate"
    oldest = OLDEST_WITH_IMAGE_VOLUMES if variant == "models-oci" else OLDEST
    objects = manifests.custom(is_custom=False)
    file = tmp_path / "core.yaml"
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")

    output = run(validate, "--strict", "-k", oldest, "-k", NEWEST, file).stdout

    assert output.count(" passed for resource ") == 2 * len(objects), output
    assert "WARN" not in output


def test_custom_objects_match_their_schemas(manifests: Manifests) -> None:
    for item in manifests.custom(is_custom=True):
        name = f"{item['kind']}_{item['apiVersion'].rpartition('/')[2]}.json".lower()
        schema = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
        jsonschema.Draft7Validator({**schema, "additionalProperties": False}).validate(item)


def test_server_starts_with_its_settings_and_has_time_to_drain(manifests: Manifests, tmp_path: Path) -> None:
    settings = manifests.settings(tmp_path)
    pod, server = manifests.pod, manifests.server
    pre_stop_s = float(server["lifecycle"]["preStop"]["sleep"]["seconds"])
    drain_s = pre_stop_s + settings.grpc.drain_timeout_s
    liveness = server["livenessProbe"]

    assert settings.grpc.host == "0.0.0.0"  # noqa: S104 - every address of the pod
    assert pod["enableServiceLinks"] is False  # links would be read as settings
    assert pod["terminationGracePeriodSeconds"] >= drain_s + FLUSH_S
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > drain_s


def test_probes_use_declared_ports_and_known_health_services(manifests: Manifests) -> None:
    ports = {port["name"]: port["containerPort"] for port in manifests.server["ports"]}

    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        probe = manifests.server[name]
        if "grpc" in probe:
            assert probe["grpc"]["port"] == ports["grpc"]
            assert probe["grpc"]["service"] in {"", *SERVICE_NAMES}
        else:
            assert probe["httpGet"]["port"] in ports


def test_selectors_match_the_pods(manifests: Manifests) -> None:
    labels = manifests.deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests.deployment["spec"]["selector"]["matchLabels"],
        *(item["labelSelector"]["matchLabels"] for item in manifests.pod.get("topologySpreadConstraints", ())),
        *(item["spec"]["selector"] for item in manifests.of_kind("Service")),
        *(item["spec"]["selector"]["matchLabels"] for item in manifests.of_kind("PodDisruptionBudget")),
        *(item["spec"]["podSelector"]["matchLabels"] for item in manifests.of_kind("NetworkPolicy")),
    ]

    assert all(selector.items() <= labels.items() for selector in selectors)


def test_monitors_and_routes_reach_services(manifests: Manifests) -> None:
    services = manifests.of_kind("Service")

    for monitor in manifests.of_kind("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        selected = [service for service in services if selector.items() <= service["metadata"]["labels"].items()]
        ports = [port["name"] for service in selected for port in service["spec"]["ports"]]
        assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]
        assert ports.count("metrics") == 1  # each pod is scraped once
    for route in manifests.of_kind("GRPCRoute"):
        for backend in chain.from_iterable(rule["backendRefs"] for rule in route["spec"]["rules"]):
            (service,) = [item for item in services if item["metadata"]["name"] == backend["name"]]
            assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}


def test_volumes_and_accounts_exist(manifests: Manifests) -> None:
    pod = manifests.pod
    volumes = pod.get("volumes", ())
    mounts = [
        mount["name"]
        for container in (*pod["containers"], *pod.get("initContainers", ()))
        for mount in container.get("volumeMounts", ())
    ]
    claims = {item["persistentVolumeClaim"]["claimName"] for item in volumes if "persistentVolumeClaim" in item}

    assert {volume["name"] for volume in volumes} == set(mounts)
    assert {item["configMap"]["name"] for item in volumes if "configMap" in item} <= manifests.names("ConfigMap")
    assert claims <= manifests.names("PersistentVolumeClaim")
    assert {item["secret"]["secretName"] for item in volumes if "secret" in item} <= OPERATOR_SECRETS
    assert manifests.of_kind("Secret") == []
    assert pod["serviceAccountName"] in manifests.names("ServiceAccount")
    assert {item["metadata"]["namespace"] for item in manifests.objects if "namespace" in item["metadata"]} == (
        manifests.names("Namespace")
    )


def test_at_most_one_autoscaler_sets_the_replicas(manifests: Manifests) -> None:
    scalers = manifests.of_kind("ScaledObject", "HorizontalPodAutoscaler")

    assert len(scalers) <= 1
    for scaler in scalers:
        assert scaler["spec"]["scaleTargetRef"]["name"] == manifests.deployment["metadata"]["name"]
        assert "replicas" not in manifests.deployment["spec"]
    for scaler in manifests.of_kind("ScaledObject"):
        namespace = scaler["metadata"]["namespace"]
        for trigger in scaler["spec"]["triggers"]:
            assert f'namespace="{namespace}"' in trigger["metadata"]["query"]
