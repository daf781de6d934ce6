"""What must hold of rendered manifests beyond their schemas: pure functions from objects to sentences about faults.

Objects are what a YAML document holds. An empty list means that nothing was found.
"""

import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from dragoman_service.config import CONFIG_VARIABLE, ENVIRONMENT_PREFIX, Settings, load_settings
from dragoman_service.errors import ConfigError
from dragoman_service.grpc_api.server import SERVICE_NAMES
from dragoman_service.observability.metrics import Metrics

Object = Mapping[str, Any]

SETTINGS_FILE: Final = "service.toml"
FLUSH_S: Final = 5.0
"""What a server takes at most for its last traces, after the drain."""
GRPC_PORT_NAME: Final = "grpc"
SECRETS: Final = frozenset({"dragoman-callers", "dragoman-tls", "dragoman-tracing"})
"""What operators make themselves; docs/operations/kubernetes.md says how."""

_PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")
_METRIC: Final = re.compile(r"\b(?:dragoman|process|python|container|node)_\w+")
_NAMESPACE: Final = re.compile(r'namespace="([^"]*)"')
_FIELD_OF_WAITING: Final = "dragoman_queue_"


def faults(objects: Sequence[Object]) -> list[str]:
    """Return everything that is wrong with the objects of one rendering."""
    checks = (pod_faults, security_faults, selector_faults, reference_faults, scaling_faults)
    return settings_faults(objects) or [fault for check in checks for fault in check(objects)]


def settings_faults(objects: Sequence[Object]) -> list[str]:
    """Return what the server would not start with: unknown settings, bad values, in the file or the environment."""
    found = []
    for deployment in of_kind(objects, "Deployment"):
        try:
            settings_of(deployment, objects)
        except (ConfigError, KeyError) as error:
            found.append(f"{name_of(deployment)}: {error}")
        if pod_of(deployment).get("enableServiceLinks") is not False:
            found.append(f"{name_of(deployment)}: enableServiceLinks must be false, or Services become settings")
    return found


def pod_faults(objects: Sequence[Object]) -> list[str]:
    """Return what is wrong with probes, with the time that a pod has to end, and with its mounts.

    Raises:
        ConfigError: if `settings_faults` finds something.
    """
    found = []
    for deployment in of_kind(objects, "Deployment"):
        pod, server = pod_of(deployment), server_of(deployment)
        found += [f"{name_of(deployment)}: {fault}" for fault in _probe_faults(server)]
        found += [f"{name_of(deployment)}: {fault}" for fault in _mount_faults(pod)]
        pre_stop_s = float(server["lifecycle"]["preStop"]["sleep"]["seconds"])
        drain_s = settings_of(deployment, objects).grpc.drain_timeout_s
        if pod["terminationGracePeriodSeconds"] < pre_stop_s + drain_s + FLUSH_S:
            found.append(
                f"{name_of(deployment)}: terminationGracePeriodSeconds {pod['terminationGracePeriodSeconds']} is less "
                f"than preStop {pre_stop_s:g} + drain {drain_s:g} + {FLUSH_S:g}"
            )
        liveness = server["livenessProbe"]
        if liveness["periodSeconds"] * liveness["failureThreshold"] <= pre_stop_s + drain_s:
            found.append(f"{name_of(deployment)}: livenessProbe would end a drain of {pre_stop_s + drain_s:g} s")
    return found


def security_faults(objects: Sequence[Object]) -> list[str]:
    """Return what the restricted Pod Security Standard refuses, and what else no pod of ours needs."""
    found = [f"{name_of(secret)}: a Secret must not be shipped" for secret in of_kind(objects, "Secret")]
    for deployment in of_kind(objects, "Deployment"):
        pod = pod_of(deployment)
        context = pod.get("securityContext", {})
        wanted = {
            "a numeric runAsUser that is not 0": isinstance(context.get("runAsUser"), int) and context["runAsUser"] > 0,
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "seccompProfile RuntimeDefault": context.get("seccompProfile") == {"type": "RuntimeDefault"},
            "automountServiceAccountToken false": pod.get("automountServiceAccountToken") is False,
            "neither host network, PID nor IPC": not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(),
            "no hostPath": not any("hostPath" in volume for volume in pod.get("volumes", ())),
        }
        for container in (*pod["containers"], *pod.get("initContainers", ())):
            wanted |= _container_wishes(container)
        found += [f"{name_of(deployment)}: expected {wish}" for wish, is_met in wanted.items() if not is_met]
    return found


