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
from tests.e2e.tools import CHECKOUT, buf, node_packages, run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCRIPTS: Final = Path(__file__).with_name("clients")
CALLS_TIMEOUT_S: Final = 60.0
FRENCH: Final = "Où est la gare, s'il vous plaît ? Je cherche le train pour Lyon."
SERVICE: Final = "dragoman.v1.TranslationService"
SERVICES: Final = {
    *(SERVICE, "dragoman.v1.ModelAdminService", "dragoman.v1.ModelService"),
    *("google.cloud.translation.v3.TranslationService", "grpc.health.v1.Health"),
}


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


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("deepl", ["deepl-node@1.28.0"]),
        ("google", ["@google-cloud/translate@9.4.2"]),  # 10 needs Node.js 22
        ("grpc", ["@grpc/grpc-js@1.14.7", "@grpc/proto-loader@0.8.1"]),
    ],
)
def test_node_client_is_served(name: str, packages: Sequence[str], server: Mapping[str, Any]) -> None:
    folder = node_packages(f"clients-{name}", *packages)
    for script in SCRIPTS.glob("*.mjs"):
        shutil.copy(script, folder)
    (folder / "server.json").write_text(json.dumps(server), encoding="utf-8")

    # Without the variable Google's client looks for Google's cloud.
    environment = {**os.environ, "METADATA_SERVER_DETECTION": "none"}
    run("node", f"{name}.mjs", directory=folder, env=environment, timeout=CALLS_TIMEOUT_S)


def test_buf_curl_is_served_by_reflection(server: Mapping[str, Any]) -> None:
    host = f"http://127.0.0.1:{server['grpc_port']}"
    service = f"{host}/{SERVICE}"
    languages = {"source_language": "en", "target_language": "de"}

    def curl(*arguments: str, key: str = server["key"]) -> str:
        transport = ("--protocol", "grpc", "--http2-prior-knowledge", "--reflect-header")
        headers = (f"authorization: Bearer {server['key']}", "--header", f"authorization: Bearer {key}")
        command = ("curl", *transport, *headers, *arguments)
        finished = run(buf(), *command, is_checked=False, timeout=CALLS_TIMEOUT_S)
        return finished.stdout + finished.stderr

    def translate(*texts: str, key: str = server["key"], **fields: Any) -> str:
        return curl("--data", json.dumps({"texts": texts, **languages, **fields}), f"{service}/Translate", key=key)

    stream = "".join(json.dumps({"request_id": f"r{number}", "texts": ["Hello."], **languages}) for number in range(5))
    received = curl("--data", stream, f"{service}/TranslateStream")

    assert set(curl("--list-services", host).split()) >= SERVICES
    assert f"{SERVICE}/Translate" in curl("--reflect-protocol", "grpc-v1", "--list-methods", host)
    assert json.loads(curl(f"{host}/grpc.health.v1.Health/Check")) == {"status": "SERVING"}
    assert sorted(re.findall(r'"requestId": ?"(r\d)"', received)) == [f"r{number}" for number in range(5)]
    for pattern, answer in (
        ("Bahnhof.*Danke", translate("Where is the station?", "Thank you.")),
        ("<p>.*<b>.*</b>.*</p>", translate("<p>Open the <b>file</b>.</p>", options={"format": "TEXT_FORMAT_HTML"})),
        ('"language": ?"en"', translate("Where is the station, please?", source_language="")),
        ("invalid_argument.*fr", translate(FRENCH, source_language="")),
        (r"invalid_argument.*options\.beam_size", translate("Hello.", options={"beam_size": 99})),
        ("unauthenticated", translate("Hello.", key=server["wrong_key"])),
    ):
        assert re.search(pattern, answer, re.DOTALL), answer
