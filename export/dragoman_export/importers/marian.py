"""Imports Transformers of Marian: a directory of files such as an OPUS-MT archive, or a model in it.

Options have the meaning of Marian 1.12. Pre-norm decoders compute as in training; in Marian's own decoding, steps after
the first one do not normalise the keys and values of self-attention.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import yaml
from torch import Tensor

from dragoman_export.errors import ImportFormatError
from dragoman_export.importers.files import ForeignConfig, Tensors, read_plain
from dragoman_export.importers.huggingface_text import Text, own_pieces, read_source_tags
from dragoman_export.importers.language_tags import WantedLanguages
from dragoman_export.importers.marian_files import read_model, read_yaml
from dragoman_export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from dragoman_export.importers.vocabulary_text import SentencePieceFiles, Vocabularies, arranged, projection_bias
from dragoman_export.model.config import ModelConfig
from dragoman_service.bundle.architecture import DecoderType

_VOCABULARY_SUFFIXES: Final = (".yml", ".yaml")
_ACTIVATIONS: Final = {"relu": "relu", "swish": "swish", "gelu": "gelu"}
_EXACT_GELU: Final = (1, 12, 3)  # older versions approximate GELU by x * sigmoid(1.702 * x)
_NORMALIZED_KEYS: Final = (1, 10, 28)  # older versions normalise queries only, before a sublayer

# options of other networks, with the supported values
_REQUIRED: Final[Mapping[str, tuple[object, ...]]] = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-attention-mask": ("",),
    "input-types": ([], ["sequence", "sequence"]),
    "skip": (False,),
    "right-left": (False,),
    "ulr": (False,),
    "lemma-dependency": ("",),
    **dict.fromkeys(("lemma-dim-emb", "factors-dim-emb"), (0,)),
    **dict.fromkeys(
        (
            *("transformer-no-projection", "transformer-train-positions", "transformer-pool", "transformer-no-bias"),
            *("transformer-no-affine", "transformer-disable-position-embeddings", "transformer-alibi"),
            *("transformer-rnn-projection", "layer-normalization"),
        ),
        (False,),
    ),
}
# options without effect on these networks
_HARMLESS: Final = (
    *(
        "bert-mask-symbol",
        "bert-sep-symbol",
        "bert-class-symbol",
        "bert-masking-fraction",
        "bert-train-type-embeddings",
    ),
    *("bert-type-vocab-size", "dec-cell-base-depth", "dec-cell-high-depth", "dim-rnn", "enc-cell"),
    *("enc-cell-depth", "enc-type", "factors-combine", "transformer-aan-activation", "transformer-aan-depth"),
    *("transformer-aan-nogate", "transformer-depth-scaling", "transformer-dim-aan"),
    *("transformer-guided-alignment-layer", "transformer-train-position-embeddings", "ulr-dim-emb"),
    *("ulr-trainable-transformation", "char-conv-filters-num", "char-conv-filters-widths"),
    *("char-conv-poolwidth", "char-conv-activation", "char-stride", "char-highway", "transformer-alibi-shift"),
    "transformer-alibi-trainable",
)
_ATTENTION: Final = {"q": "query", "k": "key", "v": "value", "o": "output"}


def read_marian(
    path: Path,
    *,
    source_spm: Path | None = None,
    target_spm: Path | None = None,
    target_tag: str | None = None,
    source_languages: Sequence[str] | None = None,
    target_languages: Sequence[str] | None = None,
) -> ImportedModel:
    """Import a directory with a model, vocabularies and SentencePiece models, or the model in it.

    `decoder.yml` names the model and the vocabularies if there are several. The arguments are those of `dragoman export
    import`. Raises ImportFormatError if a part is missing or unsupported.
    """
    wanted = WantedLanguages.of(None, target_tag, source_languages, target_languages)
    directory = path if path.is_dir() else path.parent
    decoder = _read_decoder(directory / "decoder.yml")
    model_path = _find_model(directory, decoder) if path.is_dir() else path
    fields, arrays = read_model(model_path)
    settings, tensors = ForeignConfig(model_path, fields), Tensors(arrays, model_path)
    spm, sides = _read_text(directory, decoder, source_spm, target_spm)
    sizes = settings.take("dim-vocabs", list)
    if sizes != [len(side) for side in sides]:
        raise settings.error("dim-vocabs", sizes, f"{[len(side) for side in sides]}, the sizes of the vocabularies")
    ids = Vocabularies.fitted(*sides, eos="</s>", unk="<unk>", start=None, origin=model_path)
    spm.check((ids.source, ids.target))
    config, weights = _read_network(settings, tensors, ids)
    prefix, languages = read_source_tags(ids.source, wanted, directory)
    source_model, target_model = spm.read()
    text = Text(
        model=target_model,
        source_model=source_model,
        pieces=ids.target,
        source_pieces=ids.source,
        source_prefix=prefix,
        languages=languages,
    )
    return ImportedModel(config=config, max_tokens=MAX_TOKENS, weights=weights, tokenizer=text.files())


def _read_decoder(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return read_yaml(read_plain(path))
    except ValueError as error:
        raise ImportFormatError(f"{path}: {error}") from error


def _named(directory: Path, decoder: Mapping[str, Any], key: str) -> list[Path]:
    # Files of a list in `decoder.yml`.
    names = decoder.get(key) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise ImportFormatError(f"{directory / 'decoder.yml'}: {key} is {names!r}: expected a list of file names")
    return [directory / name for name in names]


def _find_model(directory: Path, decoder: Mapping[str, Any]) -> Path:
    found = _named(directory, decoder, "models") or sorted(
        path
        for path in directory.iterdir()
        if (path.suffix == ".npz" and not path.name.endswith(".optimizer.npz"))
        or (path.suffix == ".bin" and path.name.startswith("model"))
    )
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ImportFormatError(f"{directory}: expected one model (.npz or model*.bin), found {names}: give its path")
    return found[0]


def _read_text(
    directory: Path, decoder: Mapping[str, Any], source_spm: Path | None, target_spm: Path | None
) -> tuple[SentencePieceFiles, tuple[list[str], list[str]]]:
    # SentencePiece models, and the tokens of both sides by id.
    named = _named(directory, decoder, "vocabs")
    if named and all(path.suffix == ".spm" for path in named):
        source_spm, target_spm = source_spm or named[0], target_spm or named[-1]
        named = []
    elif not named:
        named = sorted(path for path in directory.iterdir() if re.fullmatch(r".*vocab.*\.ya?ml", path.name))
        if len(named) > 1:
            names = ", ".join(path.name for path in named)
            raise ImportFormatError(f"{directory} has several vocabularies ({names}): name them in decoder.yml")
    has_own = any(path.name.startswith("srcvocab.") for path in directory.iterdir())
    languages = ("srcvocab", "trgvocab") if has_own else ("source", "target")
    spm = SentencePieceFiles.find(directory, source_spm, target_spm, languages)
    if not named:
        contents = zip(spm.read(), (spm.source, spm.target), strict=True)
        source, target = (own_pieces(content, path) for content, path in contents)
        return spm, (source, target)
    source, target = (_read_vocabulary(path) for path in (named[0], named[-1]))
    return spm, (source, target)


def _read_vocabulary(path: Path) -> list[str]:
    # Lines `token: id`. A YAML parser would change tokens such as `no`, `~` and `1e3`.
    if path.suffix not in _VOCABULARY_SUFFIXES:
        raise ImportFormatError(f"{path}: unsupported vocabulary: expected .spm or {', '.join(_VOCABULARY_SUFFIXES)}")
    tokens: dict[int, str] = {}
    content = read_plain(path).decode(errors="replace").removeprefix("\ufeff").replace("\r\n", "\n")
    # a long token is on a line of its own, which starts with `? `
    content = re.sub(r"^\? (.*)\n: ", r"\1: ", content, flags=re.MULTILINE)
    for number, line in enumerate(content.split("\n"), 1):
        if line in ("", "---", "..."):
            continue
        token, _, digits = line.rpartition(": ")
        if token.startswith(('"', "'")):
            token = _unquoted(token)
        if not token or not re.fullmatch(r"\d{1,9}", digits.strip()):
            raise ImportFormatError(f"{path}, line {number}: {line[:80]!r} is not a token with its id")
        if tokens.setdefault(int(digits), token) != token:
            raise ImportFormatError(f"{path}, line {number}: duplicate id {int(digits)}")
    if sorted(tokens) != list(range(len(tokens))):
        raise ImportFormatError(f"{path}: expected the ids 0 to {len(tokens) - 1}")
    return [tokens[token_id] for token_id in range(len(tokens))]


def _unquoted(token: str) -> str:
    # Returns nothing for an invalid token.
    try:
        value = yaml.safe_load(token)
    except yaml.YAMLError:
        return ""
    return value if isinstance(value, str) else ""


def _read_decoder_type(settings: ForeignConfig) -> DecoderType:
    autoregression = settings.take("transformer-decoder-autoreg", str, default="self-attention")
    cell = settings.take("dec-cell", str, default="gru")
    if autoregression == "rnn" and cell != "ssru":
        raise settings.error("dec-cell", cell, "ssru with transformer-decoder-autoreg rnn")
    if autoregression not in ("self-attention", "rnn"):
        raise settings.error("transformer-decoder-autoreg", autoregression, "self-attention or rnn")
    return "ssru" if autoregression == "rnn" else "self_attention"


def _read_network(
    settings: ForeignConfig, tensors: Tensors, ids: Vocabularies
) -> tuple[ModelConfig, dict[str, Tensor]]:
    for key, values in _REQUIRED.items():
        settings.require(key, *values)
    version = settings.take("version", str, default="")
    found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", version)
    release = tuple(map(int, found.groups())) if found else (0,)
    activation = settings.choose("transformer-ffn-activation", _ACTIVATIONS, "swish")
    if activation == "gelu" and release < _EXACT_GELU:
        raise settings.error("version", version, "1.12.3 or newer with transformer-ffn-activation gelu")
    before, after, embedded, top = (
        settings.take(f"transformer-{key}", str, default=default).replace("d", "")
        for key, default in (
            ("preprocess", ""),
            ("postprocess", "dan"),
            ("postprocess-emb", "d"),
            ("postprocess-top", ""),
        )
    )
    if before not in ("", "n"):
        raise settings.error("transformer-preprocess", before, "d, n or both")
    is_pre_norm = before == "n"
    if after != ("a" if is_pre_norm else "an"):
        raise settings.error("transformer-postprocess", after, "da with transformer-preprocess n, otherwise dan")
    for key, value in (("postprocess-emb", embedded), ("postprocess-top", top)):
        if value not in ("", "n"):
            raise settings.error(f"transformer-{key}", value, "d, n or both")
    if is_pre_norm and release < _NORMALIZED_KEYS:
        raise settings.error("version", version, "1.10.28 or newer with transformer-preprocess n")
    ffn_size = settings.take("transformer-dim-ffn", int)
    settings.require("transformer-decoder-dim-ffn", 0, ffn_size)
    tied_layers = _decoder_layers(settings)
    is_tied_all, is_tied_source, is_tied = (
        settings.take(f"tied-embeddings{suffix}", bool, default=False) for suffix in ("-all", "-src", "")
    )
    is_shared, is_tied = is_tied_all or is_tied_source, is_tied_all or is_tied
    config = ModelConfig(
        vocabulary_size=len(ids.target),
        source_vocabulary_size=None if len(ids.source) == len(ids.target) else len(ids.source),
        d_model=settings.take("dim-emb", int),
        num_heads=settings.take("transformer-heads", int),
        ffn_size=ffn_size,
        num_encoder_layers=settings.take("enc-depth", int),
        num_decoder_layers=len(tied_layers),
        decoder_type=_read_decoder_type(settings),
        norm="pre" if is_pre_norm else "post",
        activation=activation,  # type: ignore[arg-type]
        norm_epsilon=1e-6,
        embedding_norm=embedded == "n",
        final_norm=top == "n",
        sinusoid_layout="fairseq",
        tied_embeddings="none" if not is_tied else "all" if is_shared else "decoder",
        projection_bias=True,
        pad_id=ids.pad_id,
        bos_id=ids.start_id,
        eos_id=ids.eos_id,
        unk_id=ids.unk_id,
    )
    check_sizes(config, settings.path)
    omits_bias = settings.take("output-omit-bias", bool, default=False)
    settings.finish(_HARMLESS)
    if is_shared and ids.source != ids.target:
        raise ImportFormatError(f"{settings.path}: tied-embeddings-all requires one vocabulary for both sides")
    tables = _read_tables(tensors, config, ids, is_shared=is_shared, has_bias=not omits_bias)
    layers = {"encoder": list(range(1, config.num_encoder_layers + 1)), "decoder": tied_layers}
    weights = {**tables, **_read_layers(tensors, config, layers)}
    tensors.finish()
    return config, weights


def _read_layers(tensors: Tensors, config: ModelConfig, layers: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    weights = {}
    arrays = {foreign: tensors.take(foreign) for foreign in {foreign for _, foreign in _names(config, layers)}}
    for own, foreign in _names(config, layers):
        is_matrix = own.endswith(".weight") and "norm" not in own
        weights[own] = (arrays[foreign].T if is_matrix else arrays[foreign].flatten()).clone().contiguous()
    if config.decoder_type == "ssru":  # without this bias in Marian
        names = [f"decoder.layers.{index}.recurrence.input.bias" for index in range(config.num_decoder_layers)]
        weights.update((name, torch.zeros(config.d_model)) for name in names)
    return weights


def _decoder_layers(settings: ForeignConfig) -> list[int]:
    # The number in the parameter names of each layer.
    depth = settings.take("dec-depth", int)
    layers = settings.take("transformer-tied-layers", list, default=[]) or list(range(1, depth + 1))
    if len(layers) != depth or not all(type(layer) is int for layer in layers):
        raise settings.error("transformer-tied-layers", layers, "one number for each decoder layer")
    return layers


def _read_tables(
    tensors: Tensors, config: ModelConfig, ids: Vocabularies, *, is_shared: bool, has_bias: bool
) -> dict[str, Tensor]:
    def table(name: str, rows: Sequence[int | None]) -> Tensor:
        stored, num_rows = tensors.take(name), sum(row is not None for row in rows)
        if stored.shape != (num_rows, config.d_model):
            expected = f"expected {[num_rows, config.d_model]}"
            raise ImportFormatError(f"{tensors.path}: {name} has the shape {list(stored.shape)}: {expected}")
        return arranged(stored, rows)

    source_rows, target_rows = ids.source_rows, ids.target_rows
    weights = {"embedding.weight": table("Wemb" if is_shared else "decoder_Wemb", target_rows)}
    if not is_shared:
        weights["encoder.embedding.weight"] = table("encoder_Wemb", source_rows)
    elif config.tied_embeddings == "none":
        weights["encoder.embedding.weight"] = weights["embedding.weight"].clone()
    if config.tied_embeddings == "none":
        if (old := tensors.left.pop("decoder_ff_logit_out_W", None)) is not None:
            tensors.left["decoder_ff_logit_out_Wt"] = old.T
        weights["projection.weight"] = table("decoder_ff_logit_out_Wt", target_rows)
    num_rows = sum(row is not None for row in target_rows)
    bias = tensors.take("decoder_ff_logit_out_b").flatten() if has_bias else torch.zeros(num_rows)
    if len(bias) != num_rows:
        raise ImportFormatError(f"{tensors.path}: decoder_ff_logit_out_b has {len(bias)} values: expected {num_rows}")
    return {**weights, "projection.bias": projection_bias(bias, target_rows)}


def _names(config: ModelConfig, layers: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, str]]:
    # Each name of `Transformer` with its name in Marian.
    suffix = "_pre" if config.norm == "pre" else ""

    def norm(own: str, foreign: str, suffix: str = suffix) -> Iterator[tuple[str, str]]:
        yield f"{own}.weight", f"{foreign}_ln_scale{suffix}"
        yield f"{own}.bias", f"{foreign}_ln_bias{suffix}"

    for stack, numbers in layers.items():
        is_recurrent = stack == "decoder" and config.decoder_type == "ssru"
        blocks = {} if is_recurrent else {"self_attention": "self"}
        blocks |= {"cross_attention": "context"} if stack == "decoder" else {}
        for index, number in enumerate(numbers):
            own, foreign = f"{stack}.layers.{index}", f"{stack}_l{number}"
            products = [
                (f"{own}.{block}.{part}", f"{foreign}_{name}", letter)
                for block, name in blocks.items()
                for letter, part in _ATTENTION.items()
            ]
            products += [
                (f"{own}.feed_forward.{part}", f"{foreign}_ffn", digit)
                for digit, part in (("1", "inner"), ("2", "outer"))
            ]
            if is_recurrent:
                yield f"{own}.recurrence.input.weight", f"{foreign}_rnn_W"
                products.append((f"{own}.recurrence.forget", f"{foreign}_rnn", "f"))
                yield from norm(f"{own}.recurrence_norm", f"{foreign}_rnn" if suffix else f"{foreign}_rnn_ffn")
            for path, prefix, letter in products:
                yield f"{path}.weight", f"{prefix}_W{letter}"
                yield f"{path}.bias", f"{prefix}_b{letter}"
            for block, name in blocks.items():
                yield from norm(f"{own}.{block}_norm", f"{foreign}_{name}_Wo")
            yield from norm(f"{own}.feed_forward_norm", f"{foreign}_ffn_ffn")
        if config.embedding_norm:
            yield from norm(f"{stack}.embedding_norm", f"{stack}_emb", "_pre")
        if config.has_final_norm:
            yield from norm(f"{stack}.norm", f"{stack}_top", "")
