import copy
import math
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.ci import kube_play
from deploy.kubernetes import manifest_checks, render_rules

CHECKOUT = Path(__file__).resolve().parents[3]
KUBERNETES = CHECKOUT / "deploy" / "kubernetes"
SETTINGS_NAME = "dragoman-settings"


def load(path: Path) -> list[dict[str, Any]]:
    return [thing for thing in yaml.safe_load_all(path.read_text()) if thing]


@pytest.fixture
def base() -> list[dict[str, Any]]:
    """The objects of the base, as Kustomize renders them but for the ConfigMap's hash and the image's tag."""
    listed = load(KUBERNETES / "base" / "kustomization.yaml")[0]["resources"]
    objects = [thing for name in listed for thing in load(KUBERNETES / "base" / name)]
    text = (KUBERNETES / "base" / "service.toml").read_text()
    objects.append({"kind": "ConfigMap", "metadata": {"name": SETTINGS_NAME}, "data": {"service.toml": text}})
    manifest_checks.server_of(deployment(objects))["image"] = "dragoman:0.2.0"
    return objects


def deployment(objects: list[dict[str, Any]]) -> Any:
    return manifest_checks.of_kind(objects, "Deployment")[0]


def scaled_object() -> dict[str, Any]:
    scaled = load(KUBERNETES / "components" / "autoscaling-keda" / "scaled-object.yaml")[0]
    scaled["metadata"]["namespace"] = "dragoman"
    return scaled


def test_the_base_is_sound(base: list[dict[str, Any]]) -> None:
    assert manifest_checks.faults([*base, scaled_object()]) == []


def test_the_pods_settings_are_those_of_the_file_and_the_limits(base: list[dict[str, Any]]) -> None:
    settings = manifest_checks.settings_of(deployment(base), base)

    assert settings.grpc.host == "0.0.0.0"  # noqa: S104 every address of the pod
    assert settings.grpc.max_connection_age_s > 0
    assert settings.access.callers_file is not None
    assert not settings.access.allow_unauthenticated
    assert settings.scheduling.num_workers == 2


def test_settings_of_dev_are_known_to_the_server(base: list[dict[str, Any]]) -> None:
    base[-1]["data"]["service.toml"] = (KUBERNETES / "overlays" / "dev" / "service.toml").read_text()

    assert manifest_checks.settings_faults(base) == []


def unknown_variable(pod: Any, server: Any) -> None:
    server["env"].append({"name": "DRAGOMAN_GRPC__PROT", "value": "1"})


def bad_value(pod: Any, server: Any) -> None:
    server["env"].append({"name": "DRAGOMAN_GRPC__PORT", "value": "many"})


def service_links(pod: Any, server: Any) -> None:
    del pod["enableServiceLinks"]


def short_grace(pod: Any, server: Any) -> None:
    pod["terminationGracePeriodSeconds"] = 44


def hasty_liveness(pod: Any, server: Any) -> None:
    server["livenessProbe"]["failureThreshold"] = 4


def wrong_port(pod: Any, server: Any) -> None:
    server["readinessProbe"]["grpc"]["port"] = 50052


def unknown_health_service(pod: Any, server: Any) -> None:
    server["readinessProbe"]["grpc"]["service"] = "translation"


def no_probe(pod: Any, server: Any) -> None:
    del server["startupProbe"]


def root(pod: Any, server: Any) -> None:
    pod["securityContext"]["runAsUser"] = 0


def named_user(pod: Any, server: Any) -> None:
    pod["securityContext"]["runAsUser"] = "dragoman"


def writable_root(pod: Any, server: Any) -> None:
    server["securityContext"]["readOnlyRootFilesystem"] = False


def capabilities(pod: Any, server: Any) -> None:
    server["securityContext"]["capabilities"] = {"drop": ["ALL"], "add": ["SYS_NICE"]}


def token(pod: Any, server: Any) -> None:
    del pod["automountServiceAccountToken"]


def missing_volume(pod: Any, server: Any) -> None:
    pod["volumes"] = [volume for volume in pod["volumes"] if volume["name"] != "tmp"]


