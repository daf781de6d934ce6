"""The bundled models in deploy/models, through a server with default settings."""

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dragoman.client import TranslationClient
from dragoman.client.enums import TextFormat
from dragoman.client.request import DecodingOptions, Term
from dragoman.client.results import Translation
from dragoman_export.__main__ import main as export
from dragoman_export.evaluation.translation import BundleTextModel, translate_texts
from dragoman_service.bundle.files import open_bundle
from dragoman_service.cli.server_process import ServerProcess
from dragoman_service.datatypes import Ports
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.integration.real_process import get
from tests.waiting import wait_until

MODELS = Path(__file__).parents[3] / "deploy" / "models" / "dragoman_models"
BUNDLE = MODELS / "en-de" / "1"
MAX_BYTES = 25_000_000
START_TIMEOUT_S = 120.0
NO_OPTIONS = DecodingOptions()


@pytest.fixture(scope="module")
def client() -> Iterator[TranslationClient]:
    """Connected to `python -m dragoman_service serve` with no configuration but free ports."""
    with ServerProcess() as server:
        ports = server.wait_until_ready(timeout_s=START_TIMEOUT_S)
        with TranslationClient(f"127.0.0.1:{ports.grpc_port}") as client:
            yield client
        server.send(signal.SIGTERM)
        assert server.wait(timeout_s=START_TIMEOUT_S) == 0


def translate(client: TranslationClient, *texts: str, options: DecodingOptions = NO_OPTIONS) -> list[Translation]:
    return list(client.translate(texts, source_language="en", target_language="de", options=options))


def translate_document(client: TranslationClient, text: str, options: DecodingOptions = NO_OPTIONS) -> str:
    sentences = client.translate_document(text, source_language="en", target_language="de", options=options)
    return "".join(sentence.text for sentence in sentences)


@pytest.mark.parametrize("name", ["de-en", "en-de"])
def test_bundle_is_small_and_names_the_sources_of_its_data(name: str) -> None:
    manifest = open_bundle(MODELS / name / "1").manifest

    assert sum(entry.bytes for entry in manifest.files.values()) <= MAX_BYTES
    assert "tatoeba.org (CC BY 2.0 FR)" in manifest.attribution


@pytest.mark.parametrize(
    ("text", "detected", "target", "word"),
    [
        ("Where is the station?", "en", "de", "Bahnhof"),
        ("Wo ist der Bahnhof?", "de", "en", "station"),
        ("I have two dogs.", "en", "de", "Hunde"),
        ("Ich habe zwei Hunde.", "de", "en", "dogs"),
        ("Open {file} and press <b>Save</b>.", "en", "de", "{file}"),
        ("Öffnen Sie {file} und klicken Sie auf <b>Speichern</b>.", "de", "en", "{file}"),
    ],
)
def test_text_without_a_source_language_is_translated_into_the_other_language(
    client: TranslationClient, text: str, detected: str, target: str, word: str
) -> None:
    result = client.translate([text], target_language=target)

    assert result.detected_language
    assert result.detected_language.language == detected
    assert result.model_name == f"{detected}-{target}"
    assert word in result[0].text


def test_server_is_ready_once_all_bundled_models_are_ready() -> None:
    with ServerProcess() as server:
        record = server.wait_for("listening", timeout_s=START_TIMEOUT_S)
        ports = Ports(**{name: record[name] for name in ("grpc_port", "http_port", "metrics_port")})
        wait_until(lambda: get(ports, "/readyz")[0] == 200)
        models = json.loads(get(ports, "/v1/models")[1])["models"]

    assert [(model["name"], [version["state"] for version in model["versions"]]) for model in models] == [
        ("de-en", ["MODEL_STATE_READY"]),
        ("en-de", ["MODEL_STATE_READY"]),
    ]


@pytest.mark.parametrize(
    ("text", "source", "target"),
    [
        ("I have two dogs.", "dogs", "Hunde"),
        ("Tom has bought a new car.", "car", "Auto"),
        ("Good morning! Where is the station?", "station", "Bahnhof"),
    ],
)
def test_alignment_links_words_of_equal_meaning(client: TranslationClient, text: str, source: str, target: str) -> None:
    (translation,) = translate(client, text, options=DecodingOptions(return_alignment=True))

    begin = translation.text.index(target)
    linked = [
        text[link.source.start : link.source.end]
        for link in translation.hypotheses[0].alignment
        if begin <= link.target.start < begin + len(target)
    ]
    assert source.startswith(linked[0])  # a word of several pieces is linked by each of them
    assert all(piece in source for piece in linked)


@pytest.mark.parametrize("text_format", [TextFormat.HTML, TextFormat.XML], ids=lambda one: one.name)
def test_untranslated_element_keeps_its_place_in_the_sentence(
    client: TranslationClient, text_format: TextFormat
) -> None:
    windows, tom = (f'<x translate="no">{word}</x>' for word in ("Windows", "Tom"))
    options = DecodingOptions(format=text_format)

    bought, asked = translate(client, f"I bought {windows} yesterday.", f"Where is {tom} {windows}?", options=options)

    assert re.fullmatch(rf"Ich habe .*{windows} gekauft\.", bought.text)
    assert re.fullmatch(rf"Wo ist {tom} {windows}\?", asked.text)
    assert len(bought.sentences) == len(asked.sentences) == 1


def test_terms_have_the_requested_translation(client: TranslationClient) -> None:
    options = DecodingOptions(terms=(Term(source="tea", target="Früchtetee"), Term(source="Tom Smith")))

    assert translate(client, "Tom Smith likes tea.", options=options)[0].text == "Tom Smith mag Früchtetee."


def test_everyday_sentences_score_above_nonsense(client: TranslationClient) -> None:
    everyday, nonsense = translate(client, "Good morning!", "Fnord glimp the zurbling quandotized wibblewarts.")

    scores = [[sentence.score for sentence in translation.sentences] for translation in (everyday, nonsense)]
    assert (scores[0][0] or 0.0) > 0.7
    assert (scores[1][0] or 1.0) < 0.5


@pytest.mark.slow
def test_converted_bundle_has_the_precisions_of_a_gpu_and_translates(tmp_path: Path) -> None:
    run, converted = tmp_path / "run", tmp_path / "en-de" / "1"
    languages = ("--source-language", "en", "--target-language", "de")
    output = ("--output", str(converted), "--name", "en-de", "--version", "1", *languages)

    assert export(["import", str(BUNDLE), "--from", "bundle", "--output", str(run)]) == 0
    assert export(["bundle", "--checkpoint", str(run), "--precisions", "fp16,fp32", *output]) == 0

    bundle = open_bundle(converted)
    step_model = open_step_model(bundle, RuntimeSettings(device="cpu"))
    model = BundleTextModel.of(step_model, open_tokenizer(bundle), bundle.manifest)
    sources = ["Where is the station?", "Open https://example.com/x and wait."]
    station, address = translate_texts(model, sources, beam_size=4, batch_size=2).texts
    assert bundle.manifest.precisions.keys() == {"fp16", "fp32"}
    assert bundle.manifest.tokenization == open_bundle(BUNDLE).manifest.tokenization
    assert "Bahnhof" in station
    assert "https://example.com/x" in address
