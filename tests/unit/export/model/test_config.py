import pytest

from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS, ModelConfig

# All there were once.
_FIRST_FIELDS = (
    *("vocabulary_size", "d_model", "num_heads", "ffn_size", "num_encoder_layers", "num_decoder_layers", "dropout"),
    *("norm", "pad_id", "bos_id", "eos_id"),
)


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
def test_invalid_size_is_rejected(field: str, value: object) -> None:
    fields = {**PRESETS["small"].to_dict(), field: value}

    with pytest.raises(SettingError, match="d_model" if (field, value) == ("num_heads", 3) else field):
        ModelConfig(**fields)


@pytest.mark.parametrize(
    ("fields", "refused"),
    [
        ({"positions": "learned"}, "max_positions"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim"),
        ({"positions": "none", "position_offset": 2}, "position_offset"),
    ],
)
def test_inconsistent_fields_are_rejected(fields: dict[str, object], refused: str) -> None:
    with pytest.raises(SettingError, match=refused):
        ModelConfig(**{**PRESETS["small"].to_dict(), **fields})


def test_old_configuration_is_the_network_of_the_paper() -> None:
    stored = {name: value for name, value in PRESETS["tiny"].to_dict().items() if name in _FIRST_FIELDS}

    config = ModelConfig(**stored)

    assert config == PRESETS["tiny"]
    assert (config.activation, config.positions, config.tied_embeddings) == ("relu", "sinusoidal", "all")
    assert config.start_id == config.bos_id
