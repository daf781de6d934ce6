"""The compose files and Envoy's configuration, read as text: what holds for every service, and what must agree."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.ci.callers import Tally
from deploy.ci.envoy_test import Outcome, broken_promises
from deploy.ci.processes import ENVOY_CONFIG, ENVOY_VERSION, Addresses, ProcessError, local_config
from dragoman_service.config import Settings, load_settings

CHECKOUT = Path(__file__).resolve().parents[3]
COMPOSE_FILE = CHECKOUT / "docker-compose.yml"
COMPOSE: Mapping[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text(encoding="utf-8"))
SERVICES: Mapping[str, Mapping[str, Any]] = COMPOSE["services"]
SERVERS = ("dragoman", "dragoman-gpu")
FLUSH_S = 5.0  # traces are sent for so long after a drain
ADDRESSES = Addresses(grpc=11, operators=12, admin=13, replicas=(14, 15))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_restricted(name: str) -> None:
    service = SERVICES[name]
    limits = service["deploy"]["resources"]["limits"]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["user"].split(":")[0]) > 0
    assert {"memory", "pids"} <= set(limits)
    assert service["logging"]["options"]["max-file"]
    assert "stop_grace_period" in service


@pytest.mark.parametrize("name", [name for name in SERVICES if name != "load"])
def test_every_lasting_service_is_watched_and_comes_back(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD"
    assert SERVICES[name]["restart"] == "unless-stopped"


def test_only_envoy_and_grafana_can_be_reached_and_from_this_machine_alone() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert set(published) == {"envoy", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_the_network_of_the_replicas_has_no_way_out() -> None:
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert SERVICES["dragoman"]["networks"] == ["inside"]
    assert list(SERVICES["dragoman-gpu"]["networks"]) == ["inside"]


def test_two_replicas_run_by_default() -> None:
    assert SERVICES["dragoman"]["deploy"]["replicas"] == 2
    assert "profiles" not in SERVICES["dragoman"]


def test_a_gpu_is_reserved_in_its_profile_only() -> None:
    reserving = {name for name, service in SERVICES.items() if "reservations" in service["deploy"]["resources"]}

    assert reserving == {"dragoman-gpu"}
    assert SERVICES["dragoman-gpu"]["profiles"] == ["gpu"]
    assert SERVICES["dragoman-gpu"]["networks"]["inside"]["aliases"] == ["dragoman"]


@pytest.mark.parametrize("name", SERVERS)
def test_a_replica_has_time_to_drain(name: str) -> None:
    grace_s = float(SERVICES[name]["stop_grace_period"].removesuffix("s"))

    assert grace_s >= Settings().grpc.drain_timeout_s + FLUSH_S


def test_the_replicas_start_with_the_settings_given() -> None:
    settings = load_settings(environment=environment_of("dragoman-gpu"))

    assert settings.access.allow_unauthenticated
    assert settings.runtime.device == "cuda"
    assert (settings.grpc.host, settings.http.host) == ("0.0.0.0", "0.0.0.0")  # noqa: S104 - of a container


@pytest.mark.parametrize("name", SERVERS)
def test_with_keys_the_replicas_ask_for_them(name: str) -> None:
    override = yaml.safe_load((CHECKOUT / "deploy/compose/keys.yml").read_text(encoding="utf-8"))
    given = {**environment_of(name), **override["services"][name]["environment"]}

    settings = load_settings(environment=given)

    assert settings.access.callers_file == Path("/run/secrets/callers")
    assert not settings.access.allow_unauthenticated
    assert override["services"][name]["secrets"] == ["callers"]


def test_images_have_versions_and_envoy_has_that_of_the_test() -> None:
    images = {name: re.fullmatch(r"\$\{[A-Z_]+:-(.+)\}", service["image"]) for name, service in SERVICES.items()}
    tags = {name: match[1].rpartition(":")[2] for name, match in images.items() if match}

    assert set(tags) == set(SERVICES)
    assert "latest" not in tags.values()
    assert tags["envoy"] == f"v{ENVOY_VERSION}"


def test_the_example_of_the_environment_lists_every_variable_with_its_default() -> None:
    lines = (CHECKOUT / "deploy/compose/.env.example").read_text(encoding="utf-8").splitlines()
    listed = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    used = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", COMPOSE_FILE.read_text(encoding="utf-8")))

    assert listed == used


def test_what_is_mounted_is_there() -> None:
    sources = [mount["source"] for service in SERVICES.values() for mount in service.get("volumes", ())]
    paths = [re.sub(r"\$\{[A-Z_]+:-(.+)\}", r"\1", source) for source in sources if "/" in source]

    assert paths
    assert [path for path in paths if not (CHECKOUT / path).exists()] == []


def test_what_is_mounted_from_here_cannot_be_written() -> None:
    mounts = [mount for service in SERVICES.values() for mount in service.get("volumes", ())]

    assert all(mount["read_only"] for mount in mounts if mount["type"] == "bind")


def test_in_the_test_only_addresses_differ_from_what_ships() -> None:
    shipped = ENVOY_CONFIG.read_text(encoding="utf-8")

    local = local_config(shipped, ADDRESSES)

    differing = set(local.splitlines()) - set(shipped.splitlines())
    assert differing
    assert all("socket_address: {address: 127.0.0.1, port_value: 1" in line for line in differing)


def test_a_configuration_without_the_expected_addresses_is_refused() -> None:
    shipped = ENVOY_CONFIG.read_text(encoding="utf-8").replace("50051", "50052")

    with pytest.raises(ProcessError, match="expected 1"):
        local_config(shipped, ADDRESSES)


def test_envoy_agrees_with_the_limits_of_the_server() -> None:
    config = yaml.safe_load(ENVOY_CONFIG.read_text(encoding="utf-8"))["static_resources"]
    manager = config["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    route = manager["route_config"]["virtual_hosts"][0]["routes"][1]["route"]
    upstream = next(iter(config["clusters"][0]["typed_extension_protocol_options"].values()))
    grpc = Settings().grpc

    assert manager["http2_protocol_options"]["max_concurrent_streams"] == grpc.max_connection_streams
    assert (
        upstream["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"]
        == grpc.max_connection_streams
    )
    assert seconds(manager["stream_idle_timeout"]) > max(grpc.max_timeout_s, grpc.stream_idle_timeout_s)
    assert seconds(route["timeout"]) == 0
    assert seconds(route["max_stream_duration"]["grpc_timeout_header_max"]) == grpc.max_stream_timeout_s
    assert seconds(upstream["common_http_protocol_options"]["idle_timeout"]) < grpc.max_connection_idle_s
    keepalive = upstream["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    assert seconds(keepalive["interval"]) > grpc.min_ping_interval_s


def test_envoy_repeats_what_nobody_has_answered_and_nothing_that_was_refused_for_load() -> None:
    config = yaml.safe_load(ENVOY_CONFIG.read_text(encoding="utf-8"))["static_resources"]
    routes = config["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    admin, everything_else, _ = routes["virtual_hosts"][0]["routes"]

    retry_on = set(everything_else["route"]["retry_policy"]["retry_on"].split(","))

    assert retry_on == {"connect-failure", "refused-stream", "reset", "unavailable", "cancelled"}
    assert "route" not in admin


def test_a_storm_in_which_all_held_breaks_no_promise() -> None:
    assert broken_promises(good_tally(), good_outcome()) == []


def test_every_failed_call_and_every_storm_that_proves_nothing_breaks_a_promise() -> None:
    failed, idle = good_tally(), good_outcome()
    failed.failures.append("UnavailableError")
    idle.retried_by_envoy = idle.interrupted = 0
    idle.versions_at_last = ("1", "2")

    assert len(broken_promises(failed, good_outcome())) == 1
    assert len(broken_promises(good_tally(), idle)) == 3
    assert len(broken_promises(Tally(), good_outcome())) == 1


def good_tally() -> Tally:
    return Tally(durations_s=[0.1], documents=1)


def good_outcome() -> Outcome:
    return Outcome(interrupted=1, killed=1, drained=1, upgraded=2, versions_at_last=("2",), retried_by_envoy=1)


def environment_of(name: str) -> dict[str, str]:
    """What a server is given: its file, then its own entries."""
    (file,) = SERVICES[name]["env_file"]
    lines = (CHECKOUT / file).read_text(encoding="utf-8").splitlines()
    from_file = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return {**from_file, **SERVICES[name].get("environment", {})}


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))
