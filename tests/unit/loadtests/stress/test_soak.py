"""What a soak asks, and how it judges memory."""

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dragoman.v1 import translation_pb2 as pb
from loadtests.scenarios import cancellations
from loadtests.scenarios.callers import Kind, Moment, PlannedCall
from loadtests.scenarios.soak.plan import EVERYTHING, OPTIONS, PROBES, REFUSED, Mix, Plan
from loadtests.scenarios.soak.scenario import Sample, Settings, judge_memory, judged_lows
from loadtests.generator.texts import SENTENCES, Texts
from loadtests.generator.calls import Method

MODELS = ("", "en-de", "en-de@stable")
LEAVING = {Kind.CANCELS, Kind.DISCONNECTS}
SHORT, LONG = Settings(duration_s=180.0, growth_limit_mb=16.0), Settings(duration_s=1800.0)
LIMIT = 480.0  # MiB per hour: 16 MiB in two minutes


def calls(count: int, *, seed: int = 1, mix: Mix = EVERYTHING) -> list[PlannedCall]:
    texts = Texts(SENTENCES, origin="built-in sentences")
    return list(itertools.islice(Plan(texts=texts, models=MODELS, prefix="p", seed=seed, mix=mix), count))


MANY = calls(4000)
STREAMS = [call for call in MANY if call.method is Method.TRANSLATE_STREAM]


def test_a_plan_is_the_same_for_the_same_seed_and_every_request_has_an_id_of_its_own() -> None:
    ids = [call.request_id for call in MANY]
    ids += [pb.TranslateRequest.FromString(raw).request_id for call in STREAMS for raw in call.raw]

    assert calls(100) == MANY[:100] != calls(100, seed=2)
    assert len(set(ids)) == len(ids)
    assert all(request_id.startswith("p-") for request_id in ids)


def test_every_method_meets_every_kind_and_most_callers_wait() -> None:
    met = {(call.method, call.kind, call.moment) for call in MANY if call.kind not in {Kind.PROBE, Kind.REFUSED}}
    leaving = [call for call in MANY if call.kind in LEAVING]
    shares = [call.share for call in MANY if call.kind is Kind.SHORT_DEADLINE]
    waiting = [call for call in MANY if call.kind not in {Kind.SHORT_DEADLINE, *LEAVING}]

    assert met == {
        *itertools.product(EVERYTHING.methods, LEAVING, set(Moment) - {Moment.NEVER}),
        *itertools.product(EVERYTHING.methods, (Kind.USUAL, Kind.SHORT_DEADLINE), [Moment.NEVER]),
    }
    assert {call.half_closes for call in leaving if call.moment is Moment.DECODING} == {True, False}
    assert all(call.moment.value[1] <= call.share <= call.moment.value[2] for call in leaving)
    assert 0 < min(shares) < 0.05
    assert 0.5 < max(shares) <= 1
    assert {(call.moment, call.share, call.half_closes) for call in waiting} == {(Moment.NEVER, 0.0, True)}
    assert len(waiting) > len(MANY) / 2


def test_requests_differ_in_length_model_priority_and_options() -> None:
    def usual(method: Method, kind: Any) -> list[Any]:
        asked = [call for call in MANY if (call.method, call.kind) == (method, Kind.USUAL)]
        return [kind.FromString(raw) for call in asked for raw in call.raw]

    requests = usual(Method.TRANSLATE, pb.TranslateRequest)
    sizes = [len(one.text) for one in usual(Method.TRANSLATE_DOCUMENT, pb.TranslateDocumentRequest)]
    texts, options = {text for one in requests for text in one.texts}, [one.options for one in requests]
    light = calls(300, mix=replace(cancellations.MIX, methods={Method.TRANSLATE_DOCUMENT: 1}))

    assert min(sizes) == 1
    assert max(sizes) > 10_000
    assert "" in texts
    assert any(text and " " not in text for text in texts)
    assert max(map(len, texts)) > 300
    assert {call.moment for call in light} == set(Moment)
    assert max(len(pb.TranslateDocumentRequest.FromString(call.raw[0]).text) for call in light) < 1000
    assert {request.model for request in requests} == set(MODELS)
    assert {request.priority for request in requests} == {pb.PRIORITY_UNSPECIFIED, pb.PRIORITY_BULK}
    assert {field.name for one in options for field, _ in one.ListFields()} == set(itertools.chain(*OPTIONS))
    assert all(1 <= one.num_hypotheses <= one.beam_size for one in options if one.HasField("beam_size"))


