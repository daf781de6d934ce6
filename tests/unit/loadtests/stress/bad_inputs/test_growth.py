import pytest
from dragoman.v1 import translation_pb2 as pb

from loadtests.stress.bad_inputs.growth import Growth, measured
from loadtests.stress.bad_inputs.inputs import BadInput, Limits
from loadtests.stress.bad_inputs.sender import Answer
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.wire import Method

LIMITS = Limits(max_text_characters=1000, max_document_characters=2000)


def answer(seconds: float, bad: BadInput) -> Answer:
    if bad.method is Method.TRANSLATE_DOCUMENT:
        return Answer(status="LEFT", seconds=seconds)
    response = pb.TranslateResponse()
    response.timings.text.FromNanoseconds(round(1e9 * seconds))
    return Answer(status="OK", seconds=2 * seconds, responses=[response])


@pytest.mark.parametrize("power", [1, 2])
def test_twice_the_text_shows_the_power_with_which_work_grows(power: int) -> None:
    def send(bad: BadInput) -> Answer:
        return answer((bad.num_characters / 1000) ** power, bad)

    growths = list(measured(send, LIMITS, shapes=["dots", "nul"], seed=1))

    assert [growth.ratio for growth in growths] == pytest.approx([2**power] * 4)
    assert [growth.num_characters for growth in growths] == [1000, 2000] * 2
    assert growths[0].whole_s == pytest.approx(1.0)


def test_what_is_rejected_does_not_grow() -> None:
    rejected = Answer(status="INVALID_ARGUMENT", seconds=0.0)

    growths = list(measured(lambda _: rejected, LIMITS, shapes=sorted(SHAPES), seed=1))

    assert {growth.ratio for growth in growths} == {1.0}


def test_the_ratio_of_nothing_is_one() -> None:
    assert Growth(shape="dots", method="Translate", num_characters=1, half_s=0.0, whole_s=0.5).ratio == 1.0
