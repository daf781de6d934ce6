"""Changes files of saved models."""

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def set_options(path: Path, options: Mapping[str, object]) -> None:
    """Set options of a JSON file, named by dotted paths, or of a checkpoint of fairseq or OpenNMT-py."""
    if path.suffix == ".pt":
        rewrite(
            path, lambda content: vars(content["opt"] if "opt" in content else content["cfg"]["model"]).update(options)
        )
        return
    content = json.loads(path.read_text(encoding="utf-8"))
    for option, value in options.items():
        *parents, name = option.split(".")
        part = content
        for parent in parents:
            part = part.setdefault(parent, {})
        part[name] = value
    path.write_text(json.dumps(content), encoding="utf-8")


def rewrite(path: Path, alter: Callable[[dict[str, Any]], object]) -> None:
    """Alter the content of a PyTorch checkpoint, or the tensors of a safetensors file or of a directory of them."""
    if path.suffix == ".pt":
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(path, weights_only=True)
        alter(content)
        torch.save(content, path)
        return
    parts = sorted(path.glob("model*.safetensors"))
    tensors = {name: tensor for part in parts for name, tensor in load_file(part).items()}
    alter(tensors)
    for part in parts[1:]:
        part.unlink()
    save_file(tensors, parts[0])
