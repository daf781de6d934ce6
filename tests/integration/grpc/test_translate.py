import pytest

from dragoman.v1 import translation_pb2 as pb
from tests.integration.running_server import RunningServer, request


async def test_each_text_is_translated_in_order(server: RunningServer) -> None:
    texts = ("A man rides a bicycle.", "Two children play. The train leaves!")

    both = await server.translate(*texts)
    alone = [(await server.translate(text)).translations[0] for text in texts]

    assert list(both.translations) == alone
    assert [len(translation.sentences) for translation in both.translations] == [1, 2]
    assert all(translation.hypotheses[0].text for translation in both.translations)


async def test_response_names_the_model_and_has_timings(server: RunningServer) -> None:
    response = await server.translate("A man rides a bicycle.")

    assert (response.model_name, response.model_version) == ("tiny", "1")
    assert response.num_source_tokens > 1
    assert response.num_target_tokens > 0
    assert response.timings.text.ToNanoseconds() >= 0


async def test_hypotheses_scores_and_tokens_are_returned_on_request(server: RunningServer) -> None:
    options = pb.DecodingOptions(beam_size=3, num_hypotheses=3, return_scores=True, return_tokens=True)

    response = await server.translate("A man rides a bicycle.", options=options)

    (translation,) = response.translations
    scores = [hypothesis.score for hypothesis in translation.hypotheses]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(len(hypothesis.tokens) == len(hypothesis.token_log_probs) > 0 for hypothesis in translation.hypotheses)


@pytest.mark.parametrize("text", ["", " \n"])
async def test_blank_text_is_returned_unchanged(server: RunningServer, text: str) -> None:
    response = await server.translate(text)

    (translation,) = response.translations
    assert [(hypothesis.text, hypothesis.score) for hypothesis in translation.hypotheses] == [(text, 0)]
    assert not translation.sentences


@pytest.mark.parametrize("text", ["Grüße 😀 42", "\x00\x07", "a" * 500, "عربي", "👩‍👩‍👧"])
async def test_unusual_texts_are_translated(server: RunningServer, text: str) -> None:
    response = await server.translate(text)

    assert len(response.translations) == 1


async def test_bulk_request_is_answered(server: RunningServer) -> None:
    response = await server.translate("A man.", priority=pb.PRIORITY_BULK)

    assert len(response.translations) == 1


@pytest.mark.parametrize("languages", [("en-GB", "de"), ("EN", "DE-at")])
async def test_regional_language_uses_the_model_of_its_language(
    server: RunningServer, languages: tuple[str, str]
) -> None:
    response = await server.translate("A man.", source_language=languages[0], target_language=languages[1])

    assert response.model_name == "tiny"


async def test_request_id_is_returned_in_response_and_metadata(server: RunningServer) -> None:
    call = server.translate("A man.", request_id="r-1")

    assert (await call).request_id == "r-1"
    assert dict(await call.trailing_metadata())["x-request-id"] == "r-1"


async def test_request_id_of_the_metadata_is_used_without_one_in_the_request(server: RunningServer) -> None:
    call = server.translation.Translate(request("A man."), metadata=(("x-request-id", "m-1"),))

    assert (await call).request_id == "m-1"
    assert dict(await call.trailing_metadata())["x-request-id"] == "m-1"


async def test_request_without_id_gets_a_generated_id(server: RunningServer) -> None:
    ids = {(await server.translate("A man.")).request_id for _ in range(2)}

    assert len(ids - {""}) == 2


async def test_requests_are_counted_and_timed(server: RunningServer) -> None:
    await server.translate("A man.")

    assert server.sample("dragoman_requests_total", method="Translate", status="OK") == 1
    assert server.sample("dragoman_request_duration_seconds_count", method="Translate") == 1
    assert server.sample("dragoman_requests_in_flight", method="Translate") == 0


async def test_one_model_is_described(server: RunningServer) -> None:
    response = await server.model_service.GetModel(pb.GetModelRequest(model="tiny/1"))

    (version,) = response.model.versions
    assert (response.model.name, version.version, version.state) == ("tiny", "1", pb.MODEL_STATE_READY)
    assert (version.precision, version.is_default) == (pb.PRECISION_FLOAT32, True)
    assert [(pair.source_language, pair.target_language) for pair in version.language_pairs] == [("en", "de")]
    assert (version.limits.max_texts, version.limits.max_text_characters) == (128, 10_000)
    assert not version.unsupported_fields


async def test_all_models_are_listed(server: RunningServer) -> None:
    response = await server.model_service.ListModels(pb.ListModelsRequest())

    assert [(model.name, [version.version for version in model.versions]) for model in response.models] == [
        ("tiny", ["1"])
    ]
