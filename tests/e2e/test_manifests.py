"""All of deploy/kubernetes and the chart of deploy/helm, rendered and checked without a cluster.

The chart renders the same objects as Kustomize.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml

from dragoman_service.config import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, load_settings
from tests.e2e.tools import (
    BUILD,
    CHECKOUT,
    DEPLOY,
    HELM_CHART,
    helm,
    helm_binary,
    kustomize,
    node_packages,
    python_tools,
    run,
)
from tests.unit.deploy.image_settings import image_environment

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
    "openshift": ("overlays/cpu", ("openshift",)),
}
BASE_IMAGE: Final = {"image": {"repository": "dragoman", "tag": "0"}, "replicas": None}
OPERATORS: Final[Mapping[str, Any]] = {
    "autoscaling": {"type": "keda"},
    "monitoring": {"serviceMonitor": True, "prometheusRule": True},
}
COPIED: Final = {"requests": {"ephemeral-storage": "2Gi"}, "limits": {"ephemeral-storage": "2Gi"}}
OPENSHIFT_VALUES: Final = yaml.safe_load((HELM_CHART / "values-openshift.yaml").read_text(encoding="utf-8"))
CHART: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {  # a variant of Kustomize, and values of the chart
    "chart-base": ("base", BASE_IMAGE),
    "chart-cpu": ("cpu", OPERATORS),
    "chart-gpu": ("gpu", {**OPERATORS, "gpu": {"enabled": True}}),
    "chart-cpu-outside": (
        "cpu-outside",
        {
            **OPERATORS,
            "gateway": {"enabled": True},
            "tls": {"existingSecret": "dragoman-tls"},
            "tracing": {"endpoint": "http://opentelemetry-collector.observability.svc.cluster.local:4317"},
        },
    ),
    "chart-hpa": (
        "hpa",
        {
            **BASE_IMAGE,
            **OPERATORS,
            "autoscaling": {"type": "hpa"},
            "models": [{"claim": "dragoman-models"}],
            "modelsClaim": {"create": True},
        },
    ),
    "chart-models-oci": (
        "models-oci",
        {**OPERATORS, "models": [{"image": "registry.example.com/dragoman-models:2026-11-21"}]},
    ),
    "chart-models-init": (
        "models-init",
        {
            **OPERATORS,
            "models": [{"copyFrom": "registry.example.com/dragoman-models-copy:2026-11-21"}],
            "resources": COPIED,
        },
    ),
    "chart-openshift": ("openshift", {**OPERATORS, **OPENSHIFT_VALUES}),
}
OPEN_CHART: Final = "chart-open"
OPEN_VALUES: Final = {
    "access": {"allowUnauthenticated": True},
    "loadTest": {"enabled": True, "image": "registry.example.com/dragoman-load:0.2.0", "keySecret": "dragoman-load"},
    "models": [
        {"name": "en-de", "copyFrom": "registry.example.com/model-en-de:1"},
        {"name": "de_EN.2", "claim": "dragoman-models"},
    ],
    "modelsClaim": {"create": True},
    "settings": {
        "http": {"playground": False, "allowed_hosts": ["a.example", "b.example"]},
        "scheduling": {"num_workers": 3, "max_cached_bytes": 67108864, "max_bulk_wait_s": 2.5},
    },
}
PUBLIC_URL_PATCH: Final = {  # which the chart derives from the host names of its values
    "target": {"kind": "Deployment", "name": "dragoman"},
    "patch": """
- op: add
  path: /spec/template/spec/containers/0/env/-
  value: {name: DRAGOMAN_HTTP__PUBLIC_URL, value: "https://dragoman.example.com"}
