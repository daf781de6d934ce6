import argparse
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtests.flags import add_workload_flags, flags_of, workload_of
from loadtests.texts import Profile
from loadtests.wire import Method
from loadtests.workload import Mix, Workload


def parsed(flags: list[str]) -> Workload:
    parser = argparse.ArgumentParser()
    add_workload_flags(parser, Workload())
    return workload_of(parser.parse_args(flags))


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


def test_without_flags_the_workload_is_the_usual_one() -> None:
    assert parsed([]) == Workload()
    assert parsed(flags_of(Workload(profile=Profile.LINES, lines=Path("texts")))).lines == Path("texts").absolute()


@given(_WORKLOADS)
def test_flags_describe_the_whole_workload(workload: Workload) -> None:
    assert parsed(flags_of(workload)) == workload


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--profile=novel", "--profile novel: expected chat, sentence"),
        ("--methods=Sing=1", "--methods Sing=1: expected Translate, "),
        ("--beams=17", "--beams 17: 17: expected 1 to 16"),
        ("--beams=x", "--beams x: "),
        ("--priorities=low", "--priorities low: low: expected interactive or bulk"),
    ],
)
def test_a_wrong_value_is_told_with_its_flag(flag: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parsed([flag])
