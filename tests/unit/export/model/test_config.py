import dataclasses
import json

import pytest

from export.errors import SettingError
from export.model.config import PRESETS, ModelConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocabulary_size", 0),
        ("num_heads", 0),
        ("num_decoder_layers", -1),
        ("d_model", 255),
        ("num_heads", 3),
        ("dropout", 1.0),
        ("norm", "middle"),
    ],
)
def test_a_size_that_makes_no_network_is_refused_by_name(field: str, value: object) -> None:
    fields = {**PRESETS["small"].to_dict(), field: value}

    with pytest.raises(SettingError, match="d_model" if value == 3 else field):
        ModelConfig.from_dict(fields)


def test_a_configuration_survives_json() -> None:
    config = dataclasses.replace(PRESETS["tiny"], dropout=0.25)

    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_heads_divide_the_width() -> None:
    assert {preset.head_size for preset in PRESETS.values()} == {64, 32}
