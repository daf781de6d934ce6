"""The model bundle: a directory with the graphs, the tokenizer and `manifest.json`, which describes them.

The exporter writes it and the service opens it; both use the file layout and the tensor names of this module. Opening
checks everything that can be known without loading a graph.
"""

import errno
import hashlib
import math
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, from_json

from service.errors import BundleError

SCHEMA_VERSION: Final = 5
"""Version of the format, raised when an older service could not read a newer bundle.

1: each precision has an encoder and a decoder with their weights inside; one description of tensors for all precisions.
2: graphs may share a file of weights, a precision may have an attention graph, and has its own description of tensors.
3: a precision may say where its int8 weights lie in that file; there may be a shortlist.
4: sources may have a SentencePiece model of their own, tokens may have other ids than SentencePiece's, sources and
   targets may begin with fixed tokens, sources may end with others than EOS or with none, decoding may begin with
   padding or EOS, and the network may differ from that of the paper.
5: a model may be of many languages, and may say how sure it is of a translation.
"""

_READABLE_VERSIONS: Final = (1, 2, 3, 4, SCHEMA_VERSION)

FloatType = Literal["float32", "float16"]
"""Element type of states, keys and values, and of the ancestor mask. Scores are always float32."""

Activation = Literal["relu", "gelu", "swish", "swiglu"]
"""Of feed-forward blocks; GELU by the error function."""

NormKind = Literal["layer", "rms"]

Positions = Literal["sinusoidal", "learned", "rotary", "none"]
"""How a token's place is told."""

SinusoidLayout = Literal["interleaved", "halves", "fairseq"]
"""Order and wavelengths of sinusoids; `export.model.layers.sinusoidal_positions` says how they differ."""

TiedEmbeddings = Literal["all", "decoder", "none"]
"""Which of the tables of source, target and projection are one: all, the latter two, or none."""

MANIFEST_NAME = "manifest.json"
"""The only file without a checksum."""

MAX_FILE_BYTES: Final = 16 << 30
"""Largest file of a bundle."""

WEIGHTS_ALIGNMENT_BYTES: Final = 64
"""Arrays in a file of weights begin at multiples of it, as a CPU's vector loads and cache lines like best."""

_MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_INT8_WEIGHTS_BYTES: Final = 4 << 20
"""Several times what the largest number of layers needs."""

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""A file, model or version name that cannot leave its directory: no separator, no leading dot."""

LanguageTag = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)]
"""A BCP-47 tag, such as `en` or `zh-Hant`."""

_EMBEDDING: Final = "embedding"
"""Path of the target's embedding, which may be the source's and the projection to the vocabulary as well."""

PROJECTION_BIAS: Final = "projection.bias"
"""Name of the bias of the logits, in graphs as well as in checkpoints."""

_MIN_AGE_NS: Final = 10**9
"""Changes within a tick of the file system's clock have the same times: a younger file may change unnoticed."""

_MAX_PRECISIONS: Final = 16
_MAX_LANGUAGES: Final = 1000
_MAX_PAIRS: Final = 20_000
_Size = Annotated[int, Field(ge=1, le=1 << 24)]
_NumLayers = Annotated[int, Field(ge=1, le=256)]
_NumTokens = Annotated[int, Field(ge=1, le=1 << 16)]
_Text = Annotated[str, Field(max_length=4096)]
_TokenId = Annotated[int, Field(ge=0)]
_Prefix = Annotated[tuple[_TokenId, ...], Field(max_length=8)]
_Placeholder = Annotated[str, Field(min_length=1, max_length=32)]
_TensorName = Annotated[str, Field(max_length=200)]
_FLOAT32_TINY: Final = 2.0**-126
"""Smaller numbers lose digits."""
_FLOAT32_MAX: Final = (2 - 2.0**-23) * 2.0**127


def _not_ort(name: str) -> str:
    """Refuse ONNX Runtime's own format: what a graph in it refers to cannot be checked."""
    if name.lower().endswith(".ort"):
        raise PydanticCustomError("ort", "a graph in ONNX, not in ONNX Runtime's own format (.ort)")
    return name