def selector_faults(objects: Sequence[Object]) -> list[str]:
    """Return selectors that select nothing of what is rendered, and what points at an object that is not there."""
    found = []
    templates = [deployment["spec"]["template"]["metadata"]["labels"] for deployment in of_kind(objects, "Deployment")]
    for owner, selector in _pod_selectors(objects):
        if not any(selector.items() <= labels.items() for labels in templates):
            found.append(f"{owner}: selects no pod: {selector}")
    services = of_kind(objects, "Service")
    for monitor in of_kind(objects, "ServiceMonitor"):
        selector = monitor["spec"]["selector"]["matchLabels"]
        selected = [service for service in services if selector.items() <= service["metadata"]["labels"].items()]
        ports = [port["name"] for service in selected for port in service["spec"]["ports"]]
        if [endpoint["port"] for endpoint in monitor["spec"]["endpoints"]] != ["metrics"] or ports.count(
            "metrics"
        ) != 1:
            found.append(f"{name_of(monitor)}: must find each pod's port `metrics` once, finds {ports}")
    for route in of_kind(objects, "GRPCRoute"):
        backends = [backend for rule in route["spec"]["rules"] for backend in rule["backendRefs"]]
        ports_of = {
            service["metadata"]["name"]: [port["port"] for port in service["spec"]["ports"]] for service in services
        }
        found += [
            f"{name_of(route)}: no Service has what it points at: {backend}"
            for backend in backends
            if backend["port"] not in ports_of.get(backend["name"], ())
        ]
    return found


def reference_faults(objects: Sequence[Object]) -> list[str]:
    """Return volumes and accounts that are neither rendered nor made by the operator."""
    names = {kind: {thing["metadata"]["name"] for thing in of_kind(objects, kind)} for kind in _kinds(objects)}
    found = []
    for deployment in of_kind(objects, "Deployment"):
        pod = pod_of(deployment)
        needed = [("ServiceAccount", pod["serviceAccountName"])]
        for volume in pod.get("volumes", ()):
            needed += [
                (kind, volume[field][key])
                for field, key, kind in (
                    ("configMap", "name", "ConfigMap"),
                    ("persistentVolumeClaim", "claimName", "PersistentVolumeClaim"),
                    ("secret", "secretName", "Secret"),
                )
                if field in volume
            ]
        for kind, name in needed:
            if name not in (SECRETS if kind == "Secret" else names.get(kind, ())):
                found.append(f"{name_of(deployment)}: there is no {kind} {name}")
    spaces = {thing["metadata"]["namespace"] for thing in objects if "namespace" in thing["metadata"]}
    if len(spaces) > 1 or not spaces <= names.get("Namespace", spaces):
        found.append(f"objects are in {sorted(spaces)}, expected the one Namespace that is rendered")
    return found


def scaling_faults(objects: Sequence[Object]) -> list[str]:
    """Return what would scale wrongly: unknown metrics, load instead of waiting work, foreign namespaces, replicas."""
    found = []
    scalers = [*of_kind(objects, "ScaledObject"), *of_kind(objects, "HorizontalPodAutoscaler")]
    deployments = {deployment["metadata"]["name"]: deployment for deployment in of_kind(objects, "Deployment")}
    for scaler in scalers:
        target = deployments.get(scaler["spec"]["scaleTargetRef"]["name"])
        if target is None:
            found.append(f"{name_of(scaler)}: scales nothing that is rendered")
        elif "replicas" in target["spec"]:
            found.append(f"{name_of(target)}: replicas would undo what {scaler['kind']} decides")
    if len(scalers) > 1:
        found.append("more than one autoscaler")
    for scaled in of_kind(objects, "ScaledObject"):
        queries = [trigger["metadata"].get("query", "") for trigger in scaled["spec"]["triggers"]]
        found += [f"{name_of(scaled)}: {fault}" for fault in query_faults(queries)]
        spaces = {space for query in queries for space in _NAMESPACE.findall(query)}
        if spaces != {scaled["metadata"].get("namespace")}:
            found.append(f"{name_of(scaled)}: queries look into {sorted(spaces)}, not into its own namespace")
    return found


def adapter_faults(rules: Sequence[Object], objects: Sequence[Object]) -> list[str]:
    """Return what keeps the rules of prometheus-adapter from giving each HorizontalPodAutoscaler its metrics."""
    given = [rule["name"]["as"] for rule in rules]
    found = query_faults([rule["metricsQuery"] for rule in rules]) + query_faults(
        [rule["seriesQuery"] for rule in rules]
    )
    for scaler in of_kind(objects, "HorizontalPodAutoscaler"):
        wanted = [metric.get("pods", {}).get("metric", {}).get("name") for metric in scaler["spec"]["metrics"]]
        if wanted != given:
            found.append(f"{name_of(scaler)}: wants {wanted}, the adapter has {given}")
    return found


def query_faults(queries: Sequence[str]) -> list[str]:
    """Return unknown metrics of queries, metrics of resources, and whether none of them asks what waits."""
    known = known_series()
    used = [metric for query in queries for metric in _METRIC.findall(query)]
    found = [f"no metric of the server: {metric}" for metric in used if metric not in known]
    if not any(metric.startswith(_FIELD_OF_WAITING) for metric in used):
        found.append("no query asks how much waits")
    return found


