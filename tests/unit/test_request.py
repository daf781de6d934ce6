import math

from dragoman_service.datatypes import Priority, StageTimings, TextHypothesis, Translation, TranslationResult
from dragoman_service.request import RequestRecord


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
    record = RequestRecord()

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


def test_texts_are_not_recorded_by_default() -> None:
    record = RequestRecord()

    record.add_texts(["A secret."])
    record.add_result(answer("Ein Geheimnis."))

    assert (record.texts, record.translations) == ([], [])
    assert not {"request_texts", "translations"} & set(record.log_fields())


def test_recorded_texts_are_truncated_at_the_limit() -> None:
    record = RequestRecord(keeps_texts=True)

    for _ in range(5):
        record.add_texts(["a" * 30_000, "b" * 30_000])

    assert sum(map(len, record.texts)) == 100_000
    assert record.num_texts == 10


def test_record_without_texts_has_no_translation_fields() -> None:
    assert (RequestRecord().log_fields(), RequestRecord().span_attributes()) == ({}, {})


def test_default_record_has_no_deadline_and_shares_nothing() -> None:
    record, other = RequestRecord(), RequestRecord()

    record.trace.add("queue", began_s=0.0, ended_s=1.0)
    record.trace.end(status="OK", attributes={})
    record.add_texts(["a"])
    record.failure["reason"] = "OVERLOADED"

    assert (record.trace.trace_id, other.num_texts, other.failure) == ("", 0, {})
    assert (record.caller, record.deadline_s, record.priority) == ("", math.inf, Priority.INTERACTIVE)
