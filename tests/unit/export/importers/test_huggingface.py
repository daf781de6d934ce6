import io
import json
import os
import pickle
import pickletools
import shutil
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
from tests.foreign_models import change, save_bart, save_m2m100, save_marian, save_mbart50, save_nllb


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "marian"
    save_marian(directory)
    return directory


@pytest.fixture
def marian(saved: Path, tmp_path: Path) -> Path:
    shutil.copytree(saved, tmp_path / "marian")
    return tmp_path / "marian"


def _rewrite(directory: Path, alter: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    alter(tensors)
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_theta": 10000.0}, "config.json: rope_theta is 10000.0"),
        ({"activation_function": "gelu_new"}, "activation_function is 'gelu_new': expected relu, gelu, swish"),
        ({"decoder_attention_heads": 4}, "decoder_attention_heads is 4: expected 2"),
        ({"decoder_ffn_dim": 32}, "decoder_ffn_dim is 32: expected 24"),
        ({"normalize_before": True}, "normalize_before is True: expected False"),
        ({"normalize_embedding": True}, "normalize_embedding is True"),
        ({"add_final_layer_norm": True}, "add_final_layer_norm is True"),
        ({"static_position_embeddings": False}, "static_position_embeddings is False: expected True"),
        ({"layer_norm_eps": 1e-6}, "layer_norm_eps is 1e-06: expected 1e-05"),
        ({"bad_words_ids": [[3]]}, r"bad_words_ids is \[\[3\]\]: expected \[\[8"),
        ({"forced_bos_token_id": 5}, "forced_bos_token_id is 5"),
        ({"force_bos_token_to_be_generated": True}, "force_bos_token_to_be_generated is True: expected False"),
        ({"suppress_tokens": [5]}, r"suppress_tokens is \[5\]"),
        ({"no_repeat_ngram_size": 3}, "no_repeat_ngram_size is 3"),
        ({"min_length": 56}, "min_length is 56: expected 0"),
        ({"d_model": "16"}, "d_model is '16': expected a value of type int"),
        ({"encoder_layers": True}, "encoder_layers is True: expected a value of type int"),
        ({"eos_token_id": 2}, "eos_token_id is 2"),
        ({"decoder_vocab_size": 7}, "decoder_vocab_size is 7"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False"),
        ({"vocab_size": 1 << 40, "decoder_vocab_size": None}, "vocabulary_size is 1099511627776"),
        ({"model_type": "t5"}, "type t5"),
        ({"model_type": "gpt2"}, "model_type is 'gpt2': expected marian, m2m_100, mbart"),
    ],
)
def test_unsupported_option_is_rejected(marian: Path, fields: dict[str, Any], message: str) -> None:
    change(marian / "config.json", **fields)

    with pytest.raises(ImportFormatError, match=message):
        read_huggingface(marian)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs is {'enable_sampling': True}"),
        ({"tokenizer_class": "T5Tokenizer"}, "tokenizer_class is 'T5Tokenizer': expected MarianTokenizer"),
        ({"do_lower_case": True}, "tokenizer_config.json: do_lower_case is True"),
        ({"unk_token": "[UNK]"}, "unk_token: expected '<unk>'"),
    ],
)
def test_unsupported_tokenizer_option_is_rejected(marian: Path, fields: dict[str, Any], message: str) -> None:
    change(marian / "tokenizer_config.json", **fields)

    with pytest.raises(ImportFormatError, match=message):
        read_huggingface(marian)


def test_generation_config_is_checked(marian: Path) -> None:
    change(marian / "generation_config.json", watermarking_config={"seed": 1})

    with pytest.raises(ImportFormatError, match=r"generation_config.json: watermarking_config is \{'seed': 1\}"):
        read_huggingface(marian)


