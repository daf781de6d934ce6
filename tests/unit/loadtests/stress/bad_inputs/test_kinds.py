import pytest

from loadtests.stress.bad_inputs import texts
from loadtests.stress.bad_inputs.inputs import OK, Limits
from loadtests.stress.bad_inputs.kinds import KINDS, make, plan
from loadtests.wire import Method

LIMITS = Limits()
FULL = 20_000


def test_a_full_run_has_every_row_of_the_code_space() -> None:
    num_inputs = sum(one[0] == "unicode" for one in plan(FULL, kinds=list(KINDS), seed=1))

    sent = "".join(
        make(("unicode", index), seed=1, limits=LIMITS).message.decode("utf-8", "ignore") for index in range(num_inputs)
    )

    rows = {ord(char) // texts.ROW_SIZE for char in sent}
    assert rows >= {row for row in range(texts.NUM_ROWS) if not 0xD8 <= row < 0xE0}


def test_what_is_large_is_rare() -> None:
    planned = [kind for kind, _ in plan(FULL, kinds=list(KINDS), seed=1)]

    assert 5 < planned.count("megabytes") < 100
    assert planned.count("bidi") > 300


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_inputs_of_a_kind_differ_and_some_are_expected_to_fail_or_hold(kind: str) -> None:
    made = [make((kind, index), seed=1, limits=LIMITS) for index in range(12)]

    assert len({(content.message, content.metadata) for content in made}) > 1
    assert all(content.expected.statuses for content in made)
    assert all(
        content.num_characters > 0 or content.method is Method.TRANSLATE_DOCUMENT or content.expected != OK
        for content in made
    )


def test_there_are_as_many_kinds_as_ever() -> None:
    assert len(KINDS) == 57


def test_every_method_is_used_by_some_kind() -> None:
    used = {make((kind, index), seed=1, limits=LIMITS).method for kind in KINDS for index in range(12)}

    assert used == set(Method) - {Method.LIST_MODELS, Method.CHECK}  # which take nothing


def test_fewer_inputs_than_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="2 inputs are too few for 3 kinds"):
        plan(2, kinds=["nul", "bidi", "emoji"], seed=1)


def test_an_input_does_not_depend_on_the_others() -> None:
    few, many = (
        {one: make(one, seed=5, limits=LIMITS) for one in plan(count, kinds=["nul", "models"], seed=5)}
        for count in (10, 40)
    )

    assert all(many[one] == bad for one, bad in few.items())
