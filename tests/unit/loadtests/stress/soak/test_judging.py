from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.contract import meaning
from loadtests.stress.callers import Reply
from loadtests.stress.calls import Ending, PlannedCall
from loadtests.stress.soak.judging import judge
from loadtests.stress.soak.ledger import UNSEEN, abandoned
from loadtests.wire import Method

SHORT = Ending.SHORT_DEADLINE


def planned(method: Method = Method.TRANSLATE, **changed: Any) -> PlannedCall:
    ids = ("r.0", "r.1") if method is Method.TRANSLATE_STREAM else ("",)
    raw = tuple(pb.TranslateRequest(texts=["A"], request_id=name).SerializeToString() for name in ids)
    fields = {"request_id": "r", "kind": "usual", "method": method, "raw": raw, "answers": ("OK",) * len(raw)}
    return PlannedCall(**{**fields, **changed})


def answer(request_id: str = "r", text: str = "B") -> bytes:
    span = pb.Span(start=0, end=1)
    sentence = pb.Sentence(source=span, target=span, num_source_tokens=2, num_target_tokens=2)
    return pb.TranslateResponse(
        request_id=request_id,
        model_name="m",
        model_version="1",
        num_source_tokens=2,
        num_target_tokens=2,
        translations=[pb.Translation(hypotheses=[pb.Hypothesis(text=text)], sentences=[sentence])],
    ).SerializeToString()


def server(status: str = "OK", *messages: bytes) -> Reply:
    return Reply(status=status, messages=messages)


def client(status: str, *messages: bytes) -> Reply:
    return Reply(status=status, is_of_server=False, messages=messages)


def test_an_answered_call_is_certain() -> None:
    notes = judge(planned(), server("OK", answer()))

    assert [entry.possible for entry in notes.entries] == [{"OK"}]
    assert (notes.unanswered, notes.errors, notes.wrong, notes.num_sentences) == ([], [], [], 1)


@pytest.mark.parametrize(
    ("call", "reply", "possible"),
    [
        (planned(ending=Ending.CANCELS), client("CANCELLED"), abandoned(Ending.CANCELS, "OK")),
        (planned(ending=Ending.DISCONNECTS), client("CANCELLED"), abandoned(Ending.DISCONNECTS, "OK")),
        (planned(ending=SHORT), client("DEADLINE_EXCEEDED"), abandoned(SHORT, "OK")),
        (planned(ending=SHORT), server("RESOURCE_EXHAUSTED"), {"RESOURCE_EXHAUSTED"}),
        (planned(answers=("NOT_FOUND",)), server("NOT_FOUND"), {"NOT_FOUND"}),
        (planned(answers=("RESOURCE_EXHAUSTED",), is_counted=False), client("RESOURCE_EXHAUSTED"), {UNSEEN}),
    ],
)
def test_a_call_that_ends_as_planned_is_no_error(call: PlannedCall, reply: Reply, possible: set[str]) -> None:
    notes = judge(call, reply)

    assert [entry.possible for entry in notes.entries] == [possible]
    assert (notes.unanswered, notes.errors) == ([], [])


@pytest.mark.parametrize(
    ("call", "reply"),
    [
        *(
            (planned(), made(status))
            for made in (server, client)
            for status in ("INTERNAL", "UNAVAILABLE", "CANCELLED")
        ),
        (planned(), server("RESOURCE_EXHAUSTED")),
        (planned(), client("RESOURCE_EXHAUSTED")),
        (planned(ending=SHORT), client("RESOURCE_EXHAUSTED")),
        (planned(answers=("NOT_FOUND",)), server("INVALID_ARGUMENT")),
        (planned(answers=("NOT_FOUND",)), server("OK", answer())),
        (planned(Method.TRANSLATE_STREAM), server("INVALID_ARGUMENT")),
    ],
)
def test_a_status_that_was_not_provoked_is_an_error(call: PlannedCall, reply: Reply) -> None:
    assert len(judge(call, reply).errors) == 1


@pytest.mark.parametrize("ending", [Ending.WAITS, Ending.CANCELS])
def test_a_call_whose_long_deadline_passed_was_not_answered(ending: Ending) -> None:
    assert len(judge(planned(ending=ending), client("DEADLINE_EXCEEDED")).unanswered) == 1


def test_a_probe_with_another_answer_is_wrong() -> None:
    probe, got = planned(probe=0), server("OK", answer(text="C"))

    assert judge(probe, got, reference=meaning(answer(text="C"))).wrong == []
    assert judge(probe, got, reference=meaning(answer(text="B"))).wrong == [
        "r: probe 0 got another answer than at first"
    ]


def test_a_document_is_judged_by_its_sentences() -> None:
    raw = (pb.TranslateDocumentRequest(text="A").SerializeToString(),)

    assert judge(planned(Method.TRANSLATE_DOCUMENT, raw=raw), server()).wrong == ["r: no message came"]


@pytest.mark.parametrize(
    ("ending", "reply", "possible"),
    [
        (Ending.WAITS, server("OK", answer("r.1"), answer("r.0")), [{UNSEEN}, {"OK"}, {"OK"}]),
        (Ending.CANCELS, client("CANCELLED", answer("r.0")), [{UNSEEN}, {"OK"}, abandoned(Ending.CANCELS, "OK")]),
    ],
)
def test_a_stream_counts_its_requests_and_not_itself(ending: Ending, reply: Reply, possible: list[set[str]]) -> None:
    notes = judge(planned(Method.TRANSLATE_STREAM, ending=ending), reply)

    assert [entry.request_id for entry in notes.entries] == ["r", "r.0", "r.1"]
    assert [set(entry.possible) for entry in notes.entries] == possible
    assert notes.unanswered == []


def test_a_stream_that_fails_is_counted_itself() -> None:
    assert judge(planned(Method.TRANSLATE_STREAM), server("NOT_FOUND")).entries[0].possible == {"NOT_FOUND"}


def test_a_stream_that_ends_well_has_answered_every_request() -> None:
    notes = judge(planned(Method.TRANSLATE_STREAM), server("OK", answer("r.1")))

    assert notes.unanswered == ["r.0 was not answered though its stream ended well"]
