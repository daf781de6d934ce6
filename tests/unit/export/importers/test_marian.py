import contextlib
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ctranslate2.converters import MarianConverter
from torch.nn import functional

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.marian import read_marian
from dragoman_export.importers.marian_files import read_model
from dragoman_export.importers.portable import load_weights
from tests.foreign_checkpoints.marian import load_npz, save_binary, save_marian_directory, save_npz

_PRE_NORM = {"transformer-preprocess": "n", "transformer-postprocess": "da", "transformer-postprocess-top": "n"}
_SEPARATE = {"tied-embeddings-all": False}
_RECURRENT = {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}
_EXAMPLES: dict[str, dict[str, Any]] = {
    "tied": {},
    "two vocabularies": {**_SEPARATE, "tied-embeddings": True},
    "nothing tied": {**_SEPARATE, "transformer-ffn-activation": "relu"},
    "pre-norm, norm of embeddings": {**_PRE_NORM, "transformer-postprocess-emb": "nd"},
}
_SCORED = [([5, 9, 14, 7], [4, 8, 20, 11]), ([6, 30, 12], [9, 9, 13, 17, 22, 40, 3])]
# log-probabilities of `_SCORED` by the command `score` of Marian 1.12.42, which computes as training does
_SCORES: list[tuple[dict[str, Any], list[float]]] = [
    ({}, [-25.498095, -47.133343]),
    ({"output-omit-bias": True}, [-33.009598, -43.011345]),
    ({"transformer-ffn-activation": "gelu"}, [-25.989923, -47.884258]),
    ({"transformer-postprocess-emb": "nd", "transformer-postprocess-top": "n"}, [-31.861597, -47.106583]),
    ({"transformer-tied-layers": [1, 1]}, [-30.975296, -47.793583]),
    ({**_SEPARATE, "tied-embeddings": True}, [-27.034939, -35.843658]),
    ({**_SEPARATE, "tied-embeddings-src": True}, [-28.553310, -43.097576]),
    (_EXAMPLES["nothing tied"], [-34.955132, -52.137245]),
    (_RECURRENT, [-26.931087, -43.629585]),
    ({**_RECURRENT, **_EXAMPLES["two vocabularies"], "transformer-ffn-activation": "relu"}, [-35.319603, -39.924049]),
    ({**_RECURRENT, **_PRE_NORM}, [-18.811598, -40.581188]),
    (_PRE_NORM, [-23.490604, -43.577324]),
    (_EXAMPLES["pre-norm, norm of embeddings"], [-30.105484, -48.765903]),
]


@pytest.mark.parametrize("options", _EXAMPLES.values(), ids=_EXAMPLES)
def test_weights_and_vocabularies_equal_the_conversion_by_ctranslate2(tmp_path: Path, options: dict[str, Any]) -> None:
    model = save_marian_directory(tmp_path / "model", options)
    vocabularies = sorted(model.parent.glob("vocab.*.yml"))
    MarianConverter(str(model), [str(path) for path in vocabularies]).convert(str(tmp_path / "converted"))
    for name in ("source.spm", "target.spm"):
        shutil.copy(model.parent / name, tmp_path / "converted")

    imported, expected = read_marian(model.parent), read_ctranslate2(tmp_path / "converted")

    assert imported.tokenizer == expected.tokenizer
    for name, weight in imported.weights.items():
        if ".positions." not in name:
            assert torch.equal(weight, expected.weights[name]), name
    load_weights(imported.config, imported.weights, model)
    assert (imported.config.sinusoid_layout, imported.config.norm_epsilon) == ("fairseq", 1e-6)


@pytest.mark.parametrize(("options", "scores"), _SCORES)
@torch.inference_mode()
def test_log_probabilities_equal_those_of_marian(tmp_path: Path, options: dict[str, Any], scores: list[float]) -> None:
    path = save_marian_directory(tmp_path / "model", options)
    imported = read_marian(path)
    model = load_weights(imported.config, imported.weights, path)

    computed = [
        -functional.cross_entropy(
            model.decode(
                torch.tensor([[imported.config.start_id, *target]]),
                model.encode(torch.tensor([[*source, imported.config.eos_id]]), None),
                None,
            )[0],
            torch.tensor([*target, imported.config.eos_id]),
            reduction="sum",
        ).item()
        for source, target in _SCORED
    ]

    assert computed == pytest.approx(scores, abs=1e-4)


@pytest.mark.parametrize(
    ("options", "tied"),
    [
        ({}, "all"),
        ({**_SEPARATE, "tied-embeddings-src": True, "tied-embeddings": True}, "all"),
        ({**_SEPARATE, "tied-embeddings-src": True}, "none"),
        ({**_SEPARATE, "tied-embeddings": True}, "decoder"),
        (_SEPARATE, "none"),
    ],
)
def test_tied_tables(tmp_path: Path, options: dict[str, Any], tied: str) -> None:
    imported = read_marian(save_marian_directory(tmp_path / "model", options))

    assert imported.config.tied_embeddings == tied
    load_weights(imported.config, imported.weights, tmp_path)


def test_tied_layers_share_their_parameters(tmp_path: Path) -> None:
    imported = read_marian(save_marian_directory(tmp_path / "model", {"transformer-tied-layers": [1, 1]}))

    name = "decoder.layers.{}.feed_forward.inner.weight"
    assert torch.equal(imported.weights[name.format(0)], imported.weights[name.format(1)])


