"""Each way of self-attention gives what the formula says, on the CPU; what cannot be run, or is wrong, is told."""

from dataclasses import replace

import numpy as np
import pytest

from dragoman_service.runtimes.onnx.session import cuda_fault
from loadtests.peers import kernels
from loadtests.peers.kernels import LAYERS, LayerRun, Sizes, make_step, measure

_SIZES = Sizes(num_segments=3, num_rows=4, num_tokens=5, num_heads=2, head_size=8)


@pytest.mark.parametrize("name", LAYERS)
def test_a_step_is_that_of_the_formula_however_often_it_is_taken(name: str) -> None:
    step = make_step(_SIZES, "float32")
    run = LayerRun(LAYERS[name](step, "cpu"), "cpu")

    for _ in range(3):
        np.testing.assert_allclose(run.run().reshape(step.query.shape), step.expected(), atol=1e-5)


def test_the_formula_is_that_of_a_hypothesis_with_what_its_parent_had() -> None:
    step = replace(make_step(_SIZES, "float32"), parents=np.zeros((3, 4), np.int64))
    lone = replace(
        step,
        **{name: getattr(step, name)[:1, 2:3] for name in ("query", "key", "value")},
        keys=step.keys[:1, :1],
        values=step.values[:1, :1],
        parents=np.zeros((1, 1), np.int64),
    )

    np.testing.assert_allclose(step.expected()[:1, 2:3], lone.expected())
    uniform = replace(lone, query=np.zeros_like(lone.query)).expected()
    values = np.concatenate([lone.values.reshape(5, 16), lone.value.reshape(1, 16)])
    np.testing.assert_allclose(uniform.ravel(), values.mean(axis=0), rtol=1e-6)


def test_figures_say_what_is_right_and_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    right = measure("slot-pool", _SIZES, "cpu")
    monkeypatch.setitem(kernels._TOLERANCES, "float32", 0.0)
    wrong = measure("slot-pool", _SIZES, "cpu")

    assert (right["state"], wrong["state"]) == ("ok", "WRONG")
    assert float(right["layer_ms"]) >= 0


@pytest.mark.skipif(cuda_fault(0) is None, reason="there is a GPU")
def test_what_cannot_be_run_is_told_with_the_reason() -> None:
    figures = measure("slot-pool", _SIZES, "cuda")

    assert figures["state"] == "cannot"
    assert "CUDAExecutionProvider" in figures["reason"]
    assert "layer_ms" not in figures


def test_keys_in_vectors_have_the_tokens_between_the_parts_of_a_key() -> None:
    keys = np.arange(2 * 3 * 8, dtype=np.float32).reshape(1, 2, 3, 8)

    found = kernels._in_vectors(keys).reshape(1, 2, 2, 3, 4)

    for token in range(3):
        assert found[0, 1, :, token].ravel().tolist() == keys[0, 1, token].tolist()