_GraphName = Annotated[PlainName, AfterValidator(_not_ort)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class DerivedSizes:
    """What follows from an architecture's fields, here and in `export.model.config.ModelConfig`."""

    __slots__ = ()

    if TYPE_CHECKING:  # else they would be fields before the others
        vocabulary_size: int
        d_model: int
        num_heads: int
        norm: Literal["pre", "post"]
        final_norm: bool | None
        head_dim: int | None
        num_kv_heads: int | None
        source_vocabulary_size: int | None

    @property
    def head_size(self) -> int:
        """D, width of one head."""
        return self.head_dim or self.d_model // self.num_heads

    @property
    def num_key_heads(self) -> int:
        """Heads of keys and values, in the caches."""
        return self.num_kv_heads or self.num_heads

    @property
    def key_size(self) -> int:
        """Width of the keys of a token, and of its values, over all their heads."""
        return self.num_key_heads * self.head_size

    @property
    def num_source_tokens(self) -> int:
        """Entries of the source's vocabulary."""
        return self.source_vocabulary_size or self.vocabulary_size

    @property
    def has_final_norm(self) -> bool:
        """Whether what leaves each stack is normalised."""
        return self.norm == "pre" if self.final_norm is None else self.final_norm


class Architecture(_Section, DerivedSizes):
    """The network but for its weights; the defaults are those of the paper, and of bundles before version 4."""

    vocabulary_size: _Size
    """V, entries of the target's vocabulary."""
    d_model: _Size
    """Width of the residual stream."""
    num_heads: _Size
    """H, of queries."""
    ffn_size: _Size
    """Width of the hidden layer of the feed-forward blocks."""
    num_encoder_layers: _NumLayers
    num_decoder_layers: _NumLayers
    norm: Literal["pre", "post"]
    """Normalisation before each sublayer or after each residual sum."""
    activation: Activation = "relu"
    norm_kind: NormKind = "layer"
    """Layer normalisation, or RMS normalisation, which has no bias."""
    norm_epsilon: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 1e-5
    embedding_norm: bool = False
    """Whether what enters each stack is normalised."""
    final_norm: bool | None = None
    """Whether what leaves each stack is; None: with norm `pre`."""
    head_dim: _Size | None = None
    """D; None: `d_model` over `num_heads`."""
    num_kv_heads: _Size | None = None
    """Heads of keys and values: query head h takes number h modulo this; None: `num_heads`."""
    positions: Positions = "sinusoidal"
    sinusoid_layout: SinusoidLayout = "interleaved"
    position_offset: Annotated[int, Field(ge=0, le=1000)] = 0
    """Position of the first token, where positions are added to embeddings."""
    max_positions: _Size | None = None
    """Tokens for which learned tables have a position."""
    scale_embeddings: bool = True
    """Whether embeddings are multiplied by sqrt(d_model)."""
    tied_embeddings: TiedEmbeddings = "all"
    projection_bias: bool = False
    """Whether the projection to the vocabulary has a bias."""
    source_vocabulary_size: _Size | None = None
    """Entries of the source's vocabulary; None: `vocabulary_size`."""

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if self.head_dim is None and self.d_model % self.num_heads:
            raise ValueError(f"d_model {self.d_model} is no multiple of num_heads {self.num_heads}")
        if self.num_heads % self.num_key_heads:
            raise ValueError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if (self.max_positions is not None) != (self.positions == "learned"):
            raise ValueError(f"max_positions {self.max_positions} with positions {self.positions}")
        if self.tied_embeddings == "all" and self.num_source_tokens != self.vocabulary_size:
            raise ValueError(f"source_vocabulary_size {self.source_vocabulary_size} with one table for all")
        return self


class SpecialIds(_Section):
    """Special token ids."""

    pad: _TokenId
    bos: _TokenId
    """What the decoder starts from: a token of its own, padding or EOS."""
    eos: _TokenId
    unk: _TokenId

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        if len({self.pad, self.eos, self.unk}) != 3 or self.bos == self.unk:
            raise ValueError("two special tokens share an id")
        return self


class Limits(_Section):
    """Longest sequences that the graphs have positions for."""

    max_source_tokens: _NumTokens
    """EOS counted."""
    max_target_tokens: _NumTokens
    """EOS counted, BOS not."""


class FileEntry(_Section):
    """Checksum and size of a file."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]


class GraphFiles(_Section):
    """The graphs of one precision."""

    encoder: _GraphName
    decoder: _GraphName
    attention: _GraphName | None = None
    """Returns the cross-attention weights of a given target; None: the bundle cannot compute them."""
    weights: PlainName | None = None
    """Holds the weights that the graphs do not hold themselves; None: they hold all of theirs.

    It is read when the model is loaded, and not needed after. A new version of a model goes into a new directory.
    """
    int8_weights: PlainName | None = None
    """JSON of `Int8Weights`; None: the decoder's weights are not int8 throughout, or nobody has described them."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        names = (self.encoder, self.decoder, self.attention, self.weights, self.int8_weights)
        return tuple(name for name in names if name is not None)

    @model_validator(mode="after")
    def _describes_a_file(self) -> Self:
        if self.int8_weights is not None and self.weights is None:
            raise ValueError("int8_weights describes the file of weights, of which there is none")
        return self


class GraphTensors(_Section):
    """Inputs and outputs of a graph: name to element type, as numpy spells it."""

    inputs: dict[str, str]
    outputs: dict[str, str]


class Tensors(_Section):
    """Inputs and outputs of the graphs of one precision."""

    encoder: GraphTensors
    decoder: GraphTensors
    attention: GraphTensors | None = None
    """None if the precision has no such graph."""

    @property
    def float_type(self) -> FloatType:
        """Element type of the KV cache."""
        return "float16" if "float16" in self.encoder.outputs.values() else "float32"


class StoredTensor(_Section):
    """An array in the file of weights: its elements in C order, little-endian."""

    dtype: Literal["int8", "float32"]
    shape: Annotated[tuple[_Size, ...], Field(min_length=1, max_length=2)]
    offset: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES, multiple_of=WEIGHTS_ALIGNMENT_BYTES)]
    """Bytes of the file before it."""

    @property
    def num_bytes(self) -> int:
        """Size of the array."""
        return math.prod(self.shape) * (1 if self.dtype == "int8" else 4)


