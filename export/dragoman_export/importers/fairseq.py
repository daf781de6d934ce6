"""Imports Transformers from fairseq checkpoints with their dictionaries.

The meaning of options follows the code of fairseq 0.12. Only the fields of `TransformerConfig` determine the network;
each of them is used here or must have its neutral value.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.fairseq_weights import FairseqWeights
from dragoman_export.importers.files import ForeignConfig, fields_of, float_tensors, read_checkpoint, read_plain
from dragoman_export.importers.huggingface_text import Text
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from dragoman_export.importers.vocabulary_text import SentencePieceFiles
from dragoman_export.model.config import ModelConfig

# file names in a directory, in order of preference
_CHECKPOINTS: Final = ("model.pt", "checkpoint_best.pt", "checkpoint_last.pt")
_SPECIAL: Final = ("<s>", "<pad>", "</s>", "<unk>")  # first entries of every dictionary, not in its file
_BOS_ID, _PAD_ID, _EOS_ID, _UNK_ID = range(4)

_STACKS: Final = ("encoder", "decoder")

_ACTIVATIONS: Final = {"relu": "relu", "gelu": "gelu"}

# names of default settings, which a checkpoint stores explicitly
_ARCHITECTURES: Final = (
    *("transformer", "transformer_tiny", "transformer_iwslt_de_en", "transformer_wmt_en_de"),
    *("transformer_vaswani_wmt_en_de_big", "transformer_vaswani_wmt_en_fr_big", "transformer_wmt_en_de_big"),
    "transformer_wmt_en_de_big_t2t",
)
# options of other networks, with their neutral values
_FALSE: Final = (
    *("adaptive_input", "char_inputs", "cross_self_attention", "no_cross_attention", "no_decoder_final_norm"),
    *("scale_attn", "scale_fc", "scale_heads", "scale_resids"),
)
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(_FALSE, (False,)),
    **dict.fromkeys(("base_layers", "quant_noise_pq", "quant_noise_scalar"), (0,)),
    **dict.fromkeys(("adaptive_softmax_cutoff", "user_dir"), ()),
    **{f"{stack}_{key}": () for stack in _STACKS for key in ("layers_to_keep", "xformers_att_config")},
}
# options for training only, or visible in the tensors
_HARMLESS: Final = tuple(
    f"{stack}_{key}" for stack in _STACKS for key in ("embed_path", "layerdrop", "input_dim", "output_dim")
)
_FIRST_WITH_FINAL_NORM: Final = 2  # first stack version whose pre-norm includes a final normalisation


def read_fairseq(
    path: Path, *, text: Path | None = None, source_spm: Path | None = None, target_spm: Path | None = None
) -> ImportedModel:
    """Import a checkpoint, or the one in a directory; only tensors and plain values are loaded.

    The arguments are those of `dragoman export import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    checkpoint = _find_checkpoint(path)
    content = read_checkpoint(checkpoint)
    settings, languages = _read_options(content, checkpoint)
    directory = text or checkpoint.parent
    source, target = (_read_dictionary(directory / f"dict.{language}.txt") for language in languages)
    max_positions = min(settings.take(f"max_{side}_positions", int, default=1024) for side in ("source", "target"))
    config = _read_config(settings, max_positions, len(target), None if source == target else len(source))
    for key, values in _NEUTRAL.items():
        settings.require(key, *values)
    settings.finish(_HARMLESS, prefixes=tuple(f"{stack}_" for stack in _STACKS))
    models = SentencePieceFiles.find(directory, source_spm, target_spm, languages).read()
    return ImportedModel(
        config=config,
        max_tokens=min(max_positions, MAX_TOKENS),
        weights=FairseqWeights(_named(content, checkpoint, config), checkpoint).translated(config),
        tokenizer=Text(model=models[1], source_model=models[0], pieces=target, source_pieces=source).files(),
    )


def _find_checkpoint(path: Path) -> Path:
    if not path.is_dir():
        return path
    for name in _CHECKPOINTS:
        if (path / name).exists():
            return path / name
    raise ImportFormatError(f"{path} has no {', '.join(_CHECKPOINTS)}: give the path of the file")


def _read_options(content: Mapping[str, Any], checkpoint: Path) -> tuple[ForeignConfig, tuple[str, str]]:
    # Returns the options of the model that are not null, and both languages.
    model = task = fields_of(content.get("args"))  # until fairseq 0.10; later versions store a configuration
    if model is None:
        parts = fields_of(content.get("cfg")) or {}
        model, task = fields_of(parts.get("model")), fields_of(parts.get("task"))
    if model is None or task is None:
        raise ImportFormatError(f"{checkpoint} has neither args nor cfg with model and task: not a fairseq checkpoint")
    for name in (*_STACKS, "quant_noise"):  # nested by hydra
        model.update({f"{name}_{key}": value for key, value in (fields_of(model.pop(name, None)) or {}).items()})
    settings = ForeignConfig(checkpoint, {key: value for key, value in model.items() if value is not None})
    settings.require("arch", *_ARCHITECTURES)
    settings.require("_name", *_ARCHITECTURES)
    task_settings = ForeignConfig(checkpoint, task)
    for key in ("task", "_name") if task is not model else ("task",):
        task_settings.require(key, "translation")
    languages = task_settings.take("source_lang", str), task_settings.take("target_lang", str)
    for language in languages:
        if Path(language).name != language:
            raise ImportFormatError(f"{checkpoint}: invalid language name {language[:80]!r}")
    return settings, languages


def _read_config(
    settings: ForeignConfig, max_positions: int, num_tokens: int, num_source_tokens: int | None
) -> ModelConfig:
    sizes = {key: settings.take(f"encoder_{key}", int) for key in ("embed_dim", "ffn_embed_dim", "attention_heads")}
    flags = {key: settings.take(f"encoder_{key}", bool, default=False) for key in ("normalize_before", "learned_pos")}
    for key, value in {**sizes, **flags}.items():  # both stacks must be equal
        settings.require(f"decoder_{key}", value)
    activation = settings.choose("activation_fn", _ACTIVATIONS, "relu")
    is_shared, is_tied = (
        settings.take(key, bool, default=False) for key in ("share_all_embeddings", "share_decoder_input_output_embed")
    )
    if is_shared and num_source_tokens is not None:
        raise ImportFormatError(f"{settings.path}: share_all_embeddings is True, but the dictionaries differ")
    has_positions = not settings.take("no_token_positional_embeddings", bool, default=False)
    is_learned = has_positions and flags["learned_pos"]
    config = ModelConfig(
        vocabulary_size=num_tokens,
        source_vocabulary_size=num_source_tokens,
        d_model=sizes["embed_dim"],
        num_heads=sizes["attention_heads"],
        ffn_size=sizes["ffn_embed_dim"],
        num_encoder_layers=settings.take("encoder_layers", int),
        num_decoder_layers=settings.take("decoder_layers", int),
        norm="pre" if flags["normalize_before"] else "post",
        activation=activation,  # type: ignore[arg-type]
        embedding_norm=settings.take("layernorm_embedding", bool, default=False),
        positions="learned" if is_learned else "sinusoidal" if has_positions else "none",
        sinusoid_layout="fairseq",
        position_offset=_PAD_ID + 1 if has_positions else 0,
        max_positions=max_positions if is_learned else None,
        scale_embeddings=not settings.take("no_scale_embedding", bool, default=False),
        tied_embeddings="all" if is_shared else "decoder" if is_tied else "none",
        pad_id=_PAD_ID,
        bos_id=_BOS_ID,
        eos_id=_EOS_ID,
        unk_id=_UNK_ID,
        decoder_start_id=_EOS_ID,
    )
    check_sizes(config, settings.path)
    return config


def _read_dictionary(path: Path) -> tuple[str, ...]:
    # A line has a piece, a space and a count.
    pieces = list(_SPECIAL)
    try:
        lines = list(io.TextIOWrapper(io.BytesIO(read_plain(path)), encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ImportFormatError(f"{path} is not UTF-8") from error
    for number, line in enumerate(lines, 1):
        piece, _, count = line.rstrip().rpartition(" ")
        if not piece or not count.isdigit():
            raise ImportFormatError(f"{path}, line {number}: {line.rstrip()[:80]!r}: expected a piece and its count")
        pieces.append(piece)
    if len(set(pieces)) != len(pieces):
        raise ImportFormatError(f"{path}: duplicate piece, or one of {', '.join(_SPECIAL)}")
    return tuple(pieces)


def _named(content: Mapping[str, Any], checkpoint: Path, config: ModelConfig) -> dict[str, Tensor]:
    # Returns the weights with the names that `FairseqWeights` expects.
    weights = float_tensors(content.get("model"), checkpoint)
    for stack in _STACKS:
        weights.pop(f"{stack}.embed_positions._float_tensor", None)
        version = weights.pop(f"{stack}.version", None)
        is_old = version is None or float(version.flatten()[0]) < _FIRST_WITH_FINAL_NORM
        if config.norm == "pre" and is_old:
            raise ImportFormatError(f"{checkpoint}: {stack}.version: not supported without final normalisation")
    names = {"decoder.output_projection.weight": "lm_head.weight"}
    return {names.get(name, f"model.{name}"): weight for name, weight in weights.items()}
