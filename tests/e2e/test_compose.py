"""docker-compose.yml: two replicas behind Envoy that stop, return, are replaced one by one and require keys.

By default no registry is used: images of the other programs are built from Debian packages, without Grafana
(deploy/ci/compose.offline.yml). With COMPOSE_TEST_ONLINE=1 the images are pulled. The tests run in this order, on one
stack.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx
import pytest

from dragoman.client import DragomanError, UnauthenticatedError
from tests.e2e.containers import TRANSLATED_WORD, Engine, post_text, translate
from tests.e2e.processes import envoy_binary
from tests.e2e.replicas import make_key
from tests.e2e.tools import BUILD, DEPLOY, debian_packages, get, run
from tests.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

IS_ONLINE: Final = bool(os.environ.get("COMPOSE_TEST_ONLINE"))
DEFAULT_BASE: Final = "python:3.11-slim-bookworm"
GRACE_S: Final = 40
WAIT_S: Final = 180
UP: Final = ("up", "--detach", "--no-build", "--wait", "--wait-timeout", str(WAIT_S))


@dataclass(slots=True, kw_only=True)
class Stack:
    """A project of Compose."""

    engine: Engine
    compose: Path
    environment: dict[str, str]
    flags: list[str | Path] = field(default_factory=list)

    def call(self, *words: str | Path, is_checked: bool = True) -> str:
        finished = run(self.compose, *self.flags, *words, is_checked=is_checked, env=self.environment)
        return finished.stdout

    def replicas(self) -> set[str]:
        return set(self.call("ps", "--quiet", "dragoman").split())

    @property
    def target(self) -> str:
        return self.call("port", "envoy", "50051").strip()

    @property
    def url(self) -> str:
        return f"http://{self.call('port', 'envoy', '8080').strip()}"

    def query(self, query: str) -> int:
        """Return the number with which Prometheus answers a query."""
        url = f"http://127.0.0.1:9090/api/v1/query?query={quote(query)}"
        answer = json.loads(self.call("exec", "-T", "prometheus", "wget", "-q", "-O", "-", url))
        return next((int(float(series["value"][1])) for series in answer["data"]["result"]), 0)


@pytest.fixture(scope="module")
def packages() -> Path:
    return debian_packages("compose", "docker-compose", "prometheus", "prometheus-alertmanager", "busybox-static")


@pytest.fixture(scope="module")
def compose(packages: Path) -> Path:
    return packages / "usr" / "libexec" / "docker" / "cli-plugins" / "docker-compose"


@pytest.fixture(scope="module")
def stack(compose: Path, packages: Path, engine: Engine, request: pytest.FixtureRequest) -> Iterator[Stack]:
    ports = {"GRPC_PORT": "0", "HTTP_PORT": "0", "GRAFANA_PORT": "0", "LOCUST_PORT": "0"}  # free ones
    stack = Stack(
        engine=engine,
        compose=compose,
        environment={**engine.environment, **ports, "SERVER_IMAGE": engine.image},
        flags=["--project-name", "dragoman-ci", "-f", "docker-compose.yml"],
    )
    if not IS_ONLINE:
        stack.environment |= {
            "OFFLINE_CONTEXT": str(offline_context(packages)),
            "BASE_IMAGE": engine.base_image or DEFAULT_BASE,
        }
        stack.flags += ["-f", "deploy/ci/compose.offline.yml"]
    stack.call("--profile", "load", "build", "envoy", "prometheus", "alertmanager", "load")
    try:
        began_s = time.monotonic()
        stack.call(*UP)
        print(f"up after {time.monotonic() - began_s:.0f} s")
        yield stack
    finally:
        if request.session.testsfailed:
            print(stack.call("ps", "--all", is_checked=False), stack.call("logs", "--tail", "30", is_checked=False))
        down = ("down", "--volumes", "--remove-orphans", "--timeout", str(GRACE_S))
        stack.call("--profile", "load", *down, is_checked=False)


def offline_context(packages: Path) -> Path:
    """Collect the build context of the images that replace those of the registry."""
    folder, root = BUILD / "offline", packages / "usr"
    folder.mkdir(exist_ok=True)
    for source, name in (
        (DEPLOY / "ci" / "offline.Dockerfile", "Dockerfile"),
        (envoy_binary(), "envoy"),
        (root / "bin" / "prometheus", "prometheus"),
        (root / "bin" / "prometheus-alertmanager", "alertmanager"),
        (root / "bin" / "busybox", "busybox"),
    ):
        shutil.copy2(source, folder / name)
    templates = root / "share" / "prometheus" / "alertmanager"
    shutil.copytree(templates, folder / "alertmanager-templates", dirs_exist_ok=True)
    return folder


def test_every_combination_of_files_and_profiles_is_valid(compose: Path, tmp_path: Path) -> None:
    callers = tmp_path / "callers.toml"
    callers.touch()
    environment = {**os.environ, "CALLERS_FILE": str(callers)}

    default = run(compose, "config").stdout
    all_profiles = run(compose, "--profile", "gpu", "--profile", "load", "config").stdout
    keys = ("-f", "docker-compose.yml", "-f", "deploy/compose/keys.yml")
    run(compose, *keys, "config", "--quiet", env=environment)

    assert "driver: nvidia" in all_profiles
    assert "driver: nvidia" not in default


def test_stack_translates_through_envoy(stack: Stack) -> None:
    assert TRANSLATED_WORD in translate(stack.target)
    assert TRANSLATED_WORD in post_text(stack.url).text
    assert get(f"{stack.url}/playground")[0] == HTTPStatus.OK


def test_name_that_resolves_to_this_machine_is_rejected(stack: Stack) -> None:
    answer = httpx.get(f"{stack.url}/v1/languages", headers={"host": "attacker.example"}, trust_env=False)

    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST


def test_load_succeeds_and_everything_is_scraped(stack: Stack) -> None:
    stack.call("run", "--rm", "--no-deps", "load", "--headless", "--run-time=8s")  # exit code 1 if a call fails

    for query, number in (
        ('sum(up{job="dragoman"})', 2),
        ('sum(up{job="envoy"})', 1),
        ("sum(prometheus_notifications_alertmanagers_discovered)", 1),
        ('max(envoy_cluster_membership_healthy{envoy_cluster_name="dragoman"})', 2),
    ):
        wait_until(lambda: stack.query(query) == number, timeout_s=WAIT_S, state=lambda: query)  # noqa: B023


def test_load_profile_serves_the_page_of_locust(stack: Stack) -> None:
    stack.call("--profile", "load", *UP, "--no-deps", "load")
    status, page = get(f"http://{stack.call('port', 'load', '8089').strip()}")

    assert status == HTTPStatus.OK
    assert "locust" in page.lower()
    stack.call("rm", "--stop", "--force", "load")


def test_no_call_fails_while_replicas_are_replaced(stack: Stack) -> None:
    before, num_calls = stack.replicas(), 0
    environment = {**stack.environment, "COMPOSE": str(stack.compose), "DRAGOMAN_DOCKER": stack.engine.client}
    command = [DEPLOY / "compose" / "roll.sh", *stack.flags]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as rolling:
        while rolling.poll() is None:
            assert TRANSLATED_WORD in translate(stack.target)
            assert TRANSLATED_WORD in post_text(stack.url).text
            num_calls += 2

    print(f"{num_calls} calls while replicas were replaced")
    assert rolling.returncode == 0
    assert len(stack.replicas()) == 2
    assert not before & stack.replicas()


def test_keys_are_required_with_the_override(stack: Stack, tmp_path: Path) -> None:
    key, entry = make_key("shop")
    callers = tmp_path / "callers.toml"
    callers.write_text(entry, encoding="utf-8")
    callers.chmod(0o644)
    stack.environment["CALLERS_FILE"] = str(callers)
    stack.flags += ["-f", "deploy/compose/keys.yml"]

    stack.call(*UP, "dragoman")

    def is_translated() -> bool:
        try:
            return TRANSLATED_WORD in translate(stack.target, api_key=key)
        except DragomanError:
            return False

    wait_until(is_translated, timeout_s=15)  # Envoy discovers the new replicas
    with pytest.raises(UnauthenticatedError):
        translate(stack.target)
    assert post_text(stack.url).status_code == HTTPStatus.UNAUTHORIZED