""",
}
TOOL_LABELS: Final = {
    "helm.sh/chart",
    *(f"app.kubernetes.io/{name}" for name in ("instance", "managed-by", "part-of", "version")),
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

    def network_policy(self, name: str = "dragoman") -> Object:
        return next(item for item in self.of_kind("NetworkPolicy") if item["metadata"]["name"] == name)

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
        return load_settings(file=file, environment={**image_environment(), **dict(self._environment())})

    def _environment(self) -> Iterator[tuple[str, str]]:
        for variable in self.server.get("env", ()):
            name = variable["name"]
            if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_VARIABLE:
                yield name, variable["value"]


@pytest.fixture(scope="module")
def rendered() -> Mapping[str, Path]:
    """The file with the objects of each variant."""
    files = {}
    for name, (directory, components) in VARIANTS.items():
        files[name] = BUILD / "manifests" / name / "rendered.yaml"
        fields: dict[str, Any] = {"namespace": "dragoman"} if directory == "base" or components else {}
        if "gateway" in components:
            fields["patches"] = [PUBLIC_URL_PATCH]
        if directory == "base":
            fields["images"] = [{"name": "dragoman", "newTag": "0"}]
        content = kustomize(files[name].parent, directory, components, **fields)
        files[name].write_text(content, encoding="utf-8")
    for name, (_, values) in {**CHART, OPEN_CHART: ("cpu", OPEN_VALUES)}.items():
        files[name] = BUILD / "manifests" / name / "rendered.yaml"
        files[name].write_text(helm(files[name].parent, "dragoman", values), encoding="utf-8")
    return files


@pytest.fixture(params=[*VARIANTS, *CHART, OPEN_CHART])
def variant(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(rendered: Mapping[str, Path], variant: str) -> Manifests:
    return Manifests(load_objects(rendered[variant]))


def load_objects(file: Path) -> list[Object]:
    return [item for item in yaml.safe_load_all(file.read_text(encoding="utf-8")) if item]


def comparable(file: Path) -> list[Object]:
    """Return the objects of a file, sorted, without hashes of settings, labels of the tool and annotations."""
    text = re.sub(r"dragoman-settings-[a-z0-9]{10}", "dragoman-settings", file.read_text(encoding="utf-8"))
    objects = [item for item in yaml.safe_load_all(text) if item and item["kind"] != "Namespace"]
    for item in objects:
        metadata = item["metadata"]
        metadata["labels"] = {name: value for name, value in metadata["labels"].items() if name not in TOOL_LABELS}
        metadata.pop("annotations", None)
    return sorted(map(with_sorted_lists, objects), key=lambda item: (item["kind"], item["metadata"]["name"]))


def with_sorted_lists(value: Any) -> Any:
    """Sort lists whose order has no meaning: those of objects with names."""
    if isinstance(value, dict):
        return {name: with_sorted_lists(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    items = list(map(with_sorted_lists, value))
    is_named = all(isinstance(item, dict) and "name" in item for item in items)
    return sorted(items, key=lambda item: str(item["name"])) if is_named else items


@pytest.mark.parametrize("name", CHART)
def test_chart_and_kustomize_render_the_same_objects(rendered: Mapping[str, Path], name: str) -> None:
    assert comparable(rendered[name]) == comparable(rendered[CHART[name][0]])


def test_helm_accepts_the_chart() -> None:
    run(helm_binary(), "lint", "--strict", HELM_CHART)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ("autoscaling.type=kda", "autoscaling.type"),
        ("image.digest=latest", "image.digest"),
        ("replica=3", "replica is not allowed"),
        ("models[0].name=a", "models.0"),
        ("models[0].image=a,models[1].image=b", "name is required"),
        ("settings.http.playground.x=1", "settings.http.playground"),
        ("resources.limits.cpu=null", "set settings.scheduling.num_workers"),
        ("podSecurityContext.runAsUser=0", "podSecurityContext.runAsUser"),
    ],
)
def test_chart_rejects_invalid_values(values: str, message: str) -> None:
    refused = run(helm_binary(), "template", HELM_CHART, "--set", values, is_checked=False)

    assert refused.returncode != 0
    assert message in refused.stderr


def test_chart_without_a_cpu_limit_has_the_number_of_threads_of_its_settings(tmp_path: Path) -> None:
    values = {"resources": {"limits": {"cpu": None}}, "settings": {"scheduling": {"num_workers": 3}}}
    server = Manifests([item for item in yaml.safe_load_all(helm(tmp_path, "dragoman", values)) if item]).server

    assert "cpu" not in server["resources"]["limits"]
    assert {"name": "DRAGOMAN_SCHEDULING__NUM_WORKERS", "value": "3"} in server["env"]


def test_settings_of_the_chart_override_those_of_the_image(rendered: Mapping[str, Path], tmp_path: Path) -> None:
    settings = Manifests(load_objects(rendered[OPEN_CHART])).settings(tmp_path)

    assert settings.access.allow_unauthenticated
    assert not settings.http.playground
    assert settings.http.allowed_hosts == ("a.example", "b.example")
    scheduling = settings.scheduling
    assert (scheduling.num_workers, scheduling.max_cached_bytes, scheduling.max_bulk_wait_s) == (3, 67108864, 2.5)


def test_user_and_groups_can_be_left_to_the_cluster(rendered: Mapping[str, Path]) -> None:
    """The security context constraint restricted-v2 of OpenShift rejects other users and groups than its own."""
    for name in ("openshift", "chart-openshift"):
        pod = Manifests(load_objects(rendered[name])).pod
        containers = [*pod["containers"], *pod.get("initContainers", ())]

        for context in (pod["securityContext"], *(container["securityContext"] for container in containers)):
            assert not {"runAsUser", "runAsGroup", "fsGroup", "supplementalGroups"} & context.keys()


def test_services_are_dual_stack_where_the_cluster_is(manifests: Manifests) -> None:
    for service in manifests.of_kind("Service"):
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"


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
    oldest = OLDEST_WITH_IMAGE_VOLUMES if variant.endswith("models-oci") else OLDEST
    objects = manifests.custom(is_custom=False)
    file = tmp_path / "core.yaml"
    file.write_text(yaml.safe_dump_all(objects), encoding="utf-8")

    output = run(validate, "--strict", "-k", oldest, "-k", NEWEST, file).stdout

    assert output.count(" passed for resource ") == 2 * len(objects), output
    assert "WARN" not in output


def test_pods_of_the_ray_job_in_the_guide_match_the_schema_and_are_restricted(tmp_path: Path) -> None:
    """Covers the pods only: the schema of RayJob is not in `crd_schemas`."""
    validate = python_tools("kubernetes-validate", "kubernetes-validate>=1.37,<2") / "bin" / "kubernetes-validate"
    guide = (CHECKOUT / "docs" / "guides" / "datasets.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    cluster = yaml.safe_load(block)["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"ray-{number}"}, **group["template"]}
        for number, group in enumerate(groups)
    ]
    file = tmp_path / "pods.yaml"
    file.write_text(yaml.safe_dump_all(pods), encoding="utf-8")

    output = run(validate, "--strict", "-k", OLDEST, "-k", NEWEST, file).stdout

    assert output.count(" passed for resource ") == 2 * len(pods), output
    assert cluster["authOptions"] == {"mode": "token"}
    for pod in pods:
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        assert not any(one["securityContext"]["allowPrivilegeEscalation"] for one in pod["spec"]["containers"])


def test_custom_objects_match_their_schemas(manifests: Manifests) -> None:
    for item in manifests.custom(is_custom=True):
        if item["kind"] == "HTTPRoute":
            continue
        name = f"{item['kind']}_{item['apiVersion'].rpartition('/')[2]}.json".lower()
        schema = json.loads((SCHEMAS / name).read_text(encoding="utf-8"))
        jsonschema.Draft7Validator({**schema, "additionalProperties": False}).validate(item)


def test_http_routes_match_the_gateway_api(rendered: Mapping[str, Path], tmp_path: Path) -> None:
    folder = node_packages("gateway-api", "@kubernetes-models/gateway-api@0.5.1")
    routes = [item for file in rendered.values() for item in load_objects(file) if item["kind"] == "HTTPRoute"]
    (tmp_path / "routes.json").write_text(json.dumps(routes), encoding="utf-8")
    module = "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute"
    code = f"require(process.argv[1]).forEach(route => new (require('{module}').HTTPRoute)(route).validate())"

    assert len(routes) == 2
    run("node", "-e", code, tmp_path / "routes.json", directory=folder)


def test_server_starts_with_its_settings_and_has_time_to_drain(manifests: Manifests, tmp_path: Path) -> None:
    settings = manifests.settings(tmp_path)
    pod, server = manifests.pod, manifests.server
    pre_stop_s = float(server["lifecycle"]["preStop"]["sleep"]["seconds"])
    drain_s = pre_stop_s + settings.grpc.drain_timeout_s
    liveness = server["livenessProbe"]

    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] >= drain_s + FLUSH_S
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > drain_s


def test_services_and_the_network_policy_use_the_ports_of_the_server(manifests: Manifests) -> None:
    ports = {port["name"]: port["containerPort"] for port in manifests.server["ports"]}
    policy = manifests.network_policy()
    admitted = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    of_services = [port for service in manifests.of_kind("Service") for port in service["spec"]["ports"]]

    assert admitted == set(ports.values())
    assert all(port["port"] == ports[port["targetPort"]] for port in of_services)
    assert {port["name"] for port in of_services} == ports.keys()
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert manifests.server[name]["httpGet"]["port"] == "metrics"


def test_selectors_match_the_pods(manifests: Manifests) -> None:
    labels = manifests.deployment["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests.deployment["spec"]["selector"]["matchLabels"],
        *(item["labelSelector"]["matchLabels"] for item in manifests.pod.get("topologySpreadConstraints", ())),
        *(item["spec"]["selector"] for item in manifests.of_kind("Service")),
        *(item["spec"]["selector"]["matchLabels"] for item in manifests.of_kind("PodDisruptionBudget")),
        manifests.network_policy()["spec"]["podSelector"]["matchLabels"],
    ]

    assert all(selector.items() <= labels.items() for selector in selectors)


def test_load_test_may_connect_to_the_server(rendered: Mapping[str, Path]) -> None:
    manifests = Manifests(load_objects(rendered[OPEN_CHART]))
    (job,) = manifests.of_kind("Job")
    labels = job["spec"]["template"]["metadata"]["labels"]
    policy, of_server = manifests.network_policy(job["metadata"]["name"]), manifests.network_policy()
    to_server = policy["spec"]["egress"][0]
    (client, _), *_ = (rule["from"] for rule in of_server["spec"]["ingress"])
    (host,) = (word for word in job["spec"]["template"]["spec"]["containers"][0]["args"] if word.startswith("--host="))
    service, _, port = host.removeprefix("--host=").partition(":")

    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    assert (
        to_server["to"][0]["podSelector"]["matchLabels"]
        == manifests.network_policy()["spec"]["podSelector"]["matchLabels"]
    )
    assert client["podSelector"]["matchLabels"].items() <= labels.items()
    assert service in manifests.names("Service")
    assert int(port) in {rule["port"] for rule in to_server["ports"]}


def test_monitors_and_routes_reach_services(manifests: Manifests) -> None:
    services = manifests.of_kind("Service")

    for monitor in manifests.of_kind("ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        selected = [service for service in services if selector.items() <= service["metadata"]["labels"].items()]
        ports = [port["name"] for service in selected for port in service["spec"]["ports"]]
        assert [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] == ["metrics"]
        assert ports.count("metrics") == 1  # each pod is scraped once
    for route in manifests.of_kind("GRPCRoute", "HTTPRoute"):
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
    namespaces = {item["metadata"]["namespace"] for item in manifests.objects if "namespace" in item["metadata"]}
    assert len(namespaces) == 1
    assert manifests.names("Namespace") <= namespaces


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
