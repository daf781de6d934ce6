import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dragoman_export.__main__ import main
from dragoman_export.errors import ImportFormatError, RunFolderError
from dragoman_export.importers.huggingface import read_huggingface
from dragoman_export.importers.portable import PortableModel, write_portable
from tests.unit.export.importers.rewriting import rewrite, set_options


@pytest.fixture
def portable(marian: Path, tmp_path: Path) -> Path:
    assert main(["import", str(marian), "--from", "huggingface", "--output", str(tmp_path / "portable")]) == 0
    return tmp_path / "portable"


def test_written_model_is_read_back(portable: Path) -> None:
    opened = PortableModel.open(portable)

    assert {path.name for path in portable.iterdir()} == {
        *("config.json", "tokenizer.json", "model.safetensors", "source.spm", "target.spm", "pieces.json")
    }
    assert opened.config.positions == "sinusoidal"
    assert opened.limits.max_source_tokens == 64
    assert opened.load().state_dict().keys() == load_file(portable / "model.safetensors").keys()


def test_existing_directory_is_not_overwritten(portable: Path, marian: Path) -> None:
    model = read_huggingface(marian)

    with pytest.raises(RunFolderError, match="cannot create"):
        write_portable(portable, model.config, model.limits, model.weights, model.tokenizer)


_WEIGHTS, _CONFIG = "model.safetensors", "config.json"


@pytest.mark.parametrize(
    ("file", "options", "message"),
    [
        (_CONFIG, {"model.rotary_base": 10000}, "config.json: model.rotary_base is 10000"),
        (_CONFIG, {"format": 2}, "config.json: format is 2: Input should be 1"),
        (_CONFIG, {"model.num_heads": "2"}, "num_heads is '2'"),
        (_CONFIG, {"model.num_encoder_layers": 1 << 40}, "num_encoder_layers is 1099511627776"),  # is not allocated
        ("tokenizer.json", {"lower_case": True}, "tokenizer.json: lower_case is True: Extra"),
        ("tokenizer.json", {"model": "../marian/target.spm"}, "model is '../marian/target.spm'"),
    ],
)
def test_invalid_option_is_rejected(portable: Path, file: str, options: dict[str, object], message: str) -> None:
    set_options(portable / file, options)

    with pytest.raises(ImportFormatError, match=re.escape(message)):
        PortableModel.open(portable).load()


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda tensors: tensors.update(extra=torch.ones(2)), "tensor extra is (2,): expected none"),
        (
            lambda tensors: tensors.update({"projection.bias": torch.ones(2)}),
            "tensor projection.bias is (2,): expected (83,)",
        ),
    ],
)
def test_tensors_must_match_the_configuration(
    portable: Path, alter: Callable[[dict[str, Any]], object], message: str
) -> None:
    rewrite(portable, alter)

    with pytest.raises(ImportFormatError, match=re.escape(message)):
        PortableModel.open(portable).load()


def test_truncated_weights_are_rejected(portable: Path) -> None:
    (portable / _WEIGHTS).write_bytes((portable / _WEIGHTS).read_bytes()[:200])

    with pytest.raises(ImportFormatError, match="cannot read"):
        PortableModel.open(portable).load()