def test_probes_are_asked_as_they_are_and_every_refusal_is_met_and_known() -> None:
    made = calls(1500, mix=replace(EVERYTHING, kinds={Kind.PROBE: 1, Kind.REFUSED: 4}))
    of_streams = Counter(status for call in STREAMS for status in call.answers)

    assert {call.raw for call in made if call.kind is Kind.PROBE} == {probe.raw for probe in PROBES}
    assert {call.raw for call in made if call.kind is Kind.REFUSED} == {refused.raw for refused in REFUSED.values()}
    assert of_streams["OK"] > of_streams["INVALID_ARGUMENT"] > of_streams["NOT_FOUND"] > 0


def sample(at_s: float, rss_mb: float, swaps: int) -> Sample:
    return {"at_s": at_s, "rss_mb": rss_mb, "swaps": swaps}


def judged(samples: list[Sample]) -> list[str]:
    promise, doubt = judge_memory(samples, SHORT)
    return [*promise.broken, *doubt]


def noisy(seed: int = 1, *, mb_per_h: float = 0.0, step_mb: float = 0.0, each_swap_mb: float = 0.0) -> list[Sample]:
    """Two samples a second: noise, half of the time a second version beside, and what is asked for."""
    generator = random.Random(seed)  # noqa: S311 - not for secrets

    def rss_mb(at_s: float, num_swaps: int) -> float:
        grown = mb_per_h * at_s / 3600 + each_swap_mb * num_swaps + (step_mb if at_s > 120 else 0.0)
        return 250 + abs(generator.gauss(0, 4)) + (60.0 if at_s % 6 < 3 else 0.0) + grown

    return [sample(index / 2, rss_mb(index / 2, index // 12), index // 12) for index in range(360)]


@pytest.mark.parametrize("seed", range(20))
def test_a_leak_is_found_noise_and_a_small_step_are_none_and_a_large_one_may_be(seed: int) -> None:
    for harmless in ({}, {"mb_per_h": -5 * LIMIT}, {"step_mb": 6.0}):
        assert judged(noisy(seed, **harmless)) == []
    assert "grows by 1" in judged(noisy(seed, mb_per_h=3 * LIMIT))[0]
    assert judged(noisy(seed, each_swap_mb=9.0))  # the weights of the model that ships
    assert judged(noisy(seed, step_mb=100.0))


def test_memory_too_uneven_to_judge_breaks_the_promise_of_long_runs_only() -> None:
    levels = (0, 300, 40, 390, 10, 210, 350, 90, 260, 150, 5, 310, 120, 240, 380, 60)
    uneven = [sample(at_s, 250.0 + levels[at_s // 12], at_s // 6) for at_s in range(181)]
    longer = [{**one, "at_s": 10 * one["at_s"]} for one in uneven]
    (in_short, notes), (in_long, none) = judge_memory(uneven, SHORT), judge_memory(longer, LONG)

    assert (in_short.broken, none) == ([], [])
    assert all("too uneven to judge" in told for (told,) in (notes, in_long.broken))


@pytest.mark.parametrize("outliers", [{}, {70: 900.0, 130: 900.0}])
def test_the_slope_of_a_line_is_its_slope_whatever_two_points_of_ten_are(outliers: dict[int, float]) -> None:
    line = [sample(at_s, outliers.get(at_s, 100 + at_s / 60), at_s // 10) for at_s in range(60, 180, 10)]
    figures = judge_memory(line, SHORT)[0].figures

    assert [figures[name] for name in ("slope", "noise", "limit")] == pytest.approx([60.0, 0.0, LIMIT], abs=1e-6)
    assert LONG.max_slope < 60 < LIMIT < Settings(duration_s=180.0).max_slope  # long runs are held to less growth


def test_the_lowest_of_each_window_of_swaps_counts_after_the_warm_up() -> None:
    samples = [(0, 0, 0), (60, 1, 3), (61, 5, 4), (62, 3, 4), (63, 9, 5), (69, 4, 6), (70, 7, 7), (181, 0, 8)]
    made = [sample(*one) for one in samples]

    assert (SHORT.warm_up_s, LONG.warm_up_s) == (60.0, 240.0)
    assert judged_lows(made, SHORT) == [(62, 3), (63, 9), (69, 4), (70, 7)]
    assert judged_lows(made, Settings(duration_s=24.0)) == judged_lows(made[:2], SHORT) == judged_lows([], SHORT) == []
    assert judged(made) == ["the run is too short to tell"]
    assert [len(judged_lows(noisy(), Settings(duration_s=seconds))) for seconds in (180.0, 72.0)] == [15, 6]
