import json
from pathlib import Path
from typing import Any

import pytest

from dragoman_export.data.reader import ParallelFiles
from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig, TrainingConfig


def files(*names: str) -> tuple[ParallelFiles, ...]:
    return tuple(ParallelFiles(source=Path(name)) for name in names)


FILES = (ParallelFiles(source=Path("a.tsv")), ParallelFiles(source=Path("a.en"), target=Path("a.de")))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_tokens", 0),
        ("threads", 0),
        ("patience", 0),
        ("max_steps", 0),
        ("max_minutes", 0.0),
        ("lr_factor", float("nan")),
        ("clip_norm", -1.0),
        ("bleu_sentences", -1),
        ("concatenate", 1.0),
        ("label_smoothing", -0.1),
        ("seed", -1),
        ("optimizer", "sgd"),
        ("cooldown_steps", 5),
        ("cooldown_minutes", 5.0),
        ("workers", -1),
    ],
)
def test_invalid_value_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"^{field} is {value!r}: expected"):
        TrainingConfig(**{field: value})


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"max_malformed": -0.1}, "max_malformed"),
        ({"max_malformed": 1.1}, "max_malformed"),
        ({"train": ()}, "--train"),
        ({"dev": ()}, "--dev"),
        ({"weights": (1.0,)}, "--weights"),
        ({"weights": (1.0, 0.0)}, "--weights"),
        ({"weights": (1.0, float("nan"))}, "--weights"),
        ({"weights": (1.0, 1001.0)}, "--weights"),
        ({"weights": (1.0, 2.0), "temperature": 5.0}, "--temperature"),
        ({"temperature": 0.9}, "--temperature"),
        ({"temperature": float("nan")}, "--temperature"),
        ({"dev": files("a.tsv@en,de")}, "--dev"),
        ({"train": files("a.tsv@en,de"), "dev": files("a.tsv@en,fr")}, "--dev"),
        ({"train": files("a.tsv@en,de", "a.tsv")}, "--train"),
        ({"train": files("a.tsv@en,pt-BR", "a.tsv@en,pt-br")}, "--train"),
    ],
)
def test_invalid_text_is_rejected(fields: dict[str, Any], setting: str) -> None:
    with pytest.raises(SettingError) as raised:
        DataConfig(**{"train": FILES, "dev": FILES, **fields})
    assert raised.value.setting == setting


def test_settings_survive_json() -> None:
    data = DataConfig(train=FILES, dev=FILES[:1], max_malformed=0.5)
    config = RunConfig(model=PRESETS["tiny"], training=TRAINING_PRESETS["tiny"], data=data)

    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_only_presets_have_a_limit() -> None:
    limits = {name: config.max_steps is not None for name, config in TRAINING_PRESETS.items()}
    default = TrainingConfig()

    assert limits == dict.fromkeys(PRESETS, True)
    assert (default.max_steps, default.max_epochs, default.max_minutes, default.patience) == (None,) * 4


@pytest.mark.parametrize("mixing", [{"weights": (2.5, 1.0)}, {"temperature": 5.0}])
def test_mixture_survives_json(mixing: dict[str, Any]) -> None:
    data = DataConfig(train=files("a.tsv@en,de", "b.tsv@de,en"), dev=files("c.tsv@en,de"), **mixing)

    assert DataConfig.from_dict(json.loads(json.dumps(data.to_dict()))) == data
    assert data.language_pairs == (("en", "de"), ("de", "en"))


def test_settings_of_earlier_versions_have_no_mixture() -> None:
    fields = DataConfig(train=FILES, dev=FILES).to_dict()
    del fields["weights"], fields["temperature"]

    assert DataConfig.from_dict(fields) == DataConfig(train=FILES, dev=FILES)
