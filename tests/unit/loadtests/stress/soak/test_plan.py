import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress import cancellations
from loadtests.stress.callers import Kind, Moment, PlannedCall
from loadtests.stress.soak.plan import EVERYTHING, OPTIONS, PROBES, REFUSED, Mix, Plan
from loadtests.texts import SENTENCES, Texts
from loadtests.wire import Method

TEXTS = Texts(SENTENCES, origin="built-in sentences")
MODELS = ("", "en-de", "en-de@stable")
METHODS = set(EVERYTHING.methods)
LEAVING = {Kind.CANCELS, Kind.DISCONNECTS}


def calls(count: int, *, seed: int = 1, mix: Mix = EVERYTHING) -> list[PlannedCall]:
    return list(itertools.islice(Plan(texts=TEXTS, models=MODELS, prefix="p", seed=seed, mix=mix), count))


@pytest.fixture(scope="module")
def many() -> list[PlannedCall]:
    return calls(4000)


def usual(made: list[PlannedCall], method: Method, kind: Any) -> list[Any]:
    """The requests of usual calls of a method."""
    return [
        kind.FromString(raw) for call in made if (call.method, call.kind) == (method, Kind.USUAL) for raw in call.raw
    ]


def test_a_plan_is_the_same_for_the_same_seed_and_every_request_has_an_id_of_its_own(many: list[PlannedCall]) -> None:
    streams = [call for call in many if call.method is Method.TRANSLATE_STREAM]
    ids = [call.request_id for call in many]
    ids += [pb.TranslateRequest.FromString(raw).request_id for call in streams for raw in call.raw]

    assert calls(100) == many[:100] != calls(100, seed=2)
    assert len(set(ids)) == len(ids)
    assert all(request_id.startswith("p-") for request_id in ids)


def test_every_method_meets_every_kind_and_most_callers_wait(many: list[PlannedCall]) -> None:
    met = {(call.method, call.kind, call.moment) for call in many if call.kind not in {Kind.PROBE, Kind.REFUSED}}
    leaving = [call for call in many if call.kind in LEAVING]
    shares = [call.share for call in many if call.kind is Kind.SHORT_DEADLINE]
    waiting = [call for call in many if call.kind not in {Kind.SHORT_DEADLINE, *LEAVING}]

    assert met == {
        *itertools.product(METHODS, LEAVING, set(Moment) - {Moment.NEVER}),
        *itertools.product(METHODS, (Kind.USUAL, Kind.SHORT_DEADLINE), [Moment.NEVER]),
    }
    assert {call.half_closes for call in leaving if call.moment is Moment.DECODING} == {True, False}
    assert all(call.moment.value[1] <= call.share <= call.moment.value[2] for call in leaving)
    assert 0 < min(shares) < 0.05
    assert 0.5 < max(shares) <= 1
    assert {(call.moment, call.share, call.half_closes) for call in waiting} == {(Moment.NEVER, 0.0, True)}
    assert len(waiting) > len(many) / 2


def test_texts_are_from_nothing_to_long(many: list[PlannedCall]) -> None:
    documents = usual(many, Method.TRANSLATE_DOCUMENT, pb.TranslateDocumentRequest)
    texts = [text for request in usual(many, Method.TRANSLATE, pb.TranslateRequest) for text in request.texts]
    light = calls(300, mix=replace(cancellations.MIX, methods={Method.TRANSLATE_DOCUMENT: 1}))

    assert min(len(document.text) for document in documents) == 1
    assert max(len(document.text) for document in documents) > 10_000
    assert "" in texts
    assert any(text and " " not in text for text in texts)
    assert max(map(len, texts)) > 300
    assert {call.moment for call in light} == set(Moment)
    assert max(len(pb.TranslateDocumentRequest.FromString(call.raw[0]).text) for call in light) < 1000


def test_requests_differ_in_model_priority_and_options(many: list[PlannedCall]) -> None:
    requests = usual(many, Method.TRANSLATE, pb.TranslateRequest)
    options = [request.options for request in requests]
    fields = {field.name for one in options for field, _ in one.ListFields()}

    assert {request.model for request in requests} == set(MODELS)
    assert {request.priority for request in requests} == {pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_BULK}
    assert fields == {name for choices in OPTIONS for name in choices}
    assert all(1 <= one.num_hypotheses <= one.beam_size for one in options if one.HasField("beam_size"))


def test_probes_are_asked_as_they_are_and_every_refusal_is_met_and_known(many: list[PlannedCall]) -> None:
    made = calls(1500, mix=replace(EVERYTHING, kinds={Kind.PROBE: 1, Kind.REFUSED: 4}))
    of_streams = Counter(status for call in many if call.method is Method.TRANSLATE_STREAM for status in call.answers)

    assert {call.raw for call in made if call.kind is Kind.PROBE} == {probe.raw for probe in PROBES}
    assert {call.raw for call in made if call.kind is Kind.REFUSED} == {refused.raw for refused in REFUSED.values()}
    assert of_streams["OK"] > of_streams["INVALID_ARGUMENT"] > of_streams["NOT_FOUND"] > 0