def unknown_secret(pod: Any, server: Any) -> None:
    pod["volumes"][1]["secret"]["secretName"] = "keys"


def moving_tag(pod: Any, server: Any) -> None:
    server["image"] = "registry.example.com:5000/dragoman"


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (unknown_variable, "setting 'grpc.prot' is '1': expected a known setting, such as grpc.port"),
        (bad_value, "setting 'grpc.port' is 'many': expected a valid integer"),
        (service_links, "enableServiceLinks must be false"),
        (short_grace, "terminationGracePeriodSeconds 44 is less than preStop 10 + drain 30 + 5"),
        (hasty_liveness, "livenessProbe would end a drain of 40 s"),
        (wrong_port, "readinessProbe: port 50052 is not that of grpc"),
        (unknown_health_service, "readinessProbe: the health service does not know 'translation'"),
        (no_probe, "there is no startupProbe"),
        (root, "expected a numeric runAsUser that is not 0"),
        (named_user, "expected a numeric runAsUser that is not 0"),
        (writable_root, "expected readOnlyRootFilesystem in server"),
        (capabilities, "expected no capabilities in server"),
        (token, "expected automountServiceAccountToken false"),
        (missing_volume, "volumes ['access', 'settings'] and mounts ['access', 'settings', 'tmp'] differ"),
        (unknown_secret, "there is no Secret keys"),
        (moving_tag, "expected a tag or digest of the image in server"),
    ],
)
def test_a_spoiled_pod_has_exactly_one_fault(
    base: list[dict[str, Any]], spoil: Callable[[Any, Any], None], fault: str
) -> None:
    spoil(manifest_checks.pod_of(deployment(base)), manifest_checks.server_of(deployment(base)))

    (found,) = manifest_checks.faults(base)
    assert found.startswith(f"Deployment/dragoman: {fault}")


def test_an_unknown_setting_in_the_file_is_found_out(base: list[dict[str, Any]]) -> None:
    base[-1]["data"]["service.toml"] += "\n[grpcs]\nport = 1\n"

    (fault,) = manifest_checks.settings_faults(base)
    assert fault.startswith("Deployment/dragoman: setting 'grpcs.port' is 1: expected a known setting")


def test_a_selector_of_nothing_is_found_out(base: list[dict[str, Any]]) -> None:
    manifest_checks.of_kind(base, "PodDisruptionBudget")[0]["spec"]["selector"]["matchLabels"] = {"app": "dragoman"}

    assert manifest_checks.selector_faults(base) == [
        "PodDisruptionBudget/dragoman: selects no pod: {'app': 'dragoman'}"
    ]


def test_a_secret_is_not_shipped(base: list[dict[str, Any]]) -> None:
    secret = {"kind": "Secret", "metadata": {"name": "dragoman-callers"}}

    assert manifest_checks.security_faults([*base, secret]) == ["Secret/dragoman-callers: a Secret must not be shipped"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("dragoman_queue_work_tokens", "dragoman_queue_works", "no metric of the server: dragoman_queue_works"),
        ('namespace="dragoman"', 'namespace="other"', "queries look into ['other'], not into its own namespace"),
        (
            "dragoman_batch_live_segments",
            "container_cpu_usage_seconds_total",
            "no metric of the server: container_cpu_usage_seconds_total",
        ),
    ],
)
def test_a_wrong_query_is_found_out(base: list[dict[str, Any]], old: str, new: str, fault: str) -> None:
    scaled = scaled_object()
    for trigger in scaled["spec"]["triggers"]:
        trigger["metadata"]["query"] = trigger["metadata"]["query"].replace(old, new)

    assert manifest_checks.scaling_faults([*base, scaled]) == [f"ScaledObject/dragoman: {fault}"]


def test_scaling_without_what_waits_is_found_out() -> None:
    assert manifest_checks.query_faults(["sum(rate(dragoman_requests_total[1m]))"]) == ["no query asks how much waits"]


