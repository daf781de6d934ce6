import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dragoman_export.__main__ import main
from dragoman_export.errors import ImportFormatError, RunFolderError
from dragoman_export.importers.huggingface import read_huggingface
from dragoman_export.importers.portable import PortableModel, TokenizerFiles, write_portable
from tests.foreign_models import change, save_marian


@pytest.fixture
def portable(tmp_path: Path) -> Path:
    save_marian(tmp_path / "theirs")
    assert main(["import", str(tmp_path / "theirs"), "--from", "huggingface", "--output", str(tmp_path / "ours")]) == 0
    return tmp_path / "ours"


def test_written_model_is_read_back(portable: Path) -> None:
    opened = PortableModel.open(portable)

    assert {path.name for path in portable.iterdir()} == {
        *("config.json", "tokenizer.json", "model.safetensors", "source.spm", "target.spm", "pieces.json")
    }
    assert opened.config.positions == "sinusoidal"
    assert opened.limits.max_source_tokens == 64
    assert opened.load().state_dict().keys() == load_file(portable / "model.safetensors").keys()


def test_existing_directory_is_not_overwritten(portable: Path) -> None:
    model = read_huggingface(portable.parent / "theirs")

    with pytest.raises(RunFolderError, match="cannot create"):
        write_portable(portable, model.config, model.limits, model.weights, model.tokenizer)


def _change_model(directory: Path, **fields: object) -> None:
    model = json.loads((directory / "config.json").read_text(encoding="utf-8"))["model"]
    change(directory / "config.json", model={**model, **fields})


def test_unknown_field_is_rejected(portable: Path) -> None:
    _change_model(portable, rotary_base=10000)
    with pytest.raises(ImportFormatError, match=r"config.json: model\.rotary_base is 10000"):
        PortableModel.open(portable)

    change(portable / "config.json", format=2)
    with pytest.raises(ImportFormatError, match=r"config.json: format is 2: Input should be 1"):
        PortableModel.open(portable)

    change(portable / "tokenizer.json", lower_case=True)
    with pytest.raises(ImportFormatError, match=r"tokenizer.json: lower_case is True: Extra"):
        TokenizerFiles.read(portable)


def test_values_of_another_type_are_rejected(portable: Path) -> None:
    _change_model(portable, num_heads="2")

    with pytest.raises(ImportFormatError, match="num_heads is '2'"):
        PortableModel.open(portable)


def test_tensors_must_match_the_configuration(portable: Path) -> None:
    tensors = load_file(portable / "model.safetensors")
    weights = portable / "model.safetensors"

    save_file({**tensors, "extra": torch.ones(2)}, weights)
    with pytest.raises(ImportFormatError, match=r"tensor extra is \(2,\): expected none"):
        PortableModel.open(portable).load()

    save_file({**tensors, "projection.bias": torch.ones(2)}, weights)
    with pytest.raises(ImportFormatError, match=r"tensor projection.bias is \(2,\): expected \(83,\)"):
        PortableModel.open(portable).load()

    weights.write_bytes(weights.read_bytes()[:200])
    with pytest.raises(ImportFormatError, match="cannot read"):
        PortableModel.open(portable).load()


def test_tokenizer_files_outside_the_directory_are_rejected(portable: Path) -> None:
    change(portable / "tokenizer.json", model="../theirs/target.spm")

    with pytest.raises(ImportFormatError, match=r"model is '\.\./theirs/target\.spm'"):
        PortableModel.open(portable)


def test_huge_configuration_is_not_allocated(portable: Path) -> None:
    _change_model(portable, num_encoder_layers=1 << 40)

    with pytest.raises(ImportFormatError, match="num_encoder_layers is 1099511627776"):
        PortableModel.open(portable).load()
