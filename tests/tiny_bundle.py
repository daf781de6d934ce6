"""A bundle with a tiny network of random weights, for tests that need graphs and a tokenizer."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from sentencepiece import SentencePieceProcessor
from torch import nn

from dragoman_export.bundle_writer import BundleDescription, exporter_version, write_bundle
from dragoman_export.data.vocabulary import EOS_ID, Vocabulary, VocabularyConfig, train_vocabulary
from dragoman_export.importers.portable import TokenizerDescription, TokenizerFiles
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.calibration import calibrate
from dragoman_export.onnx_export.network import Network
from dragoman_export.onnx_export.quantize import ProductKind
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.files import Bundle, open_bundle
from dragoman_service.bundle.manifest import Provenance

SENTENCES = (
    "A man rides a bicycle through the old town.",
    "Two children play with a red ball in the garden.",
    "The train to the coast leaves at seven in the morning.",
    "She reads a long letter from her sister.",
    "Ein Mann fährt mit dem Fahrrad durch die alte Stadt.",
    "Zwei Kinder spielen im Garten mit einem roten Ball.",
    "Der Zug an die Küste fährt um sieben Uhr morgens ab.",
    "Sie liest einen langen Brief von ihrer Schwester.",
)
_VOCABULARY_SIZE = 320
"""Four special pieces, 256 bytes, and some real ones."""
_LIMITS = Limits(max_source_tokens=64, max_target_tokens=64)
_LOGIT_SCALE = 1.5
"""Spread of the logits: wide enough that some tokens stand out."""
_EOS_LOGIT = 3.0
"""Head start of the end-of-sentence token."""
_EOS_SLOPE = 2.0
"""Component of the EOS embedding along `_SLOW_DIMENSION`, which makes EOS likelier at later positions."""
_SLOW_DIMENSION = 13
"""Dimension of the position encodings: the cosine that falls from 1 to -1 within 150 positions at width 32."""
_ATTENTION_INPUTS = ("query.weight", "key.weight", "value.weight")


def build_tiny_bundle(
    directory: Path,
    *,
    name: str = "tiny",
    version: str = "1",
    source_language: str = "en",
    target_language: str = "de",
    precisions: tuple[str, ...] = ("fp32", "int8"),
    norm: Literal["pre", "post"] = "pre",
    seed: int = 1,
    is_calibrated: bool = False,
    levels: Literal[127, 255] = 255,
    calibration: Sequence[tuple[list[int], list[int]]] = (),
    kept: frozenset[ProductKind] = frozenset(),
    **variant: Any,
) -> Bundle:
    """Write a bundle into a directory, which must not exist, and return it opened.

    Translations are nonsense, differ from text to text, and end by themselves. A calibrated bundle has
    measured scales of int8 activations, from some sentences and from `calibration`; other bundles have scales by row.
    Products of the kinds in `kept` also stay in floats in int8. `variant` overrides fields of `ModelConfig`.
    """
    vocabulary = tiny_vocabulary()
    description = BundleDescription(
        name=name,
        version=version,
        source_language=source_language,
        target_language=target_language,
        limits=_LIMITS,
        precisions=precisions,
        provenance=Provenance(exporter_version=exporter_version(), checkpoint="random", checkpoint_sha256="0" * 64),
        licence="CC0-1.0",
        attribution="nobody: random weights",
    )
    model = tiny_model(len(vocabulary), norm=norm, seed=seed, **variant)
    pairs = [*_calibration_pairs(vocabulary), *calibration]
    roundings = calibrate(model, pairs, levels=levels) if is_calibrated else {}
    write_bundle(directory, Network.of(model, roundings, kept=kept), _tokenizer(vocabulary, model.config), description)
    return open_bundle(directory)


def _tokenizer(vocabulary: Vocabulary, config: ModelConfig) -> Vocabulary | TokenizerFiles:
    """Return the vocabulary, explicit for another start of decoding or more source than target tokens."""
    if config.start_id == config.bos_id and config.source_vocabulary_size is None:
        return vocabulary
    processor = SentencePieceProcessor(model_proto=vocabulary.model)
    pieces = [processor.IdToPiece(token_id) for token_id in range(len(vocabulary))]
    more = [f"of sources {number}" for number in range(config.num_source_tokens - len(pieces))]
    files = {"model": vocabulary.model, "pieces": _as_json(pieces), "source_pieces": _as_json(pieces + more)}
    names = TokenizerDescription(model="model", pieces="pieces", source_pieces="source_pieces")
    return TokenizerFiles(description=names, files=files)


def _as_json(pieces: list[str]) -> bytes:
    return json.dumps(pieces).encode()


def _calibration_pairs(vocabulary: Vocabulary) -> list[tuple[list[int], list[int]]]:
    encoded = vocabulary.encode(SENTENCES)
    half = len(encoded) // 2
    return list(zip(encoded[:half], encoded[half:], strict=True))


@functools.cache
def tiny_vocabulary() -> Vocabulary:
    """Return a SentencePiece vocabulary learned from a handful of sentences."""
    return train_vocabulary(iter(SENTENCES), VocabularyConfig(size=_VOCABULARY_SIZE))


def tiny_model(
    vocabulary_size: int, *, norm: Literal["pre", "post"] = "pre", seed: int = 1, **variant: Any
) -> Transformer:
    """Return a network with random weights in evaluation mode; `variant` overrides fields of `ModelConfig`."""
    usual = {"d_model": 32, "num_heads": 2, "ffn_size": 64, "num_encoder_layers": 2, "num_decoder_layers": 2}
    config = ModelConfig(**{"vocabulary_size": vocabulary_size, "norm": norm, **usual, **variant})
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = Transformer(config)
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.uniform_(-0.1, 0.1)
            elif name.endswith(_ATTENTION_INPUTS):  # so that translations depend more on the source
                parameter.mul_(2**0.5)
        _end_by_itself(model)
    return model.eval()


def _end_by_itself(model: Transformer) -> None:
    """Change the last normalization so that translations differ from text to text and end with EOS."""
    config = model.config
    path = (
        "decoder.norm" if config.has_final_norm else f"decoder.layers.{config.num_decoder_layers - 1}.feed_forward_norm"
    )
    last = model.get_submodule(path)
    assert isinstance(last, nn.LayerNorm | nn.RMSNorm)
    # Without random signs the shared embedding would make every token the likeliest successor of itself.
    last.weight.copy_(_LOGIT_SCALE * torch.sign(torch.randn_like(last.weight)))
    table = model.embedding.weight if model.projection.weight is None else model.projection.weight
    eos = table[EOS_ID]
    eos[_SLOW_DIMENSION] = -_EOS_SLOPE * last.weight[_SLOW_DIMENSION].sign()  # the later, the likelier
    if isinstance(last, nn.LayerNorm):
        last.bias.copy_(_EOS_LOGIT * eos / eos.square().sum())
