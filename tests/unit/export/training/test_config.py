import json
from pathlib import Path
from typing import Any

import pytest

from dragoman_export.data.reader import ParallelFiles
from dragoman_export.errors import SettingError
from dragoman_export.model.config import PRESETS
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig, TrainingConfig

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
        ("max_steps", -1),
    ],
)
def test_invalid_value_is_rejected(field: str, value: Any) -> None:
    with pytest.raises(SettingError, match=rf"^{field} is {value!r}: expected"):
        TrainingConfig(**{field: value})


def test_limits_are_optional() -> None:
    config = TrainingConfig()

    assert (config.max_steps, config.max_epochs, config.max_minutes, config.patience) == (None,) * 4


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_invalid_share_of_malformed_lines_is_rejected(share: float) -> None:
    with pytest.raises(SettingError, match="max_malformed"):
        DataConfig(train=FILES, dev=FILES, max_malformed=share)


@pytest.mark.parametrize("missing", ["train", "dev"])
def test_missing_text_is_rejected(missing: str) -> None:
    files = {"train": FILES, "dev": FILES, missing: ()}

    with pytest.raises(SettingError, match=f"--{missing} is None: expected one or more files"):
        DataConfig(train=files["train"], dev=files["dev"])


def test_settings_survive_json() -> None:
    data = DataConfig(train=FILES, dev=FILES[:1], max_malformed=0.5)
    config = RunConfig(model=PRESETS["tiny"], training=TRAINING_PRESETS["tiny"], data=data)

    assert RunConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_presets_have_a_limit() -> None:
    assert TRAINING_PRESETS.keys() == PRESETS.keys()
    assert all(config.max_steps is not None for config in TRAINING_PRESETS.values())
