import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ctranslate2.converters import OpenNMTPyConverter

from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.opennmt import read_opennmt
from tests.foreign_checkpoints.building import D
from tests.foreign_checkpoints.opennmt import opennmt_checkpoint, save_opennmt

_LAYER = "decoder.transformer_layers.1"
_ROTARY = {"position_encoding": False, "max_relative_positions": -1}


@pytest.mark.parametrize("options", [{}, {"add_qkvbias": True, "share_vocab": True}])
def test_import_equals_the_conversion_by_ctranslate2(tmp_path: Path, options: dict[str, Any]) -> None:
    save_opennmt(tmp_path / "run", options)
    path = tmp_path / "run" / "model.pt"
    OpenNMTPyConverter(str(path), unsafe_deserialization=True).convert(str(tmp_path / "converted"))
    shutil.copy(path.parent / "sentencepiece.model", tmp_path / "converted")

    imported, expected = read_opennmt(path), read_ctranslate2(tmp_path / "converted")

    assert (imported.config, imported.limits, imported.tokenizer) == (
        expected.config,
        expected.limits,
        expected.tokenizer,
    )
    assert imported.config.sinusoid_layout == "interleaved"
    assert imported.tokenizer.description.source_suffix == ()
    assert imported.weights.keys() == expected.weights.keys()
    assert all(torch.equal(weight, expected.weights[name]) for name, weight in imported.weights.items())


def test_silu_gate_is_swiglu(tmp_path: Path) -> None:
    save_opennmt(tmp_path / "run", options := {"pos_ffn_activation_fn": "silu"})
    imported = read_opennmt(tmp_path / "run" / "model.pt")

    assert imported.config.activation == "swiglu"
    stored = opennmt_checkpoint(options)["model"][f"{_LAYER}.feed_forward.w_3.weight"]
    assert torch.equal(imported.weights["decoder.layers.1.feed_forward.inner.weight"], stored)


@pytest.mark.parametrize("has_pairs", [False, True])
def test_rotary_pairs_are_half_a_head_apart(tmp_path: Path, *, has_pairs: bool) -> None:
    save_opennmt(tmp_path / "run", options := {**_ROTARY, "rotary_interleave": has_pairs, "rotary_dim": 4})
    imported, stored = read_opennmt(tmp_path / "run" / "model.pt"), opennmt_checkpoint(options)["model"]

    assert (imported.config.positions, imported.config.scale_embeddings) == ("rotary", False)
    order = [0, 2, 1, 3] if has_pairs else [0, 1, 2, 3]
    for part, name in {"query": "linear_query", "key": "linear_keys"}.items():
        rows = stored[f"{_LAYER}.self_attn.{name}.weight"]
        expected = rows.reshape(4, 4, D)[:, order].reshape(rows.shape)
        assert torch.equal(imported.weights[f"decoder.layers.1.self_attention.{part}.weight"], expected)
    crossed = stored[f"{_LAYER}.context_attn.linear_query.weight"]
    assert torch.equal(imported.weights["decoder.layers.1.cross_attention.query.weight"], crossed)
