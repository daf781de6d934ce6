"""DeepL API: options, usage, glossaries and forms, with DeepL's own client."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deepl
import httpx
import pytest

from dragoman.v1 import translation_pb2 as pb
from dragoman_service.security.api_keys import new_key
from tests.integration.running_server import RunningServer, running_server, write_callers
from tests.integration.vendors.vendor_clients import translated, with_deepl


@pytest.mark.parametrize(
    ("options", "native"),
    [
        ({"formality": "prefer_less", "preserve_formatting": True}, {}),
        ({"split_sentences": deepl.SplitSentences.OFF}, {"split_sentences": False}),
        ({"split_sentences": "nonewlines", "tag_handling": "html"}, {"format": pb.TEXT_FORMAT_HTML}),
        ({"tag_handling": "xml", "tag_handling_version": "v2"}, {"format": pb.TEXT_FORMAT_XML}),
        ({"glossary": "it"}, {"glossary": "it"}),
        ({"glossary_ids": ["it"]}, {"glossary": "it"}),
        ({"model_type": "latency_optimized"}, {"beam_size": 1}),
        ({"model_type": "prefer_quality_optimized"}, {}),
    ],
)
async def test_options_select_native_options(
    server: RunningServer, options: dict[str, Any], native: dict[str, Any]
) -> None:
    text = "<p>A man rides a bicycle. Two <b>children</b> play.</p>"

    result = await with_deepl(
        server, lambda client: client.translate_text(text, source_lang="EN", target_lang="de-at", **options)
    )

    assert isinstance(result, deepl.TextResult)
    assert [result.text] == await translated(server, text, **native)
    assert result.model_type_used == (options.get("model_type", "").removeprefix("prefer_") or None)


@pytest.mark.parametrize("kind", ["xml", "html"])
async def test_content_of_ignored_tags_is_not_translated(server: RunningServer, kind: str) -> None:
    text = "<p>A <keep a='1'>big dog</keep> and <x>a <b translate='no'>cat</b></x> play. <!-- <keep> --></p>"
    options: dict[str, Any] = {"tag_handling": kind, "ignore_tags": "keep,x"}

    result = await with_deepl(
        server, lambda client: client.translate_text(text, source_lang="EN", target_lang="DE", **options)
    )

    assert isinstance(result, deepl.TextResult)
    unchanged = ("<keep a='1'>big dog</keep>", "<x>a <b translate='no'>cat</b></x>", "<!-- <keep> -->")
    assert [result.text.count(part) for part in unchanged] == [1, 1, 1]


async def test_usage_counts_translated_characters_per_caller(tiny_model: Path, tmp_path: Path) -> None:
    keys = {"shop": new_key(), "other": new_key()}

    def used(client: deepl.DeepLClient) -> Any:
        usage = client.get_usage()
        assert not usage.any_limit_reached
        return usage.character.count

    def translate(client: deepl.DeepLClient) -> Any:
        client.translate_text(["A man.", "\U0001f600 Ä\n"], source_lang="EN", target_lang="DE")
        with pytest.raises(deepl.DeepLException):
            client.translate_text("A man.", source_lang="EN", target_lang="JA")
        before = used(client)
        markup = "<p title='A'>A <!-- big --> <b>man</b>: 1 < 2.</p>"
        result = client.translate_text(markup, source_lang="EN", target_lang="DE", tag_handling="html")
        assert isinstance(result, deepl.TextResult)
        return before, result.billed_characters, used(client)

    async with running_server(tiny_model, access__callers_file=write_callers(tmp_path, keys)) as server:
        counts = await with_deepl(server, translate, keys["shop"])
        assert await with_deepl(server, used, keys["other"]) == 0

    first, markup = len("A man.") + 4, len("A  man: 1 < 2.")
    assert counts == (first, markup, first + markup)


async def test_languages_and_glossaries_are_listed(server: RunningServer) -> None:
    def read(client: deepl.DeepLClient) -> dict[str, Any]:
        return {
            "source": [(each.code, each.name) for each in client.get_source_languages()],
            "target": [(each.code, each.name, each.supports_formality) for each in client.get_target_languages()],
            "pairs": [(each.source_lang, each.target_lang) for each in client.get_glossary_languages()],
            "v2": [(each.glossary_id, each.source_lang, each.entry_count) for each in client.list_glossaries()],
            "one": client.get_glossary("it").name,
            "entries": client.get_glossary_entries("it"),
            "v3": [each.glossary_id for each in client.list_multilingual_glossaries()],
            "both": [each.source_lang for each in client.get_multilingual_glossary("both").dictionaries],
            "entries of v3": client.get_multilingual_glossary_entries("both", "EN", "FR").dictionaries[0].entries,
        }

    assert await with_deepl(server, read) == {
        "source": [("EN", "English")],
        "target": [("DE", "German", False)],
        "pairs": [],
        "v2": [("it", "EN", 2)],
        "one": "it",
        "entries": {"bicycle": "Velo", "Dragoman": "Dragoman"},
        "v3": ["both", "it"],
        "both": ["EN", "FR"],
        "entries of v3": "file\tfichier",
    }


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda c: c.get_glossary("none"), deepl.GlossaryNotFoundException),
        (lambda c: c.get_glossary("both"), deepl.DeepLException),
        (lambda c: c.create_glossary("a", "EN", "DE", {"a": "b"}), deepl.DeepLException),
        (lambda c: c.delete_glossary("it"), deepl.DeepLException),
        (lambda c: c.rephrase_text("A."), deepl.DeepLException),
    ],
)
async def test_unsupported_calls_fail(
    server: RunningServer, call: Callable[[deepl.DeepLClient], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await with_deepl(server, call)


async def test_languages_of_a_resource_are_listed(http: httpx.AsyncClient) -> None:
    answers = [await http.get("/v3/languages", params={name: "translate_text"}) for name in ("resource", "product")]
    invalid = [await http.get("/v3/languages", params=query) for query in ({}, {"resource": "voice"})]

    stable = {"status": "stable"}
    features = {"tag_handling": stable, "glossary": stable}
    assert [answer.json() for answer in answers] == [
        [
            {
                "lang": lang,
                "name": name,
                "usable_as_source": lang == "en",
                "usable_as_target": lang == "de",
                "status": "stable",
                "features": {**features, "auto_detection": stable} if lang == "en" else features,
            }
            for lang, name in (("de", "German"), ("en", "English"))
        ]
    ] * 2
    assert [(answer.status_code, [*answer.json()]) for answer in invalid] == [(400, ["message"])] * 2


async def test_form_is_accepted(server: RunningServer, http: httpx.AsyncClient) -> None:
    form = {"text": ["A man.", "Two."], "source_lang": "EN", "target_lang": "DE", "split_sentences": "0"}
    response = await http.post("/v2/translate", data={**form, "show_billed_characters": "1"})
    targets = await http.get("/v2/languages", params={"type": "target"})
    invalid = await http.get("/v2/languages", params={"type": "both"})

    texts = await translated(server, "A man.", "Two.", split_sentences=False)
    assert [each["text"] for each in response.json()["translations"]] == texts
    assert [each["language"] for each in targets.json()] == ["DE"]
    assert invalid.status_code == 400
