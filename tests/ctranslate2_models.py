"""Tiny CTranslate2 models, made by its converters and specifications."""

import json
import shutil
import struct
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from ctranslate2.converters import TransformersConverter
from ctranslate2.specs import TransformerDecoderSpec, TransformerEncoderSpec, TransformerSpec
from transformers import AutoTokenizer

from tests.foreign_models import pieces, trained
from tests.tiny_bundle import SENTENCES

_D_MODEL, _HEADS, _FFN, _LAYERS = 16, 4, 24, 2
_NO_LOGIT = -50.0  # of tokens that never occur in a target

_SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]  # first tokens of OpenNMT-py vocabularies


def convert_huggingface(
    directory: Path, save: Callable[[Path], Any], *, quantization: str | None = None, eos: float = 2.0
) -> None:
    """Convert a Hugging Face model and copy its SentencePiece files."""
    original = directory.parent / f"{directory.name}.huggingface"
    save(original)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an optional package
        spec = TransformersConverter(str(original))._load()
    tokens, projection = spec._vocabularies["target"][0], spec.decoder.projection
    if len(tokens) < len(projection.weight):  # tags of M2M-100, which only older versions of transformers list
        named = AutoTokenizer.from_pretrained(original).convert_ids_to_tokens(list(range(len(projection.weight))))
        tags = [token for token in named if token.startswith("__")]
        tokens[named.index(tags[0]) : named.index(tags[0])] = tags
    spec.config.bos_token = spec.config.bos_token or "<s>"  # missing for mBART-50, which cannot be loaded without
    bias = projection.bias.detach().numpy().copy() if projection.has_bias() else np.zeros(len(tokens), dtype=np.float32)
    projection.bias = _balanced(bias, tokens, eos)
    _write(spec, directory, quantization)
    for path in original.iterdir():
        if path.suffix in (".spm", ".model"):
            shutil.copy(path, directory / path.name)


def save_spec(
    directory: Path,
    *,
    quantization: str | None = None,
    is_separate: bool = False,  # two vocabularies and SentencePiece models, with different ids of special tokens
    tied: str = "none",  # `all`, `decoder` or `none`, of the tables
    bias: bool = True,  # of the projection
    eos: float = 2.0,  # logit added to EOS
    learned: bool = False,  # learned positions; otherwise none are stored
    kv_heads: int | None = None,  # of keys and values, for grouped queries
    rotary: dict[str, Any] | None = None,  # options of rotary positions, for both stacks
    scale: float = 0.5,  # of the tables
    seed: int = 5,
    version: int | None = None,  # of the binary format, below 6; None: the newest
    config: dict[str, Any] | None = None,  # fields of `config.json`
    change: Callable[[Any], object] = lambda spec: None,  # changes the specification before it is written
    **options: Any,
) -> None:
    """Write a random model like OpenNMT's converters, with SentencePiece files.

    `options` are those of `TransformerSpec.from_config`.
    """
    names = ["source.spm", "target.spm"] if is_separate else ["sentencepiece.model"]
    texts = [SENTENCES[:4], SENTENCES[4:]] if is_separate else [SENTENCES]
    models = [trained(text, size=70) for text in texts]
    sides = [[*_SPECIAL, *pieces(model)[3:]] for model in models]
    if is_separate:
        sides[0] = [_SPECIAL[2], *sides[0][4:], _SPECIAL[3], _SPECIAL[0]]  # no padding, and special tokens elsewhere
    spec = _specified(rotary, options)
    if kv_heads is not None:
        for block in _attentions(*spec.encoder.layer, *spec.decoder.layer):
            block.__dict__["num_heads_kv"] = np.int32(kv_heads)
    random = _Random(seed)
    for stack in (spec.encoder, spec.decoder):
        random.fill(stack)
        if learned:
            stack.position_encodings.encodings = random.draw(64, _D_MODEL)
    # Without random signs, a tied table makes every token its own likeliest successor.
    last = getattr(spec.decoder, "layer_norm", spec.decoder.layer[-1].ffn.layer_norm)
    last.gamma = last.gamma * np.sign(random.draw(_D_MODEL))
    table = random.draw(len(sides[-1]), _D_MODEL, scale=scale)
    own = [random.draw(len(side), _D_MODEL, scale=scale) for side in (sides[0], sides[-1])]
    spec.decoder.embeddings.weight = table
    spec.decoder.projection.weight = own[1] if tied == "none" else table
    spec.encoder.embeddings[0].weight = table if tied == "all" else own[0]
    if bias:
        spec.decoder.projection.bias = random.draw(len(sides[-1]))
        spec.decoder.projection.bias = _balanced(spec.decoder.projection.bias, sides[-1], eos)
    spec.register_source_vocabulary(sides[0])
    spec.register_target_vocabulary(sides[-1])
    for key, value in (config or {}).items():
        setattr(spec.config, key, value)
    change(spec)
    _write(spec, directory, quantization)
    for name, model in zip(names, models, strict=True):
        (directory / name).write_bytes(model)
    if version is not None:
        _age(directory, spec, version)


