from dataclasses import replace

import pytest

from dragoman_service.datatypes import (
    Span,
    StageTimings,
    TextHypothesis,
    TranslatedSentence,
    Translation,
    TranslationResult,
    TranslationWarning,
    WarningKind,
)
from dragoman_service.observability.usage import UsageRecord


def answer(text: str, *, queue_s: float = 0.0, num_tokens: int = 2) -> TranslationResult:
    translation = Translation(hypotheses=(TextHypothesis(text=text, score=0.0),), sentences=())
    return TranslationResult(
        translations=(translation,),
        model_name="tiny",
        model_version="1",
        timings=StageTimings(queue_s=queue_s, encode_s=0.25, decode_s=0.5),
        num_source_tokens=num_tokens,
        num_target_tokens=num_tokens + 1,
    )


def test_results_of_a_stream_add_up_tokens_and_keep_longest_waits() -> None:
    record = UsageRecord()

    for queue_s in (0.1, 0.3, 0.2):
        record.add_texts(["A man."])
        record.add_result(answer("Ein Mann.", queue_s=queue_s))

    assert record.log_fields() == {
        "model": "tiny/1",
        "texts": 3,
        "source_tokens": 6,
        "target_tokens": 9,
        "queue_s": 0.3,
        "encode_s": 0.25,
        "decode_s": 0.5,
    }


def with_warnings(*kinds: WarningKind) -> TranslationResult:
    result = answer("Ein Geheimnis.")
    span = Span(start=4, end=13)
    warnings = (
        TranslationWarning(kind=kind, message="Geheimnis", sentence_index=0, source=span, target=span) for kind in kinds
    )
    return replace(result, translations=(replace(result.translations[0], warnings=tuple(warnings)),))


def test_warnings_are_counted_by_kind_without_their_texts() -> None:
    record = UsageRecord()
    record.add_texts(["A secret."])

    record.add_result(with_warnings(WarningKind.TRUNCATED, WarningKind.NUMBER_CHANGED))
    record.add_result(with_warnings(WarningKind.NUMBER_CHANGED))
    sentence = with_warnings(WarningKind.UNTRANSLATED).translations[0]
    record.add_sentence(
        TranslatedSentence(
            text="Ein Geheimnis.",
            hypotheses=sentence.hypotheses,
            sentence=None,
            warnings=sentence.warnings,
            model_name="tiny",
            model_version="1",
            timings=StageTimings(),
        )
    )

    assert record.log_fields()["warnings"] == {"number_changed": 2, "truncated": 1, "untranslated": 1}
    assert record.warning_header == "NUMBER_CHANGED=2, TRUNCATED=1, UNTRANSLATED=1"
    assert "Geheimnis" not in str(record.log_fields())


@pytest.mark.parametrize("kind", WarningKind)
def test_each_kind_of_warning_is_counted(kind: WarningKind) -> None:
    record = UsageRecord()

    record.add_result(with_warnings(kind, kind))

    assert (record.num_warnings(), record.warning_header) == ({kind.value: 2}, f"{kind.name}=2")


def test_texts_are_not_recorded_by_default() -> None:
    record = UsageRecord()

    record.add_texts(["A secret."])
    record.add_result(answer("Ein Geheimnis."))

    assert (record.texts, record.translations) == ([], [])
    assert not {"request_texts", "translations"} & set(record.log_fields())


def test_recorded_texts_are_truncated_at_the_limit() -> None:
    record = UsageRecord(keeps_texts=True)

    for _ in range(5):
        record.add_texts(["a" * 30_000, "b" * 30_000])

    assert sum(map(len, record.texts)) == 100_000
    assert record.num_texts == 10


def test_record_without_texts_has_no_translation_fields() -> None:
    assert (UsageRecord().log_fields(), UsageRecord().span_attributes()) == ({}, {})


def test_default_record_shares_nothing() -> None:
    record, other = UsageRecord(), UsageRecord()

    record.trace.add("queue", began_s=0.0, ended_s=1.0)
    record.trace.end(status="OK", code=0, http_status=None, attributes={})
    record.add_texts(["a"])

    assert (record.trace.trace_id, other.num_texts) == ("", 0)
