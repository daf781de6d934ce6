import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.eole import read_eole
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_checkpoints.eole import EOLE, save_eole
from tests.foreign_models import SOURCES, trained
from tests.tiny_bundle import SENTENCES
from tests.unit.export.importers.rewriting import set_options

_SHARED, _PAIRS, _HALVES, _LEARNED, *_ = EOLE


def _configure(directory: Path, **options: object) -> None:
    set_options(directory / "config.json", options)


def test_stack_options_default_to_the_model(eole: Path) -> None:
    before = read_eole(eole)
    stacks = {
        f"model.{stack}": {f"{stack}_type": "transformer", "with_cross_attn": True} for stack in ("encoder", "decoder")
    }
    _configure(eole, **stacks, **{"model.architecture": "custom"})

    assert read_eole(eole).config == before.config


def test_stack_positions_override_the_model(tmp_path: Path) -> None:
    save_eole(tmp_path / "halves", EOLE[_HALVES])
    before = read_eole(tmp_path / "halves").weights
    _configure(tmp_path / "halves", **{"model.encoder.position_encoding_type": "Rotary"})

    after = read_eole(tmp_path / "halves").weights

    differing = {name for name in before if not torch.equal(before[name], after[name])}
    rotated = ("query.weight", "query.bias", "key.weight")  # keys have no bias
    layers = range(len(differing) // len(rotated))
    assert differing == {f"encoder.layers.{layer}.self_attention.{name}" for layer in layers for name in rotated}
    assert differing


def test_learned_positions_start_at_the_shift(tmp_path: Path) -> None:
    save_eole(tmp_path / "learned", EOLE[_LEARNED])
    imported = read_eole(tmp_path / "learned")
    stored = load_file(tmp_path / "learned" / "model.00.safetensors")["src_emb.pe.weight"]

    assert torch.equal(imported.weights["encoder.positions.weight"], stored[2:] * math.sqrt(16))
    assert imported.limits.max_source_tokens == imported.config.max_positions == len(stored) - 2
    for shift in (-1, len(stored)):
        _configure(tmp_path / "learned", **{"model.embeddings.position_shift": shift})
        with pytest.raises(ImportFormatError, match=f"position_shift is {shift}: expected a row of 64 positions"):
            read_eole(tmp_path / "learned")


def test_incomplete_directory_is_rejected(eole: Path) -> None:
    first, second = sorted(eole.glob("model.*.safetensors"))
    second.unlink()
    save_file(load_file(first), second)
    with pytest.raises(ImportFormatError, match="duplicate"):
        read_eole(eole)
    for part in (first, second):
        part.unlink()
    with pytest.raises(ImportFormatError, match=r"has no model\.00\.safetensors"):
        read_eole(eole)
    (eole / "vocab.json").unlink()
    with pytest.raises(ImportFormatError, match=r"cannot read .*vocab\.json"):
        read_eole(eole)
    (eole / "vocab.json").write_text('{"src": {}, "tgt": []}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match=r"vocab\.json: vocab has no lists"):
        read_eole(eole)
    (eole / "config.json").write_text('{"model_type": "marian"}', encoding="utf-8")
    with pytest.raises(ImportFormatError, match="has no model"):
        read_eole(eole)


def test_source_has_its_prefix_and_no_eos(eole: Path, tmp_path: Path) -> None:
    prefix = {"transforms_configs.prefix": {"src_prefix": "madeupword0001 madeupword0000"}}
    _configure(eole, transforms=["sentencepiece", "prefix", "tokendrop"], **prefix)
    imported = read_eole(eole)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=3, unk=0)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    processor = SentencePieceProcessor(model_file=str(eole / "spm.model"))
    words = json.loads((eole / "vocab.json").read_text(encoding="utf-8"))["src"]

    for text in SOURCES:
        pieces = ["madeupword0001", "madeupword0000", *processor.EncodeAsPieces(text)]
        assert tokenizer.encode_pair(text, "")[0] == [words.index(piece) if piece in words else 0 for piece in pieces]


@pytest.mark.parametrize(
    ("option", "piece", "message"),
    [("src_prefix", "⦅x⦆", "vocabulary"), ("src_prefix", "▁a", "text"), ("tgt_prefix", "▁a", "expected ''")],
)
def test_unsupported_prefix_is_rejected(eole: Path, option: str, piece: str, message: str) -> None:
    _configure(eole, transforms=["sentencepiece", "prefix"], **{"transforms_configs.prefix": {option: piece}})

    with pytest.raises(ImportFormatError, match=f"{option} is '{piece}'.*{message}"):
        read_eole(eole)


def test_onmt_tokenize_must_be_plain_sentencepiece(eole: Path) -> None:
    expected = read_eole(eole).tokenizer
    options: dict[str, Any] = {}
    for side in ("src", "tgt"):
        options |= {f"{side}_subword_type": "sentencepiece", f"{side}_subword_model": "data/spm.model"}
        options |= {f"{side}_onmttok_kwargs": {"mode": "none"}, f"{side}_subword_alpha": 0.1}
    _configure(eole, transforms=["onmt_tokenize"], transforms_configs={"onmt_tokenize": options})
    assert read_eole(eole).tokenizer == expected

    for key, value, message in (
        ("src_subword_type", "bpe", "is 'bpe': expected sentencepiece"),
        ("tgt_subword_type", None, "is 'none': expected sentencepiece"),
        ("src_onmttok_kwargs", {"mode": "space"}, "src_onmttok_kwargs.mode is 'space': expected 'none'"),
        ("src_onmttok_kwargs", {"mode": "none", "case_markup": True}, "src_onmttok_kwargs.case_markup is True"),
        ("mapped_tokens", [["<a>", "⦅a⦆"]], "mapped_tokens is"),
        ("gpt2_pretok", True, "gpt2_pretok is True: expected False"),
    ):
        _configure(eole, transforms_configs={"onmt_tokenize": {**options, key: value}})
        with pytest.raises(ImportFormatError, match=message):
            read_eole(eole)


def test_sentencepiece_models_are_found(eole: Path) -> None:
    expected = read_eole(eole).tokenizer
    (eole / "spm.model").rename(eole / "source.model")
    with pytest.raises(ImportFormatError, match=r"cannot read .*spm\.model"):
        read_eole(eole)
    assert read_eole(eole, source_spm=eole / "source.model").tokenizer == expected
    _configure(eole, transforms=[])
    assert read_eole(eole).tokenizer == expected
    other = trained(SENTENCES[:6], size=70)
    (eole / "other.model").write_bytes(other)
    names = {"src_subword_model": "${MODEL_PATH}/source.model", "tgt_subword_model": "${MODEL_PATH}/other.model"}
    _configure(eole, transforms=["sentencepiece"], **{"transforms_configs.sentencepiece": names})
    assert read_eole(eole).tokenizer == expected  # a shared vocabulary uses the source's model
    _configure(eole, share_vocab=False)
    assert read_eole(eole).tokenizer.files["target.spm"] == other
