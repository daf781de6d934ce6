"""Bundle directory with fake graphs, for tests that do not load them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry

FILES = {"tokenizer.model": b"pieces", "encoder.onnx": b"encoder graph", "decoder.onnx": b"decoder graph"}
MORE_FILES = {"attention.onnx": b"attention graph", "weights.bin": b"weights"}
GRAPHS = {"encoder": "encoder.onnx", "decoder": "decoder.onnx"}
HALVES = {"outputs": {"cross_key.0": "float16", "cross_value.0": "float16"}}
ALL_FILES = {**GRAPHS, "attention": "attention.onnx", "weights": "weights.bin"}


def manifest_fields(directory: Path) -> dict[str, Any]:
    """Return a manifest of the files in a directory as JSON objects."""
    return {
        "schema_version": 3,
        "name": "en-de",
        "version": "1",
        "source_language": "en",
        "target_language": "de",
        "architecture": {
            "vocabulary_size": 8,
            "d_model": 4,
            "num_heads": 2,
            "ffn_size": 8,
            "num_encoder_layers": 1,
            "num_decoder_layers": 1,
            "norm": "pre",
        },
        "special_ids": {"pad": 0, "bos": 1, "eos": 2, "unk": 3},
        "limits": {"max_source_tokens": 16, "max_target_tokens": 20},
        "precisions": {"fp32": {**GRAPHS}},
        "default_precision": "fp32",
        "tokenizer": "tokenizer.model",
        "tensors": {"fp32": graph_tensors(1, "float32").model_dump()},
        "files": {name: file_entry(directory / name).model_dump() for name in (*FILES, *MORE_FILES)},
        "provenance": {"exporter_version": "1", "checkpoint": "best.pt", "checkpoint_sha256": "0" * 64},
        "licence": "CC0-1.0",
        "attribution": "nobody",
    }


def write_manifest(directory: Path, fields: object) -> None:
    (directory / MANIFEST_NAME).write_text(json.dumps(fields), encoding="utf-8")


def change_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = manifest_fields(directory)
    change(fields)
    write_manifest(directory, fields)


def describe_no_attention(fields: dict[str, Any]) -> None:
    """Remove the description of the attention graph."""
    fields.update(precisions={"fp32": {**ALL_FILES}})
    fields["tensors"]["fp32"].update(attention=None)
