"""Reads Transformers that JoeyNMT 2 trained, from the directory of a run.

What the options mean is read from the code of JoeyNMT 2.3. Of its configuration the parts `model`, `data` and `testing`
say what is computed from a text; the rest is about training.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import torch
from google.protobuf.message import DecodeError
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import ForeignConfig, float_tensors, read_checkpoint, read_plain, read_yaml
from dragoman_export.importers.huggingface_text import Text
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.layers import sinusoidal_positions
from dragoman_service.bundle.architecture import Limits

_CHECKPOINT: Final = "best.ckpt"

_EPSILON: Final = 1e-6
"""Of every normalisation."""

_MAX_POSITIONS: Final = 5000
"""Sinusoids that are stored."""
_SAME_POSITIONS: Final = 1e-3
"""Largest difference of stored sinusoids from those computed here in double precision."""

_SPECIAL: Final = {"unk": "<unk>", "pad": "<pad>", "bos": "<s>", "eos": "</s>"}
"""Special tokens in the order of their ids, which no configuration can change, and how they are spelled by default."""

_STACKS: Final = ("encoder", "decoder")
_SIDES: Final = ("src", "trg")

_ACTIVATIONS: Final = {"relu": "relu", "gelu": "gelu", "swish": "swish"}

_HARMLESS: Final = (
    *(f"model.{key}" for key in ("bias_initializer", "bias_init_weight", "init_gain", "init_weight")),
    *(f"model.{key}" for key in ("embed_initializer", "embed_init_weight", "embed_init_gain")),
    *(f"model.{key}" for key in ("init_rnn_orthogonal", "lstm_forget_gate")),
    *(f"model.{stack}.{key}" for stack in _STACKS for key in ("dropout", "freeze")),
    *(f"model.{stack}.embeddings.{key}" for stack in _STACKS for key in ("dropout", "freeze", "load_pretrained")),
    *(f"data.{side}.{key}" for side in _SIDES for key in ("lang", "max_length", "min_length", "voc_limit")),
    *(f"data.{side}.{key}" for side in _SIDES for key in ("voc_min_freq", "voc_file")),
    *(f"data.{side}.tokenizer_cfg.{key}" for side in _SIDES for key in ("nbest_size", "alpha", "model_type")),
    *(f"data.{side}.tokenizer_cfg.{key}" for side in _SIDES for key in ("lang", "character_coverage", "num_threads")),
    "data.trg.lowercase",
)
"""Options that matter in training only, or that tensors and files show."""

_ATTENTION: Final = {"q_layer": "query", "k_layer": "key", "v_layer": "value", "output_layer": "output"}
_FEED_FORWARD: Final = {
    "feed_forward.layer_norm": "feed_forward_norm",
    "feed_forward.pwff_layer.0": "feed_forward.inner",
    "feed_forward.pwff_layer.3": "feed_forward.outer",
}
_LAYERS: Final[Mapping[str, Mapping[str, str]]] = {
    "encoder": {
        "layer_norm": "self_attention_norm",
        **{f"src_src_att.{theirs}": f"self_attention.{ours}" for theirs, ours in _ATTENTION.items()},
        **_FEED_FORWARD,
    },
    "decoder": {
        "x_layer_norm": "self_attention_norm",
        "dec_layer_norm": "cross_attention_norm",
        **{f"trg_trg_att.{theirs}": f"self_attention.{ours}" for theirs, ours in _ATTENTION.items()},
        **{f"src_trg_att.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
        **_FEED_FORWARD,
    },
}
"""Parts of a layer of each stack, theirs to ours."""

_ADDED_TO_RESIDUAL: Final = ("output", "outer")
"""Projections whose result is added to the residual stream."""


_T = TypeVar("_T")


def read_joeynmt(directory: Path) -> ImportedModel:
    """Read `config.yaml`, `best.ckpt`, `src_vocab.txt`, `trg_vocab.txt` and the SentencePiece models of a run.

    Of the checkpoint nothing but tensors and plain values is loaded.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
    """
    settings = ForeignConfig(directory / "config.yaml", read_yaml(directory / "config.yaml"))
    special = _read_special(settings)
    source, target = (_read_vocabulary(directory / f"{side}_vocab.txt", special) for side in _SIDES)
    models = [
        _read_model(directory, side, settings, pieces) for side, pieces in zip(_SIDES, (source, target), strict=True)
    ]
    num_layers = {stack: settings.take(f"model.{stack}.num_layers", int) for stack in _STACKS}
    alphas = _read_alphas(settings, num_layers)
    config = _read_config(settings, num_layers, alphas, (source, target))
    settings.require("testing.repetition_penalty", -1, 1)
    settings.require("testing.no_repeat_ngram_size", -1, 0)
    settings.finish(_HARMLESS, prefixes=("model.", "data.src.", "data.trg.", "data.special_symbols."))
    checkpoint = directory / _CHECKPOINT
    weights = float_tensors(read_checkpoint(checkpoint).get("model_state"), checkpoint)
    most = min(_MAX_POSITIONS, MAX_TOKENS)
    return ImportedModel(
        config=config,
        limits=Limits(max_source_tokens=most, max_target_tokens=most),
        weights=_Weights(weights, checkpoint).translated(config, alphas),
        tokenizer=Text(
            model=models[1],
            source_model=models[0],
            pieces=target,
            source_pieces=source,
        ).files(),
    )


def _read_special(settings: ForeignConfig) -> tuple[str, ...]:
    """Return how the special tokens are spelled."""
    for token_id, name in enumerate(_SPECIAL):
        settings.require(f"data.special_symbols.{name}_id", token_id)
    settings.require("data.special_symbols.lang_tags", [])
    for key in ("sep_id", "sep_token"):
        settings.require(f"data.special_symbols.{key}")
    return tuple(
        settings.take(f"data.special_symbols.{name}_token", str, default=spelled) for name, spelled in _SPECIAL.items()
    )


def _read_vocabulary(path: Path, special: tuple[str, ...]) -> tuple[str, ...]:
    try:
        lines = read_plain(path).decode().splitlines()
    except UnicodeDecodeError as error:
        raise ImportFormatError(f"{path} is no text in UTF-8") from error
    return tuple(dict.fromkeys((*special, *lines)))


def _read_model(directory: Path, side: str, settings: ForeignConfig, pieces: tuple[str, ...]) -> bytes:
    """Return the SentencePiece model of a side, which may use only those of its pieces that are in the vocabulary."""
    path = f"data.{side}"
    settings.require(f"{path}.level", "bpe")
    settings.require(f"{path}.normalize", False)
    settings.require(f"{path}.has_prompt", False)
    settings.require(f"{path}.tokenizer_cfg.pretokenizer", "none")
    if side == "src":
        settings.require(f"{path}.lowercase", False)
    for key in ("tokenizer_type", "bpe_type"):
        settings.require(f"{path}.{key}", "sentencepiece")
    file = directory / Path(settings.take(f"{path}.tokenizer_cfg.model_file", str)).name  # a run has a copy of it
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    try:
        model.ParseFromString(read_plain(file))
    except DecodeError as error:
        raise ImportFormatError(f"{file} is no SentencePiece model") from error
    # As `SetVocabulary` of SentencePiece does, by which JoeyNMT restricts it; single characters stay.
    known, kinds = set(pieces), model.SentencePiece
    for piece in model.pieces:
        if piece.type == kinds.NORMAL and piece.piece not in known and len(piece.piece) > 1:
            piece.type = kinds.UNUSED
    return bytes(model.SerializeToString())


def _read_alphas(settings: ForeignConfig, num_layers: Mapping[str, int]) -> dict[str, float]:
    """Return for each stack by what its layers multiply the residual stream before they add to it."""
    alphas = {stack: settings.take(f"model.{stack}.alpha", float, default=1.0) for stack in _STACKS}
    if settings.take("model.initializer", str, default="xavier_uniform") != "xavier_normal":
        return alphas
    # With this initializer those of DeepNet are used, whatever is given (Wang et al. 2022, arXiv:2203.00555).
    encoder, decoder = num_layers.values()
    return {"encoder": 0.81 * (encoder**4 * decoder) ** (1 / 16), "decoder": (3 * decoder) ** (1 / 4)}


def _read_config(
    settings: ForeignConfig,
    num_layers: Mapping[str, int],
    alphas: Mapping[str, float],
    vocabularies: tuple[Sequence[str], Sequence[str]],
) -> ModelConfig:
    """Return the shape, and refuse what would make another."""
    for stack in _STACKS:
        settings.require(f"model.{stack}.type", "transformer")
    sizes = {key: _of_both(settings, key, int) for key in ("hidden_size", "num_heads", "ff_size")}
    settings.require("model.encoder.embeddings.embedding_dim", sizes["hidden_size"])
    settings.require("model.decoder.embeddings.embedding_dim", sizes["hidden_size"])
    norm, activation = _of_both(settings, "layer_norm", str), _of_both(settings, "activation", str, default="relu")
    if norm not in ("pre", "post"):
        raise ImportFormatError(f"{settings.path}: model.encoder.layer_norm is {norm!r}: expected 'pre' or 'post'")
    if activation not in _ACTIVATIONS:
        expected = ", ".join(map(repr, _ACTIVATIONS))
        raise ImportFormatError(f"{settings.path}: model.encoder.activation is {activation!r}: expected {expected}")
    if norm == "pre" and any(alpha != 1 for alpha in alphas.values()):
        raise ImportFormatError(f"{settings.path}: alpha is {alphas}: with pre-norm 1 is expected")
    is_shared = settings.take("model.tied_embeddings", bool, default=False)
    source, target = vocabularies
    if is_shared and source != target:
        raise ImportFormatError(f"{settings.path}: model.tied_embeddings is True, but the vocabularies differ")
    is_tied = settings.take("model.tied_softmax", bool, default=False)
    if is_shared:  # the decoder's options of embeddings mean nothing then
        scales = settings.take("model.encoder.embeddings.scale", bool, default=False)
        settings.ignore(["model.decoder.embeddings.scale"])
    else:
        scales = _of_both(settings, "embeddings.scale", bool, default=False)
    unk_id, pad_id, bos_id, eos_id = range(len(_SPECIAL))
    config = ModelConfig(
        vocabulary_size=len(target),
        source_vocabulary_size=None if source == target else len(source),
        d_model=sizes["hidden_size"],
        num_heads=sizes["num_heads"],
        ffn_size=sizes["ff_size"],
        num_encoder_layers=num_layers["encoder"],
        num_decoder_layers=num_layers["decoder"],
        norm=norm,  # type: ignore[arg-type]
        activation=_ACTIVATIONS[activation],  # type: ignore[arg-type]
        norm_epsilon=_EPSILON / alphas["decoder"] ** 2,
        scale_embeddings=scales,
        tied_embeddings="none" if not is_tied else "all" if is_shared else "decoder",
        pad_id=pad_id,
        bos_id=bos_id,
        eos_id=eos_id,
        unk_id=unk_id,
    )
    check_sizes(config, settings.path)
    return config


def _of_both(settings: ForeignConfig, key: str, kind: type[_T], default: _T | None = None) -> _T:
    """Return an option of both stacks, which are alike here."""
    encoder, decoder = (settings.take(f"model.{stack}.{key}", kind, default) for stack in _STACKS)
    if encoder != decoder:
        raise ImportFormatError(f"{settings.path}: model.decoder.{key} is {decoder!r}: expected {encoder!r}")
    return encoder


class _Weights:
    """The tensors of a checkpoint, each to be used once."""

    def __init__(self, weights: dict[str, Tensor], origin: Path) -> None:
        """Take tensors; `origin` is what errors name."""
        self._left = weights
        self._origin = origin

    def translated(self, config: ModelConfig, alphas: Mapping[str, float]) -> dict[str, Tensor]:
        """Return the weights by our names; ImportFormatError names a tensor that is missing, or left over."""
        weights = self._tables(config)
        for stack, num_layers in (("encoder", config.num_encoder_layers), ("decoder", config.num_decoder_layers)):
            paths = {
                f"layers.{layer}.{theirs}": f"layers.{layer}.{ours}"
                for layer in range(num_layers)
                for theirs, ours in _LAYERS[stack].items()
            }
            if config.has_final_norm:
                paths["layer_norm"] = "norm"
            for theirs, ours in paths.items():
                # norm(f + a * x) = norm(f / a + x) with an epsilon of 1 / a ** 2, see `_read_config`
                divisor = alphas[stack] if ours.endswith(_ADDED_TO_RESIDUAL) else 1.0
                for part in ("weight", "bias"):
                    weights[f"{stack}.{ours}.{part}"] = self._take(f"{stack}.{theirs}.{part}") / divisor
            self._check_positions(stack, config)
        if self._left:
            raise ImportFormatError(f"{self._origin}: nothing is known of tensor {min(self._left)}")
        return weights

    def _tables(self, config: ModelConfig) -> dict[str, Tensor]:
        names = ("trg_embed.lut.weight", "decoder.output_layer.weight", "src_embed.lut.weight")
        target, projection, source = (self._take(name) for name in names)
        num_tied = {"none": 1, "decoder": 2, "all": 3}[config.tied_embeddings]
        for name, table in list(zip(names, (target, projection, source), strict=True))[:num_tied]:
            if not torch.equal(table, target):
                raise ImportFormatError(f"{self._origin}: {name} is not {names[0]}, though config.yaml ties them")
        own = {"encoder.embedding.weight": source, "projection.weight": projection}
        return {"embedding.weight": target, **dict(list(own.items())[: 3 - num_tied])}

    def _take(self, name: str) -> Tensor:
        if name not in self._left:
            raise ImportFormatError(f"{self._origin}: there is no tensor {name}")
        return self._left.pop(name)

    def _check_positions(self, stack: str, config: ModelConfig) -> None:
        """Leave out stored sinusoids after a look at them."""
        stored = self._take(f"{stack}.pe.pe")
        expected = sinusoidal_positions(_MAX_POSITIONS, config.d_model)[None]
        if stored.shape != expected.shape or not torch.allclose(stored, expected, rtol=0, atol=_SAME_POSITIONS):
            raise ImportFormatError(f"{self._origin}: {stack}.pe.pe holds other positions than JoeyNMT computes")
