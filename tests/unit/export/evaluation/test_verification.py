from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dragoman_export.evaluation import verification
from dragoman_export.evaluation.verification import gain_of_other_source_end

EOS = 2


@pytest.mark.parametrize(("source", "gain"), [([5, 6], 1.0), ([5, 6, EOS], -1.0)])
def test_wrong_end_of_sources_is_noticed(monkeypatch: pytest.MonkeyPatch, source: list[int], gain: float) -> None:
    def score(_graph: object, pairs: Sequence[tuple[list[int], list[int]]]) -> Iterator[Any]:
        """Score as a model that was trained with EOS at the end of sources."""
        ((source_ids, target_ids),) = pairs
        for _ in target_ids:
            yield np.full((1, 9), -1.0 if source_ids[-1] == EOS else -2.0)

    monkeypatch.setattr(verification, "score_exported", score)
    graph: Any = SimpleNamespace(limits=SimpleNamespace(max_source_tokens=8))

    assert gain_of_other_source_end(graph, [(source, [7, EOS]), (source, [8, EOS])], eos_id=EOS) == pytest.approx(gain)
