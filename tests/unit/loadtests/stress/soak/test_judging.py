from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.contract import meaning
from loadtests.stress.callers import Reply
from loadtests.stress.calls import Ending, PlannedCall
from loadtests.stress.soak.judging import judge
from loadtests.stress.soak.ledger import UNSEEN, abandoned
from loadtests.wire import Method


def planned(method: Method = Method.TRANSLATE, **changed: Any) -> PlannedCall:
    raw = {
        Method.TRANSLATE: (pb.TranslateRequest(texts=["A"]).SerializeToString(),),
        Method.TRANSLATE_DOCUMENT: (pb.TranslateDocumentRequest(text="A").SerializeToString(),),
        Method.TRANSLATE_STREAM: tuple(
            pb.TranslateRequest(texts=["A"], request_id=f"r.{index}").SerializeToString() for index in range(2)
        ),
    }[method]
    told = {"request_id": "r", "kind": "usual", "method": method, "raw": raw}
    return PlannedCall(**{**told, "answers": ("OK",) * len(raw), **changed})


def answer(request_id: str = "r", text: str = "B") -> bytes:
    hypothesis = pb.Hypothesis(text=text)
    span = pb.Span(start=0, end=1)
    sentence = pb.Sentence(source=span, target=span, num_source_tokens=2, num_target_tokens=2)
    return pb.TranslateResponse(
        request_id=request_id,
        model_name="m",
        model_version="1",
        num_source_tokens=2,
        num_target_tokens=2,
        translations=[pb.Translation(hypotheses=[hypothesis], sentences=[sentence])],
    ).SerializeToString()


def test_an_answered_call_is_certain() -> None:
    ended = judge(planned(), Reply(status="OK", is_of_server=True, messages=(answer(),)))

    assert [entry.possible for entry in ended.entries] == [{"OK"}]
    assert (ended.unanswered, ended.errors, ended.wrong, ended.num_sentences) == ([], [], [], 1)


@pytest.mark.parametrize("ending", [Ending.CANCELS, Ending.DISCONNECTS])
def test_who_leaves_does_not_know_how_the_call_was_counted(ending: Ending) -> None:
    ended = judge(planned(ending=ending), Reply(status="CANCELLED", is_of_server=False))

    assert [entry.possible for entry in ended.entries] == [abandoned(ending, "OK")]
    assert (ended.unanswered, ended.errors) == ([], [])


def test_a_call_whose_own_clock_ran_out_was_answered_only_if_that_was_meant() -> None:
    late = Reply(status="DEADLINE_EXCEEDED", is_of_server=False)

    assert judge(planned(ending=Ending.SHORT_DEADLINE), late).unanswered == []
    assert len(judge(planned(), late).unanswered) == 1
    assert len(judge(planned(ending=Ending.CANCELS), late).unanswered) == 1


@pytest.mark.parametrize("status", ["INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"])
@pytest.mark.parametrize("is_of_server", [True, False])
def test_a_status_that_nobody_provoked_is_an_error(status: str, is_of_server: bool) -> None:
    assert len(judge(planned(), Reply(status=status, is_of_server=is_of_server)).errors) == 1


def test_who_hurries_may_be_refused_by_the_server_but_by_nobody_else() -> None:
    hurried = planned(ending=Ending.SHORT_DEADLINE)

    assert judge(hurried, Reply(status="RESOURCE_EXHAUSTED", is_of_server=True)).errors == []
    assert len(judge(hurried, Reply(status="RESOURCE_EXHAUSTED", is_of_server=False)).errors) == 1


def test_a_refusal_must_be_the_one_that_was_provoked() -> None:
    refused = planned(answers=("NOT_FOUND",))

    assert judge(refused, Reply(status="NOT_FOUND", is_of_server=True)).errors == []
    assert len(judge(refused, Reply(status="INVALID_ARGUMENT", is_of_server=True)).errors) == 1
    assert len(judge(refused, Reply(status="OK", is_of_server=True, messages=(answer(),))).errors) == 1


def test_what_grpc_itself_refuses_is_counted_by_nobody() -> None:
    refused = planned(answers=("RESOURCE_EXHAUSTED",), is_counted=False)

    ended = judge(refused, Reply(status="RESOURCE_EXHAUSTED", is_of_server=False))

    assert [entry.possible for entry in ended.entries] == [{UNSEEN}]
    assert ended.errors == []


def test_a_probe_with_another_answer_is_wrong() -> None:
    probe, got = planned(probe=0), Reply(status="OK", is_of_server=True, messages=(answer(text="C"),))

    assert judge(probe, got, reference=meaning(answer(text="C"))).wrong == []
    assert judge(probe, got, reference=meaning(answer(text="B"))).wrong == [
        "r: probe 0 got another answer than at first"
    ]


def test_a_document_is_judged_by_its_sentences() -> None:
    ended = judge(planned(Method.TRANSLATE_DOCUMENT), Reply(status="OK", is_of_server=True))

    assert ended.wrong == ["r: no message came"]


def test_a_stream_counts_its_requests_and_itself_only_if_it_fails() -> None:
    stream = planned(Method.TRANSLATE_STREAM)
    seen = Reply(status="OK", is_of_server=True, messages=(answer("r.1"), answer("r.0")))

    ended = judge(stream, seen)

    assert {entry.request_id: set(entry.possible) for entry in ended.entries} == {
        "r": {UNSEEN},
        "r.0": {"OK"},
        "r.1": {"OK"},
    }
    failed = judge(stream, Reply(status="INVALID_ARGUMENT", is_of_server=True))
    assert failed.entries[0].possible == {"INVALID_ARGUMENT"}
    assert len(failed.errors) == 1


def test_a_stream_that_ends_well_has_answered_every_request() -> None:
    ended = judge(planned(Method.TRANSLATE_STREAM), Reply(status="OK", is_of_server=True, messages=(answer("r.1"),)))

    assert ended.unanswered == ["r.0 was not answered though its stream ended well"]


def test_what_a_stream_had_not_answered_when_its_caller_left_is_open() -> None:
    stream = planned(Method.TRANSLATE_STREAM, ending=Ending.CANCELS)

    ended = judge(stream, Reply(status="CANCELLED", is_of_server=False, messages=(answer("r.0"),)))

    assert [set(entry.possible) for entry in ended.entries] == [{UNSEEN}, {"OK"}, abandoned(Ending.CANCELS, "OK")]
    assert ended.unanswered == []
