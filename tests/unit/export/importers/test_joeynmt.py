from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceProcessor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.joeynmt import read_joeynmt
from dragoman_service.bundle.manifest import SpecialIds
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.foreign_checkpoints.drawing import configure
from tests.foreign_checkpoints.joeynmt import JOEYNMT, LEFT_OUT, save_joeynmt
from tests.foreign_models import SOURCES


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_joeynmt(tmp_path / "saved", JOEYNMT["post-norm, all tied"])
    return tmp_path / "saved"


def _configure(directory: Path, option: str, value: object) -> None:
    configure(directory / "config.yaml", option, value)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("model.encoder.type", "recurrent", "expected 'transformer'"),
        ("model.encoder.rotary", True, "an option that this importer knows"),
        ("model.decoder.num_heads", 4, "expected 2"),
        ("model.decoder.ff_size", 32, "expected 24"),
        ("model.decoder.layer_norm", "pre", "expected 'post'"),
        ("model.encoder.layer_norm", None, "expected a value of type str"),
        ("model.encoder.activation", "tanh", "activation is 'relu': expected 'tanh'"),
        ("model.encoder.embeddings.embedding_dim", 8, "expected 16"),
        ("model.encoder.hidden_size", 8, "hidden_size is 16: expected 8"),
        ("model.encoder.num_layers", "2", "expected a value of type int"),
        ("data.src.level", "word", "expected 'bpe'"),
        ("data.src.tokenizer_type", "subword-nmt", "expected 'sentencepiece'"),
        ("data.src.lowercase", True, "expected False"),
        ("data.trg.normalize", True, "expected False"),
        ("data.src.has_prompt", True, "expected False"),
        ("data.src.tokenizer_cfg.pretokenizer", "moses", "expected 'none'"),
        ("data.src.tokenizer_cfg.dropout", 0.1, "an option that this importer knows"),
        ("data.special_symbols.pad_id", 0, "expected 1"),
        ("data.special_symbols.sep_token", "<sep>", "expected none"),
        ("data.special_symbols.lang_tags", ["<de>"], r"expected \[\]"),
        ("testing.no_repeat_ngram_size", 3, "expected -1 or 0"),
        ("testing.repetition_penalty", 1.5, "expected -1 or 1"),
    ],
)
def test_an_option_that_would_change_a_result_is_refused_by_name(
    saved: Path, path: str, value: object, told: str
) -> None:
    _configure(saved, path, value)

    with pytest.raises(ImportFormatError, match=told) as raised:
        read_joeynmt(saved)
    assert path.rpartition(".")[2] in str(raised.value)


@pytest.mark.parametrize(("option", "value"), [("activation", "tanh"), ("layer_norm", "sandwich")])
def test_a_network_that_cannot_be_served_is_refused_by_name(saved: Path, option: str, value: str) -> None:
    for stack in ("encoder", "decoder"):
        _configure(saved, f"model.{stack}.{option}", value)

    with pytest.raises(ImportFormatError, match=f"model.encoder.{option} is '{value}': expected '"):
        read_joeynmt(saved)


def test_residuals_are_weighted_with_post_norm_only(tmp_path: Path) -> None:
    save_joeynmt(tmp_path / "pre", JOEYNMT["pre-norm, two vocabularies"])
    _configure(tmp_path / "pre", "model.decoder.alpha", 2)
    with pytest.raises(ImportFormatError, match=r"alpha is \{'encoder': 1\.0, 'decoder': 2\.0\}: with pre-norm"):
        read_joeynmt(tmp_path / "pre")

    save_joeynmt(tmp_path / "post", JOEYNMT["post-norm, all tied"])
    before = read_joeynmt(tmp_path / "post")
    for stack in ("encoder", "decoder"):
        _configure(tmp_path / "post", f"model.{stack}.alpha", 2)
    after = read_joeynmt(tmp_path / "post")
    assert after.config.norm_epsilon == before.config.norm_epsilon / 4 == 1e-6 / 4
    halved = {name for name, tensor in after.weights.items() if not torch.equal(tensor, before.weights[name])}
    assert {name.split(".", 3)[-1] for name in halved} == {
        f"{block}.{part}"
        for block in ("self_attention.output", "cross_attention.output", "feed_forward.outer")
        for part in ("weight", "bias")
    }
    assert all(torch.equal(after.weights[name] * 2, before.weights[name]) for name in halved)


@pytest.mark.parametrize(
    ("alter", "told"),
    [
        (lambda it: it.pop("model_state"), "holds NoneType: expected tensors by name"),
        (lambda it: it.update(optimizer_state=Fraction(1, 2)), r"it names fractions\.Fraction"),
        (lambda it: it["model_state"].pop("encoder.layers.1.layer_norm.bias"), "there is no tensor encoder.layers.1"),
        (lambda it: it["model_state"].update(more=torch.ones(1)), "nothing is known of tensor more"),
        (lambda it: it["model_state"]["decoder.pe.pe"].add_(1), r"decoder\.pe\.pe holds other positions"),
        (lambda it: it["model_state"].update({"src_embed.lut.weight": torch.ones(101, 16)}), "config.yaml ties them"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(
    saved: Path, alter: Callable[[dict[str, Any]], object], told: str
) -> None:
    content = torch.load(saved / "7.ckpt", weights_only=True)
    alter(content)
    torch.save(content, saved / "7.ckpt")

    with pytest.raises(ImportFormatError, match=told):
        read_joeynmt(saved)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("a: &a [x, x]\nb: *a\n", r"has aliases \(\*name\)"),
        ("- a list\n", "list in place of fields"),
        ("a: [", "holds no YAML"),
        ("!!python/object/apply:os.getcwd []", "holds no YAML"),
    ],
)
def test_a_configuration_that_is_no_plain_one_is_refused(saved: Path, content: str, told: str) -> None:
    (saved / "config.yaml").write_text(content, encoding="utf-8")

    with pytest.raises(ImportFormatError, match=told):
        read_joeynmt(saved)


def test_two_vocabularies_cannot_have_one_table(saved: Path) -> None:
    (saved / "src_vocab.txt").write_text("<unk>\n<pad>\n<s>\n</s>\na\n", encoding="utf-8")

    with pytest.raises(ImportFormatError, match="tied_embeddings is True, but the vocabularies differ"):
        read_joeynmt(saved)


def test_only_pieces_of_the_vocabulary_are_used(saved: Path, tmp_path: Path) -> None:
    imported = read_joeynmt(saved)
    imported.tokenizer.write(tmp_path)
    ids = SpecialIds(pad=1, bos=2, eos=3, unk=0)
    tokenizer = SentencePieceTokenizer(tmp_path / "target.spm", imported.tokenizer.description.tokenization, ids)
    unrestricted = SentencePieceProcessor(model_file=str(saved / "spm.model"))
    words = (saved / "src_vocab.txt").read_text(encoding="utf-8").splitlines()

    assert {piece for text in SOURCES for piece in unrestricted.EncodeAsPieces(text)} & set(LEFT_OUT)
    for text in SOURCES:
        restricted = SentencePieceProcessor(model_file=str(tmp_path / "target.spm")).EncodeAsPieces(text)
        assert not set(restricted) & set(LEFT_OUT)
        assert "".join(restricted) == "".join(unrestricted.EncodeAsPieces(text))
        expected = [words.index(piece) if piece in words else 0 for piece in restricted]
        assert tokenizer.encode_pair(text, "")[0] == [*expected, 3]
