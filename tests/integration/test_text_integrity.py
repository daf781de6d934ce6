"""Numbers, names, symbols, placeholders and markup in translations of the bundled models, over each API."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx
import pytest

from dragoman import DecodingOptions, TextFormat, TranslationClient
from dragoman_export.evaluation.integrity.cases import generate
from dragoman_export.evaluation.integrity.checks import Case, check_case
from dragoman_export.evaluation.translation import BundleTextModel, translate_each
from dragoman_service.bundle.files import open_bundle
from dragoman_service.config import Settings
from dragoman_service.models.serving import ModelSettings
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.tokenizer import open_tokenizer
from tests.integration.real_process import CALL_S, CHECKOUT, START_S, process
from tests.integrity_cases import CASES, SPOILED

MODELS = CHECKOUT / "deploy" / "models" / "dragoman_models"
MARKUP = ("plain", "html")
FORMATS_OF_GOOGLE: Final = {"plain": "text", "html": "html"}  # also of LibreTranslate


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Clients of a server with the bundled models."""

    grpc: TranslationClient
    http: httpx.Client

    def post(self, path: str, body: Any) -> Any:
        answer = self.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with process(DRAGOMAN_GRPC__GOOGLE_TRANSLATION="true") as running:
        ports = running.wait_until_ready(timeout_s=START_S)
        url = f"http://127.0.0.1:{ports.http_port}"
        with (
            TranslationClient(f"127.0.0.1:{ports.grpc_port}") as grpc,
            httpx.Client(base_url=url, timeout=CALL_S, trust_env=False) as http,
        ):
            yield Server(grpc=grpc, http=http)


def translate(server: Server, texts: Sequence[str], source: str, target: str, text_format: str) -> list[str]:
    options = DecodingOptions(format=TextFormat[text_format.upper()])
    result = server.grpc.translate(texts, source_language=source, target_language=target, options=options)
    return [each.text for each in result]


def translate_json(server: Server, texts: Sequence[str], source: str, target: str, text_format: str) -> list[str]:
    options = {"format": f"TEXT_FORMAT_{text_format.upper()}"}
    body = {"texts": texts, "sourceLanguage": source, "targetLanguage": target, "options": options}
    return [each["hypotheses"][0]["text"] for each in server.post("/v1/translate", body)["translations"]]


def translate_document(server: Server, texts: Sequence[str], source: str, target: str, _format: str) -> list[str]:
    sentences = server.grpc.translate_document("\n\n".join(texts), source_language=source, target_language=target)
    return "".join(sentence.text for sentence in sentences).split("\n\n")


def translate_deepl(server: Server, texts: Sequence[str], source: str, target: str, text_format: str) -> list[str]:
    body = {"text": texts, "source_lang": source.upper(), "target_lang": target.upper()}
    if text_format != "plain":
        body["tag_handling"] = text_format
    return [each["text"] for each in server.post("/v2/translate", body)["translations"]]


def translate_google(server: Server, texts: Sequence[str], source: str, target: str, text_format: str) -> list[str]:
    body = {"q": texts, "source": source, "target": target, "format": FORMATS_OF_GOOGLE[text_format]}
    answer = server.post("/language/translate/v2", body)
    return [each["translatedText"] for each in answer["data"]["translations"]]


def translate_azure(server: Server, texts: Sequence[str], source: str, target: str, text_format: str) -> list[str]:
    path = f"/translate?api-version=3.0&from={source}&to={target}&textType={text_format}"
    return [each["translations"][0]["text"] for each in server.post(path, [{"Text": text} for text in texts])]


def translate_libretranslate(
    server: Server, texts: Sequence[str], source: str, target: str, text_format: str
) -> list[str]:
    body = {"q": texts, "source": source, "target": target, "format": FORMATS_OF_GOOGLE[text_format]}
    translations: list[str] = server.post("/translate", body)["translatedText"]
    return translations


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    """A way to translate texts of one language pair and one format.

    Attributes:
        formats: names of the formats that it has.
    """

    translate: Callable[[Server, Sequence[str], str, str, str], list[str]]
    formats: tuple[str, ...]
    is_document: bool = False

    def supports(self, case: Case) -> bool:
        """Return whether the API has the format of the case, and a document can have its text as a paragraph.

        Only a text that is a label as a whole has an accelerator.
        """
        is_paragraph = "\n\n" not in case.source and case.kind != "accelerator"
        return case.format.value in self.formats and (is_paragraph or not self.is_document)


APIS: Final = {
    "native gRPC": Api(translate=translate, formats=("plain", "html", "xml")),
    "JSON": Api(translate=translate_json, formats=("plain", "html", "xml")),
    "document": Api(translate=translate_document, formats=("plain",), is_document=True),
    "DeepL": Api(translate=translate_deepl, formats=("plain", "html", "xml")),
    "Google v2": Api(translate=translate_google, formats=MARKUP),
    "Azure": Api(translate=translate_azure, formats=MARKUP),
    "LibreTranslate": Api(translate=translate_libretranslate, formats=MARKUP),
}


def share(api: str) -> list[str]:
    """Return the ids of the cases that the API translates; each case has one API."""
    supported = [[name for name in APIS if APIS[name].supports(case)] for case in CASES.values()]
    return [
        case_id for number, case_id in enumerate(CASES) if supported[number][number % len(supported[number])] == api
    ]


@pytest.mark.parametrize("api", APIS)
def test_translation_preserves_what_the_text_must_keep(server: Server, api: str) -> None:
    requests: dict[tuple[str, str, str], list[str]] = {}
    for case_id in share(api):
        case = CASES[case_id]
        requests.setdefault((case.source_language, case.target_language, case.format.value), []).append(case_id)

    answers: dict[str, str] = {}
    for request, ids in requests.items():
        texts = APIS[api].translate(server, [CASES[case_id].source for case_id in ids], *request)
        answers |= dict(zip(ids, texts, strict=True))

    assert len(answers) > 10
    damages = {case_id: (text, check_case(CASES[case_id], text)) for case_id, text in answers.items()}
    assert {case_id: damage for case_id, damage in damages.items() if damage[1] and case_id not in SPOILED} == {}


def test_each_way_to_translate_a_file_gives_the_same_text(server: Server) -> None:
    # pyarrow, of translate-dataset, is optional
    translators = pytest.importorskip("dragoman_service.dataset_translation.translators", exc_type=ImportError)
    kinds = {"number", "amount", "identifier", "placeholder", "address", "unknown characters"}
    cases = generate(220, seed=5, directions=[("en", "de")])
    lines = [case.source for case in cases if case.kind in kinds and case.format.value == "plain"]
    lines = [line for line in lines if "\n" not in line]
    assert len(lines) > 50

    bundle = open_bundle(MODELS / "en-de" / "1")
    model = BundleTextModel.of(open_step_model(bundle, RuntimeSettings()), open_tokenizer(bundle), bundle.manifest)
    evaluated = translate_each(model, lines, beam_size=4, batch_size=16, shows_progress=False)
    settings = Settings(models=ModelSettings(directory=MODELS))
    engine = translators.EngineSpec.of(settings, "", "en", "de", beam_size=4, batch_size=8).open()
    unary = [text for line in lines for text in translate(server, [line], "en", "de", "plain")]
    document = server.grpc.translate_document("\n\n".join(lines), source_language="en", target_language="de")

    assert [outcome.translations[0].hypotheses[0].text for outcome in evaluated] == unary
    assert [row.text for row in engine.translate(lines)] == unary
    assert translate(server, lines, "en", "de", "plain") == unary
    assert "".join(sentence.text for sentence in document).split("\n\n") == unary
