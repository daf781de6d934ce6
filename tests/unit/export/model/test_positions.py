import math

import numpy as np
import pytest

from dragoman_export.model.positions import sinusoidal_positions


def test_sinusoids_of_section_3_5_of_the_paper() -> None:
    paper, halves = sinusoidal_positions(9, 4), sinusoidal_positions(9, 4, layout="halves")

    assert paper[0].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert paper[1].tolist() == pytest.approx([0.841, 0.540, 0.010, 1.000], abs=5e-4)
    np.testing.assert_array_equal(
        halves, np.concatenate((paper[:, 0::2], paper[:, 1::2]), axis=1)
    )  # Marian: sines first
    np.testing.assert_array_equal(sinusoidal_positions(7, 4, offset=2), paper[2:])


def test_fairseq_wavelengths() -> None:
    (row,) = sinusoidal_positions(1, 6, offset=3, layout="fairseq").tolist()

    angles = [3.0, 3.0 / 100, 3.0 / 10000]
    assert row == pytest.approx([*map(math.sin, angles), *map(math.cos, angles)], abs=1e-6)
