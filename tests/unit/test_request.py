import math

from dragoman_service.datatypes import Priority, StageTimings, TextHypothesis, Translation, TranslationResult
from dragoman_service.request import RequestContext, RequestRecord


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


def test_a_stream_adds_up_its_tokens_and_tells_its_longest_waits() -> None:
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


def test_texts_are_forgotten_unless_asked_for() -> None:
    record = RequestRecord()

    record.add_texts(["A secret."])
    record.add_result(answer("Ein Geheimnis."))

    assert (record.texts, record.translations) == ([], [])
    assert not {"request_texts", "translations"} & set(record.log_fields())


def test_kept_texts_are_cut_where_a_record_would_become_too_long() -> None:
    record = RequestRecord(keeps_texts=True)

    for _ in range(5):
        record.add_texts(["a" * 30_000, "b" * 30_000])

    assert sum(map(len, record.texts)) == 100_000
    assert record.num_texts == 10


def test_a_call_without_texts_has_no_figures_of_translation() -> None:
    assert (RequestRecord().log_fields(), RequestRecord().span_attributes()) == ({}, {})


def test_without_a_call_there_is_a_context_that_records_nothing_and_never_ends() -> None:
    context, other = RequestContext(), RequestContext()

    context.trace.add("queue", began_s=0.0, ended_s=1.0)
    context.trace.end(status="OK", attributes={})
    context.add_texts(["a"])

    assert (context.trace.trace_id, other.num_texts) == ("", 0)
    assert (context.caller, context.deadline_s, context.priority) == ("", math.inf, Priority.INTERACTIVE)
