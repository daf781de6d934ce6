import itertools
import random
from collections import Counter
from typing import Any

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.calls import Ending, Moment, PlannedCall
from loadtests.stress.soak.plan import (
    EVERYTHING,
    OPTIONS,
    REFUSED,
    Mix,
    draw_options,
    draw_refused,
    planned_calls,
    probe_calls,
)
from loadtests.texts import SENTENCES, Texts
from loadtests.wire import Method

TEXTS = Texts(SENTENCES, origin="built-in sentences")
PROBES = probe_calls()[:2]
MODELS = ("", "en-de", "en-de@stable")
METHODS = set(EVERYTHING.methods)


def calls(count: int, *, seed: int = 1, mix: Mix = EVERYTHING) -> list[PlannedCall]:
    plan = planned_calls(TEXTS, PROBES, models=MODELS, prefix="p", seed=seed, mix=mix)
    return list(itertools.islice(plan, count))


@pytest.fixture(scope="module")
def many() -> list[PlannedCall]:
    return calls(2000)


def usual(made: list[PlannedCall], method: Method, kind: Any) -> list[Any]:
    """The requests of usual calls of a method."""
    return [kind.FromString(raw) for call in made if (call.method, call.kind) == (method, "usual") for raw in call.raw]


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    assert calls(100) == calls(100)
    assert calls(100) != calls(100, seed=2)


def test_every_request_has_an_id_of_its_own(many: list[PlannedCall]) -> None:
    streams = [call for call in many if call.method is Method.TRANSLATE_STREAM]
    ids = [call.request_id for call in many]
    ids += [pb.TranslateRequest.FromString(raw).request_id for call in streams for raw in call.raw]

    assert len(set(ids)) == len(ids)
    assert all(request_id.startswith("p-") for request_id in ids)


def test_every_method_meets_every_ending_at_every_moment(many: list[PlannedCall]) -> None:
    parting = {Ending.CANCELS, Ending.DISCONNECTS}
    moments = {(call.method, call.ending, call.moment) for call in many if call.ending in parting}

    assert {(call.method, call.ending) for call in many} == set(itertools.product(METHODS, Ending))
    assert moments == set(itertools.product(METHODS, parting, set(Moment) - {Moment.NEVER}))
    assert {call.half_closes for call in many if call.moment is Moment.DECODING} == {True, False}


def test_most_callers_wait_and_all_others_know_when_they_go(many: list[PlannedCall]) -> None:
    waiting = [call for call in many if call.ending is Ending.WAITS]
    shares = [call.share for call in many if call.ending is Ending.SHORT_DEADLINE]

    assert len(waiting) > len(many) / 2
    assert {(call.moment, call.share, call.half_closes) for call in waiting} == {(Moment.NEVER, 0.0, True)}
    assert min(shares) < 0.05
    assert 0.5 < max(shares) <= 1


def test_texts_are_from_nothing_to_long(many: list[PlannedCall]) -> None:
    documents = usual(many, Method.TRANSLATE_DOCUMENT, pb.TranslateDocumentRequest)
    sizes = [len(document.text) for document in documents]
    texts = [text for request in usual(many, Method.TRANSLATE, pb.TranslateRequest) for text in request.texts]

    assert min(sizes) == 1
    assert max(sizes) > 10_000
    assert "" in texts
    assert any(text and " " not in text for text in texts)
    assert max(map(len, texts)) > 300


def test_requests_differ_in_model_priority_and_options(many: list[PlannedCall]) -> None:
    requests = usual(many, Method.TRANSLATE, pb.TranslateRequest)

    assert {request.model for request in requests} == set(MODELS)
    assert {request.priority for request in requests} == {pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_BULK}
    fields = {field.name for request in requests for field, _ in request.options.ListFields()}
    assert {"beam_size", "sampling", "target_prefix", "return_alignment", "repetition_guard"} <= fields


def test_probes_are_asked_as_they_are(many: list[PlannedCall]) -> None:
    probes = {(call.probe, call.raw) for call in many if call.kind == "probe"}

    assert probes == {(probe.probe, probe.raw) for probe in PROBES}


def test_a_stream_knows_which_of_its_requests_are_refused(many: list[PlannedCall]) -> None:
    statuses = Counter(status for call in many if call.method is Method.TRANSLATE_STREAM for status in call.answers)

    assert statuses["OK"] > statuses["INVALID_ARGUMENT"] > 0
    assert statuses["NOT_FOUND"] > 0


def test_every_way_to_decode_and_every_refusal_is_drawn() -> None:
    generator = random.Random(1)  # noqa: S311 - not for secrets

    assert {draw_options(generator)[0] for _ in range(500)} == set(OPTIONS)
    assert {draw_refused(generator) for _ in range(1000)} == set(REFUSED)


def test_a_mix_says_what_is_asked_and_how_long_it_is() -> None:
    mix = Mix(kinds={"cancels": 19, "usual": 1}, methods={Method.TRANSLATE_DOCUMENT: 1}, is_light=True)
    made = calls(300, mix=mix)

    assert {(call.kind, call.method) for call in made} == {(kind, Method.TRANSLATE_DOCUMENT) for kind in mix.kinds}
    assert {call.moment for call in made} == set(Moment)
    assert max(len(pb.TranslateDocumentRequest.FromString(call.raw[0]).text) for call in made) < 1000
