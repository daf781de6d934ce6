import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.texts import Profile
from loadtests.wire import Method, translate_requests
from loadtests.workload import Mix, PlannedCall, Workload, parse_mix, parse_priority


def calls(workload: Workload, count: int = 200, *, seed: int = 1) -> list[PlannedCall]:
    return list(itertools.islice(workload.calls(seed), count))


def request(call: PlannedCall) -> pb.TranslateRequest:
    return pb.TranslateRequest.FromString(call.messages[0])


def only(method: Method) -> Mix[Method]:
    return Mix(((method, 1.0),))


def test_calls_are_the_same_for_the_same_seed_whoever_makes_them() -> None:
    workload = Workload(profile=Profile.MIXED, leaving=0.5)

    assert calls(workload) == calls(workload) != calls(workload, seed=2)
    assert workload.calls(1).call(123) == calls(workload)[123]
    assert workload.calls(1).call(0, method="ListModels").method is Method.LIST_MODELS  # as a trace may name it


def test_requests_are_the_same_for_the_same_seed_and_have_so_many_texts() -> None:
    requests = translate_requests(7, count=3, texts=5)

    assert requests == translate_requests(7, count=3, texts=5)
    assert [len(pb.TranslateRequest.FromString(request).texts) for request in requests] == [5, 5, 5]


def test_by_default_one_sentence_is_translated_with_the_servers_defaults() -> None:
    (call,) = calls(Workload(), 1)

    assert (call.method, call.num_texts, call.leave_after_s, call.profile) == (Method.TRANSLATE, 1, None, "sentence")
    assert not request(call).HasField("options")
    assert request(call).priority == pb.PRIORITY_UNSPECIFIED


def test_documents_are_asked_of_the_method_for_documents() -> None:
    methods = {(call.profile, call.method) for call in calls(Workload(profile=Profile.MIXED))}

    assert ("document", Method.TRANSLATE_DOCUMENT) in methods
    assert {method for profile, method in methods if profile != "document"} == {Method.TRANSLATE}


def test_what_calls_ask_for_is_drawn_by_its_shares() -> None:
    workload = Workload(
        methods=Mix(((Method.TRANSLATE, 3.0), (Method.LIST_MODELS, 1.0))),
        beams=Mix(((4, 1.0), (1, 1.0))),
        priorities=Mix((("bulk", 1.0),)),
        leaving=0.25,
        leave_within_s=2.0,
        options='{"maxTargetTokens": 32, "repetitionGuard": false}',
    )

    drawn = calls(workload, 400)

    assert Counter(call.method for call in drawn)[Method.LIST_MODELS] == pytest.approx(100, abs=35)
    requests = [request(call) for call in drawn if call.method is Method.TRANSLATE]
    assert Counter(one.options.beam_size for one in requests)[1] == pytest.approx(150, abs=40)
    assert {one.priority for one in requests} == {pb.PRIORITY_BULK}
    assert {(one.options.max_target_tokens, one.options.repetition_guard) for one in requests} == {(32, False)}
    times = [call.leave_after_s for call in drawn if call.leave_after_s is not None]
    assert len(times) == pytest.approx(100, abs=35)
    assert 0 <= min(times) < 1 < max(times) <= 2


def test_a_stream_has_three_requests_with_names_and_texts_of_their_own() -> None:
    (call,) = calls(Workload(methods=only(Method.TRANSLATE_STREAM), texts_per_call=2), 1)

    sent = [pb.TranslateRequest.FromString(message) for message in call.messages]
    assert [(one.request_id, len(one.texts)) for one in sent] == [("r-0", 2), ("r-1", 2), ("r-2", 2)]
    assert call.num_texts == 6
    assert len({text for one in sent for text in one.texts}) > 1


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (Method.GET_MODEL, pb.GetModelRequest(model="en-de")),
        (Method.LIST_MODELS, pb.ListModelsRequest()),
        (Method.LOAD_MODEL, pb.LoadModelRequest(model="en-de/1")),
        (Method.UNLOAD_MODEL, pb.UnloadModelRequest(model="en-de/1")),
        (Method.SET_MODEL_LABEL, pb.SetModelLabelRequest(model="en-de/1", label="loadtest")),
    ],
)
def test_methods_without_text_have_none(method: Method, expected: Any) -> None:
    (call,) = calls(Workload(methods=only(method), model="en-de", admin_model="en-de/1"), 1)

    assert type(expected).FromString(call.messages[0]) == expected
    assert (call.num_texts, call.profile) == (0, "")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"texts_per_call": 0}, "texts_per_call 0: expected 1 to 128"),
        ({"deadline_s": 0.0}, "deadline 0: expected seconds above 0"),
        ({"deadline_s": float("nan")}, "deadline nan"),
        ({"leaving": 1.5}, "leaving 1.5: expected a share"),
        ({"leave_within_s": -1.0}, "leave_within -1"),
        ({"lines": Path("texts")}, "need each other"),
        ({"profile": Profile.LINES}, "need each other"),
        ({"methods": only(Method.LOAD_MODEL)}, "need the name/version"),
        ({"methods": only(Method.GET_MODEL)}, "GetModel needs the name"),
        ({"options": "{"}, "no DecodingOptions as JSON"),
        ({"options": '{"beam": 1}'}, "no DecodingOptions as JSON"),
        ({"options": "1"}, "no DecodingOptions as JSON"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Workload(**settings)


def test_a_mix_needs_no_shares() -> None:
    assert parse_mix("interactive=9,bulk", parse_priority) == Mix((("interactive", 9.0), ("bulk", 1.0)))


@pytest.mark.parametrize("text", ["", "urgent", "bulk=0", "bulk=-1", "bulk=x", "bulk=nan", "bulk,,"])
def test_a_mix_of_something_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|could not convert"):
        parse_mix(text, parse_priority)