class ActivationScale(_Section):
    """How what enters a product is rounded: to x / scale + zero_point, to nearest even, cut to 0 to 255."""

    scale: Annotated[float, Field(ge=_FLOAT32_TINY, le=_FLOAT32_MAX, allow_inf_nan=False)]
    """A float32 number."""
    zero_point: Annotated[int, Field(ge=0, le=255)]


class NetworkWeights(_Section):
    """Where the arrays of an encoder or a decoder lie whose products are all int8, and how it rounds what enters each.

    With the architecture it is all that is needed without the graph.
    """

    tensors: Annotated[dict[_TensorName, StoredTensor], Field(max_length=8192)]
    """Those of `encoder_arrays` or `decoder_arrays`, by name."""
    activations: Annotated[dict[_TensorName, ActivationScale | None], Field(max_length=2048)]
    """By each product of `encoder_products` or `decoder_products`. None: each row has a scale of its own, by which its
    largest magnitude becomes the largest integer, around a zero point of 128; in `feed_forward.outer` behind a
    ReLU its largest value becomes 255 and the zero point is 0."""

    def check(self, path: Path, part: Literal["encoder", "decoder"], manifest: "Manifest", weights: str) -> None:
        """Raise BundleError, which names file and part, unless they fit a manifest and its file of weights."""
        arrays, products = (
            (encoder_arrays, encoder_products) if part == "encoder" else (decoder_arrays, decoder_products)
        )
        expected = arrays(manifest.architecture, manifest.limits)
        for what, found, names in (
            (f"{part}.tensors", self.tensors, expected.keys()),
            (f"{part}.activations", self.activations, products(manifest.architecture).keys()),
        ):
            if missing := names - found.keys():
                raise BundleError(str(path), found="missing", expected="a value", what=f"{what}.{min(missing)}")
            if extra := found.keys() - names:
                raise BundleError(str(path), found="there", expected="no such name", what=f"{what}.{min(extra)}")
        size = manifest.files[weights].bytes
        for name, tensor in self.tensors.items():
            what, kind, (dtype, shape) = f"{part}.tensors.{name}", (tensor.dtype, tensor.shape), expected[name]
            if kind != (dtype, shape):
                raise BundleError(str(path), found=kind, expected=(dtype, shape), what=what)
            if tensor.offset + tensor.num_bytes > size:
                place, inside = (
                    f"{tensor.num_bytes} bytes from {tensor.offset}",
                    f"within the {size} bytes of {weights}",
                )
                raise BundleError(str(path), found=place, expected=inside, what=what)


class Int8Weights(_Section):
    """The int8 weights of a precision, for whoever computes without its graphs."""

    decoder: NetworkWeights
    encoder: NetworkWeights | None
    """None: not all of its products are int8."""

    def check(self, path: Path, manifest: "Manifest", weights: str) -> None:
        """Raise BundleError, which names the file at `path`, unless they fit a manifest and its file of weights."""
        self.decoder.check(path, "decoder", manifest, weights)
        if self.encoder is not None:
            self.encoder.check(path, "encoder", manifest, weights)


class TargetTokens(_Section):
    """Tokens that tell a model which language to translate into."""

    source_prefix: _Prefix = ()
    """What sources begin with, behind the tokens of their own language."""
    target_prefix: _Prefix = ()
    """What targets are made to begin with."""


