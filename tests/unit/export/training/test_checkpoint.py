import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dragoman_export.__main__ import main
from dragoman_export.data.vocabulary import VocabularyConfig, train_vocabulary
from dragoman_export.errors import CheckpointConflictError, RunFolderError
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
from tests.unit.export.tiny_training import save_model, tiny_model, tiny_vocabulary

ROUNDING = 1e-7  # The mean is summed in float64 and rounded to float32 once.


def test_new_vocabulary_is_initialised_from_old_pieces() -> None:
    old, sentences = tiny_vocabulary(), ["red redder reddest house houses riverside treehouse birdhouse"] * 200
    new = train_vocabulary(iter(sentences), VocabularyConfig(size=280, reserved=("⟦1⟧",)))
    model = tiny_model(seed=1, vocabulary_size=len(old), tied_embeddings="none", projection_bias=True)

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
    with pytest.raises(CheckpointConflictError, match="vocabulary_size is 300, requested 320"):
        with_vocabulary(tiny_model(vocabulary_size=300), tiny_vocabulary(), tiny_vocabulary())


def test_random_state_is_restored(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [number for _ in range(3) for number in (random.gauss(), np.random.normal(), float(torch.randn(())))]

    save_checkpoint(tmp_path / "a.pt", {"random": random_state()})
    expected = draw()

    restore_random_state(load_checkpoint(tmp_path / "a.pt")["random"])

    assert draw() == expected


def test_loaded_model_equals_the_saved_one(tmp_path: Path) -> None:
    model, source_ids = load_model(save_model(tmp_path / "a.pt", seed=5)), torch.tensor([[4, 5, 2]])

    assert not model.training
    assert torch.equal(model.encode(source_ids, None), tiny_model(seed=5).encode(source_ids, None))


class _Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("ran",)


def _pickle_with_code() -> bytes:
    stream = io.BytesIO()
    torch.save({"model": _Malicious()}, stream)
    return stream.getvalue()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off", _pickle_with_code()])
def test_invalid_checkpoint_is_rejected(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pt").write_bytes(content)

    with pytest.raises(RunFolderError, match=r"cannot read checkpoint .*a\.pt"):
        load_checkpoint(tmp_path / "a.pt")
    assert capsys.readouterr().out == ""


def test_only_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for name in ("best.pt", ".step-00000004.pt.77", *(checkpoint_path(tmp_path, step).name for step in (9, 10, 100))):
        (tmp_path / name).touch()

    prune_checkpoints(tmp_path, keep=2)

    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000010.pt", "step-00000100.pt"]
    assert (tmp_path / "best.pt").exists()


def test_average_is_the_mean_of_the_weights(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / f"{seed}.pt", seed=seed, dropout=seed / 10) for seed in range(3)]

    average = average_checkpoints(paths)

    models = [tiny_model(seed=seed).state_dict() for seed in range(3)]
    for name, weight in average["model"].items():
        torch.testing.assert_close(weight, sum(model[name] for model in models) / 3, atol=ROUNDING, rtol=0)
    assert average["averaged"] == ["0.pt", "1.pt", "2.pt"]


def test_checkpoints_of_different_architectures_are_rejected(tmp_path: Path) -> None:
    paths = [save_model(tmp_path / f"{norm}.pt", norm=norm) for norm in ("pre", "post")]

    with pytest.raises(RunFolderError, match=r"post\.pt differs from .*pre\.pt"):
        average_checkpoints(paths)


@pytest.mark.parametrize("output", [None, "other.pt"])
def test_average_command_averages_the_newest(tmp_path: Path, output: str | None) -> None:
    for step in range(1, 5):
        save_model(checkpoint_path(tmp_path / "checkpoints", step), seed=step)
    flags = ["--output", str(tmp_path / output)] if output else []

    assert main(["average", str(tmp_path), "--last", "2", *flags]) == 0

    assert [path.name for path in tmp_path.glob("*.pt")] == [output or "average.pt"]
    assert load_checkpoint(tmp_path / (output or "average.pt"))["averaged"] == ["step-00000003.pt", "step-00000004.pt"]
