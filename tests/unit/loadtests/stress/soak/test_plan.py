import itertools
import random
from collections import Counter

import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.calls import Ending, Moment, PlannedCall
from loadtests.stress.soak.plan import (
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


def calls(count: int, *, seed: int = 1, prefix: str = "p") -> list[PlannedCall]:
    return list(
        itertools.islice(
            planned_calls(TEXTS, PROBES, models=("", "en-de", "en-de@stable"), prefix=prefix, seed=seed), count
        )
    )


@pytest.fixture(scope="module")
def many() -> list[PlannedCall]:
    return calls(2000)


def test_a_plan_is_the_same_for_the_same_seed() -> None:
    assert calls(100) == calls(100)
    assert calls(100) != calls(100, seed=2)


def test_every_request_has_an_id_of_its_own(many: list[PlannedCall]) -> None:
    ids = [call.request_id for call in many]
    for call in many:
        if call.method is Method.TRANSLATE_STREAM:
            ids += [pb.TranslateRequest.FromString(raw).request_id for raw in call.raw]

    assert len(set(ids)) == len(ids)
    assert all(request_id.startswith("p-") for request_id in ids)


def test_every_method_meets_every_ending_at_every_moment(many: list[PlannedCall]) -> None:
    leaving = {Ending.CANCELS, Ending.DISCONNECTS}
    moments = {(call.method, call.ending, call.moment) for call in many if call.ending in leaving}

    assert {(call.method, call.ending) for call in many} == set(itertools.product(_translating(), Ending))
    assert moments == set(itertools.product(_translating(), leaving, set(Moment) - {Moment.NEVER}))


def test_most_callers_stay_and_all_others_know_when_they_go(many: list[PlannedCall]) -> None:
    staying = [call for call in many if call.ending is Ending.WAITS]

    assert len(staying) > len(many) / 2
    assert {(call.moment, call.share, call.half_closes) for call in staying} == {(Moment.NEVER, 0.0, True)}
    hurrying = [call.share for call in many if call.ending is Ending.SHORT_DEADLINE]
    assert min(hurrying) < 0.05
    assert 0.5 < max(hurrying) <= 1


def test_texts_are_from_nothing_to_long(many: list[PlannedCall]) -> None:
    sizes = [
        len(pb.TranslateDocumentRequest.FromString(call.raw[0]).text)
        for call in many
        if call.method is Method.TRANSLATE_DOCUMENT and call.kind == "usual"
    ]
    texts = [
        text
        for call in many
        if call.method is Method.TRANSLATE and call.kind == "usual"
        for text in pb.TranslateRequest.FromString(call.raw[0]).texts
    ]

    assert min(sizes) == 1
    assert max(sizes) > 10_000
    assert "" in texts
    assert any(text and " " not in text for text in texts)
    assert max(map(len, texts)) > 300


def test_requests_differ_in_model_priority_and_options(many: list[PlannedCall]) -> None:
    requests = [
        pb.TranslateRequest.FromString(call.raw[0])
        for call in many
        if call.method is Method.TRANSLATE and call.kind == "usual"
    ]

    assert {request.model for request in requests} == {"", "en-de", "en-de@stable"}
    assert {request.priority for request in requests} == {pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_BULK}
    fields = {field.name for request in requests for field, _ in request.options.ListFields()}
    assert {"beam_size", "sampling", "target_prefix", "return_alignment", "repetition_guard"} <= fields


def test_probes_are_asked_as_they_are(many: list[PlannedCall]) -> None:
    probes = [(call.probe, call.raw) for call in many if call.kind == "probe"]

    assert set(probes) == {(probe.probe, probe.raw) for probe in PROBES}


def test_a_stream_knows_which_of_its_requests_are_refused(many: list[PlannedCall]) -> None:
    statuses = Counter(status for call in many if call.method is Method.TRANSLATE_STREAM for status in call.answers)

    assert statuses["OK"] > statuses["INVALID_ARGUMENT"] > 0
    assert statuses["NOT_FOUND"] > 0


def test_every_way_to_decode_and_every_refusal_is_drawn() -> None:
    generator = random.Random(1)  # noqa: S311 - not for secrets

    assert {draw_options(generator)[0] for _ in range(500)} == set(OPTIONS)
    assert {draw_refused(generator) for _ in range(1000)} == set(REFUSED)


def test_a_mix_says_what_is_asked_and_how_long_it_is() -> None:
    mix = Mix(kinds={"cancels": 19, "usual": 1}, methods={Method.TRANSLATE_DOCUMENT: 1}, is_short=True)
    made = list(
        itertools.islice(planned_calls(TEXTS, models=("", "en-de", "en-de@stable"), prefix="p", seed=1, mix=mix), 300)
    )

    assert {(call.kind, call.method) for call in made} == {(kind, Method.TRANSLATE_DOCUMENT) for kind in mix.kinds}
    assert {call.moment for call in made} == set(Moment)
    assert max(len(pb.TranslateDocumentRequest.FromString(call.raw[0]).text) for call in made) < 1000


def _translating() -> set[Method]:
    return {Method.TRANSLATE, Method.TRANSLATE_DOCUMENT, Method.TRANSLATE_STREAM}
