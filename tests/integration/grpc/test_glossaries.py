"""Named glossaries of the server are listed, reloaded and used by requests."""

import asyncio
from pathlib import Path

import pytest

from dragoman import DecodingOptions, ModelNotFoundError, Term, TranslationClient
from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import PATIENCE_S, Refusal, RunningServer, refusal, running_server


async def refused(server: RunningServer, glossary: str) -> Refusal:
    return await refusal(server.translate("A man.", options=pb.DecodingOptions(glossary=glossary)))


async def test_request_uses_a_glossary(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\nman\tMann\n")
    (tmp_path / "shop.tsv").write_text("en\tfr\nman\thomme\n")
    async with running_server(tiny_model, models__glossaries_directory=tmp_path) as server:
        options = pb.DecodingOptions(glossary="it", terms=[pb.Term(source="man", target="Kerl")])
        response = await server.translate("A man rides a bicycle.", options=options)
        (text,) = [one.hypotheses[0].text for one in response.translations]
        listed = await server.model_service.ListGlossaries(pb.ListGlossariesRequest())
        over_http = await server.get("/v1/glossaries")
        unknown, other_pair = await refused(server, "x"), await refused(server, "shop")
        too_long = await refused(server, "x" * 129)

    assert (text.count("Velo"), text.count("Kerl"), text.count("Mann")) == (1, 1, 0)
    assert [
        (one.name, [(pair.target_language, pair.num_terms) for pair in one.pairs]) for one in listed.glossaries
    ] == [
        ("it", [("de", 2)]),
        ("shop", [("fr", 1)]),
    ]
    assert '"name":"shop"' in over_http[1]
    assert (unknown.code, unknown.reason) == ("NOT_FOUND", "GLOSSARY_NOT_FOUND")
    assert (unknown.fields, "available: it, shop" in unknown.message) == (["options.glossary"], True)
    assert (other_pair.code, other_pair.fields) == ("INVALID_ARGUMENT", ["options.glossary"])
    assert (too_long.code, too_long.fields) == ("INVALID_ARGUMENT", ["options.glossary"])


async def test_glossary_is_reloaded(tiny_model: Path, tmp_path: Path) -> None:
    settings = {"models__glossaries_directory": tmp_path, "models__poll_interval_s": 0.01}
    async with running_server(tiny_model, **settings) as server:
        (tmp_path / "it.tsv").write_text("en\tde\na\tb\tc")
        await server.until_sample(1, "dragoman_glossary_failures_total")
        (tmp_path / "it.new").write_text("en\tde\nbicycle\tVelo")
        (tmp_path / "it.new").rename(tmp_path / "it.tsv")
        async with asyncio.timeout(PATIENCE_S):
            while not (await server.model_service.ListGlossaries(pb.ListGlossariesRequest())).glossaries:
                await asyncio.sleep(0.001)
        response = await server.translate("bicycle", options=pb.DecodingOptions(glossary="it"))

    assert "Velo" in response.translations[0].hypotheses[0].text


async def test_client_lists_and_uses_glossaries(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "it.tsv").write_text("en\tde\nbicycle\tVelo\n")
    async with running_server(tiny_model, models__glossaries_directory=tmp_path) as server:

        def call() -> tuple[list[str], str]:
            with TranslationClient(f"127.0.0.1:{server.port}") as client:
                options = DecodingOptions(glossary="it", terms=(Term(source="man", target="Kerl"),))
                result = client.translate(["A bicycle."], options=options, source_language="en", target_language="de")
                with pytest.raises(ModelNotFoundError, match="available: it"):
                    client.translate(
                        ["A."], options=DecodingOptions(glossary="x"), source_language="en", target_language="de"
                    )
                return [one.name for one in client.list_glossaries()], result.translations[0].hypotheses[0].text

        names, text = await asyncio.to_thread(call)

    assert (names, "Velo" in text) == (["it"], True)
