import pytest

from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS, ModelConfig

# fields of the first version; the others have defaults
_FIRST_FIELDS = (
    *("vocabulary_size", "d_model", "num_heads", "ffn_size", "num_encoder_layers", "num_decoder_layers", "dropout"),
    *("norm", "pad_id", "bos_id", "eos_id"),
)


@pytest.mark.parametrize(
    ("fields", "rejected"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size"),
        ({"num_heads": 0}, "num_heads"),
        ({"num_decoder_layers": -1}, "num_decoder_layers"),
        ({"d_model": 255}, "d_model"),
        ({"num_heads": 3}, "d_model"),
        ({"dropout": 1.0}, "dropout"),
        ({"norm": "middle"}, "norm"),
        ({"activation": "tanh"}, "activation"),
        ({"norm_epsilon": 0.0}, "norm_epsilon"),
        ({"head_dim": 0}, "head_dim"),
        ({"key_dim": 0}, "key_dim"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"positions": "relative"}, "positions"),
        ({"position_offset": -1}, "position_offset"),
        ({"max_positions": 512}, "max_positions"),
        ({"source_vocabulary_size": 9}, "source_vocabulary_size"),
        ({"positions": "learned"}, "max_positions"),
        ({"positions": "rotary", "head_dim": 5}, "head_dim"),
        ({"positions": "rotary", "key_dim": 5}, "key_dim"),
        ({"positions": "none", "position_offset": 2}, "position_offset"),
    ],
)
def test_invalid_field_is_rejected(fields: dict[str, object], rejected: str) -> None:
    with pytest.raises(SettingError) as raised:
        ModelConfig(**{**PRESETS["small"].to_dict(), **fields})
    assert raised.value.setting == rejected


def test_old_configuration_is_the_network_of_the_paper() -> None:
    stored = {name: value for name, value in PRESETS["tiny"].to_dict().items() if name in _FIRST_FIELDS}

    config = ModelConfig(**stored)

    assert config == PRESETS["tiny"]
    assert (config.activation, config.positions, config.tied_embeddings) == ("relu", "sinusoidal", "all")
    assert config.start_id == config.bos_id