def test_binary_model_equals_its_npz(tmp_path: Path) -> None:
    path = save_marian_directory(tmp_path / "model")
    save_binary(path.with_suffix(".bin"), *load_npz(path))

    (config, weights), (expected_config, expected) = read_model(path.with_suffix(".bin")), read_model(path)

    assert config == expected_config
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("type", "s2s"),
        ("transformer-decoder-autoreg", "average-attention"),
        ("transformer-ffn-activation", "tanh"),
        ("transformer-ffn-depth", 3),
        ("transformer-postprocess", "dah"),
        ("transformer-postprocess-top", "r"),
        ("transformer-no-projection", True),
        ("transformer-train-positions", True),
        ("transformer-tied-layers", [1]),
        ("right-left", True),
        ("dim-vocabs", [5, 5]),
        ("unknown-option", 1),
    ],
)
def test_unsupported_option_is_named(tmp_path: Path, option: str, value: object) -> None:
    path = save_marian_directory(tmp_path / "model")
    config, weights = load_npz(path)
    save_npz(path, {**config, option: value}, weights)

    with pytest.raises(ImportFormatError, match=option):
        read_marian(path)


def test_other_recurrent_cell_is_rejected(tmp_path: Path) -> None:
    path = save_marian_directory(tmp_path / "model", {**_RECURRENT, "dec-cell": "gru"})

    with pytest.raises(ImportFormatError, match="dec-cell"):
        read_marian(path)


@pytest.mark.parametrize(
    "options", [{"transformer-ffn-activation": "gelu", "version": "v1.12.2"}, {**_PRE_NORM, "version": "v1.10.27"}]
)
def test_network_of_an_older_version_is_rejected(tmp_path: Path, options: dict[str, Any]) -> None:
    path = save_marian_directory(tmp_path / "model", options)

    with pytest.raises(ImportFormatError, match="version"):
        read_marian(path)


def test_unknown_tensor_is_named(tmp_path: Path) -> None:
    path = save_marian_directory(tmp_path / "model")
    config, weights = load_npz(path)
    save_npz(path, config, {**weights, "Wpos": np.zeros((2, 2), np.float32)})

    with pytest.raises(ImportFormatError, match="unknown tensor Wpos"):
        read_marian(path)


def _truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def _of_integers(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace((0x404).to_bytes(8, "little"), (0x4101).to_bytes(8, "little"), 1))


def _of_many_items(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:8] + (1 << 40).to_bytes(8, "little") + content[16:])


def _of_large_items(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:40] + (1 << 60).to_bytes(8, "little") + content[48:])


def _encrypted(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes((2).to_bytes(8, "little") + content[8:])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_truncated, "truncated"),
        (_of_integers, "intgemm8"),
        (_of_many_items, "items"),
        (_of_large_items, "truncated"),
        (_encrypted, "version 2"),
    ],
)
def test_invalid_binary_model_is_rejected(tmp_path: Path, damage: Callable[[Path], None], reason: str) -> None:
    path = save_marian_directory(tmp_path / "model")
    save_binary(path.with_suffix(".bin"), *load_npz(path))
    damage(path.with_suffix(".bin"))

    with pytest.raises(ImportFormatError, match=reason):
        read_model(path.with_suffix(".bin"))


def test_every_truncation_of_a_small_file_is_rejected(tmp_path: Path) -> None:
    for path, save in ((tmp_path / "model.npz", save_npz), (tmp_path / "model.bin", save_binary)):
        save(path, {"type": "transformer"}, {"a": np.ones((2, 3), np.float32)})
        content = path.read_bytes()
        for length in range(0, len(content) - 256, 7):
            path.write_bytes(content[:length])
            with pytest.raises(ImportFormatError):
                read_model(path)


@pytest.mark.slow
def test_flipped_bits_give_an_error_of_the_file_or_a_model(tmp_path: Path) -> None:
    for path, save in ((tmp_path / "model.npz", save_npz), (tmp_path / "model.bin", save_binary)):
        save(path, {"type": "transformer", "dim-vocabs": [4, 4]}, {"a": np.ones((2, 3), np.float32)})
        content = path.read_bytes()
        for index in range(8 * len(content)):
            changed = bytearray(content)
            changed[index // 8] ^= 1 << index % 8
            path.write_bytes(changed)
            with contextlib.suppress(ImportFormatError):
                read_model(path)


def test_encrypted_archive_is_rejected(tmp_path: Path) -> None:
    save_npz(path := tmp_path / "model.npz", {"type": "transformer"}, {"a": np.ones((2, 3), np.float32)})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1  # flags of the first entry of the directory
    path.write_bytes(content)

    with pytest.raises(ImportFormatError, match="a is encrypted"):
        read_model(path)


def test_compressed_archive_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("Wemb.npy", bytes(1 << 20))

    with pytest.raises(ImportFormatError, match="compressed"):
        read_model(tmp_path / "model.npz")


@pytest.mark.parametrize("content", ["</s>: 0\n<unk>: 2\n", "</s>: 0\na: 0\n", "</s>: 0\nword\n", '</s>: 0\n"a: 1\n'])
def test_invalid_vocabulary_is_rejected(tmp_path: Path, content: str) -> None:
    path = save_marian_directory(tmp_path / "model")
    (path.parent / "vocab.0.yml").write_text(content)

    with pytest.raises(ImportFormatError, match=r"vocab\.0\.yml"):
        read_marian(path)


def test_ambiguous_model_is_rejected(tmp_path: Path) -> None:
    path = save_marian_directory(tmp_path / "model")
    (path.parent / "decoder.yml").unlink()
    shutil.copy(path, path.with_name("second.npz"))

    with pytest.raises(ImportFormatError, match="expected one model"):
        read_marian(path.parent)


def test_decoder_file_names_no_file_of_another_directory(tmp_path: Path) -> None:
    path = save_marian_directory(tmp_path / "model")
    (path.parent / "decoder.yml").write_text("models: [../model.npz]\n")

    with pytest.raises(ImportFormatError, match="file names"):
        read_marian(path.parent)