def test_neutral_keys_of_old_configurations_are_accepted(marian: Path) -> None:
    old = {
        "_num_labels": 3,
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
        "classif_dropout": 0.0,
        "add_bias_logits": False,
        "add_final_layer_norm": False,
        "normalize_before": False,
        "normalize_embedding": False,
        "static_position_embeddings": True,
        "extra_pos_embeddings": 83,
        "bad_words_ids": [[82]],
        "force_bos_token_to_be_generated": False,
        "bos_token_id": 0,
        "num_beams": 6,
        "max_length": 512,
        "num_hidden_layers": 2,
        "gradient_checkpointing": False,
        "output_past": True,
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
    _rewrite(marian, lambda tensors: tensors.update({name: each.to(dtype) for name, each in tensors.items()}))

    for name, tensor in read_huggingface(marian).weights.items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected[name].to(dtype).float())


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before PyTorch 1.6"])
@pytest.mark.parametrize("wrap", [Tensor.clone, Tensor.half, Parameter], ids=["fp32", "fp16", "parameters"])
def test_pytorch_checkpoints_of_both_formats_are_read(
    marian: Path, wrap: Callable[[Tensor], Tensor], is_zip: bool
) -> None:
    tensors = load_file(marian / "model.safetensors")
    stored = {**tensors, "lm_head.weight": tensors["model.shared.weight"]}
    stored = {name: wrap(tensor) for name, tensor in stored.items()}
    _rewrite(marian, lambda kept: kept.update({name: wrap(tensor).data for name, tensor in kept.items()}))
    expected = read_huggingface(marian).weights
    (marian / "model.safetensors").unlink()
    torch.save(stored, marian / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)

    found = read_huggingface(marian).weights

    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class _Malicious:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "before PyTorch 1.6"])
def test_pickle_with_code_is_rejected(marian: Path, tmp_path: Path, is_zip: bool) -> None:
    (marian / "model.safetensors").unlink()
    stored = {"model.shared.weight": _Malicious(tmp_path / "done")}
    torch.save(stored, marian / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)

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
    tensors = load_file(marian / "model.safetensors")
    (marian / "model.safetensors").unlink()
    path = marian / "pytorch_model.bin"
    torch.save(tensors, path, _use_new_zipfile_serialization=False)
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


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda tensors: tensors.pop("model.encoder.layers.1.fc1.bias"), "layers.1.fc1.bias"),
        (lambda tensors: tensors.update(adapter=torch.ones(2)), "unknown tensor adapter"),
        (lambda tensors: tensors.update({"lm_head.weight": torch.ones(83, 16)}), "lm_head.weight differs"),
        (
            lambda tensors: tensors.update({"model.encoder.embed_positions.weight": torch.ones(64, 16)}),
            "embed_positions.weight",
        ),
        (
            lambda tensors: tensors.update(final_logits_bias=torch.zeros(83, dtype=torch.int64)),
            "final_logits_bias is torch.int64: expected a tensor of floats",
        ),
    ],
)
def test_unexpected_tensors_are_rejected(
    marian: Path, alter: Callable[[dict[str, torch.Tensor]], object], message: str
) -> None:
    _rewrite(marian, alter)

    with pytest.raises(ImportFormatError, match=message):
        read_huggingface(marian)


def test_ids_outside_the_vocabulary_are_rejected(marian: Path) -> None:
    change(marian / "vocab.json", extra=83)

    with pytest.raises(ImportFormatError, match="the id of 'extra' is 83: expected 0 to 82"):
        read_huggingface(marian)


def test_multilingual_target_model(tmp_path: Path) -> None:
    save_marian(tmp_path / "theirs", tags=(">>deu<<", ">>fra<<"))

    languages = read_huggingface(tmp_path / "theirs").tokenizer.description.languages
    assert languages is not None
    assert set(languages.pairs_served()) == {("en", "de"), ("en", "fr")}
    assert {len(tokens.source_prefix) for tokens in languages.targets.values()} == {1}
    with pytest.raises(ImportFormatError, match=r"'>>ita<<'.*>>deu<<, >>fra<<"):
        read_huggingface(tmp_path / "theirs", target_tag=">>ita<<")
    described = read_huggingface(tmp_path / "theirs", target_tag=">>fra<<").tokenizer.description

    vocabulary = json.loads((tmp_path / "theirs" / "vocab.json").read_text(encoding="utf-8"))
    assert described.source_prefix == (vocabulary[">>fra<<"],)