def known_series() -> set[str]:
    """Return the names of all series in the server's catalogue."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
    families = Metrics(CollectorRegistry()).registry.collect()
    return {family.name + suffix for family in families for suffix in suffixes.get(family.type, ("",))}


def settings_of(deployment: Object, objects: Sequence[Object]) -> Settings:
    """Return the settings that the server of a Deployment would have.

    Raises:
        ConfigError: if it would not start with them.
        KeyError: if the ConfigMap that its pod mounts is not there.
    """
    volumes = [volume["configMap"]["name"] for volume in pod_of(deployment)["volumes"] if "configMap" in volume]
    maps = {thing["metadata"]["name"]: thing["data"] for thing in of_kind(objects, "ConfigMap")}
    text = next(maps[name][SETTINGS_FILE] for name in volumes if SETTINGS_FILE in maps[name])
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / SETTINGS_FILE
        file.write_text(text, encoding="utf-8")
        return load_settings(file=file, environment=environment_of(server_of(deployment)))


def environment_of(container: Object) -> dict[str, str]:
    """Return the DRAGOMAN_* variables of a container, limits put in as the kubelet does."""
    values = {}
    for variable in container.get("env", ()):
        if variable["name"].startswith(ENVIRONMENT_PREFIX) and variable["name"] != CONFIG_VARIABLE:
            field = variable.get("valueFrom", {}).get("resourceFieldRef", {}).get("resource")
            values[variable["name"]] = _limit(container, field) if field else variable["value"]
    return values


def of_kind(objects: Sequence[Object], kind: str) -> list[Object]:
    """Return the objects of a kind."""
    return [thing for thing in objects if thing["kind"] == kind]


def name_of(thing: Object) -> str:
    """Return kind and name, for messages."""
    return f"{thing['kind']}/{thing['metadata']['name']}"


def pod_of(deployment: Object) -> Any:
    """Return the specification of its pods."""
    return deployment["spec"]["template"]["spec"]


def server_of(deployment: Object) -> Any:
    """Return the container of the server."""
    return next(container for container in pod_of(deployment)["containers"] if container["name"] == "server")


def _probe_faults(server: Object) -> Iterator[str]:
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    for name in _PROBES:
        probe = server.get(name)
        if probe is None:
            yield f"there is no {name}"
        elif "grpc" in probe:
            if probe["grpc"]["port"] != ports[GRPC_PORT_NAME]:
                yield f"{name}: port {probe['grpc']['port']} is not that of {GRPC_PORT_NAME}"
            if probe["grpc"].get("service") not in ("", *SERVICE_NAMES):
                yield f"{name}: the health service does not know {probe['grpc'].get('service')!r}"
        elif probe.get("httpGet", {}).get("port") not in ports:
            yield f"{name}: no port is called {probe.get('httpGet', {}).get('port')!r}"


def _mount_faults(pod: Object) -> Iterator[str]:
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    containers = (*pod["containers"], *pod.get("initContainers", ()))
    mounts = {mount["name"] for container in containers for mount in container.get("volumeMounts", ())}
    if volumes != mounts:
        yield f"volumes {sorted(volumes)} and mounts {sorted(mounts)} differ"


def _container_wishes(container: Object) -> dict[str, bool]:
    context, name = container.get("securityContext", {}), container["name"]
    resources = container.get("resources", {})
    return {
        f"allowPrivilegeEscalation false in {name}": context.get("allowPrivilegeEscalation") is False,
        f"readOnlyRootFilesystem in {name}": context.get("readOnlyRootFilesystem") is True,
        f"no capabilities in {name}": context.get("capabilities") == {"drop": ["ALL"]},
        f"requests and limits of cpu and memory in {name}": all(
            {"cpu", "memory"} <= resources.get(part, {}).keys() for part in ("requests", "limits")
        ),
        f"a tag or digest of the image in {name}": not container["image"].endswith(":latest")
        and (":" in container["image"].rpartition("/")[2] or "@" in container["image"]),
    }


def _pod_selectors(objects: Sequence[Object]) -> Iterator[tuple[str, Mapping[str, str]]]:
    for deployment in of_kind(objects, "Deployment"):
        yield name_of(deployment), deployment["spec"]["selector"]["matchLabels"]
        for constraint in pod_of(deployment).get("topologySpreadConstraints", ()):
            yield f"{name_of(deployment)} {constraint['topologyKey']}", constraint["labelSelector"]["matchLabels"]
    for service in of_kind(objects, "Service"):
        yield name_of(service), service["spec"]["selector"]
    for budget in of_kind(objects, "PodDisruptionBudget"):
        yield name_of(budget), budget["spec"]["selector"]["matchLabels"]
    for policy in of_kind(objects, "NetworkPolicy"):
        yield name_of(policy), policy["spec"]["podSelector"]["matchLabels"]


def _kinds(objects: Sequence[Object]) -> set[str]:
    return {thing["kind"] for thing in objects}


def _limit(container: Object, field: str) -> str:
    """Return a limit of CPU in whole cores, rounded up."""
    part, _, resource = field.partition(".")
    quantity = str(container["resources"][part][resource])
    return str(math.ceil(float(quantity.removesuffix("m")) / (1000 if quantity.endswith("m") else 1)))
