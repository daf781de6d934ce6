import argparse
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.v1 import translation_pb2 as pb
from loadtests.generator.flags import add_workload_flags, flags_of, workload_of
from loadtests.generator.texts import Profile
from loadtests.generator.calls import Method, translate_requests
from loadtests.generator.workload import Mix, PlannedCall, Workload


def parsed(*flags: str) -> Workload:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser, Workload())
    return workload_of(parser.parse_args(flags))


def calls(workload: Workload, count: int = 200, *, seed: int = 1) -> list[PlannedCall]:
    return list(itertools.islice(workload.calls(seed), count))


def requests(call: PlannedCall) -> list[pb.TranslateRequest]:
    return [pb.TranslateRequest.FromString(message) for message in call.messages]


def _mixes(values: st.SearchStrategy[object]) -> st.SearchStrategy[Mix[object]]:
    return st.lists(st.tuples(values, st.floats(0.001, 1000.0)), max_size=3).map(lambda shares: Mix(tuple(shares)))


_WORKLOADS = st.builds(
    Workload,
    profile=st.sampled_from([profile for profile in Profile if profile is not Profile.LINES]),
    data=st.none() | st.just(Path("/data of ours")),
    texts_per_call=st.integers(1, 128),
    methods=_mixes(st.sampled_from(list(Method))),
    beams=_mixes(st.integers(1, 16)),
    priorities=_mixes(st.sampled_from(["interactive", "bulk"])),
    deadline_s=st.floats(0.001, 86_400),
    leaving=st.floats(0.0, 1.0),
    leave_within_s=st.floats(0.0, 10.0),
    model=st.just("en-de"),
    admin_model=st.just("en-de/1"),
    options=st.sampled_from(["", '{"maxTargetTokens": 32}']),
)


@given(_WORKLOADS)
def test_flags_describe_the_whole_workload(workload: Workload) -> None:
    assert parsed(*flags_of(workload)) == workload


def test_flags_that_are_not_given_are_the_usual_ones() -> None:
    assert parsed() == Workload()
    assert parsed(*flags_of(Workload(profile=Profile.LINES, lines=Path("texts")))).lines == Path("texts").absolute()
    assert parsed("--priorities=interactive=9,bulk").priorities == Mix((("interactive", 9.0), ("bulk", 1.0)))


def test_calls_are_the_same_for_the_same_seed_whoever_makes_them() -> None:
    workload = Workload(profile=Profile.MIXED, leaving=0.5)

    assert calls(workload) == calls(workload) != calls(workload, seed=2)
    assert workload.calls(1).call(123) == calls(workload)[123]
    assert workload.calls(1).call(0, method="ListModels").method is Method.LIST_MODELS  # as a trace may name it
    sent = translate_requests(7, count=3, texts=5)
    assert sent == translate_requests(7, count=3, texts=5)
    assert [len(pb.TranslateRequest.FromString(request).texts) for request in sent] == [5, 5, 5]


def test_by_default_one_sentence_is_translated_with_the_servers_defaults() -> None:
    (call,) = calls(Workload(), 1)

    assert (call.method, call.num_texts, call.leave_after_s, call.profile) == (Method.TRANSLATE, 1, None, "sentence")
    assert (requests(call)[0].HasField("options"), requests(call)[0].priority) == (False, pb.PRIORITY_UNSPECIFIED)


def test_documents_are_asked_of_the_method_for_documents() -> None:
    methods = {(call.profile, call.method) for call in calls(Workload(profile=Profile.MIXED))}

    assert ("document", Method.TRANSLATE_DOCUMENT) in methods
    assert {method for profile, method in methods if profile != "document"} == {Method.TRANSLATE}


def test_what_calls_ask_for_is_drawn_by_its_shares() -> None:
    options = '--options={"maxTargetTokens": 32, "repetitionGuard": false}'
    mixes = ("--methods=Translate=3,ListModels", "--beams=4,1", "--priorities=bulk")
    drawn = calls(parsed(*mixes, options, "--leaving=0.25", "--leave-within=2"), 400)

    assert Counter(call.method for call in drawn)[Method.LIST_MODELS] == pytest.approx(100, abs=35)
    sent = [one for call in drawn if call.method is Method.TRANSLATE for one in requests(call)]
    assert Counter(one.options.beam_size for one in sent)[1] == pytest.approx(150, abs=40)
    given = {(one.priority, one.options.max_target_tokens, one.options.repetition_guard) for one in sent}
    assert given == {(pb.PRIORITY_BULK, 32, False)}
    times = [call.leave_after_s for call in drawn if call.leave_after_s is not None]
    assert len(times) == pytest.approx(100, abs=35)
    assert 0 <= min(times) < 1 < max(times) <= 2


def test_a_stream_has_three_requests_with_names_and_texts_of_their_own() -> None:
    (call,) = calls(parsed("--methods=TranslateStream", "--texts-per-call=2"), 1)

    assert [(one.request_id, len(one.texts)) for one in requests(call)] == [("r-0", 2), ("r-1", 2), ("r-2", 2)]
    assert (call.num_texts, len({text for one in requests(call) for text in one.texts}) > 1) == (6, True)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("GetModel", pb.GetModelRequest(model="en-de")),
        ("ListModels", pb.ListModelsRequest()),
        ("LoadModel", pb.LoadModelRequest(model="en-de/1")),
        ("UnloadModel", pb.UnloadModelRequest(model="en-de/1")),
        ("SetModelLabel", pb.SetModelLabelRequest(model="en-de/1", label="loadtest")),
    ],
)
def test_methods_without_text_have_none(method: str, expected: Any) -> None:
    (call,) = calls(parsed(f"--methods={method}", "--model=en-de", "--admin-model=en-de/1"), 1)

    assert (type(expected).FromString(call.messages[0]), call.num_texts, call.profile) == (expected, 0, "")
