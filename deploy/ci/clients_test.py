"""`python -m deploy.ci.clients_test [CLIENT ...]`: are clients from npm served as they expect, unmodified?

Installs each client below build/clients and lets it call a server with the bundled model on free ports of this machine:
texts, lists, markup, detection, a language that is not served, glossaries, and a wrong key. Clients for Python are in
tests/integration.

exit codes: 0 all calls were answered as expected; a client that cannot be installed here is reported as SKIPPED
            1 an answer was wrong
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from dragoman_service.cli.demo import ServerProcess
from dragoman_service.security.api_keys import new_key, store

_CHECKOUT: Final = Path(__file__).resolve().parents[2]
_SCRIPTS: Final = Path(__file__).with_name("clients")
_DIRECTORY: Final = _CHECKOUT / "build" / "clients"
_PROTO: Final = (_CHECKOUT / "proto", _CHECKOUT / "proto" / "third_party")
_READY_TIMEOUT_S: Final = 90.0
_CALLS_TIMEOUT_S: Final = 60.0
_INSTALL_TIMEOUT_S: Final = 300.0

_FRENCH: Final = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon."
_GERMAN: Final = "Das ist heute ein sehr schöner Tag im Garten."
_UNCHANGED: Final = [_GERMAN, "12345", "🙂"]

Expected = Mapping[str, object]
"""What calls return, by name: a value, or a pattern that is found in it as JSON."""


class MissingClientError(Exception):
    """A client cannot be installed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What scripts need to know of the server; written as `server.json` beside them."""

    grpc_port: int
    http_port: int
    key: str
    wrong_key: str
    proto_directories: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client from npm, and what its calls must return."""

    packages: Sequence[str]  # with versions
    expected: Expected
    call: Callable[[Path, Server], dict[str, Any]]  # returns what each call returned


def main(names: Sequence[str]) -> int:
    """Let clients call a server, all or those that are named; return the exit code."""
    clients = {name: CLIENTS[name] for name in names or CLIENTS}
    with tempfile.TemporaryDirectory() as directory:
        key, settings = _settings(Path(directory))
        with ServerProcess(environment=settings) as process:
            ports = process.wait_until_ready(timeout_s=_READY_TIMEOUT_S)
            server = Server(
                grpc_port=ports.grpc_port,
                http_port=ports.http_port,
                key=key,
                wrong_key=new_key(),
                proto_directories=list(map(str, _PROTO)),
            )
            return max([_judge(name, client, server) for name, client in clients.items()])


def _judge(name: str, client: Client, server: Server) -> int:
    """Let a client call the server; print what is wrong and return 1, or 0."""
    folder = _DIRECTORY / name
    try:
        _install(folder, client.packages)
    except MissingClientError as error:
        print(f"SKIPPED {name}: {error}")
        return 0
    (folder / "server.json").write_text(json.dumps(asdict(server)), encoding="utf-8")
    faults = broken(client.expected, client.call(folder, server))
    packages = ", ".join(client.packages)
    print("\n".join(f"{name}: {fault}" for fault in faults) or f"{packages}: {len(client.expected)} calls as expected")
    return 1 if faults else 0


def broken(expected: Expected, answers: Mapping[str, object]) -> list[str]:
    """Return a sentence for each call that did not return what was expected."""
    return [
        f"{name}: returned {shown(answers.get(name))}, expected {shown(value)}"
        for name, value in expected.items()
        if not _is_expected(value, answers.get(name))
    ]


def _is_expected(expected: object, answer: object) -> bool:
    if isinstance(expected, re.Pattern):
        return expected.search(answer if isinstance(answer, str) else shown(answer)) is not None
    return answer == expected


def shown(value: object) -> str:
    """Return a value for people."""
    return value.pattern if isinstance(value, re.Pattern) else json.dumps(value, ensure_ascii=False)


def _settings(directory: Path) -> tuple[str, dict[str, str]]:
    """Write callers and a glossary; return a key and the environment of the server."""
    key = new_key()
    entry = f'[[caller]]\nname = "shop"\nkeys = ["{store(key)}"]\npermissions = ["translate"]\n'
    (directory / "callers.toml").write_text(entry, encoding="utf-8")
    glossaries = directory / "glossaries"
    glossaries.mkdir()
    (glossaries / "travel.tsv").write_text("en\tde\nstation\tHaltestelle\n", encoding="utf-8")
    uploads = directory / "uploads"
    uploads.mkdir()
    return key, {
        "DRAGOMAN_ACCESS__CALLERS_FILE": str(directory / "callers.toml"),
        "DRAGOMAN_DOCUMENTS__DIRECTORY": str(uploads),
        "DRAGOMAN_GRPC__GOOGLE_TRANSLATION": "true",
        "DRAGOMAN_MODELS__GLOSSARIES_DIRECTORY": str(glossaries),
    }