class Languages(_Section):
    """The languages of a model of many, and the tokens that tell it which."""

    sources: Annotated[dict[LanguageTag, _Prefix], Field(min_length=1, max_length=_MAX_LANGUAGES)]
    """Languages translated from, each with what its texts begin with."""
    targets: Annotated[dict[LanguageTag, TargetTokens], Field(min_length=1, max_length=_MAX_LANGUAGES)]
    """Languages translated into."""
    pairs: Annotated[frozenset[tuple[LanguageTag, LanguageTag]], Field(max_length=_MAX_PAIRS)] | None = None
    """Source and target of each direction; None: every source into every target but itself."""

    def serves(self, source: str, target: str) -> bool:
        """Return whether a language is translated into another; both as they are spelled here."""
        if self.pairs is not None:
            return (source, target) in self.pairs
        return source in self.sources and target in self.targets and source != target

    def find(self, source: str, target: str) -> tuple[str, str] | None:
        """Return a language pair as it is spelled here, from lower case; None if there is no such pair."""
        sources, targets = self._by_lower_case
        if source not in sources or target not in targets:
            return None
        pair = sources[source], targets[target]
        return pair if self.serves(*pair) else None

    def targets_of(self, source: str) -> tuple[str, ...]:
        """Return into what a language is translated, in the order of `targets`."""
        return tuple(target for target in self.targets if self.serves(source, target))

    def pairs_served(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of each direction."""
        return ((source, target) for source in self.sources for target in self.targets_of(source))

    @cached_property
    def _by_lower_case(self) -> tuple[dict[str, str], dict[str, str]]:
        return {tag.lower(): tag for tag in self.sources}, {tag.lower(): tag for tag in self.targets}

    @field_serializer("pairs", when_used="json")
    def _sorted(self, pairs: frozenset[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
        return None if pairs is None else sorted(pairs)

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for tags in (self.sources, self.targets):
            if len({tag.lower() for tag in tags}) < len(tags):
                raise ValueError("two languages differ in upper and lower case only")
        for source, target in self.pairs or ():
            if source not in self.sources or target not in self.targets:
                raise ValueError(f"the pair of {source} and {target} has a language that is not among those listed")
        return self


class Tokenization(_Section):
    """How text becomes token ids where it takes more than one SentencePiece model with its own ids."""

    source_model: PlainName | None = None
    """SentencePiece model of sources; None: that of targets."""
    pieces: PlainName | None = None
    """JSON array: the spelling of each token by its id, null where there is none; None: SentencePiece's own ids.

    What SentencePiece finds in a text and the array lacks becomes the unknown token.
    """
    source_pieces: PlainName | None = None
    """The same for sources, if their vocabulary is not that of targets."""
    source_prefix: _Prefix = ()
    """Tokens that every source begins with, such as the tag of a language."""
    source_suffix: _Prefix | None = None
    """Tokens that every source ends with; None: EOS. Models of OpenNMT-py have nothing there."""
    target_prefix: _Prefix = ()
    """Tokens that every target is made to begin with."""
    languages: Languages | None = None
    """Of a model of many languages, which has no other prefixes; None: it has one pair."""
    placeholders: Annotated[tuple[_Placeholder, ...], Field(max_length=256)] = ()
    """Pieces of source and target that the model was taught to copy, such as `⟦1⟧`, in the order of their use: it sees
    them in place of what is protected in a text. None: it sees years."""

    def prefixes(self, source: str, target: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return what sources and targets of a language pair begin with; KeyError if there is no such language."""
        if self.languages is None:
            return self.source_prefix, self.target_prefix
        tokens = self.languages.targets[target]
        return (*self.languages.sources[source], *tokens.source_prefix), tokens.target_prefix

    def fixed_tokens(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the tokens that sources begin or end with, of any language pair, and those that targets begin with."""
        of_sources = {*self.source_prefix, *(self.source_suffix or ())}
        if self.languages is None:
            return frozenset(of_sources), frozenset(self.target_prefix)
        targets = self.languages.targets.values()
        of_sources.update(*self.languages.sources.values(), *(tokens.source_prefix for tokens in targets))
        return frozenset(of_sources), frozenset(chain(*(tokens.target_prefix for tokens in targets)))

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        return tuple(name for name in (self.source_model, self.pieces, self.source_pieces) if name is not None)

    @model_validator(mode="after")
    def _has_ids_of_targets(self) -> Self:
        if self.source_pieces is not None and self.pieces is None:
            raise ValueError("source_pieces without pieces: targets have no ids of the same kind")
        if self.languages is not None and (self.source_prefix or self.target_prefix):
            raise ValueError("prefixes beside those of languages")
        return self


class Score(_Section):
    """A quality score measured when the bundle was made."""

    metric: _Text
    """For instance `BLEU`."""
    value: float
    data: _Text
    """Name of the test set."""
    signature: _Text = ""
    """Signature of the metric, as its tool prints it."""
    precision: _Text = ""
    """Precision of the graphs."""
    beam_size: _Size = 4


class Provenance(_Section):
    """Origin of the weights."""

    exporter_version: _Text
    checkpoint: _Text
    """File the weights were read from."""
    checkpoint_sha256: _Text
    training_step: int | None = None
    """Optimizer steps; None if the checkpoint does not say."""
    training_data: Annotated[tuple[_Text, ...], Field(max_length=1000)] = ()
    """Names of the training data."""


_Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class ConfidenceWeights(_Section):
    """What each thing that is known of a translated sentence says about it; see `service.text.confidence`."""

    mean_log_prob: _Weight
    """Of its tokens."""
    min_log_prob: _Weight
    """Of its least likely token."""
    source_length: _Weight
    """Logarithm of the source tokens and one."""
    length_ratio: _Weight
    """How far the logarithm of the ratio of lengths is from the usual one."""
    fragmentation: _Weight
    """Target tokens a character: unusual words come in small pieces."""
    copied_words: _Weight
    """Share of the words that are words of the source."""
    defect: _Weight
    """1 if the repetition guard found something or the translation was cut off, else 0."""


class Confidence(_Section):
    """How likely a sentence is translated well: the logistic function of bias and weighted features."""

    weights: ConfidenceWeights
    bias: _Weight
    usual_log_ratio: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
    """Mean logarithm of the ratio of target to source characters."""
    good_chrf: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]
    """What counted as translated well: at least this chrF against the reference."""
    data: _Text
    """What it was fitted on."""


class Manifest(_Section):
    """All of `manifest.json`."""

    schema_version: Literal[1, 2, 3, 4, 5]
    name: PlainName
    version: PlainName
    source_language: LanguageTag
    """Of a model of many languages, this and the next are the pair that scores are of and that warms it up."""
    target_language: LanguageTag
    architecture: Architecture
    special_ids: SpecialIds
    limits: Limits
    precisions: Annotated[dict[PlainName, GraphFiles], Field(min_length=1, max_length=_MAX_PRECISIONS)]
    """Precision, such as `int8`, to its graphs."""
    default_precision: _Text
    tokenizer: PlainName
    """SentencePiece model, of sources as well unless `tokenization` says otherwise; `NAME.json`: byte-level BPE."""
    tokenization: Tokenization = Tokenization()
    shortlist: PlainName | None = None
    """Says which target tokens are likely for a source, see `service.runtime.shortlist`; None: the bundle does not."""
    tensors: Annotated[dict[PlainName, Tensors], Field(max_length=_MAX_PRECISIONS)]
    """Precision to the inputs and outputs of its graphs."""
    files: Annotated[dict[PlainName, FileEntry], Field(max_length=100)]
    """Every file of the bundle but the manifest."""
    scores: Annotated[tuple[Score, ...], Field(max_length=1000)] = ()
    confidence: Confidence | None = None
    """How likely sentences are translated well; None: it was not measured."""
    provenance: Provenance
    licence: _Text
    """SPDX expression under which the model may be used."""
    attribution: _Text
    """Attribution that the licence requires."""

    def named_files(self) -> frozenset[str]:
        """Return the files that have a purpose; all of them are in `files`."""
        others = {self.tokenizer, *self.tokenization.names(), *([self.shortlist] if self.shortlist else ())}
        return frozenset(others.union(*(files.names() for files in self.precisions.values())))

    def languages(self) -> Languages:
        """Return from which languages it translates into which, whether it is of one pair or of many."""
        if self.tokenization.languages is not None:
            return self.tokenization.languages
        source, target = self.source_language, self.target_language
        pair = frozenset({(source, target)})
        return Languages.model_construct(sources={source: ()}, targets={target: TargetTokens()}, pairs=pair)

    def has_attention(self, precision: str) -> bool:
        """Return whether a precision has an attention graph."""
        files = self.precisions.get(precision)
        return files is not None and files.attention is not None

    @field_validator("tensors", mode="before")
    @classmethod
    def _of_every_precision(cls, tensors: object, info: ValidationInfo) -> object:
        """Give every precision the description of a bundle of version 1."""
        if isinstance(tensors, dict) and tensors.keys() & Tensors.model_fields.keys():
            return dict.fromkeys(info.data.get("precisions", ()), tensors)
        return tensors

    @model_validator(mode="after")
    def _fits_the_architecture(self) -> Self:
        shape, limits = self.architecture, self.limits
        ids = self.special_ids
        if max(ids.pad, ids.bos, ids.eos, ids.unk) >= shape.vocabulary_size:
            raise ValueError("a special id is outside the vocabulary")
        if max(ids.pad, ids.eos, ids.unk) >= shape.num_source_tokens:
            raise ValueError("a special id is outside the vocabulary of sources")
        sizes = (shape.num_source_tokens, shape.vocabulary_size)
        for prefix, size in zip(self.tokenization.fixed_tokens(), sizes, strict=True):
            if max(prefix, default=0) >= size:
                raise ValueError("a token of a prefix is outside the vocabulary")
        longest = max(limits.max_source_tokens, limits.max_target_tokens)
        if shape.max_positions is not None and longest > shape.max_positions:
            raise ValueError(f"sequences of {longest} tokens, with {shape.max_positions} learned positions")
        return self

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        if not self.languages().serves(self.source_language, self.target_language):
            raise ValueError(f"{self.source_language} to {self.target_language} is none of its pairs")
        if self.default_precision not in self.precisions:
            raise ValueError(f"default_precision {self.default_precision!r} is none of {sorted(self.precisions)}")
        if unlisted := self.named_files() - self.files.keys():
            raise ValueError(f"no checksum of {sorted(unlisted)}")
        if self.tensors.keys() != self.precisions.keys():
            raise ValueError(f"tensors are those of {sorted(self.tensors)}, precisions {sorted(self.precisions)}")
        for name, tensors in self.tensors.items():
            expected = graph_tensors(self.architecture.num_decoder_layers, tensors.float_type)
            if tensors.attention is None and not self.has_attention(name):  # optional without its graph
                expected = expected.model_copy(update={"attention": None})
            if tensors != expected:
                raise ValueError("tensors are not those of this schema version")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedFile:
    """A file whose checksum fitted, and what its directory entry said then: all change with the content."""

    name: str
    sha256: str
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle whose files were found complete and unchanged."""

    directory: Path
    manifest: Manifest
    checked_files: frozenset[CheckedFile] = frozenset()
    """Saves reading them again, see `open_bundle`; without those that were just written."""

    @property
    def tokenizer_path(self) -> Path:
        """The SentencePiece model, or merges of byte-level BPE."""
        return self.directory / self.manifest.tokenizer

    @property
    def shortlist_path(self) -> Path:
        """The file of the shortlist; BundleError if the bundle has none."""
        name = self.manifest.shortlist
        if name is None:
            raise _manifest_error(self.directory, "shortlist", None, "a file; `export shortlist` makes one")
        return self.directory / name

    def graph_paths(self, precision: str) -> tuple[Path, Path]:
        """Return encoder and decoder of a precision; BundleError if the bundle does not have it."""
        files = self._files(precision)
        return self.directory / files.encoder, self.directory / files.decoder

    def attention_path(self, precision: str) -> Path:
        """Return the attention graph of a precision; BundleError if the bundle does not have it."""
        name = self._files(precision).attention
        if name is None:
            raise self.missing_attention(precision)
        return self.directory / name

    def missing_attention(self, precision: str) -> BundleError:
        """Return the error of a precision that has no attention graph."""
        what = f"precisions.{precision}.attention"
        return _manifest_error(self.directory, what, None, "a graph; export the model again to get one")

    def weights_bytes(self, precision: str) -> int:
        """Return the size of encoder, decoder and weights; BundleError if the bundle does not have the precision."""
        files = self._files(precision)
        names = (files.encoder, files.decoder, files.weights)
        return sum((self.directory / name).stat().st_size for name in names if name is not None)

    def int8_weights(self, precision: str) -> Int8Weights | None:
        """Read where the int8 weights of a precision lie; None if the bundle does not say.

        BundleError if it lacks the precision, or if what it says is damaged or does not fit.
        """
        files = self._files(precision)
        if files.int8_weights is None or files.weights is None:
            return None
        path = self.directory / files.int8_weights
        content, _ = _read_object(path, max_bytes=_MAX_INT8_WEIGHTS_BYTES)
        try:
            weights = Int8Weights.model_validate_json(content)
        except ValidationError as error:
            raise _first_error(path, error) from error
        weights.check(path, self.manifest, files.weights)
        return weights

    def _files(self, precision: str) -> GraphFiles:
        files = self.manifest.precisions.get(precision)
        if files is None:
            available = ", ".join(sorted(self.manifest.precisions))
            raise _manifest_error(self.directory, "precision", precision, f"one of {available}")
        return files


def graph_tensors(num_decoder_layers: int, float_type: FloatType) -> Tensors:
    """Return names and element types of the inputs and outputs of the graphs of a precision.

    Keys, values, pools and the ancestor mask are of `float_type`; scores and attention weights are float32. Shapes,
    with B segments, K rows each, S source and T target tokens, L slots, C candidates, H heads of size D (keys and
    values, and so pools, may have fewer; see `Architecture.num_kv_heads`):

        encoder    source_ids [B, S], source_lengths [B] -> cross_key.i and cross_value.i [B, H, S, D]
        decoder    token_ids [B, K], positions [B, 1], slots [B, K, 2] (segment and slot each row writes to),
                   query_rows [Q] (0 to K - 1, and 0 again for a single row), ancestor_mask [B, 1, Q, L] (added to
                   attention scores), source_lengths [B], num_candidates [1], self_key_pool.i and self_value_pool.i
                   [B, L, H * D], cross_key.i and cross_value.i [B, H, S, D]
                   -> log_probs and candidate_ids [B, K, C]; the pools written to, as <pool>.written.i
        attention  token_ids [B, T] (BOS, then the target without its last token), source_lengths [B], cross_key.i
                   [B, H, S, D] of every decoder layer, cross_value.i [B, H, S, D] of every one but the last
                   -> cross_attention.i [B, H, T, S]; each row adds up to 1
    """
    cross = _layer_floats(("cross_key", "cross_value"), num_decoder_layers, float_type)
    pools = _layer_floats(("self_key_pool", "self_value_pool"), num_decoder_layers, float_type)
    written = _layer_floats(("self_key_pool.written", "self_value_pool.written"), num_decoder_layers, float_type)
    state = dict.fromkeys(("token_ids", "positions", "slots", "query_rows"), "int64")
    sizes = {"ancestor_mask": str(float_type), "source_lengths": "int32", "num_candidates": "int64"}
    return Tensors(
        encoder=GraphTensors(inputs={"source_ids": "int64", "source_lengths": "int32"}, outputs=cross),
        decoder=GraphTensors(
            inputs={**state, **sizes, **pools, **cross},
            outputs={"log_probs": "float32", "candidate_ids": "int64", **written},
        ),
        attention=attention_tensors(num_decoder_layers, float_type),
    )


def attention_tensors(num_decoder_layers: int, float_type: FloatType) -> GraphTensors:
    """Return those of an attention graph; see `graph_tensors`."""
    cross = layer_names(("cross_key", "cross_value"), num_decoder_layers)[:-1]
    weights = layer_names(("cross_attention",), num_decoder_layers)
    return GraphTensors(
        inputs={"token_ids": "int64", "source_lengths": "int32", **dict.fromkeys(cross, float_type)},
        outputs=dict.fromkeys(weights, "float32"),
    )


def encoder_products(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Return the products of an encoder with weights: path to inputs and outputs.

    Query, key and value of self-attention are one; so are inner projection and gate of SwiGLU and, at the end, keys and
    values of the cross-attention of all decoder layers: key and value of each layer in turn.
    """
    products = _layer_products(architecture, "encoder", architecture.num_encoder_layers)
    num_outputs = 2 * architecture.num_decoder_layers * architecture.key_size
    return {**products, "decoder.layers.0.cross_attention.key.fused": (architecture.d_model, num_outputs)}


def decoder_products(architecture: Architecture) -> dict[str, tuple[int, int]]:
    """Return the products of a decoder step with weights: path to inputs and outputs.

    Query, key and value of self-attention are one. The projection to the vocabulary has the path of the embedding if
    both are one table, and else `projection`.
    """
    products = _layer_products(architecture, "decoder", architecture.num_decoder_layers)
    return {**products, projection_path(architecture): (architecture.d_model, architecture.vocabulary_size)}


def projection_path(architecture: Architecture) -> str:
    """Return the path of the projection to the vocabulary, which may be the embedding."""
    return "projection" if architecture.tied_embeddings == "none" else _EMBEDDING


def _layer_products(architecture: Architecture, stack: str, num_layers: int) -> dict[str, tuple[int, int]]:
    width, hidden = architecture.d_model, architecture.ffn_size
    mixed = architecture.num_heads * architecture.head_size
    inner, outputs = (".fused", 2 * hidden) if architecture.activation == "swiglu" else ("", hidden)
    cross = {"cross_attention.query": (width, mixed), "cross_attention.output": (mixed, width)}
    parts = {
        "self_attention.query.fused": (width, mixed + 2 * architecture.key_size),
        "self_attention.output": (mixed, width),
        **(cross if stack == "decoder" else {}),
        f"feed_forward.inner{inner}": (width, outputs),
        "feed_forward.outer": (hidden, width),
    }
    return {f"{stack}.layers.{layer}.{part}": sizes for layer in range(num_layers) for part, sizes in parts.items()}


def encoder_arrays(architecture: Architecture, limits: Limits) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of an encoder whose products are all int8: name to element type and shape.

    They are stored as those of `decoder_arrays` are; `position_encodings` is [S, d_model]. A table of the source's own
    is `encoder.embedding.weight.int8` and `.factors`.
    """
    kinds = ("self_attention_norm", "feed_forward_norm")
    norms = _norms(architecture, "encoder", architecture.num_encoder_layers, kinds)
    table = _EMBEDDING if architecture.tied_embeddings == "all" else f"encoder.{_EMBEDDING}"
    return _arrays(
        architecture,
        encoder_products(architecture),
        norms,
        limits.max_source_tokens,
        {table: architecture.num_source_tokens},
    )


def decoder_arrays(architecture: Architecture, limits: Limits) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return the arrays of a decoder step whose products are all int8: name to element type and shape.

    Every product but the projection has `<path>.weight.int8` [inputs, outputs], `<path>.weight.factors` [outputs],
    by which sums of integers are multiplied, and `<path>.bias` [outputs]. The embedding, which may be the projection
    too, is stored as rows: `embedding.weight.int8` [V, d_model] and `embedding.weight.factors` [V, 1]; so is
    `projection.weight` of its own, and `projection.bias` is [V]. `position_encodings`, if any are added, is
    [T, d_model]; of learned ones there are all of `max_positions`. Norms have `weight` and, unless they are RMS norms,
    `bias`.
    """
    kinds = ("self_attention_norm", "cross_attention_norm", "feed_forward_norm")
    norms = _norms(architecture, "decoder", architecture.num_decoder_layers, kinds)
    tables = dict.fromkeys((_EMBEDDING, projection_path(architecture)), architecture.vocabulary_size)
    arrays = _arrays(architecture, decoder_products(architecture), norms, limits.max_target_tokens, tables)
    if architecture.projection_bias:
        arrays[PROJECTION_BIAS] = ("float32", (architecture.vocabulary_size,))
    return arrays


def _norms(architecture: Architecture, stack: str, num_layers: int, kinds: Sequence[str]) -> list[str]:
    """Return the paths of the normalisations of a stack."""
    norms = [f"{stack}.layers.{layer}.{kind}" for layer in range(num_layers) for kind in kinds]
    around = (("norm", architecture.has_final_norm), ("embedding_norm", architecture.embedding_norm))
    return [*norms, *(f"{stack}.{name}" for name, is_there in around if is_there)]


def _arrays(
    architecture: Architecture,
    products: Mapping[str, tuple[int, int]],
    norms: Sequence[str],
    num_positions: int,
    tables: Mapping[str, int],
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return all arrays but a bias of the logits; `tables` are those of embeddings and projection, path to rows."""
    width = architecture.d_model
    arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
    if architecture.positions in ("sinusoidal", "learned"):
        arrays["position_encodings"] = ("float32", (architecture.max_positions or num_positions, width))
    if architecture.positions == "rotary":
        arrays["rotary_positions"] = ("float32", (num_positions, architecture.head_size))
    for path, num_rows in tables.items():
        arrays[f"{path}.weight.int8"] = ("int8", (num_rows, width))
        arrays[f"{path}.weight.factors"] = ("float32", (num_rows, 1))
    for path, (inputs, outputs) in products.items():
        if path not in tables:
            arrays[f"{path}.weight.int8"] = ("int8", (inputs, outputs))
            arrays.update(dict.fromkeys((f"{path}.weight.factors", f"{path}.bias"), ("float32", (outputs,))))
    parts = ("weight", "bias") if architecture.norm_kind == "layer" else ("weight",)
    for path in norms:
        arrays.update(dict.fromkeys((f"{path}.{part}" for part in parts), ("float32", (width,))))
    return arrays


def layer_names(kinds: Sequence[str], num_layers: int) -> tuple[str, ...]:
    """Return `<kind>.<layer>` for every layer and, within it, every kind."""
    return tuple(f"{kind}.{layer}" for layer in range(num_layers) for kind in kinds)


def _layer_floats(kinds: Sequence[str], num_layers: int, float_type: FloatType) -> dict[str, str]:
    return dict.fromkeys(layer_names(kinds, num_layers), float_type)


def open_bundle(
    directory: Path, *, checked_files: Collection[CheckedFile] = (), clock_ns: Callable[[], int] = time.time_ns
) -> Bundle:
    """Return the bundle in a directory after checking its manifest and every file.

    Those of `checked_files`, known since it was opened before, that are still the same are not read again. BundleError
    names the first file that does not fit, what was found and what was expected.
    """
    manifest = load_manifest(directory)
    settled_ns = clock_ns() - _MIN_AGE_NS
    files = [_checked(directory / name, entry, checked_files) for name, entry in manifest.files.items()]
    settled = frozenset(file for file in files if file.changed_ns < settled_ns)
    return Bundle(directory=directory, manifest=manifest, checked_files=settled)


def load_manifest(directory: Path) -> Manifest:
    """Read `manifest.json` without looking at the other files; BundleError says what is wrong with it."""
    path = directory / MANIFEST_NAME
    content, fields = _read_object(path, max_bytes=_MAX_MANIFEST_BYTES)
    if fields.get("schema_version") not in _READABLE_VERSIONS:  # first: another version has other fields
        readable = " or ".join(map(str, _READABLE_VERSIONS))
        raise _manifest_error(directory, "schema_version", fields.get("schema_version"), readable)
    try:
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        raise _first_error(path, error) from error


def _read_object(path: Path, *, max_bytes: int) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a JSON file and the object that it holds; BundleError if it holds none."""
    try:
        content = read_file(path, max_bytes=max_bytes)
        fields = from_json(content)
    except OSError as error:
        raise BundleError(str(path), found=error.strerror, expected="a readable file", what="access") from error
    except ValueError as error:  # neither UTF-8 nor JSON, or nested too deeply
        raise BundleError(str(path), found=str(error), expected="JSON", what="content") from error
    if not isinstance(fields, dict):
        raise BundleError(str(path), found=type(fields).__name__, expected="an object", what="content")
    return content, fields


def open_file(path: Path, *, max_bytes: float = math.inf) -> BufferedReader:
    """Open a regular file to be read; OSError if it is none, larger, or a link that leads out of its directory.

    Unlike `open` it never waits, as for the writer of a FIFO.
    """
    target = os.path.realpath(path, strict=True)
    if not Path(target).is_relative_to(os.path.realpath(path.parent)):
        raise OSError(errno.EPERM, "a link that leads out of its directory")
    file = open(target, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_NOFOLLOW))  # noqa: SIM115
    status = os.fstat(file.fileno())
    fault = "" if stat.S_ISREG(status.st_mode) else "no regular file"
    if fault or status.st_size > max_bytes:
        file.close()
        raise OSError(errno.EINVAL, fault or f"{status.st_size} bytes, more than {max_bytes}")
    return file


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Return the content of a file; raises as `open_file`."""
    with open_file(path, max_bytes=max_bytes) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def file_entry(path: Path) -> FileEntry:
    """Return checksum and current size of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileEntry(sha256=digest, bytes=path.stat().st_size)


def _checked(path: Path, entry: FileEntry, known: Collection[CheckedFile]) -> CheckedFile:
    """Return a file that fits its entry; it is read unless it is among those known, which fitted before."""
    try:
        with open_file(path) as content:
            status = os.fstat(content.fileno())  # before it is read: a change meanwhile is found by the next check
            file = CheckedFile(
                name=path.name,
                sha256=entry.sha256,
                inode=status.st_ino,
                bytes=status.st_size,
                modified_ns=status.st_mtime_ns,
                changed_ns=status.st_ctime_ns,
            )
            if file.bytes != entry.bytes:
                raise BundleError(str(path), found=file.bytes, expected=entry.bytes, what="size in bytes")
            if file in known:
                return file
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise BundleError(str(path), found=error.strerror, expected="a readable file", what="access") from error
    if found != entry.sha256:
        raise BundleError(str(path), found=found, expected=entry.sha256, what="SHA-256")
    return file


def _manifest_error(directory: Path, what: str, found: object, expected: object) -> BundleError:
    return BundleError(str(directory / MANIFEST_NAME), found=repr(found), expected=expected, what=what)


def _first_error(path: Path, error: ValidationError) -> BundleError:
    """Return the first error of pydantic, found in a file, as a BundleError."""
    first: Any = error.errors()[0]
    what = ".".join(str(part) for part in first["loc"]) or path.stem
    found, expected = repr(first["input"]), first["msg"]
    if first["type"] == "missing":
        found, expected = "'missing'", "a value"
    elif first["type"] == "extra_forbidden":
        expected = "no such field"
    elif not first["loc"] or first["type"] == "value_error":
        found, expected = first["msg"], "consistent"
    return BundleError(str(path), found=found, expected=expected, what=what)
