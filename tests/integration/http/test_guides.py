"""The examples of README and guides run unchanged: Python, curl, and the certificate and key recipe."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman import DecodingOptions, TranslationClient
from dragoman_service.datatypes import Ports
from tests.integration.real_process import CHECKOUT, START_S, free_ports, process

PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs" / "guides").glob("*.md"))]
TARGET = '"localhost:50051"'
RECIPE = "openssl req"


def examples(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}:{index}", block)
        for page in PAGES
        for index, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        )
    ]


PLAIN = [(name, code) for name, code in examples("python") if TARGET in code and "tls=" not in code]

CURL = [(name, code) for name, code in examples("sh") if code.startswith("curl ") and "localhost:9464/" in code]


@pytest.fixture(scope="module")
def ports() -> Iterator[Ports]:
    with process(DRAGOMAN_GRPC__GOOGLE_TRANSLATION="true") as server:
        yield server.wait_until_ready(timeout_s=START_S)


@pytest.mark.parametrize("code", [code for _, code in PLAIN], ids=[name for name, _ in PLAIN])
def test_python_example_prints_a_translation(ports: Ports, code: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = code.replace(TARGET, f'"localhost:{ports.grpc_port}"')
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})  # noqa: S102

    printed = capsys.readouterr().out
    assert printed
    assert "failed" not in printed


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize("code", [code for _, code in CURL], ids=[name for name, _ in CURL])
def test_curl_example_is_answered(ports: Ports, code: str) -> None:
    script = code.replace("localhost:9464", f"127.0.0.1:{ports.http_port}").replace(
        "curl ", "curl --silent --show-error "
    )

    done = subprocess.run(["bash", "-ec", script], capture_output=True, text=True, timeout=60, check=True)

    expected = ("modelVersion", "options.beam_size: is 99", "translatedText", "targetLanguages", "formality: is 'more'")
    assert any(word in done.stdout for word in expected)


@pytest.mark.parametrize(
    "text", ["The old man has lost his keys in the garden.", "Where is the station?", "Hello, world!"]
)
def test_graphs_example_prints_the_greedy_translation_of_the_server(
    ports: Ports, text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (program,) = [code for name, code in examples("python") if name.startswith("onnx-graphs.md")]
    monkeypatch.chdir(CHECKOUT)

    exec(re.sub("^TEXT = .*", f"TEXT = {text!r}", program, flags=re.MULTILINE), {})  # noqa: S102

    with TranslationClient(f"localhost:{ports.grpc_port}") as client:
        options = DecodingOptions(beam_size=1)
        result = client.translate([text], source_language="en", target_language="de", options=options)
    assert capsys.readouterr().out == f"{result[0].text}\n"


def test_pages_show_each_client_method() -> None:
    shown = "".join(code for _, code in PLAIN)

    assert all(name in shown for name in ("AsyncTranslationClient", "translate_document", "translate_stream"))


def test_certificate_and_key_recipe_translates(tmp_path: Path) -> None:
    (recipe,) = [code for _, code in examples("sh") if RECIPE in code]
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    grpc_port, http_port = free_ports(2)
    settings = {"DRAGOMAN_GRPC__PORT": str(grpc_port), "DRAGOMAN_HTTP__PORT": str(http_port)}
    script = (
        recipe.replace(". .venv/bin/activate\n", "trap 'kill %1' EXIT\n")
        .replace("--host 0.0.0.0", "--host 127.0.0.1 2>log")
        .replace("--ca-file", f"--target localhost:{grpc_port} --ca-file")
    )
    command = tmp_path / "bin" / "dragoman"  # of this checkout, whichever is installed
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m dragoman "$@"\n', encoding="utf-8")
    command.chmod(0o755)

    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=tmp_path,
        env={**os.environ, **settings, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert recipe.count("\n") <= 11
    assert (done.returncode, done.stdout) == (0, "Wo ist der Bahnhof?\n"), done.stderr
