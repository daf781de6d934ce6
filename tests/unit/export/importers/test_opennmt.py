import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ctranslate2.converters import OpenNMTPyConverter

from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.opennmt import read_opennmt
from tests.foreign_checkpoints.opennmt import save_opennmt


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
