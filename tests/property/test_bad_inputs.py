import random

from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtests.bad_inputs import characters
from loadtests.bad_inputs.inputs import Limits, Method
from loadtests.bad_inputs.kinds import KINDS, Planned, make, plan
from loadtests.bad_inputs.texts import SHAPES

LIMITS = Limits(max_document_characters=20_000, max_message_bytes=100_000)
SEEDS = st.integers(min_value=-(2**63), max_value=2**63)


@given(SEEDS, st.sampled_from(sorted(SHAPES)), st.integers(min_value=1, max_value=3000))
def test_texts_are_no_longer_than_asked_for_and_can_be_sent(seed: int, shape: str, size: int) -> None:
    text = SHAPES[shape](random.Random(seed), size)  # noqa: S311 - not for secrets

    assert 1 <= len(text) <= size
    assert text.encode().decode() == text


@given(SEEDS, st.integers(min_value=0, max_value=characters.NUM_ROWS - 1))
def test_a_row_has_characters_of_each_of_its_columns(seed: int, index: int) -> None:
    row = characters.row(index, random.Random(seed))  # noqa: S311 - not for secrets

    columns = {ord(char) // 16 for char in row}
    assert columns == {column for column in range(index * 16, index * 16 + 16) if not 0xD80 <= column < 0xE00}


@settings(max_examples=300)
@given(SEEDS, st.sampled_from(sorted(KINDS)), st.integers(min_value=0, max_value=10_000))
def test_an_input_can_be_made_again_and_is_no_message_exactly_if_it_should_be_refused_as_none(
    seed: int, kind: str, index: int
) -> None:
    planned = Planned(kind=kind, index=index)

    bad = make(planned, seed=seed, limits=LIMITS)

    assert bad == make(planned, seed=seed, limits=LIMITS)
    if bad.method in {Method.UNARY, Method.STREAM, Method.DOCUMENT}:
        message_type = pb.TranslateDocumentRequest if bad.method is Method.DOCUMENT else pb.TranslateRequest
        assert _is_message(message_type, bad.content.message) == (bad.content.expected.field != "request")


@given(SEEDS, st.integers(min_value=len(KINDS), max_value=3000))
def test_a_plan_has_as_many_inputs_as_asked_for_some_of_every_kind_and_none_twice(seed: int, count: int) -> None:
    planned = plan(count, kinds=list(KINDS), seed=seed)

    assert len(planned) == len(set(planned)) == count
    assert {one.kind for one in planned} == set(KINDS)


def _is_message(message_type: type[pb.TranslateRequest | pb.TranslateDocumentRequest], raw: bytes) -> bool:
    try:
        message_type.FromString(raw)
    except DecodeError:
        return False
    return True
