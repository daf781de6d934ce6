"""Unmodified clients from npm against the server: texts, markup, detection, glossaries and rejected requests.

Clients for Python are tested in tests/integration.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from dragoman_service.security.api_keys import new_key
from tests.e2e.replicas import Replica, make_key
from tests.e2e.tools import CHECKOUT, node_packages, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCRIPTS: Final = Path(__file__).with_name("clients")
CALLS_TIMEOUT_S: Final = 60.0
FRENCH: Final = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon."
UNCHANGED: Final = ["Das ist heute ein sehr schöner Tag im Garten.", "12345", "🙂"]
STATION: Final = re.compile("Bahnhof")
ENGLISH_NAMES: Final = [["de", "German"], ["en", "English"]]

SERVICES: Final = (
    "dragoman.v1.ModelAdminService",
    "dragoman.v1.ModelService",
    "dragoman.v1.TranslationService",
    "google.cloud.translation.v3.TranslationService",
    "grpc.health.v1.Health",
)

Expected = Mapping[str, object]
"""Results by call: a value, or a pattern that occurs in the result or in its JSON."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Any]]:
    """Ports and keys of a server with a glossary, uploaded documents and Google's gRPC API."""
    folder = tmp_path_factory.mktemp("clients")
    key, callers = make_key("shop")
    glossaries, uploads = folder / "glossaries", folder / "uploads"
    for directory in (glossaries, uploads):
        directory.mkdir()
    (glossaries / "travel.tsv").write_text("en\tde\nstation\tHaltestelle\n", encoding="utf-8")
    settings = {
        "DOCUMENTS__DIRECTORY": str(uploads),
        "GRPC__GOOGLE_TRANSLATION": "true",
        "MODELS__GLOSSARIES_DIRECTORY": str(glossaries),
    }
    with Replica("server", folder, callers=callers, settings=settings) as replica:
        yield {
            "grpc_port": int(replica.server.target.rpartition(":")[2]),
            "http_port": replica.server.http_port,
            "key": key,
            "wrong_key": new_key(),
            "proto_directories": [str(CHECKOUT / "proto"), str(CHECKOUT / "proto" / "third_party")],
        }


def google(prefix: str, *, unserved: str, unknown_pair: str, denied: str) -> Expected:
    """Results of version 3 of Google's API over one transport; the arguments are patterns of errors."""
    expected = {
        "texts": re.compile("Bahnhof.*Danke"),
        "repeated": 1,
        "html": re.compile("^<p>.*<b>.*</b>.*</p>$"),
        "detected": ["en", "en"],
        "list": UNCHANGED,
        "french": re.compile(unserved, re.DOTALL),
        "detection": "en",
        "languages": ENGLISH_NAMES,
        "glossary": re.compile("Haltestelle"),
        "pair": re.compile(unknown_pair, re.DOTALL),
        "stranger": re.compile(denied),
    }
    return {f"{prefix} {name}": value for name, value in expected.items()}


DEEPL: Final[Expected] = {
    "texts": [["en", 21], ["en", 10]],
    "translation": STATION,
    "repeated": 1,
    "html": re.compile("<code>big file</code>"),
    "xml": re.compile("<keep>Windows</keep> gekauft"),
    "detected": "en",
    "list": UNCHANGED,
    "french": re.compile("(?i)DeepLError.*\\bfr\\b"),
    "glossary": re.compile("Haltestelle"),
    "source": [["en", "English"]],
    "target": [["de", "German"]],
    "document": STATION,
    "usage": False,
    "glossaries": [["travel", 1]],
    "entries": {"station": "Haltestelle"},
    "unknown": re.compile("GlossaryNotFoundError"),
    "formality": re.compile("DeepLError.*formality"),
    "pair": re.compile("DeepLError.*target_lang"),
    "creation": re.compile("(?i)DeepLError.*glossar"),
    "stranger": re.compile("AuthorizationError"),
}
GOOGLE: Final[Expected] = {
    **google("grpc", unserved="3 INVALID_ARGUMENT.*fr", unknown_pair="5 NOT_FOUND.*ja", denied="16 UNAUTHENTICATED"),
    **google("rest", unserved="Error.*fr", unknown_pair="Error.*ja", denied="(?i)unauthenticated|401"),
    "v2 texts": re.compile("Bahnhof.*Danke"),
    "v2 repeated": 1,
    "v2 html": re.compile("^<p>.*<b>.*</b>.*</p>$"),
    "v2 list": UNCHANGED,
    "v2 french": re.compile("ApiError: 400 .*fr", re.DOTALL),
    "v2 detection": "en",
    "v2 languages": ENGLISH_NAMES,
    "v2 pair": re.compile("ApiError: 40[04] .*ja", re.DOTALL),
    "v2 stranger": re.compile("ApiError: 40[013] "),
}
GRPC: Final[Expected] = {
    "texts": re.compile("Bahnhof.*Danke"),
    "repeated": 1,
    "html": re.compile("<code>big file</code>"),
    "detected": ["en", True],
    "detections": ["en", "de"],
    "french": re.compile("3 INVALID_ARGUMENT.*fr"),
    "blank": ["12345 🙂"],
    "details": [3, True],
    "pair": re.compile("5 NOT_FOUND.*ja"),
    "deadline": 4,
    "document": {"indexes": [0, 1, 2], "is_expected": True, "spaces": [0, 1, 1]},
    "stream": {"count": 4, "is_expected": True, "error": 3},
    "stranger": re.compile("16 UNAUTHENTICATED"),
}
BUF: Final[Expected] = {
    "services": re.compile(".*".join(map(re.escape, SERVICES))),
    "reflection v1": re.compile(r"dragoman\.v1\.TranslationService/Translate"),
    "health": {"status": "SERVING"},
    "texts": re.compile("Bahnhof.*Danke", re.DOTALL),
    "stream": [f"r{number}" for number in range(5)],
    "html": re.compile("<p>.*<b>.*</b>.*</p>"),
    "detected": re.compile('"language": ?"en"'),
    "french": re.compile("invalid_argument.*fr", re.DOTALL),
    "details": re.compile(r"invalid_argument.*options\.beam_size", re.DOTALL),
    "stranger": re.compile("unauthenticated"),
}


