"""Imports models of Hugging Face transformers from a local directory: Marian, M2M-100, NLLB, mBART-50, BART.

A table describes the code of each model type in transformers 5; the configuration contains the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.fairseq_weights import FairseqWeights
from dragoman_export.importers.files import ForeignConfig, read_json, read_tensors
from dragoman_export.importers.huggingface_text import (
    Text,
    TextRequest,
    read_bart,
    read_fairseq,
    read_m2m100,
    read_marian,
)
from dragoman_export.importers.language_tags import WantedLanguages
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from dragoman_export.model.config import ModelConfig

_ACTIVATIONS: Final = {"relu": "relu", "gelu": "gelu", "swish": "swish", "silu": "swish"}

# keys of `config.json` without effect on the result
_HARMLESS: Final = (
    # of training
    *("dropout", "attention_dropout", "activation_dropout", "classifier_dropout", "classif_dropout", "init_std"),
    *("encoder_layerdrop", "decoder_layerdrop", "gradient_checkpointing", "save_step"),
    # names, versions and other tasks
    *("_name_or_path", "architectures", "model_type", "transformers_version", "torch_dtype", "dtype"),
    *("id2label", "label2id", "num_labels", "_num_labels", "task_specific_params", "tokenizer_class"),
    # not read by transformers, because other keys determine them
    *("num_hidden_layers", "extra_pos_embeddings", "add_bias_logits", "max_source_positions", "max_target_positions"),
    # how to run it
    *("use_cache", "output_past", "output_attentions", "output_hidden_states", "return_dict", "_attn_implementation"),
)
# search defaults, which callers of the service choose, and related keys
_SEARCH: Final = (
    *("num_beams", "max_length", "max_new_tokens", "length_penalty", "early_stopping", "do_sample"),
    *("renormalize_logits", "no_repeat_ngram_size", "num_return_sequences", "forced_eos_token_id"),
    *("_from_model_config", "transformers_version", "use_cache", "output_attentions", "output_hidden_states"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    # Properties of a model type that its configuration does not contain.
    fields: Mapping[str, Any]  # of `ModelConfig`
    activation: str  # default of the library, as is `scales`
    scales: bool
    tokenizers: Mapping[str, Callable[[TextRequest], Text]]  # by tokenizer class


_KINDS: Final[Mapping[str, _Kind]] = {
    "marian": _Kind(
        fields={"norm": "post", "positions": "sinusoidal", "sinusoid_layout": "halves", "projection_bias": True},
        activation="gelu",
        scales=False,
        tokenizers={"MarianTokenizer": read_marian},
    ),
    "m2m_100": _Kind(
        fields={"norm": "pre", "positions": "sinusoidal", "sinusoid_layout": "fairseq"},
        activation="relu",
        scales=True,
        tokenizers={"M2M100Tokenizer": read_m2m100, "NllbTokenizer": read_fairseq},
    ),
    "mbart": _Kind(
        fields={"norm": "pre", "embedding_norm": True, "positions": "learned", "projection_bias": True},
        activation="gelu",
        scales=False,
        tokenizers={"MBart50Tokenizer": read_fairseq},
    ),
    "bart": _Kind(
        fields={"norm": "post", "embedding_norm": True, "positions": "learned", "projection_bias": True},
        activation="gelu",
        scales=False,
        tokenizers={"BartTokenizer": read_bart, "RobertaTokenizer": read_bart},
    ),
}

# unsupported model types, with the reason
_UNSUPPORTED: Final = dict.fromkeys(("t5", "mt5", "umt5"), "relative position bias")


def read_huggingface(
    directory: Path,
    *,
    source_tag: str | None = None,
    target_tag: str | None = None,
    source_languages: Sequence[str] | None = None,
    target_languages: Sequence[str] | None = None,
) -> ImportedModel:
    """Import a directory written by `save_pretrained` or copied from the hub, with weights and tokenizer.

    The arguments are those of `dragoman export import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    wanted = WantedLanguages.of(source_tag, target_tag, source_languages, target_languages)
    settings = ForeignConfig.read(directory / "config.json")
    name = settings.take("model_type", str)
    if name in _UNSUPPORTED:
        raise ImportFormatError(f"{directory}: models of type {name} are not supported: {_UNSUPPORTED[name]}")
    if name not in _KINDS:
        raise ImportFormatError(f"{directory}: model_type is {name!r}: expected {', '.join(_KINDS)}")
    kind = _KINDS[name]
    generation = ForeignConfig.read(directory / "generation_config.json", is_optional=True)
    config = _read_config(settings, generation, kind)
    max_positions = settings.take("max_position_embeddings", int)
    if kind.fields["positions"] == "learned":
        config = {**config, "max_positions": max_positions}
    check_sizes(ModelConfig(**config), settings.path)
    text = _read_text(directory, kind, config, wanted)
    if name == "bart":
        text = _with_beginning(text, (settings, generation))
    model = ModelConfig(**config, unk_id=_special(text, "<unk>", directory))
    if model.pad_id != _special(text, "<pad>", directory):
        raise ImportFormatError(f"{settings.path}: pad_token_id is {model.pad_id}, not the id of <pad>")
    if model.eos_id != _special(text, "</s>", directory):
        raise ImportFormatError(f"{settings.path}: eos_token_id is {model.eos_id}, not the id of </s>")
    for options in (settings, generation):
        _check_generation(options, model, text)
    settings.finish((*_HARMLESS, *_SEARCH))
    generation.finish(_SEARCH)
    return ImportedModel(
        config=model,
        max_tokens=min(max_positions, MAX_TOKENS),
        weights=FairseqWeights(_read_weights(directory), directory).translated(model),
        tokenizer=text.files(),
    )


def _read_config(settings: ForeignConfig, generation: ForeignConfig, kind: _Kind) -> dict[str, Any]:
    is_pre_norm, is_sinusoidal = kind.fields["norm"] == "pre", kind.fields["positions"] == "sinusoidal"
    # older configurations state these explicitly
    settings.require("normalize_before", is_pre_norm)
    settings.require("normalize_embedding", kind.fields.get("embedding_norm", False))
    settings.require("add_final_layer_norm", is_pre_norm)
    settings.require("static_position_embeddings", is_sinusoidal)
    settings.require("is_encoder_decoder", True)
    settings.require("is_decoder", False)
    settings.require("layer_norm_eps", 1e-5)
    activation = settings.choose("activation_function", _ACTIVATIONS, kind.activation)
    sizes = {
        "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
        "ffn_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    }
    both = {name: settings.take(keys[0], int) for name, keys in sizes.items()}
    for name, keys in sizes.items():
        settings.require(keys[1], both[name])
    is_shared = settings.take("share_encoder_decoder_embeddings", bool, default=True)
    is_tied = settings.take("tie_word_embeddings", bool, default=True)
    num_source_tokens = settings.take("vocab_size", int)
    num_tokens = settings.take("decoder_vocab_size", int, default=num_source_tokens)
    if is_shared and num_tokens != num_source_tokens:
        raise ImportFormatError(f"{settings.path}: decoder_vocab_size is {num_tokens}: expected {num_source_tokens}")
    eos_id, pad_id = settings.take("eos_token_id", int), settings.take("pad_token_id", int)
    start_id = settings.take_optional("decoder_start_token_id", int)
    if start_id is None:
        start_id = generation.take("decoder_start_token_id", int)
    bos_id = settings.take_optional("bos_token_id", int)
    return {
        **kind.fields,
        **both,
        "vocabulary_size": num_tokens,
        "source_vocabulary_size": None if is_shared else num_source_tokens,
        "d_model": settings.take("d_model", int),
        "num_encoder_layers": settings.take("encoder_layers", int),
        "num_decoder_layers": settings.take("decoder_layers", int),
        "activation": activation,
        "scale_embeddings": settings.take("scale_embedding", bool, default=kind.scales),
        "tied_embeddings": ("all" if is_shared else "decoder") if is_tied else "none",
        # Marian's sinusoids start at 0, those of fairseq after the id of padding, learned positions always at 2.
        "position_offset": 0 if kind.fields.get("sinusoid_layout") == "halves" else pad_id + 1 if is_sinusoidal else 2,
        "pad_id": pad_id,
        "bos_id": start_id if bos_id is None else bos_id,
        "eos_id": eos_id,
        "decoder_start_id": start_id,
    }


def _read_text(directory: Path, kind: _Kind, config: Mapping[str, Any], wanted: WantedLanguages) -> Text:
    settings = ForeignConfig.read(directory / "tokenizer_config.json", is_optional=True)
    names = list(kind.tokenizers)
    name = settings.take("tokenizer_class", str, default=names[0]).removesuffix("Fast")
    if name not in names:
        raise ImportFormatError(f"{settings.path}: tokenizer_class is {name!r}: expected {' or '.join(names)}")
    size = config["vocabulary_size"]
    request = TextRequest(
        directory=directory,
        settings=settings,
        vocabulary_size=size,
        source_vocabulary_size=config["source_vocabulary_size"] or size,
        wanted=wanted,
    )
    return kind.tokenizers[name](request)


def _with_beginning(text: Text, options: Iterable[ForeignConfig]) -> Text:
    # BART's targets start with `<s>`: forced where the options say so, otherwise by the model's choice.
    bos_id = text.source_prefix[0]
    forced = False
    for each in options:
        forced = each.take("force_bos_token_to_be_generated", bool, default=False) or forced
        token_id = each.take_optional("forced_bos_token_id", int)
        if token_id not in (None, bos_id):
            raise ImportFormatError(f"{each.path}: forced_bos_token_id is {token_id}: expected {bos_id}, the id of <s>")
        forced = forced or token_id is not None
    if forced:
        return replace(text, target_prefix=(bos_id,))
    return replace(text, pieces=(*text.pieces[:bos_id], None, *text.pieces[bos_id + 1 :]))  # not a text token


def _special(text: Text, piece: str, directory: Path) -> int:
    # Special tokens must have the same id on both sides.
    if piece not in text.pieces:
        raise ImportFormatError(f"{directory}: the vocabulary has no {piece}")
    token_id = text.pieces.index(piece)
    if text.source_pieces is not None and text.source_pieces[token_id : token_id + 1] != (piece,):
        raise ImportFormatError(f"{directory}: {piece} has different ids in the two vocabularies")
    return token_id


def _check_generation(options: ForeignConfig, config: ModelConfig, text: Text) -> None:
    # Rejects search rules that the service does not implement.
    for key, value in (
        ("pad_token_id", config.pad_id),
        ("eos_token_id", config.eos_id),
        ("decoder_start_token_id", config.decoder_start_id),
        ("bad_words_ids", [[config.pad_id]]),  # the service never generates padding either
        ("force_bos_token_to_be_generated", False),
        ("suppress_tokens", []),
        ("begin_suppress_tokens", []),
        ("repetition_penalty", 1.0),
        ("no_repeat_ngram_size", 0),
        ("min_length", 0),
    ):
        options.require(key, value)
    if text.target_prefix or text.languages is not None:
        options.ignore(["forced_bos_token_id"])  # a language tag; the request chooses the language
    options.require("forced_bos_token_id")
    options.ignore(["bos_token_id"])  # decoding starts with decoder_start_token_id


def _read_weights(directory: Path) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = {}
    for path in _weight_files(directory):
        tensors = read_tensors(path)
        if twice := tensors.keys() & weights.keys():
            raise ImportFormatError(f"{path}: duplicate tensor {min(twice)}")
        weights.update(tensors)
    return weights


def _weight_files(directory: Path) -> Iterable[Path]:
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (directory / name).exists():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.exists():
            files = read_json(index).get("weight_map")
            if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
                raise ImportFormatError(f"{index}: weight_map is not an object of file names")
            if elsewhere := [file for file in files.values() if Path(file).name != file]:
                raise ImportFormatError(f"{index}: {elsewhere[0]!r} is not a file name")
            return [directory / file for file in sorted(set(files.values()))]
    raise ImportFormatError(f"{directory} has neither model.safetensors nor pytorch_model.bin")
