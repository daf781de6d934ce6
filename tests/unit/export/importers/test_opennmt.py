import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ctranslate2.converters import OpenNMTPyConverter

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers import opennmt
from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.opennmt import read_opennmt
from tests.foreign_checkpoints.opennmt import opennmt_checkpoint
from tests.foreign_checkpoints.random_weights import D
from tests.foreign_models import trained
from tests.tiny_bundle import SENTENCES


def _save(directory: Path, content: dict[str, Any]) -> Path:
    directory.mkdir()
    (directory / "sentencepiece.model").write_bytes(trained(SENTENCES, size=70))
    torch.save(content, directory / "model.pt")
    return directory / "model.pt"


@pytest.mark.parametrize("options", [{}, {"add_qkvbias": True, "share_vocab": True}])
def test_import_equals_the_conversion_by_ctranslate2(tmp_path: Path, options: dict[str, Any]) -> None:
    path = _save(tmp_path / "run", opennmt_checkpoint(options))
    OpenNMTPyConverter(str(path), unsafe_deserialization=True).convert(str(tmp_path / "converted"))
    shutil.copy(path.parent / "sentencepiece.model", tmp_path / "converted")

    ours, theirs = read_opennmt(path), read_ctranslate2(tmp_path / "converted")

    assert (ours.config, ours.limits, ours.tokenizer) == (theirs.config, theirs.limits, theirs.tokenizer)
    assert ours.config.sinusoid_layout == "interleaved"
    assert ours.tokenizer.description.source_suffix == ()
    assert ours.weights.keys() == theirs.weights.keys()
    for name, weight in ours.weights.items():
        assert torch.equal(weight, theirs.weights[name]), name


def test_silu_gate_is_swiglu(tmp_path: Path) -> None:
    content = opennmt_checkpoint({"pos_ffn_activation_fn": "silu"})
    imported = read_opennmt(_save(tmp_path / "run", content))

    assert imported.config.activation == "swiglu"
    stored = content["model"]["decoder.transformer_layers.1.feed_forward.w_3.weight"]
    assert torch.equal(imported.weights["decoder.layers.1.feed_forward.inner.weight"], stored)


_ROTARY = {"position_encoding": False, "max_relative_positions": -1, "rotary_interleave": False}


@pytest.mark.parametrize("has_pairs", [False, True])
def test_rotary_pairs_are_half_a_head_apart(tmp_path: Path, *, has_pairs: bool) -> None:
    content = opennmt_checkpoint(_ROTARY | {"rotary_interleave": has_pairs, "rotary_dim": 4})
    imported = read_opennmt(_save(tmp_path / "run", content))

    assert (imported.config.positions, imported.config.scale_embeddings) == ("rotary", False)
    order = [0, 2, 1, 3] if has_pairs else [0, 1, 2, 3]
    for part, stored in {"query": "linear_query", "key": "linear_keys"}.items():
        rows = content["model"][f"decoder.transformer_layers.1.self_attn.{stored}.weight"]
        expected = rows.reshape(4, 4, D)[:, order].reshape(rows.shape)
        assert torch.equal(imported.weights[f"decoder.layers.1.self_attention.{part}.weight"], expected)
    crossed = content["model"]["decoder.transformer_layers.1.context_attn.linear_query.weight"]
    assert torch.equal(imported.weights["decoder.layers.1.cross_attention.query.weight"], crossed)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_relative_positions": 20}, "max_relative_positions is 20: expected 0"),
        ({"position_encoding": False}, "position_encoding is False"),
        (_ROTARY | {"position_encoding": True}, "position_encoding is True: expected False"),
        (_ROTARY | {"rotary_interleave": None}, "rotary_interleave is None: expected a value of type bool"),
        (_ROTARY | {"rotary_theta": 500}, "rotary_theta is 500: expected 10000"),
        (_ROTARY | {"rotary_dim": 2}, "rotary_dim is 2"),
        ({"pos_ffn_activation_fn": "gated-gelu"}, "pos_ffn_activation_fn is 'gated-gelu': expected relu, gelu, silu"),
        ({"enc_layers": 3}, "missing tensor encoder.transformer.2"),
        ({"dec_layers": 1}, "unknown tensor decoder.transformer_layers.1"),
    ],
)
def test_unsupported_option_is_rejected(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImportFormatError, match=message):
        read_opennmt(_save(tmp_path / "run", opennmt_checkpoint(options)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content.pop("opt"), r"no options \(opt\): not a checkpoint of OpenNMT-py"),
        (lambda content: content.update(vocab=[1]), "vocab has no lists"),
        (lambda content: content["vocab"].update(src_feats={"a": []}), "vocab has src_feats"),
        (lambda content: content["vocab"]["src"].remove("</s>"), "encoder/embeddings_0/weight has the shape"),
        (lambda content: content.update(vocab=Path("x")), r"pathlib\.\w*Path"),
    ],
)
def test_foreign_checkpoint_is_rejected(tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    content = opennmt_checkpoint({})
    change(content)

    with pytest.raises(ImportFormatError, match=message):
        read_opennmt(_save(tmp_path / "run", content))


def test_every_required_option_is_checked(tmp_path: Path) -> None:
    for option in opennmt._REQUIRED:
        path = _save(tmp_path / option, opennmt_checkpoint({option: "other"}))
        with pytest.raises(ImportFormatError, match=f"{option} is 'other'"):
            read_opennmt(path)