def _install(folder: Path, packages: Sequence[str]) -> None:
    """Install packages from npm into a folder, unless they are there; copy the scripts."""
    folder.mkdir(parents=True, exist_ok=True)
    for script in _SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    if shutil.which("npm") is None:
        raise MissingClientError("npm is not installed")
    wanted = dict(package.rsplit("@", 1) for package in packages)
    if all(_version(folder, name) == version for name, version in wanted.items()):
        return
    (folder / "package.json").write_text('{"private": true, "type": "module"}', encoding="utf-8")
    flags = ("--silent", "--ignore-scripts", "--no-audit", "--no-fund", "--no-save")
    try:
        _output(folder, "npm", "install", *flags, *packages, timeout_s=_INSTALL_TIMEOUT_S)
    except subprocess.SubprocessError as error:
        raise MissingClientError(f"npm install {' '.join(packages)}: {error}") from error


def _version(folder: Path, name: str) -> str:
    """Return the version of a package that is installed; empty if it is not."""
    manifest = folder / "node_modules" / name / "package.json"
    return str(json.loads(manifest.read_text(encoding="utf-8"))["version"]) if manifest.exists() else ""


def _output(folder: Path, *command: str, timeout_s: float = _CALLS_TIMEOUT_S) -> str:
    environment = {**os.environ, "METADATA_SERVER_DETECTION": "none"}  # Google's client looks for Google's cloud
    done = subprocess.run(  # noqa: S603 - ours
        command,
        cwd=folder,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=timeout_s,
    )
    return done.stdout


def _script(name: str) -> Callable[[Path, Server], dict[str, Any]]:
    """Return what runs a script, which prints the answers as JSON."""

    def call(folder: Path, _: Server) -> dict[str, Any]:
        answers: dict[str, Any] = json.loads(_output(folder, "node", "--no-warnings", f"{name}.mjs").splitlines()[-1])
        return answers

    return call


