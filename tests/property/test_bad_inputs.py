import pytest
from dragoman.v1 import translation_pb2 as pb
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from loadtests.stress.bad_inputs.inputs import OK, BadInput, Draw, invalid
from loadtests.stress.bad_inputs.kinds import KINDS, make, plan
from loadtests.stress.bad_inputs.texts import NUM_ROWS, SHAPES, row, shaped
from loadtests.wire import Method

MODEL = pb.ModelVersion(
    limits=pb.ModelLimits(
        max_texts=128, max_text_characters=10_000, max_document_characters=20_000, max_target_tokens=512
    ),
    language_pairs=[pb.LanguagePair(source_language="en", target_language="de")],
)
REQUESTS: dict[Method, type[pb.TranslateRequest | pb.TranslateDocumentRequest]] = {
    Method.TRANSLATE: pb.TranslateRequest,
    Method.TRANSLATE_STREAM: pb.TranslateRequest,
    Method.TRANSLATE_DOCUMENT: pb.TranslateDocumentRequest,
}
ALWAYS = {
    **dict.fromkeys(("bad-utf8", "huge-lengths"), invalid("request")),
    **dict.fromkeys(("unknown-fields", "duplicate-fields"), OK),
}


def made(kind: str) -> list[BadInput]:
    return [make(kind, index, seed=1, model=MODEL) for index in (*range(12), 10_000)]


def is_message(bad: BadInput) -> bool:
    try:
        REQUESTS[bad.method].FromString(bad.message)
    except DecodeError:
        return False
    return True


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inputs_of_a_kind_differ_can_be_made_again_and_are_no_message_exactly_if_so_expected(kind: str) -> None:
    bad_inputs = made(kind)

    assert bad_inputs == made(kind)
    assert len({(bad.message, tuple(bad.metadata)) for bad in bad_inputs}) > 1
    for bad in bad_inputs:
        assert bad.expected.statuses
        assert bad.expected == ALWAYS.get(kind, bad.expected)
        assert bad.num_characters > 0 or bad.method is Method.TRANSLATE_DOCUMENT or bad.expected != OK
        assert bad.method not in REQUESTS or is_message(bad) == (bad.expected.field != "request")


def test_every_one_of_57_kinds_is_there_and_every_method_is_used() -> None:
    assert len(KINDS) == 57
    used = {bad.method for kind in KINDS for bad in made(kind)}
    assert used == set(Method) - {Method.LIST_MODELS, Method.CHECK}  # which take nothing


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_texts_are_no_longer_than_asked_for_and_can_be_sent(shape: str) -> None:
    for size in (*range(1, 12), 60, 301, 3000):
        text = shaped(Draw(f"{shape} {size}", model=MODEL), size, shape)

        assert 1 <= len(text) <= size
        assert text.encode().decode() == text


@given(st.integers(), st.integers(min_value=0, max_value=NUM_ROWS - 1))
def test_a_row_has_characters_of_each_of_its_columns(seed: int, index: int) -> None:
    columns = {ord(char) // 16 for char in row(Draw(str(seed), model=MODEL), index)}

    assert columns == {column for column in range(index * 16, index * 16 + 16) if not 0xD80 <= column < 0xE00}


@given(st.integers(), st.integers(min_value=len(KINDS), max_value=3000))
def test_a_plan_has_as_many_inputs_as_asked_for_some_of_every_kind_and_none_twice(seed: int, count: int) -> None:
    planned = plan(count, kinds=list(KINDS), seed=seed)

    assert len(planned) == len(set(planned)) == count
    assert {kind for kind, _ in planned} == set(KINDS)


def test_a_full_run_has_every_row_of_the_code_space_and_little_that_is_large() -> None:
    planned = [kind for kind, _ in plan(20_000, kinds=list(KINDS), seed=1)]
    inputs = [make("unicode", index, seed=1, model=MODEL) for index in range(planned.count("unicode"))]

    rows = {ord(char) // 256 for bad in inputs for char in bad.message.decode("utf-8", "ignore")}
    assert rows >= {row for row in range(NUM_ROWS) if not 0xD8 <= row < 0xE0}
    assert 5 < planned.count("megabytes") < 100
    assert planned.count("bidi") > 300