def test_replicas_beside_an_autoscaler_are_found_out(base: list[dict[str, Any]]) -> None:
    deployment(base)["spec"]["replicas"] = 3

    assert manifest_checks.scaling_faults([*base, scaled_object()]) == [
        "Deployment/dragoman: replicas would undo what ScaledObject decides"
    ]


def test_both_autoscalers_go_by_the_same_thresholds() -> None:
    component = KUBERNETES / "components" / "autoscaling-hpa"
    scaler = load(component / "horizontal-pod-autoscaler.yaml")[0]
    rules = load(component / "prometheus-adapter.yaml")[0]["rules"]
    triggers = scaled_object()["spec"]["triggers"]

    assert manifest_checks.adapter_faults(rules, [scaler]) == []
    assert [metric["pods"]["target"]["averageValue"] for metric in scaler["spec"]["metrics"]] == [
        trigger["metadata"]["threshold"] for trigger in triggers
    ]


def test_models_of_components_are_found_where_they_are_mounted() -> None:
    for path in sorted((KUBERNETES / "components").glob("models-*/deployment.yaml")):
        server = manifest_checks.server_of(load(path)[0])
        environment = manifest_checks.environment_of(with_limits(server))

        assert server["volumeMounts"][0]["mountPath"] == environment["DRAGOMAN_MODELS__DIRECTORY"], path


def with_limits(server: dict[str, Any]) -> dict[str, Any]:
    return {**server, "resources": {"limits": {"cpu": "1500m"}}}


def test_limits_of_cpu_are_rounded_up_to_cores() -> None:
    reference = {"valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    server = {"env": [{"name": "DRAGOMAN_RUNTIME__NUM_LOW_LATENCY_THREADS", **reference}], "name": "server"}

    environment = manifest_checks.environment_of(with_limits(server))

    assert environment["DRAGOMAN_RUNTIME__NUM_LOW_LATENCY_THREADS"] == str(math.ceil(1.5))


def test_the_prometheus_rule_holds_the_rules_of_prometheus() -> None:
    assert render_rules.is_current(render_rules.RULES, render_rules.TARGET)


def test_a_rule_that_was_changed_in_one_place_only_is_found_out(tmp_path: Path) -> None:
    changed = copy.deepcopy(render_rules.groups(render_rules.RULES))
    changed[0]["rules"][0]["expr"] = "1"
    target = tmp_path / "prometheus-rule.yaml"
    target.write_text(yaml.safe_dump(render_rules.prometheus_rule(changed)))

    assert not render_rules.is_current(render_rules.RULES, target)


def test_two_groups_of_one_name_are_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text("groups: [{name: same, rules: []}]")

    with pytest.raises(ValueError, match="twice"):
        render_rules.groups(tmp_path)


def test_the_pods_user_is_that_of_the_image(base: list[dict[str, Any]]) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (CHECKOUT / "Dockerfile").read_text(), re.MULTILINE)
    context = manifest_checks.pod_of(deployment(base))["securityContext"]

    assert user is not None
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_overlays_run_the_version_of_this_checkout() -> None:
    version = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]

    tags = [
        load(KUBERNETES / "overlays" / name / "kustomization.yaml")[0]["images"][0]["newTag"] for name in ("cpu", "gpu")
    ]

    assert tags == [version, f"{version}-gpu"]


def test_podman_gets_what_it_knows_in_the_order_it_needs(base: list[dict[str, Any]]) -> None:
    assert [thing["kind"] for thing in kube_play.playable(base)] == ["ConfigMap", "Deployment"]


def test_podman_may_get_secrets_as_config_maps_at_the_same_places(base: list[dict[str, Any]]) -> None:
    pod = manifest_checks.pod_of(deployment(base))
    mounts = copy.deepcopy(manifest_checks.server_of(deployment(base))["volumeMounts"])

    kube_play.mount_config_maps(pod)

    assert {"name": "access", "configMap": {"name": "dragoman-callers"}} in pod["volumes"]
    assert not any("secret" in volume for volume in pod["volumes"])
    assert manifest_checks.server_of(deployment(base))["volumeMounts"] == mounts
