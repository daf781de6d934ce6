"""Searches in windows."""

import re
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dragoman_service.text import windowed_search
from dragoman_service.text.windowed_search import WindowedExpression, never_ends


@pytest.mark.parametrize(("call_s", "pauses"), [(0.01, [0.01, 0.01]), (0.0001, [])])
def test_long_call_is_followed_by_pause(monkeypatch: pytest.MonkeyPatch, call_s: float, pauses: list[float]) -> None:
    now_s = 0.0
    slept: list[float] = []

    def search(text: str, position: int, end: int) -> re.Match[str] | None:
        nonlocal now_s
        now_s += call_s
        return re.compile("x").search(text, position, end)

    monkeypatch.setattr(windowed_search, "time", SimpleNamespace(perf_counter=lambda: now_s, sleep=slept.append))
    expression = WindowedExpression(
        expression=cast("re.Pattern[str]", cast("Any", SimpleNamespace(search=search))), reach=1, window=10
    )

    match = expression.search("a" * 25 + "x", 0, never_ends)

    assert match is not None
    assert match.start() == 25
    assert slept == pytest.approx(pauses)