def _specified(rotary: dict[str, Any] | None, options: dict[str, Any]) -> Any:
    if rotary is None:
        return TransformerSpec.from_config((_LAYERS, _LAYERS), _HEADS, **options)
    kinds = TransformerEncoderSpec, TransformerDecoderSpec
    return TransformerSpec(*(kind(_LAYERS, _HEADS, **rotary, **options) for kind in kinds))


def _balanced(bias: Any, tokens: Sequence[str], eos: float) -> Any:
    for token in ("<unk>", "<blank>", "<pad>", "<s>"):
        if token in tokens:
            bias[tokens.index(token)] = _NO_LOGIT
    bias[tokens.index("</s>")] = eos
    return bias


def _write(spec: Any, directory: Path, quantization: str | None) -> None:
    spec.validate()
    spec.optimize(quantization=quantization)
    directory.mkdir(parents=True)
    spec.save(str(directory))


def _attentions(*layers: Any) -> list[Any]:
    blocks = [getattr(layer, name, None) for layer in layers for name in ("self_attention", "attention")]
    return [block for block in blocks if block is not None]


class _Random:
    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def draw(self, *shape: int, scale: float = 0.4) -> Any:
        return (self._generator.standard_normal(shape) * scale).astype(np.float32)

    def fill(self, stack: Any) -> None:
        for layer in stack.layer:
            for block in _attentions(layer):
                self._fill_attention(block)
            for name in ("linear_0", "linear_0_noact", "linear_1"):
                rows, columns = (_D_MODEL, _FFN) if name == "linear_1" else (_FFN, _D_MODEL)
                if hasattr(layer.ffn, name):
                    self._fill_linear(getattr(layer.ffn, name), rows, columns)
            self._fill_norm(layer.ffn.layer_norm)
        for name in ("layer_norm", "layernorm_embedding"):
            if hasattr(stack, name):
                self._fill_norm(getattr(stack, name))

    def _fill_attention(self, block: Any) -> None:
        keys = _D_MODEL // _HEADS * int(getattr(block, "num_heads_kv", _HEADS))
        fused = [_D_MODEL + 2 * keys] if len(block.linear) == 2 else [_D_MODEL, 2 * keys]
        for linear, rows in zip(block.linear, [*fused, _D_MODEL], strict=True):
            self._fill_linear(linear, rows, _D_MODEL)
        self._fill_norm(block.layer_norm)

    def _fill_linear(self, linear: Any, rows: int, columns: int) -> None:
        linear.weight, linear.bias = self.draw(rows, columns), self.draw(rows, scale=0.1)

    def _fill_norm(self, norm: Any) -> None:
        norm.gamma = 1 + self.draw(_D_MODEL, scale=0.2)
        if hasattr(norm, "beta"):
            norm.beta = self.draw(_D_MODEL, scale=0.1)


_NO_LONGER: Sequence[str] = ("multi_query_attention",)
_ONCE: Sequence[str] = ("num_heads", "pre_norm", "activation", "embeddings_merge")


def _age(directory: Path, spec: Any, version: int) -> None:
    variables = {name: value for name, value in spec.variables(ordered=True) if name.split("/")[-1] not in _NO_LONGER}
    aliases = {name: value for name, value in variables.items() if isinstance(value, str)}
    arrays = {name: value.numpy() for name, value in variables.items() if not isinstance(value, str)}
    arrays["with_source_eos"] = np.int8(spec.config.add_source_eos)
    arrays["with_target_bos"] = np.int8(spec.config.decoder_start_token == _SPECIAL[2])
    if version < 4:
        for name in _ONCE:
            arrays[name] = arrays.pop(f"encoder/{name}").astype(np.int8)
            arrays.pop(f"decoder/{name}", None)
        arrays["alignment_layer"] = arrays.pop("decoder/alignment_layer")
        arrays = {name.replace("embeddings_0", "embeddings"): array for name, array in arrays.items()}
        aliases = {name.replace("embeddings_0", "embeddings"): array for name, array in aliases.items()}
    if version < 3:
        arrays |= {name: arrays[value] for name, value in aliases.items()}
    with (directory / "model.bin").open("wb") as file:
        file.write(struct.pack("<I", version))
        _write_text(file, "TransformerSpec")
        file.write(struct.pack("<II", 4 if version < 4 else 5, len(arrays)))
        for name, array in arrays.items():
            _write_text(file, name)
            file.write(struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape))
            number = ("float32", "int8", "int16", "int32", "float16").index(array.dtype.name)
            kind = (array.itemsize, array.size) if version < 4 else (number, array.nbytes)
            file.write(struct.pack("<BI", *kind) + array.tobytes())
        if version >= 3:
            file.write(struct.pack("<I", len(aliases)))
            for alias, name in aliases.items():
                _write_text(file, alias)
                _write_text(file, name)
    (directory / "config.json").unlink()
    for path in directory.glob("*_vocabulary.json"):
        tokens = json.loads(path.read_text(encoding="utf-8"))
        path.with_suffix(".txt").write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")
        path.unlink()


def _write_text(file: BinaryIO, text: str) -> None:
    content = text.encode() + b"\0"
    file.write(struct.pack("<H", len(content)) + content)
