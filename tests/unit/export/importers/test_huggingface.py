import io
import json
import os
import pickle
import pickletools
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import Parameter

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.huggingface import read_huggingface
from dragoman_service.bundle.manifest import Languages
from tests.foreign_models import change, save_marian
from tests.unit.export.importers.rewriting import rewrite


def test_neutral_keys_of_old_configurations_are_accepted(marian: Path) -> None:
    old = {
        **dict.fromkeys(("add_bias_logits", "add_final_layer_norm", "normalize_before", "normalize_embedding"), False),
        **dict.fromkeys(("force_bos_token_to_be_generated", "gradient_checkpointing"), False),
        "static_position_embeddings": True,
        "output_past": True,
        "extra_pos_embeddings": 83,
        "bos_token_id": 0,
        "_num_labels": 3,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "classif_dropout": 0.0,
        "bad_words_ids": [[82]],
        "num_beams": 6,
        "max_length": 512,
        "num_hidden_layers": 2,
        "torch_dtype": "float16",
        "_name_or_path": "x",
    }
    change(marian / "config.json", **old)
    expected = read_huggingface(marian)
    (marian / "generation_config.json").unlink()
    (marian / "tokenizer_config.json").unlink()

    assert read_huggingface(marian).config == expected.config


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_become_float32(marian: Path, dtype: torch.dtype) -> None:
    expected = read_huggingface(marian).weights
    rewrite(marian, lambda tensors: tensors.update({name: each.to(dtype) for name, each in tensors.items()}))

    for name, tensor in read_huggingface(marian).weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name].to(dtype).float())


def _save_pytorch(directory: Path, content: object, *, is_zip: bool) -> Path:
    """Replace the safetensors file by a PyTorch checkpoint."""
    (directory / "model.safetensors").unlink()
    path = directory / "pytorch_model.bin"
    torch.save(content, path, _use_new_zipfile_serialization=is_zip)
    return path


_FORMATS = pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before PyTorch 1.6"])


@_FORMATS
@pytest.mark.parametrize("wrap", [Tensor.clone, Tensor.half, Parameter], ids=["fp32", "fp16", "parameters"])
def test_pytorch_checkpoints_of_both_formats_are_read(
    marian: Path, wrap: Callable[[Tensor], Tensor], is_zip: bool
) -> None:
    tensors = load_file(marian / "model.safetensors")
    stored = {**tensors, "lm_head.weight": tensors["model.shared.weight"]}
    rewrite(marian, lambda kept: kept.update({name: wrap(tensor).data for name, tensor in kept.items()}))
    expected = read_huggingface(marian).weights
    _save_pytorch(marian, {name: wrap(tensor) for name, tensor in stored.items()}, is_zip=is_zip)

    found = read_huggingface(marian).weights

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class _Malicious:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._path),)


@_FORMATS
def test_pickle_with_code_is_rejected(marian: Path, tmp_path: Path, is_zip: bool) -> None:
    _save_pytorch(marian, {"model.shared.weight": _Malicious(tmp_path / "done")}, is_zip=is_zip)

    with pytest.raises(ImportFormatError, match=r"cannot read .*pytorch_model.bin: it contains posix\.mkdir"):
        read_huggingface(marian)
    assert not (tmp_path / "done").exists()


def _tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        tar.add(path.parent / "config.json", "storages")


def _without_data(path: Path) -> None:
    """Write a checkpoint of the old format that declares a large storage and lists none."""
    torch.save({"w": torch.zeros(1 << 16)}, path, _use_new_zipfile_serialization=False)
    stream = io.BytesIO(path.read_bytes())
    for _ in range(4):  # magic number, version, system, tensors
        for _ in pickletools.genops(stream):
            pass
    path.write_bytes(stream.getvalue()[: stream.tell()] + pickle.dumps([], 2))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: path.write_bytes(pickle.dumps(_Malicious(path), 2)), "it contains posix.mkdir"),
        (lambda path: path.write_bytes(b"\x80\x02" + b"no checkpoint" * 9), "not a PyTorch checkpoint"),
        (lambda path: path.write_bytes(b""), "not a PyTorch checkpoint"),
        (_tar, "not a PyTorch checkpoint"),
        (_without_data, "larger than the file"),
        (lambda path: torch.save({"w": torch.zeros(1).half().expand(1 << 20)}, path), "larger than the file"),
    ],
)
def test_damaged_checkpoint_is_rejected(marian: Path, write: Callable[[Path], object], reason: str) -> None:
    (marian / "model.safetensors").unlink()
    write(marian / "pytorch_model.bin")

    with pytest.raises(ImportFormatError, match=f"cannot read .*pytorch_model.bin: .*{reason}") as error:
        read_huggingface(marian)
    assert "weights_only" not in str(error.value)


