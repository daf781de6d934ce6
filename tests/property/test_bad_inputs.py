import pytest
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.stress.bad_inputs import texts
from loadtests.stress.bad_inputs.inputs import Draw, Limits
from loadtests.stress.bad_inputs.kinds import KINDS, make, plan
from loadtests.stress.bad_inputs.texts import SHAPES
from loadtests.wire import Method

LIMITS = Limits(max_document_characters=20_000, max_message_bytes=100_000)


@given(st.data(), st.sampled_from(sorted(SHAPES)), st.integers(min_value=1, max_value=3000))
def test_texts_are_no_longer_than_asked_for_and_can_be_sent(data: st.DataObject, shape: str, size: int) -> None:
    text = SHAPES[shape].text(Draw(data.draw), size)

    assert 1 <= len(text) <= size
    assert text.encode().decode() == text


@given(st.data(), st.integers(min_value=0, max_value=texts.NUM_ROWS - 1))
def test_a_row_has_characters_of_each_of_its_columns(data: st.DataObject, index: int) -> None:
    row = texts.row(Draw(data.draw), index)

    columns = {ord(char) // 16 for char in row}
    assert columns == {column for column in range(index * 16, index * 16 + 16) if not 0xD80 <= column < 0xE00}


@settings(max_examples=300)
@given(st.data(), st.sampled_from(sorted(KINDS)), st.integers(min_value=0, max_value=10_000))
def test_an_input_is_no_message_exactly_if_it_should_be_rejected_as_none(
    data: st.DataObject, kind: str, index: int
) -> None:
    bad = KINDS[kind](Draw(data.draw, index=index, limits=LIMITS))

    if bad.method in {Method.TRANSLATE, Method.TRANSLATE_STREAM, Method.TRANSLATE_DOCUMENT}:
        message_type = pb.TranslateDocumentRequest if bad.method is Method.TRANSLATE_DOCUMENT else pb.TranslateRequest
        assert _is_message(message_type, bad.message) == (bad.expected.field != "request")


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_input_can_be_made_again(kind: str) -> None:
    for index in (0, 7, 10_000):
        planned = (kind, index)

        assert make(planned, seed=-5, limits=LIMITS) == make(planned, seed=-5, limits=LIMITS)


@given(st.integers(), st.integers(min_value=len(KINDS), max_value=3000))
def test_a_plan_has_as_many_inputs_as_asked_for_some_of_every_kind_and_none_twice(seed: int, count: int) -> None:
    planned = plan(count, kinds=list(KINDS), seed=seed)

    assert len(planned) == len(set(planned)) == count
    assert {kind for kind, _ in planned} == set(KINDS)


def _is_message(message_type: type[pb.TranslateRequest | pb.TranslateDocumentRequest], raw: bytes) -> bool:
    try:
        message_type.FromString(raw)
    except DecodeError:
        return False
    return True
