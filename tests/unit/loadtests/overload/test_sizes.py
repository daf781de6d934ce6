import pytest

from loadtests.overload.sizes import texts_per_call


@pytest.mark.parametrize(("texts_per_s", "expected"), [(100.0, 8), (3200.0, 8), (3201.0, 9), (8000.0, 20), (1e9, 128)])
def test_calls_grow_when_there_would_be_too_many(texts_per_s: float, expected: int) -> None:
    assert texts_per_call(texts_per_s, at_least=8, at_most=128, max_calls_per_s=400.0) == expected