def _buf(folder: Path, server: Server) -> dict[str, Any]:
    """Call the server by `buf curl`, which learns the contract by reflection; return its output, errors included."""
    host = f"http://127.0.0.1:{server.grpc_port}"
    service = f"{host}/dragoman.v1.TranslationService"
    languages = {"source_language": "en", "target_language": "de"}

    def curl(*arguments: str, key: str = server.key) -> Any:
        authorization = f"authorization: Bearer {key}"
        done = subprocess.run(  # noqa: S603 - installed above
            [
                *("node_modules/.bin/buf", "curl", "--protocol", "grpc", "--http2-prior-knowledge"),
                *("--header", authorization, "--reflect-header", f"authorization: Bearer {server.key}", *arguments),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=_CALLS_TIMEOUT_S,
            check=False,
        )
        return done.stdout + done.stderr

    def translate(*texts: str, key: str = server.key, **fields: Any) -> str:
        request = {"texts": texts, **languages, **fields}
        return str(curl("--data", json.dumps(request), f"{service}/Translate", key=key))

    stream = "".join(json.dumps({"request_id": f"r{number}", "texts": ["Hello."], **languages}) for number in range(5))
    return {
        "services": curl("--list-services", host).split(),
        "reflection v1": curl("--reflect-protocol", "grpc-v1", "--list-methods", host).split(),
        "health": json.loads(curl(f"{host}/grpc.health.v1.Health/Check")),
        "texts": translate("Where is the station?", "Thank you."),
        "stream": sorted(re.findall(r'"requestId": ?"(r\d)"', curl("--data", stream, f"{service}/TranslateStream"))),
        "html": translate("<p>Open the <b>file</b>.</p>", options={"format": "TEXT_FORMAT_HTML"}),
        "detected": translate("Where is the station, please?", source_language=""),
        "french": translate(_FRENCH, source_language=""),
        "details": translate("Hello.", options={"beam_size": 99}),
        "stranger": translate("Hello.", key=server.wrong_key),
    }


_STATION: Final = re.compile("Bahnhof")
_SERVICES: Final = [
    "dragoman.v1.ModelAdminService",
    "dragoman.v1.ModelService",
    "dragoman.v1.TranslationService",
    "google.cloud.translation.v3.TranslationService",
    "grpc.health.v1.Health",
]
_ENGLISH_NAMES: Final = [["de", "German"], ["en", "English"]]


def _google(prefix: str, *, unserved: str, unknown_pair: str, denied: str) -> Expected:
    """Return what the calls of version 3 return over one transport; patterns of errors."""
    expected = {
        "texts": re.compile("Bahnhof.*Danke"),
        "repeated": 1,
        "html": re.compile("^<p>.*<b>.*</b>.*</p>$"),
        "detected": ["en", "en"],
        "list": _UNCHANGED,
        "french": re.compile(unserved, re.DOTALL),
        "detection": "en",
        "languages": _ENGLISH_NAMES,
        "glossary": re.compile("Haltestelle"),
        "pair": re.compile(unknown_pair, re.DOTALL),
        "stranger": re.compile(denied),
    }
    return {f"{prefix} {name}": value for name, value in expected.items()}


CLIENTS: Final[Mapping[str, Client]] = {
    "deepl": Client(
        packages=["deepl-node@1.28.0"],
        call=_script("deepl"),
        expected={
            "texts": [["en", 21], ["en", 10]],
            "translation": _STATION,
            "repeated": 1,
            "html": re.compile("<code>big file</code>"),
            "xml": re.compile("<keep>Windows</keep> gekauft"),
            "detected": "en",
            "list": _UNCHANGED,
            "french": re.compile("(?i)DeepLError.*\\bfr\\b"),
            "glossary": re.compile("Haltestelle"),
            "source": [["en", "English"]],
            "target": [["de", "German"]],
            "document": _STATION,
            "usage": False,
            "glossaries": [["travel", 1]],
            "entries": {"station": "Haltestelle"},
            "unknown": re.compile("GlossaryNotFoundError"),
            "formality": re.compile("DeepLError.*formality"),
            "pair": re.compile("DeepLError.*target_lang"),
            "creation": re.compile("DeepLError.*files of the server"),
            "stranger": re.compile("AuthorizationError"),
        },
    ),
    "google": Client(
        packages=["@google-cloud/translate@9.4.2"],  # 10 needs Node.js 22
        call=_script("google"),
        expected={
            **_google(
                "grpc", unserved="3 INVALID_ARGUMENT.*fr", unknown_pair="5 NOT_FOUND.*ja", denied="16 UNAUTHENTICATED"
            ),
            **_google("rest", unserved="Error.*fr", unknown_pair="Error.*ja", denied="(?i)unauthenticated|401"),
            "v2 texts": re.compile("Bahnhof.*Danke"),
            "v2 repeated": 1,
            "v2 html": re.compile("^<p>.*<b>.*</b>.*</p>$"),
            "v2 list": _UNCHANGED,
            "v2 french": re.compile("ApiError: 400 .*fr", re.DOTALL),
            "v2 detection": "en",
            "v2 languages": _ENGLISH_NAMES,
            "v2 pair": re.compile("ApiError: 40[04] .*ja", re.DOTALL),
            "v2 stranger": re.compile("ApiError: 40[013] "),
        },
    ),
    "grpc": Client(
        packages=["@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"],
        call=_script("grpc"),
        expected={
            "texts": re.compile("Bahnhof.*Danke"),
            "repeated": 1,
            "html": re.compile("<code>big file</code>"),
            "detected": ["en", True],
            "detections": ["en", "de"],
            "french": re.compile("3 INVALID_ARGUMENT.*fr"),
            "blank": ["12345 🙂"],
            "details": [3, "options.beam_size: is 99, must be 1 to 16", True],
            "pair": re.compile("5 NOT_FOUND.*ja"),
            "deadline": 4,
            "document": {"indexes": [0, 1, 2], "is_expected": True, "spaces": [0, 1, 1]},
            "stream": {"count": 4, "is_expected": True, "error": 3},
            "stranger": re.compile("16 UNAUTHENTICATED"),
        },
    ),
    "buf": Client(
        packages=["@bufbuild/buf@1.75.0"],
        call=_buf,
        expected={
            "services": re.compile(".*".join(map(re.escape, _SERVICES))),
            "reflection v1": re.compile(r"dragoman\.v1\.TranslationService/Translate"),
            "health": {"status": "SERVING"},
            "texts": re.compile("Bahnhof.*Danke", re.DOTALL),
            "stream": [f"r{number}" for number in range(5)],
            "html": re.compile("<p>.*<b>.*</b>.*</p>"),
            "detected": re.compile('"language": ?"en"'),
            "french": re.compile("invalid_argument.*fr", re.DOTALL),
            "details": re.compile(r"invalid_argument.*options\.beam_size", re.DOTALL),
            "stranger": re.compile("unauthenticated"),
        },
    ),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
