import dataclasses
import json

import pytest

from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS, ModelConfig

_FIRST_FIELDS = (
    *("vocabulary_size", "d_model", "num_heads", "ffn_size", "num_encoder_layers", "num_decoder_layers", "dropout"),
    *("norm", "pad_id", "bos_id", "eos_id"),
)
"""All there were once."""


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
        ("activation", "tanh"),
        ("norm_epsilon", 0.0),
        ("head_dim", 0),
        ("num_kv_heads", 3),
        ("positions", "relative"),
        ("position_offset", -1),
        ("max_positions", 512),
        ("source_vocabulary_size", 9),
    ],
)
def test_a_size_that_makes_no_network_is_refused_by_name(field: str, value: object) -> None:
    fields = {**PRESETS["small"].to_dict(), field: value}

    with pytest.raises(SettingError, match="d_model" if (field, value) == ("num_heads", 3) else field):
        ModelConfig.from_dict(fields)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"positions": "learned"}, "max_positions"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim"),
        ({"positions": "none", "position_offset": 2}, "position_offset"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(fields: dict[str, object], refused: str) -> None:
    with pytest.raises(SettingError, match=refused):
        ModelConfig.from_dict({**PRESETS["small"].to_dict(), **fields})


def test_a_configuration_stored_before_there_were_variants_is_the_network_of_the_paper() -> None:
    stored = {name: value for name, value in PRESETS["tiny"].to_dict().items() if name in _FIRST_FIELDS}

    config = ModelConfig.from_dict(stored)

    assert config == PRESETS["tiny"]
    assert (config.activation, config.positions, config.tied_embeddings) == ("relu", "sinusoidal", "all")
    assert config.start_id == config.bos_id


def test_a_configuration_survives_json() -> None:
    config = dataclasses.replace(PRESETS["tiny"], dropout=0.25)

    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_heads_divide_the_width() -> None:
    assert {preset.head_size for preset in PRESETS.values()} == {64, 32}
