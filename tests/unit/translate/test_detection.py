import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from service.datatypes import DetectedLanguage
from service.errors import InvalidFieldError, UnsupportedFieldError
from service.requests import RequestContext, TranslationRequest
from service.telemetry.metrics import Metrics
from service.translate.detection import LanguageDetector, chosen_language
from service.translate.service import Translator
from tests.unit.text.text_fakes import FakeModel


def _translator(model: FakeModel, **arguments: Any) -> Translator:
    return Translator(model, metrics=Metrics(CollectorRegistry()), **arguments)


ENGLISH, GERMAN = "The train to the coast leaves at seven in the morning.", "Sie liest einen langen Brief."
FRENCH = "Le train pour la côte part à sept heures du matin."


@pytest.fixture(scope="module")
def detector() -> LanguageDetector:
    return LanguageDetector()


@pytest.mark.parametrize(
    ("text", "served", "language"),
    [
        (ENGLISH, {"en", "de"}, "en"),
        (GERMAN, {"en-GB", "de-AT", "de"}, "de"),
        (FRENCH, {"de", "en", "fr"}, "fr"),
        ("你好,世界。今天天气很好。", {"zh", "zh-Hant", "ja", "en"}, "zh"),
        ("<p>" + GERMAN + "</p> https://example.org/an/english/path/with/many/words", {"en", "de"}, "de"),
        ('<a class="some english words to begin with">' * 60 + GERMAN, {"en", "de"}, "de"),
        (GERMAN + " " * 3000 + ENGLISH * 100, {"en", "de"}, "de"),
        ("Han leser et langt brev fra søsteren sin.", {"nb", "de"}, "nb"),
    ],
)
def test_a_text_is_in_the_likeliest_language_that_is_served(
    detector: LanguageDetector, text: str, served: set[str], language: str
) -> None:
    candidates = detector.detect(text, served)

    assert chosen_language(candidates).language == language
    assert sum(each.confidence for each in candidates) <= 1 + 1e-6
    assert [each.confidence for each in candidates] == sorted((each.confidence for each in candidates), reverse=True)


def test_a_language_that_is_not_served_is_told_and_not_taken_for_another(detector: LanguageDetector) -> None:
    candidates = detector.detect(FRENCH, {"en", "de"})

    assert (candidates[0].language, candidates[0].is_served) == ("fr", False)
    with pytest.raises(InvalidFieldError, match=r"source_language: is absent.* fr \(1.00, not served\), "):
        chosen_language(candidates)


@pytest.mark.parametrize("text", ["", " ", "12345", "OK", "+++ 7 * 8"])
def test_a_text_without_words_is_in_no_language(detector: LanguageDetector, text: str) -> None:
    candidates = detector.detect(text, {"en", "de", "fr", "es", "it", "nl"})

    with pytest.raises(InvalidFieldError, match=r"must be given unless one that is served reaches 0.6"):
        chosen_language(candidates)


_OTHERS = [(f"x{number}", 0.0) for number in range(20)]


def _ranked(text: str) -> list[tuple[str, float]]:
    return [("de", 0.4), ("nl", 0.38), ("en", 0.02), *_OTHERS]


def test_languages_that_are_out_of_the_question_have_no_confidence() -> None:
    assert LanguageDetector(load=lambda: _ranked).detect("", {"x1", "x2"}) == ()
    assert LanguageDetector(load=lambda: _ranked).detect("", set()) == ()


def test_one_that_is_not_sure_enough_is_refused_with_its_candidates() -> None:
    candidates = LanguageDetector(load=lambda: _ranked).detect("", {"de", "nl"})

    with pytest.raises(InvalidFieldError, match=r"seems to be in de \(0.51\), nl \(0.49\)"):
        chosen_language(candidates)
    assert chosen_language(LanguageDetector(load=lambda: _ranked).detect("", {"de", "en"})).language == "de"


class _NoDetector(LanguageDetector):
    def __init__(self) -> None:
        super().__init__(load=lambda: _ranked)
        self.is_available = False


async def test_what_is_not_installed_is_named() -> None:
    translator = _translator(FakeModel(), detector=_NoDetector())
    request = TranslationRequest(texts=("Hi.",), source_language="", target_language="de")

    with pytest.raises(InvalidFieldError, match=r"source_language: is absent.*pip install 'dragoman\[detect\]'"):
        await translator.translate(request, RequestContext())
    with pytest.raises(UnsupportedFieldError, match=r"pip install 'dragoman\[detect\]'"):
        await translator.detect_languages(["Hi."], RequestContext())


async def test_a_request_is_translated_from_what_was_detected() -> None:
    model = FakeModel()
    translator = _translator(
        model, detector=LanguageDetector(load=lambda: lambda _: [("fr", 0.9), ("en", 0.1), *_OTHERS])
    )
    request = TranslationRequest(texts=("Hi.",), source_language="", target_language="de")

    result = await translator.translate(request, RequestContext())
    sentences = [each async for each in translator.translate_document(request, RequestContext())]

    assert result.detected_language == DetectedLanguage(language="fr", confidence=0.9)
    assert [each.detected_language for each in sentences] == [result.detected_language]
    assert model.resolved == ("", "fr", "de")


def test_the_model_is_loaded_where_nothing_can_be_written(tmp_path: Path) -> None:
    script = f"""
import tempfile
tempfile.tempdir = {str(tmp_path / "missing")!r}
from service.translate.detection import LanguageDetector
print(LanguageDetector().detect({GERMAN!r}, {{"en", "de"}})[0].language)
"""
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert finished.stdout == "de\n"
