"""DeepL's API: what its own client for Python makes of the answers, and errors in its form."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import deepl
import httpx
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key, store
from dragoman_service.vendor_apis.deepl import CharacterCounts
from tests.integration.running_server import PATIENCE_S, RunningServer, running_server

Result = TypeVar("Result")

KEY = new_key()
TBX = """<tbx><conceptEntry><langSec xml:lang="en"><term>file</term></langSec>
<langSec xml:lang="fr"><term>fichier</term></langSec></conceptEntry></tbx>"""
ASKED = {"text": ["A man."], "source_lang": "EN", "target_lang": "DE"}


@pytest.fixture
async def server(tiny_model: Path, tmp_path: Path) -> AsyncIterator[RunningServer]:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\nDragoman\n")
    (tmp_path / "both.tbx").write_text(TBX)
    async with running_server(tiny_model, models__glossaries_directory=tmp_path) as server:
        yield server


async def asked(server: RunningServer, ask: Callable[[deepl.DeepLClient], Result], key: str = "any") -> Result:
    address = f"http://127.0.0.1:{server.ports.http_port}"

    def call() -> Result:
        with contextlib.closing(deepl.DeepLClient(key, server_url=address)) as client:
            return ask(client)

    return await asyncio.to_thread(call)


async def translated(server: RunningServer, *texts: str, **options: Any) -> list[str]:
    response = await server.translate(*texts, options=pb.DecodingOptions(**options))
    return [one.hypotheses[0].text for one in response.translations]


@pytest.mark.parametrize("target", ["DE", "de", "DE-AT"])
async def test_texts_are_translated(server: RunningServer, target: str) -> None:
    texts = ["A man rides a bicycle.", "Two children play."]

    results = await asked(server, lambda client: client.translate_text(texts, source_lang="EN", target_lang=target))

    assert isinstance(results, list)
    assert [one.text for one in results] == await translated(server, *texts)
    assert [(one.detected_source_lang, one.billed_characters) for one in results] == [("EN", 22), ("EN", 18)]


@pytest.mark.parametrize(
    ("options", "contract"),
    [
        ({"formality": "prefer_less", "preserve_formatting": True}, {}),
        ({"split_sentences": deepl.SplitSentences.OFF}, {"split_sentences": False}),
        ({"split_sentences": deepl.SplitSentences.ALL}, {}),
        ({"split_sentences": "nonewlines", "tag_handling": "html"}, {"format": pb.TEXT_FORMAT_HTML}),
        ({"tag_handling": "xml", "tag_handling_version": "v2"}, {"format": pb.TEXT_FORMAT_XML}),
        ({"glossary": "it"}, {"glossary": "it"}),
        ({"glossary_ids": ["it"]}, {"glossary": "it"}),
        ({"model_type": "latency_optimized"}, {"beam_size": 1}),
        ({"model_type": "prefer_quality_optimized"}, {}),
    ],
)
async def test_options_are_those_of_the_contract(
    server: RunningServer, options: dict[str, Any], contract: dict[str, Any]
) -> None:
    text = "<p>A man rides a bicycle. Two <b>children</b> play.</p>"

    result = await asked(
        server, lambda client: client.translate_text(text, source_lang="EN", target_lang="DE", **options)
    )

    assert isinstance(result, deepl.TextResult)
    assert [result.text] == await translated(server, text, **contract)
    assert result.model_type_used == (options.get("model_type", "").removeprefix("prefer_") or None)


async def test_languages_are_detected(server: RunningServer) -> None:
    texts = ["A man rides a bicycle.", "7 🙂", "Two children play in the garden.", "Das ist ein schöner Tag.", "Hotel"]

    results = await asked(server, lambda client: client.translate_text(texts, target_lang="DE"))
    alone = await asked(server, lambda client: client.translate_text([" "], target_lang="DE"))

    assert isinstance(results, list)
    assert isinstance(alone, list)
    first, second, fifth = await translated(server, texts[0], texts[2], texts[4])
    assert [one.text for one in results] == [first, texts[1], second, texts[3], fifth]
    assert [one.detected_source_lang for one in results] == ["EN", "EN", "EN", "DE", "EN"]
    assert [(one.text, one.detected_source_lang) for one in alone] == [(" ", "EN")]


@pytest.mark.parametrize("kind", ["xml", "html"])
async def test_what_is_in_ignored_tags_is_not_translated(server: RunningServer, kind: str) -> None:
    text = "<p>A <keep a='1'>big dog</keep> and <x>a <b translate='no'>cat</b></x> play. <!-- <keep> --></p>"

    result = await asked(
        server,
        lambda client: client.translate_text(
            text, source_lang="EN", target_lang="DE", tag_handling=kind, ignore_tags="keep,x"
        ),
    )

    assert isinstance(result, deepl.TextResult)
    kept = ("<keep a='1'>big dog</keep>", "<x>a <b translate='no'>cat</b></x>", "<!-- <keep> -->")
    assert [result.text.count(part) for part in kept] == [1, 1, 1]


async def test_characters_of_each_caller_are_counted_once_they_are_translated(tiny_model: Path, tmp_path: Path) -> None:
    keys = {"shop": KEY, "other": new_key()}
    callers = tmp_path / "callers.toml"
    entries = (f'name = "{name}"\nkeys = ["{store(key)}"]\npermissions = ["translate"]\n' for name, key in keys.items())
    callers.write_text("".join(f"[[caller]]\n{entry}" for entry in entries))

    def ask(client: deepl.DeepLClient) -> Any:
        client.translate_text(["A man.", "\U0001f600 Ä\n"], source_lang="EN", target_lang="DE")
        with pytest.raises(deepl.DeepLException):
            client.translate_text("A man.", source_lang="EN", target_lang="JA")
        before = used(client)
        markup = "<p title='A'>A <!-- big --> <b>man</b>: 1 < 2.</p>"
        result = client.translate_text(markup, source_lang="EN", target_lang="DE", tag_handling="html")
        assert isinstance(result, deepl.TextResult)
        return before, result.billed_characters, used(client)

    def used(client: deepl.DeepLClient) -> Any:
        usage = client.get_usage()
        assert not usage.any_limit_reached
        return usage.character.count

    async with running_server(tiny_model, access__callers_file=callers) as server:
        counted = await asked(server, ask, keys["shop"])
        assert await asked(server, used, keys["other"]) == 0

    first, markup = len("A man.") + 4, len("A  man: 1 < 2.")
    assert counted == (first, markup, first + markup)


def test_of_too_many_callers_those_that_translated_last_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dragoman_service.vendor_apis.deepl._MAX_COUNTED_CALLERS", 2)
    counts = CharacterCounts()

    for caller in ("a", "b", "a", "c"):
        counts.add(caller, 3)

    assert [counts.of(caller) for caller in "abc"] == [6, 0, 3]


async def test_languages_usage_and_glossaries_are_listed(server: RunningServer) -> None:
    def ask(client: deepl.DeepLClient) -> dict[str, Any]:
        usage = client.get_usage()
        return {
            "source": [(one.code, one.name) for one in client.get_source_languages()],
            "target": [(one.code, one.name, one.supports_formality) for one in client.get_target_languages()],
            "pairs": [(one.source_lang, one.target_lang) for one in client.get_glossary_languages()],
            "usage": (usage.character.count, usage.any_limit_reached),
            "v2": [(one.glossary_id, one.source_lang, one.entry_count) for one in client.list_glossaries()],
            "one": client.get_glossary("it").name,
            "entries": client.get_glossary_entries("it"),
            "v3": [one.glossary_id for one in client.list_multilingual_glossaries()],
            "both": [one.source_lang for one in client.get_multilingual_glossary("both").dictionaries],
            "entries of v3": client.get_multilingual_glossary_entries("both", "EN", "FR").dictionaries[0].entries,
        }

    assert await asked(server, ask) == {
        "source": [("EN", "English")],
        "target": [("DE", "German", False)],
        "pairs": [("en", "de")],
        "usage": (0, False),
        "v2": [("it", "EN", 2)],
        "one": "it",
        "entries": {"bicycle": "Velo", "Dragoman": "Dragoman"},
        "v3": ["both", "it"],
        "both": ["EN", "FR"],
        "entries of v3": "file\tfichier",
    }


@pytest.mark.parametrize(
    ("ask", "error", "said"),
    [
        (
            lambda c: c.translate_text(["A man rides.", "Bonjour tout le monde"], target_lang="DE"),
            deepl.DeepLException,
            "source_lang: is absent, and the language of text 1 seems to be fr",
        ),
        (lambda c: c.translate_text("A.", source_lang="EN", target_lang="JA"), deepl.DeepLException, "target_lang"),
        (lambda c: c.get_glossary("none"), deepl.GlossaryNotFoundException, "available: both, it"),
        (lambda c: c.create_glossary("a", "EN", "DE", {"a": "b"}), deepl.DeepLException, "files of the server"),
        (lambda c: c.delete_glossary("it"), deepl.DeepLException, "files of the server"),
        (lambda c: c.rephrase_text("A."), deepl.DeepLException, "does not offer"),
    ],
)
async def test_what_cannot_be_is_an_error_of_the_client(
    server: RunningServer, ask: Callable[[deepl.DeepLClient], Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        await asked(server, ask)


@pytest.mark.parametrize(
    "change",
    [
        {"text": ["A."] * 129},
        {"source_lang": "XX"},
        {"source_lang": None, "text": ["Привет"]},
        {"glossary_id": "both"},
        {"glossary_id": "\ud800"},
    ],
)
async def test_what_cannot_be_has_the_form_of_deepl(server: RunningServer, change: dict[str, Any]) -> None:
    address = f"http://127.0.0.1:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http:
        headers = {"content-type": "application/json"}
        response = await http.post("/v2/translate", content=json.dumps({**ASKED, **change}), headers=headers)

    assert (response.status_code, list(response.json())) == (400, ["message"])


async def test_a_form_is_taken_as_well(server: RunningServer) -> None:
    address = f"http://127.0.0.1:{server.ports.http_port}"
    async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, trust_env=False) as http:
        form = {**ASKED, "text": ["A man.", "Two."], "split_sentences": "0", "show_billed_characters": "1"}
        response = await http.post("/v2/translate", data=form)
        listed = await http.get("/v2/languages", params={"type": "target"})
        bad_type = await http.get("/v2/languages", params={"type": "both"})

    texts = await translated(server, "A man.", "Two.", split_sentences=False)
    assert [one["text"] for one in response.json()["translations"]] == texts
    assert [one["language"] for one in listed.json()] == ["DE"]
    assert bad_type.status_code == 400


async def test_a_key_and_its_limits_are_those_of_all_calls(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deepl.http_client, "max_network_retries", 0)
    callers = tmp_path / "callers.toml"
    callers.write_text(
        f'[[caller]]\nname = "shop"\nkeys = ["{store(KEY)}"]\npermissions = ["translate"]\nrequests_per_s = 1\n'
    )

    def ask(client: deepl.DeepLClient) -> Any:
        return client.translate_text("A man.", source_lang="EN", target_lang="DE")

    async with running_server(tiny_model, access__callers_file=callers) as server:
        with pytest.raises(deepl.AuthorizationException):
            await asked(server, ask, new_key())
        answered = await asked(server, ask, KEY)
        with pytest.raises(deepl.TooManyRequestsException):
            await asked(server, ask, KEY)

    assert answered.text
