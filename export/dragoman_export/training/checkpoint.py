"""Checkpoints: the complete state of a run."""

import os
import pickle
import random
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch

from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import CheckpointConflictError, RunFolderError
from dragoman_export.model.config import DROPOUTS, ModelConfig
from dragoman_export.model.transformer import Transformer

# weights with one row per piece of the vocabulary
_TABLES = frozenset({"embedding.weight", "encoder.embedding.weight", "projection.weight", "projection.bias"})
_NAME = re.compile(r"step-(\d{8})\.pt")
BEST_NAME = "best.pt"  # checkpoint with the lowest dev loss


@dataclass(slots=True, kw_only=True)
class Progress:
    """Progress of a run; updated by the loop."""

    step: int = 0  # optimizer steps
    epoch: int = 0  # completed epochs
    epoch_step: int = 0  # steps in the current epoch
    target_tokens: int = 0  # trained on, EOS included, over all ranks
    elapsed_s: float = 0.0  # over all invocations
    best_loss: float | None = None  # lowest dev loss, nats per token
    evaluations_since_best: int = 0  # counted until `patience` ends
    patience_step: int | None = None  # step at which `patience` ended and the cooldown started


def random_state() -> dict[str, Any]:
    """Return the state of the global generators of torch, Python and numpy, in types that a checkpoint may contain."""
    name, keys, position, has_gauss, cached = np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, cached),
    }


def restore_random_state(state: Mapping[str, Any]) -> None:
    """Restore the result of `random_state`."""
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` atomically and durably."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    with replaced(path) as file:
        file.write(content)


def save_checkpoint(path: Path, content: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically and durably."""
    with replaced(path) as file:
        torch.save(dict(content), file)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Load a checkpoint to the CPU; only tensors and plain values are accepted, so no code runs.

    Raises:
        RunFolderError: if it cannot be read.
    """
    if path.exists() and not zipfile.is_zipfile(path):
        raise RunFolderError(f"cannot read checkpoint {path}: not a checkpoint, or truncated")
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise RunFolderError(f"cannot read checkpoint {path}: {error}") from error
    return content


def load_model(path: Path) -> Transformer:
    """Return the network of a checkpoint in evaluation mode; RunFolderError as `load_checkpoint`."""
    content = load_checkpoint(path)
    model = Transformer(ModelConfig(**content["model_config"]))
    model.load_state_dict(content["model"])
    return model.eval()


def with_vocabulary(model: Transformer, old: Vocabulary, new: Vocabulary) -> Transformer:
    """Return a network with a new vocabulary for source and target.

    The row of a piece is the mean of the rows of the old pieces that spell it; rows of reserved pieces are random, from
    torch's global generator.

    Raises:
        CheckpointConflictError: if the model does not use the old vocabulary on both sides.
    """
    sizes = {model.config.vocabulary_size, model.config.num_source_tokens}
    if sizes != {len(old)}:
        raise CheckpointConflictError({"vocabulary_size": (max(sizes), len(old))})
    changed = Transformer(replace(model.config, vocabulary_size=len(new)))
    state = changed.state_dict()
    for name, weights in model.state_dict().items():
        if name in _TABLES:
            for row, spelling in zip(state[name], new.spelled_by(old), strict=True):
                if spelling:
                    row.copy_(weights[spelling].mean(dim=0))
        else:
            state[name] = weights
    changed.load_state_dict(state)
    return changed.eval()


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the numbered checkpoints of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*.pt") if _NAME.fullmatch(path.name))


def checkpoint_path(folder: Path, step: int) -> Path:
    """Return the path of the checkpoint of a step."""
    return folder / f"step-{step:08d}.pt"


def prune_checkpoints(folder: Path, keep: int) -> None:
    """Delete all numbered checkpoints except the newest `keep`."""
    for path in list_checkpoints(folder)[:-keep]:
        path.unlink()


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """Return a checkpoint with the mean of the weights (section 6.1 of the paper), without optimizer.

    Raises:
        RunFolderError: if there are none, or their architectures differ.
    """
    if not paths:
        raise RunFolderError("no checkpoints to average")
    first = load_checkpoint(paths[0])
    total = {name: tensor.double() for name, tensor in first["model"].items()}
    for path in paths[1:]:
        content = load_checkpoint(path)
        if _shape(content) != _shape(first):
            raise RunFolderError(f"architecture of {path} differs from {paths[0]}")
        for name, tensor in content["model"].items():
            total[name] += tensor
    mean = {name: (tensor / len(paths)).float() for name, tensor in total.items()}
    return {"model": mean, "model_config": first["model_config"], "averaged": [path.name for path in paths]}


def _shape(content: Mapping[str, Any]) -> dict[str, Any]:
    # Model settings except dropouts, which may change on resume.
    config = ModelConfig(**content["model_config"])  # fills fields missing in earlier versions
    return {name: value for name, value in config.to_dict().items() if name not in DROPOUTS}