@pytest.mark.parametrize("save", [save_m2m100, save_nllb, save_mbart50])
def test_multilingual_model(tmp_path: Path, save: Callable[..., Any]) -> None:
    save(tmp_path / "theirs")

    languages = read_huggingface(tmp_path / "theirs").tokenizer.description.languages
    assert languages is not None
    assert {*languages.sources} == {*languages.targets} >= {"en", "de", "fr"}
    assert all((languages.sources[tag],) == (tokens.target_prefix,) for tag, tokens in languages.targets.items())
    with pytest.raises(ImportFormatError, match="--source-tag"):
        read_huggingface(tmp_path / "theirs", target_tag="de")
    with pytest.raises(ImportFormatError, match="either"):
        read_huggingface(tmp_path / "theirs", target_tag="de", source_languages=["en"])
    with pytest.raises(ImportFormatError, match="target language 'tlh'"):
        read_huggingface(tmp_path / "theirs", source_languages=["en"], target_languages=["tlh"])
    with pytest.raises(ImportFormatError, match=r"tag '.*qq.*'"):
        read_huggingface(tmp_path / "theirs", source_tag="qq", target_tag="de")


def test_multilingual_source_model_requires_names(tmp_path: Path) -> None:
    save_marian(tmp_path / "theirs")

    imported = read_huggingface(tmp_path / "theirs", source_languages=["fr", "es"], target_languages=["en"])
    languages = imported.tokenizer.description.languages
    assert languages is not None
    assert set(languages.pairs_served()) == {("fr", "en"), ("es", "en")}
    assert not any(imported.tokenizer.description.tokenization.fixed_tokens())
    with pytest.raises(ImportFormatError, match="--target-languages"):
        read_huggingface(tmp_path / "theirs", source_languages=["fr", "es"])


def test_legacy_source_suffix_is_rejected(tmp_path: Path) -> None:
    save_nllb(tmp_path / "theirs")
    change(tmp_path / "theirs" / "tokenizer_config.json", legacy_behaviour=True)

    with pytest.raises(ImportFormatError, match="legacy_behaviour is True: expected False"):
        read_huggingface(tmp_path / "theirs", source_tag="eng_Latn", target_tag="deu_Latn")


@pytest.fixture
def bart(tmp_path: Path) -> Path:
    save_bart(tmp_path / "bart")
    return tmp_path / "bart"


def test_byte_level_bpe_is_read_from_both_formats(bart: Path) -> None:
    expected = read_huggingface(bart).tokenizer
    (bart / "tokenizer.json").unlink()

    assert read_huggingface(bart).tokenizer == expected


@pytest.mark.parametrize(
    ("part", "fields", "message"),
    [
        (None, {"normalizer": {"type": "NFC"}}, "normalizer or pre_tokenizer"),
        (None, {"pre_tokenizer": {"type": "Whitespace"}}, "normalizer or pre_tokenizer"),
        (None, {"model": None}, "model or pre_tokenizer"),
        ("pre_tokenizer", {"add_prefix_space": True}, "normalizer or pre_tokenizer"),
        ("model", {"type": "WordPiece"}, "type is 'WordPiece': expected 'BPE'"),
        ("model", {"dropout": 0.1}, "dropout is 0.1: expected none"),
        ("model", {"end_of_word_suffix": "</w>"}, "end_of_word_suffix is '</w>'"),
        ("model", {"ignore_merges": True}, "ignore_merges is True: expected False"),
    ],
)
def test_other_byte_level_tokenizers_are_rejected(
    bart: Path, part: str | None, fields: dict[str, Any], message: str
) -> None:
    if part is not None:
        fields = {part: {**json.loads((bart / "tokenizer.json").read_text(encoding="utf-8"))[part], **fields}}
    change(bart / "tokenizer.json", **fields)

    with pytest.raises(ImportFormatError, match=message):
        read_huggingface(bart)


def test_bart_targets_start_as_configured(bart: Path) -> None:
    forced = read_huggingface(bart).tokenizer
    assert forced.description.target_prefix == forced.description.source_prefix == (0,)
    change(bart / "generation_config.json", forced_bos_token_id=None)
    free = read_huggingface(bart).tokenizer
    assert free.description.target_prefix == ()
    assert json.loads(free.files["pieces.json"])[0] is None
    change(bart / "config.json", force_bos_token_to_be_generated=True)
    assert read_huggingface(bart).tokenizer == forced

    change(bart / "generation_config.json", forced_bos_token_id=7)
    with pytest.raises(ImportFormatError, match="forced_bos_token_id is 7: expected 0"):
        read_huggingface(bart)
