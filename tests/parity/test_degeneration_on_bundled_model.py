"""Degenerate targets of the bundled model, with inputs that provoke networks to loop, to copy or to stop at once."""

from pathlib import Path

import pytest

from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import DegenerationKind, DegenerationReport, SearchConfig, Segment
from dragoman_service.decoding.degeneration import EndedSegment, Findings, find_degenerations
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.batch_decoding import decode_all

_BUNDLE = Path(__file__).parents[2] / "deploy" / "models" / "dragoman_models" / "en-de" / "1"

_PROVOCATIONS = {
    "one word 200 times": "dog " * 200,
    "one letter": "a" * 43,
    "the alphabet": " ".join("abcdefghijklmnopqrstuvwxyz"),
    "one word 60 times, then another": "very " * 60 + "good.",
    "noise in capitals": "HJKQ WXZT PLMV BNRT QQQZ XXKJ VBNM LKJH",
    "a sentence in capitals": "WHY ARE YOU SHOUTING AT ME ALL THE TIME?",
    "a URL": "https://www.example.com/path/to/page?id=12345&lang=en#section-2",
    "a sentence of the target language": "Das Wetter ist heute schön und wir gehen in den Park.",
}


@pytest.fixture(scope="module")
def model() -> OnnxStepModel:
    return OnnxStepModel(open_bundle(_BUNDLE), RuntimeSettings(device="cpu"))


@pytest.fixture(scope="module")
def tokenizer() -> SentencePieceTokenizer:
    return SentencePieceTokenizer(_BUNDLE / "tokenizer.model")


@pytest.mark.parametrize("text", _PROVOCATIONS.values(), ids=_PROVOCATIONS)
def test_remaining_defects_are_reported(model: OnnxStepModel, tokenizer: SentencePieceTokenizer, text: str) -> None:
    source_ids = tokenizer.encode(text)

    ended = _decode(model, source_ids, repetition_guard=True)

    remaining = {defect.kind for defect in _findings(source_ids, ended).defects}
    report = ended.degeneration
    assert remaining == (set() if report is None else {defect.kind for defect in report.remaining})
    assert report is None or report.found


def test_loop_of_an_unguarded_search_is_replaced(model: OnnxStepModel, tokenizer: SentencePieceTokenizer) -> None:
    source_ids = tokenizer.encode(_PROVOCATIONS["one letter"])

    unguarded = _decode(model, source_ids, repetition_guard=False)
    guarded = _decode(model, source_ids, repetition_guard=True)

    assert DegenerationKind.REPETITION in {defect.kind for defect in _findings(source_ids, unguarded).defects}
    assert isinstance(guarded.degeneration, DegenerationReport)
    assert guarded.degeneration.is_replaced
    assert _findings(source_ids, guarded).severity < _findings(source_ids, unguarded).severity


def test_ordinary_sentence_is_not_decoded_again(model: OnnxStepModel, tokenizer: SentencePieceTokenizer) -> None:
    source_ids = tokenizer.encode("We went to the market and bought some bread and cheese.")

    guarded, unguarded = (
        _decode(model, source_ids, repetition_guard=repetition_guard) for repetition_guard in (True, False)
    )

    assert guarded.degeneration is None
    assert guarded.hypotheses == unguarded.hypotheses


def _decode(model: OnnxStepModel, source_ids: list[int], *, repetition_guard: bool) -> EndedSegment:
    longest = min(len(source_ids) + 1 + EXTRA_TARGET_TOKENS, model.limits.max_target_tokens)
    search = SearchConfig(max_target_tokens=longest, repetition_guard=repetition_guard)
    segment = Segment(source_ids=(*source_ids, model.limits.vocabulary.eos_id), search=search)
    return decode_all(model, [segment])[0]


def _findings(source_ids: list[int], ended: EndedSegment) -> Findings:
    best = ended.hypotheses[0]
    target_ids = best.token_ids[:-1] if best.is_finished else best.token_ids
    return find_degenerations(source_ids, target_ids, is_finished=best.is_finished)