@pytest.mark.parametrize(
    ("name", "packages", "expected"),
    [
        ("deepl", ["deepl-node@1.28.0"], DEEPL),
        ("google", ["@google-cloud/translate@9.4.2"], GOOGLE),  # 10 needs Node.js 22
        ("grpc", ["@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"], GRPC),
    ],
)
def test_node_client_is_served(
    name: str, packages: Sequence[str], expected: Expected, server: Mapping[str, Any]
) -> None:
    folder = node_packages(f"clients-{name}", *packages)
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    (folder / "server.json").write_text(json.dumps(server), encoding="utf-8")

    # Without the variable Google's client looks for Google's cloud.
    environment = {**os.environ, "METADATA_SERVER_DETECTION": "none"}
    output = run("node", f"{name}.mjs", directory=folder, env=environment, timeout=CALLS_TIMEOUT_S).stdout

    assert_expected(expected, json.loads(output))


def test_buf_curl_is_served_by_reflection(server: Mapping[str, Any]) -> None:
    folder = node_packages("clients-buf", "@bufbuild/buf@1.75.0")
    host = f"http://127.0.0.1:{server['grpc_port']}"
    service = f"{host}/dragoman.v1.TranslationService"
    languages = {"source_language": "en", "target_language": "de"}

    def curl(*arguments: str, key: str = server["key"]) -> str:
        transport = ("--protocol", "grpc", "--http2-prior-knowledge", "--reflect-header")
        headers = (f"authorization: Bearer {server['key']}", "--header", f"authorization: Bearer {key}")
        command = ("node_modules/.bin/buf", "curl", *transport, *headers, *arguments)
        finished = run(*command, directory=folder, is_checked=False, timeout=CALLS_TIMEOUT_S)
        return finished.stdout + finished.stderr

    def translate(*texts: str, key: str = server["key"], **fields: Any) -> str:
        return curl("--data", json.dumps({"texts": texts, **languages, **fields}), f"{service}/Translate", key=key)

    stream = "".join(json.dumps({"request_id": f"r{number}", "texts": ["Hello."], **languages}) for number in range(5))
    answers = {
        "services": curl("--list-services", host).split(),
        "reflection v1": curl("--reflect-protocol", "grpc-v1", "--list-methods", host).split(),
        "health": json.loads(curl(f"{host}/grpc.health.v1.Health/Check")),
        "texts": translate("Where is the station?", "Thank you."),
        "stream": sorted(re.findall(r'"requestId": ?"(r\d)"', curl("--data", stream, f"{service}/TranslateStream"))),
        "html": translate("<p>Open the <b>file</b>.</p>", options={"format": "TEXT_FORMAT_HTML"}),
        "detected": translate("Where is the station, please?", source_language=""),
        "french": translate(FRENCH, source_language=""),
        "details": translate("Hello.", options={"beam_size": 99}),
        "stranger": translate("Hello.", key=server["wrong_key"]),
    }

    assert_expected(BUF, answers)


def assert_expected(expected: Expected, results: Mapping[str, object]) -> None:
    def matches(value: object, result: object) -> bool:
        if isinstance(value, re.Pattern):
            text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
            return value.search(text) is not None
        return result == value

    wrong = {name: results.get(name) for name, value in expected.items() if not matches(value, results.get(name))}
    assert wrong == {}
