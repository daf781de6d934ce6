import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman_export.data.vocabulary import VocabularyConfig, train_vocabulary
from dragoman_export.errors import CheckpointConflictError, RunFolderError
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.checkpoint import (
    average_checkpoints,
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    load_model,
    prune_checkpoints,
    random_state,
    restore_random_state,
    save_checkpoint,
    with_vocabulary,
)
from tests.unit.export.data.tiny_text import tiny_vocabulary
from tests.unit.export.model.tiny_models import tiny_config, tiny_model

ROUNDING = 1e-7  # The mean is summed in float64 and rounded to float32 once.


def save_model(path: Path, *, seed: int = 0, norm: str = "pre", dropout: float = 0.1) -> Path:
    model = tiny_model(seed=seed, norm=norm)
    config = tiny_config(norm=norm, dropout=dropout).to_dict()
    save_checkpoint(path, {"model": model.state_dict(), "model_config": config})
    return path


def draw() -> tuple[float, float, float]:
    return random.gauss(), float(np.random.normal()), float(torch.randn(()))


def test_new_vocabulary_is_initialised_from_old_pieces() -> None:
    old, sentences = tiny_vocabulary(), ["red redder reddest house houses riverside treehouse birdhouse"] * 200
    new = train_vocabulary(iter(sentences), VocabularyConfig(size=280, reserved=("⟦1⟧",)))
    torch.manual_seed(1)
    config = replace(tiny_config(vocabulary_size=len(old)), tied_embeddings="none", projection_bias=True)
    model = Transformer(config)

    changed = with_vocabulary(model, old, new)

    assert changed.config.vocabulary_size == 280
    weights, before = changed.state_dict(), model.state_dict()
    for name, tensor in before.items():
        if len(tensor) != len(old):
            assert torch.equal(weights[name], tensor)
    for name in ("embedding.weight", "projection.weight", "projection.bias"):
        for index, spelling in enumerate(new.spelled_by(old)):
            if spelling:
                assert torch.equal(weights[name][index], before[name][spelling].mean(dim=0))
    assert weights["embedding.weight"].isfinite().all()


def test_model_of_another_vocabulary_is_rejected() -> None:
    model = Transformer(tiny_config(vocabulary_size=300))

    with pytest.raises(CheckpointConflictError, match="vocabulary_size is 300, requested 320"):
        with_vocabulary(model, tiny_vocabulary(), tiny_vocabulary())


def test_random_state_is_restored(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "a.pt", {"random": random_state()})
    expected = [draw() for _ in range(3)]

    restore_random_state(load_checkpoint(tmp_path / "a.pt")["random"])

    assert [draw() for _ in range(3)] == expected


def test_loaded_model_equals_the_saved_one(tmp_path: Path) -> None:
    model = load_model(save_model(tmp_path / "a.pt", seed=5))

    assert not model.training
    memory = model.encode(torch.tensor([[4, 5, 2]]), None)
    assert torch.equal(memory, tiny_model(seed=5).encode(torch.tensor([[4, 5, 2]]), None))


class Evil:
    """Something that would run code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def test_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    torch.save({"model": Evil()}, tmp_path / "a.pt")

    with pytest.raises(RunFolderError, match=r"cannot read checkpoint .*a\.pt"):
        load_checkpoint(tmp_path / "a.pt")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_invalid_checkpoint_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(content)

    with pytest.raises(RunFolderError, match=r"cannot read checkpoint .*a\.pt"):
        load_checkpoint(tmp_path / "a.pt")


def test_only_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for name in ("best.pt", ".step-00000004.pt.77", *(checkpoint_path(tmp_path, step).name for step in (9, 10, 100))):
        (tmp_path / name).touch()

    prune_checkpoints(tmp_path, keep=2)

    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010.pt", "step-00000100.pt"]
    assert (tmp_path / "best.pt").exists()


def test_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / f"{seed}.pt", seed=seed) for seed in range(3)]

    average = average_checkpoints(paths)

    models = [tiny_model(seed=seed).state_dict() for seed in range(3)]
    for name, weight in average["model"].items():
        torch.testing.assert_close(weight, sum(model[name] for model in models) / 3, atol=ROUNDING, rtol=0)
    assert average["averaged"] == ["0.pt", "1.pt", "2.pt"]


def test_checkpoints_of_different_dropout_are_averaged(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / f"{dropout}.pt", dropout=dropout) for dropout in (0.1, 0.2)]

    assert average_checkpoints(paths)["averaged"] == ["0.1.pt", "0.2.pt"]


def test_checkpoints_of_different_architectures_are_rejected(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / f"{norm}.pt", norm=norm) for norm in ("pre", "post")]

    with pytest.raises(RunFolderError, match=r"post\.pt differs from .*pre\.pt"):
        average_checkpoints(paths)
