import numpy as np
import pytest
import torch

from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.calibration import calibrate, fit_rounding
from dragoman_export.onnx_export.quantize import Rounding
from tests.tiny_bundle import tiny_model

_PAIRS = [([5, 6, 7, 2], [8, 9, 2]), ([10, 11, 2], [12, 13, 14, 15, 2])]


_INNER, _OUTER = (f"encoder.layers.0.feed_forward.{name}" for name in ("inner", "outer"))


def _means(rounding: Rounding) -> np.ndarray:
    assert rounding.means is not None
    return np.stack(rounding.means)


def _linear(model: Transformer) -> set[str]:
    names = {name.removesuffix(".weight") for name in model.state_dict() if name.endswith(".weight")}
    return {name for name in names if "norm" not in name}


def test_rounding_matches_the_input_of_every_projection() -> None:
    model = tiny_model(40)

    roundings = calibrate(model, _PAIRS)

    assert set(roundings) == _linear(model)
    assert all(each.scale > 0 for each in roundings.values())
    assert not any(module._forward_pre_hooks for module in model.modules())
    memories = [model.encode(torch.tensor([source]), None).detach()[0] for source, _ in _PAIRS]
    expected, found = fit_rounding(torch.cat(memories).numpy()), roundings["decoder.layers.0.cross_attention.key"]
    assert expected is not None
    assert found.scale == pytest.approx(expected.scale, rel=1e-4)
    np.testing.assert_allclose(_means(found), _means(expected), atol=1e-5)


def test_padding_is_not_calibrated() -> None:
    model = tiny_model(40)

    together, alone = calibrate(model, _PAIRS), [calibrate(model, [pair]) for pair in _PAIRS]

    for name, rounding in together.items():
        is_source = name.startswith("encoder.") or name.endswith(("cross_attention.key", "cross_attention.value"))
        lengths = [len(pair[0 if is_source else 1]) for pair in _PAIRS]
        expected = np.average([_means(each[name])[0] for each in alone], axis=0, weights=lengths)
        np.testing.assert_allclose(_means(rounding)[0], expected, atol=1e-5)


def test_product_of_zeros_is_omitted() -> None:
    model = tiny_model(40)
    for name in ("weight", "bias"):
        torch.nn.init.zeros_(model.get_parameter(f"{_INNER}.{name}"))

    assert set(calibrate(model, _PAIRS)) == _linear(model) - {_OUTER}


_STATES = np.random.default_rng(7).normal(size=(400, 32)).astype(np.float32)


def _error(states: np.ndarray, rounding: Rounding) -> float:
    integers = np.clip(np.rint(states / rounding.scale) + rounding.zero_point, 0, rounding.levels)
    return float(np.square((integers - rounding.zero_point) * rounding.scale - states).mean())


@pytest.mark.parametrize(
    ("states", "most"),
    [
        (_STATES, 0.9),
        (_STATES**3, 0.8),
        (_STATES / (1 + np.exp(-_STATES)), 0.35),
        (np.maximum(_STATES, 0.0), 0.3),
        (-np.abs(_STATES), 0.3),
    ],
    ids=["normal", "heavy tails", "swish", "rectified", "negative"],
)
def test_fitted_rounding_beats_the_largest_magnitude(states: np.ndarray, most: float) -> None:
    rounding = fit_rounding(states)

    largest = Rounding(scale=float(np.abs(states).max()) / 127, zero_point=128)
    assert rounding is not None
    assert _error(states, rounding) < most * _error(states, largest)
    assert 0 <= rounding.zero_point <= 255
    assert states.min() < 0 or rounding.zero_point == 0  # rectified numbers use all integers


def test_seven_bits_have_twice_the_step() -> None:
    eight, seven = fit_rounding(_STATES), fit_rounding(_STATES, 127)

    assert eight is not None
    assert seven is not None
    assert 0 <= seven.zero_point <= seven.levels == 127
    assert 3 < _error(_STATES, seven) / _error(_STATES, eight) < 4.5


def test_uniformly_large_numbers_are_not_clipped() -> None:
    states = np.where(_STATES > 0, np.float32(2.0), np.float32(-2.0))

    rounding = fit_rounding(states)

    assert rounding is not None
    assert _error(states, rounding) < (rounding.scale / 2) ** 2


@pytest.mark.parametrize("number", [0.0, 1e-39])
def test_zeros_have_no_rounding(number: float) -> None:
    assert fit_rounding(np.full((3, 4), number, np.float32)) is None