def test_truncated_old_checkpoint_is_rejected(marian: Path) -> None:
    path = _save_pytorch(marian, load_file(marian / "model.safetensors"), is_zip=False)
    whole = path.read_bytes()

    for size in (1, 20, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ImportFormatError, match=r"cannot read .*pytorch_model.bin"):
            read_huggingface(marian)


@pytest.mark.parametrize("name", ["config.json", "source.spm", "vocab.json", "model.safetensors"])
def test_symbolic_link_is_rejected(marian: Path, tmp_path: Path, name: str) -> None:
    (marian / name).rename(tmp_path / name)
    (marian / name).symlink_to(tmp_path / name)

    with pytest.raises(ImportFormatError, match=f"cannot read .*{name}: a link to a target outside its directory"):
        read_huggingface(marian)


def test_sharded_weights_are_read(marian: Path) -> None:
    expected = read_huggingface(marian).weights
    tensors = load_file(marian / "model.safetensors")
    parts = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for file, names in parts.items():
        save_file({name: tensors[name] for name in names}, marian / file)
    index = {"weight_map": {name: file for file, names in parts.items() for name in names}}
    (marian / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (marian / "model.safetensors").unlink()

    assert all(torch.equal(tensor, expected[name]) for name, tensor in read_huggingface(marian).weights.items())

    change(marian / "model.safetensors.index.json", weight_map={"model.shared.weight": "../a.safetensors"})
    with pytest.raises(ImportFormatError, match=r"'\.\./a\.safetensors' is not a file name"):
        read_huggingface(marian)


def _languages(directory: Path, **options: Any) -> Languages:
    languages = read_huggingface(directory, **options).tokenizer.description.languages
    assert languages is not None
    return languages


def test_multilingual_target_model(tmp_path: Path) -> None:
    path = tmp_path / "marian"
    save_marian(path, tags=(">>deu<<", ">>fra<<"))
    vocabulary = json.loads((path / "vocab.json").read_text(encoding="utf-8"))

    languages = _languages(path)
    described = read_huggingface(path, target_tag=">>fra<<").tokenizer.description

    assert set(languages.pairs_served()) == {("en", "de"), ("en", "fr")}
    assert {len(tokens.source_prefix) for tokens in languages.targets.values()} == {1}
    assert described.source_prefix == (vocabulary[">>fra<<"],)
    with pytest.raises(ImportFormatError, match=r"'>>ita<<'.*>>deu<<, >>fra<<"):
        read_huggingface(path, target_tag=">>ita<<")


@pytest.mark.parametrize("name", ["m2m100", "nllb", "mbart50"])
def test_multilingual_model(saved: Callable[[str], Path], name: str) -> None:
    path = saved(name)

    languages = _languages(path)

    assert {*languages.sources} == {*languages.targets} >= {"en", "de", "fr"}
    assert all((languages.sources[tag],) == (tokens.target_prefix,) for tag, tokens in languages.targets.items())
    for options, message in (
        ({"target_tag": "de"}, "--source-tag"),
        ({"target_tag": "de", "source_languages": ["en"]}, "either"),
        ({"source_languages": ["en"], "target_languages": ["tlh"]}, "target language 'tlh'"),
        ({"source_tag": "qq", "target_tag": "de"}, r"tag '.*qq.*'"),
    ):
        with pytest.raises(ImportFormatError, match=message):
            read_huggingface(path, **options)


def test_multilingual_source_model_requires_names(marian: Path) -> None:
    imported = read_huggingface(marian, source_languages=["fr", "es"], target_languages=["en"])

    languages = imported.tokenizer.description.languages
    assert languages is not None
    assert set(languages.pairs_served()) == {("fr", "en"), ("es", "en")}
    assert not any(imported.tokenizer.description.tokenization.fixed_tokens())
    with pytest.raises(ImportFormatError, match="--target-languages"):
        read_huggingface(marian, source_languages=["fr", "es"])


def test_byte_level_bpe_is_read_from_both_formats(bart: Path) -> None:
    expected = read_huggingface(bart).tokenizer
    (bart / "tokenizer.json").unlink()

    assert read_huggingface(bart).tokenizer == expected


def test_bart_targets_start_as_configured(bart: Path) -> None:
    forced = read_huggingface(bart).tokenizer
    assert forced.description.target_prefix == forced.description.source_prefix == (0,)
    change(bart / "generation_config.json", forced_bos_token_id=None)
    free = read_huggingface(bart).tokenizer
    assert free.description.target_prefix == ()
    assert json.loads(free.files["pieces.json"])[0] is None
    change(bart / "config.json", force_bos_token_to_be_generated=True)
    assert read_huggingface(bart).tokenizer == forced
