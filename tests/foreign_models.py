"""Tiny models of Hugging Face transformers with random weights, saved by that library."""

import functools
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BartTokenizer,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    NllbTokenizer,
)

from tests.tiny_bundle import SENTENCES

# known words, unknown characters, and characters that a normaliser changes
SOURCES = (*SENTENCES[:4], "Who is it?", "漢字 and über-long words, 42 of them: it's “quoted” …")

_STACK_SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 24}
_SHAPE = {
    **{f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in _STACK_SIZES.items()},
    "d_model": 16,
    "max_position_embeddings": 64,
    "init_std": 0.4,  # so that tokens differ in probability
}
_EOS_LOGIT = 5.0  # logit added to EOS, so that most targets end before the limit


@functools.cache
def trained(sentences: Sequence[str], *, size: int, model_type: str = "unigram") -> bytes:
    """Return a SentencePiece model with the special tokens that these libraries expect: no padding, no bytes."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type=model_type,
        vocab_size=size,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()


def pieces(model: bytes) -> list[str]:
    """Return all pieces of a SentencePiece model."""
    processor = SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return [processor.IdToPiece(token_id) for token_id in range(processor.GetPieceSize())]


def save_marian(
    directory: Path, *, tags: Sequence[str] = (), is_separate: bool = False, seed: int = 3, **options: Any
) -> Any:
    """Save a model like OPUS-MT: one vocabulary for two SentencePiece models, padding last; or two vocabularies."""
    directory.mkdir(parents=True)
    sides = {"source.spm": trained(SENTENCES[:4], size=60), "target.spm": trained(SENTENCES[4:], size=70)}
    for name, content in sides.items():
        (directory / name).write_bytes(content)
    words = [pieces(model)[3:] for model in sides.values()]
    if is_separate:
        source, target = (["</s>", "<unk>", "<pad>", *side] for side in words)
        vocabularies = {"vocab": source, "target_vocab": target}
        options = {"share_encoder_decoder_embeddings": False, **options}
    else:
        vocabularies = {"vocab": ["</s>", "<unk>", *dict.fromkeys(words[0] + words[1]), *tags, "<pad>"]}
    for name, vocabulary in vocabularies.items():
        _write_json(directory / f"{name}.json", {piece: token_id for token_id, piece in enumerate(vocabulary)})
    pad_id = vocabularies["vocab"].index("<pad>")
    sizes = [len(vocabulary) for vocabulary in vocabularies.values()]
    special = {"pad_token_id": pad_id, "decoder_start_token_id": pad_id, "eos_token_id": 0, "bos_token_id": None}
    fields = {"activation_function": "swish", "scale_embedding": True, **special}
    options = {"vocab_size": sizes[0], "decoder_vocab_size": sizes[-1], **options}
    model = _random(MarianMTModel, MarianConfig(**{**_SHAPE, **fields, **options}), seed)
    with torch.no_grad():
        model.final_logits_bias.normal_(generator=torch.Generator().manual_seed(seed))
        model.final_logits_bias[0, 0] = _EOS_LOGIT
    model.generation_config.update(bad_words_ids=[[pad_id]], num_beams=6, renormalize_logits=True, max_length=64)
    model.save_pretrained(directory)
    settings = {"tokenizer_class": "MarianTokenizer", "source_lang": "en", "target_lang": "de"}
    _write_json(directory / "tokenizer_config.json", {**settings, "separate_vocabs": is_separate})
    return model


def save_m2m100(directory: Path, *, seed: int = 3, **options: Any) -> Any:
    """Save a model like M2M-100: tags of a hundred languages after the pieces, and eight unused words."""
    directory.mkdir(parents=True)
    model = trained(SENTENCES, size=90, model_type="bpe")
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *pieces(model)[3:]]
    _write_json(directory / "vocab.json", {piece: token_id for token_id, piece in enumerate(vocabulary)})
    _write_json(directory / "tokenizer_config.json", {"tokenizer_class": "M2M100Tokenizer", "num_madeup_words": 8})
    fields = {**_SHAPE, "vocab_size": len(vocabulary) + 100 + 8}
    network = _random(M2M100ForConditionalGeneration, M2M100Config(**{**fields, **options}), seed)
    _end_by_itself(network)
    network.save_pretrained(directory)
    return network


def save_nllb(directory: Path, *, seed: int = 3, **options: Any) -> Any:
    """Save a model like NLLB-200, with three languages."""
    directory.mkdir(parents=True)
    model = trained(SENTENCES, size=90, model_type="bpe")
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    languages = ["eng_Latn", "deu_Latn", "fra_Latn"]
    tokenizer = NllbTokenizer.from_pretrained(directory, additional_special_tokens=languages)
    tokenizer.save_pretrained(directory)
    fields = {**_SHAPE, "vocab_size": len(tokenizer)}
    network = _random(M2M100ForConditionalGeneration, M2M100Config(**{**fields, **options}), seed)
    _end_by_itself(network)
    network.save_pretrained(directory)
    return network


def save_mbart50(directory: Path, *, seed: int = 3, **options: Any) -> Any:
    """Save a model like mBART-50."""
    directory.mkdir(parents=True)
    model = trained(SENTENCES, size=90)
    (directory / "sentencepiece.bpe.model").write_bytes(model)
    tokenizer = MBart50Tokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    fields = {**_SHAPE, "vocab_size": len(tokenizer), "scale_embedding": True, "decoder_start_token_id": 2}
    network = _random(MBartForConditionalGeneration, MBartConfig(**{**fields, **options}), seed)
    with torch.no_grad():
        network.final_logits_bias[0, 2] = _EOS_LOGIT
    network.save_pretrained(directory)
    return network


def save_bart(directory: Path, *, seed: int = 3, **options: Any) -> Any:
    """Save a model like BART, with byte-level BPE of a hundred merges."""
    directory.mkdir(parents=True)
    splitter = Tokenizer(models.BPE())
    splitter.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    splitter.train_from_iterator(SENTENCES, trainer)
    learned = json.loads(splitter.to_str())["model"]
    _write_json(directory / "vocab.json", {**learned["vocab"], "<mask>": len(learned["vocab"])})
    merges = "\n".join(["#version: 0.2", *(" ".join(merge) for merge in learned["merges"]), ""])
    (directory / "merges.txt").write_text(merges, encoding="utf-8")
    BartTokenizer.from_pretrained(directory).save_pretrained(directory)
    fields = {**_SHAPE, "vocab_size": len(learned["vocab"]) + 1}
    network = _random(BartForConditionalGeneration, BartConfig(**{**fields, **options}), seed)
    with torch.no_grad():
        network.final_logits_bias[0, 2] = 2 * _EOS_LOGIT
    network.generation_config.update(forced_bos_token_id=0)
    network.save_pretrained(directory)
    return network


def change(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    _write_json(path, {**json.loads(path.read_text(encoding="utf-8")), **fields})


def _random(kind: Any, config: Any, seed: int) -> Any:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = kind(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
            elif "layer_norm" in name or "layernorm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        # Without random signs, the shared embedding makes every token its own likeliest successor.
        decoder = model.model.decoder
        last = getattr(decoder, "layer_norm", decoder.layers[-1].final_layer_norm)
        last.weight.mul_(torch.sign(torch.randn_like(last.weight)))
    return model.eval()


def _end_by_itself(model: Any) -> None:
    # Favours EOS by the last normalisation, because the logits have no bias.
    with torch.no_grad():
        eos = model.model.shared.weight[model.config.eos_token_id]
        model.model.decoder.layer_norm.bias.copy_(_EOS_LOGIT * eos / eos.square().sum())


def _write_json(path: Path, fields: Any) -> None:
    path.write_text(json.dumps(fields, ensure_ascii=False), encoding="utf-8")
