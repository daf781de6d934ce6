"""The manifest of a bundle, `manifest.json`: the model, its files, and its quality scores."""

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_serializer, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dragoman_service.bundle.architecture import Architecture, Limits, Section, Size, Tensors, graph_tensors

SCHEMA_VERSION: Final = 7
"""Version of the format. It is raised if an older service cannot read a newer bundle.

1: each precision has an encoder and a decoder graph that contain their weights; all precisions share one description of
   tensors.
2: optional: a weights file shared by the graphs, an attention graph. Each precision has its own description of tensors.
3: optional: a description of the int8 weights in the weights file, a shortlist.
4: optional: a separate SentencePiece model for sources, other token ids than those of SentencePiece, fixed tokens at
   the start of sources and targets, other tokens than EOS (or none) at the end of sources, padding or EOS as the first
   decoder input, other architectures than Vaswani et al. (2017).
5: optional: several languages, a confidence estimator.
6: optional: activations rounded to 7 bits.
7: optional: reserved pieces, further features of the confidence estimator.
"""

MAX_FILE_BYTES: Final = 16 << 30  # maximum size of a file in a bundle

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""Name of a file, model or version, without path separators and leading dots."""

LanguageTag = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$", max_length=35)]
"""A BCP-47 tag, such as `en` or `zh-Hant`."""

_MAX_PRECISIONS: Final = 16
_MAX_LANGUAGES: Final = 1000
_MAX_PAIRS: Final = 20_000
_Text = Annotated[str, Field(max_length=4096)]
_TokenId = Annotated[int, Field(ge=0)]
_Prefix = Annotated[tuple[_TokenId, ...], Field(max_length=8)]
_Placeholder = Annotated[str, Field(min_length=1, max_length=32)]


def _not_ort(name: str) -> str:
    # External files of a graph in the .ort format cannot be checked.
    if name.lower().endswith(".ort"):
        raise PydanticCustomError("ort", "an ONNX graph, not a graph in the ONNX Runtime format (.ort)")
    return name


_GraphName = Annotated[PlainName, AfterValidator(_not_ort)]


class SpecialIds(Section):
    """Special token ids."""

    pad: _TokenId
    bos: _TokenId  # first decoder input: a separate token, padding or EOS
    eos: _TokenId
    unk: _TokenId

    @model_validator(mode="after")
    def _are_distinct(self) -> Self:
        if len({self.pad, self.eos, self.unk}) != 3 or self.bos == self.unk:
            raise ValueError("two special tokens share an id")
        return self


class FileEntry(Section):
    """Checksum and size of a file."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]


class GraphFiles(Section):
    """The graphs of one precision."""

    encoder: _GraphName
    decoder: _GraphName
    attention: _GraphName | None = None
    """Graph that returns the cross-attention weights of a given target; None: the bundle has no such graph."""
    weights: PlainName | None = None
    """File with the external weights of the graphs; None: the graphs contain all weights.

    The file is read only while the model is loaded.
    """
    int8_weights: PlainName | None = None
    """JSON file of `Int8Weights`; None: not all weights of the decoder are int8, or they are not described."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        names = (self.encoder, self.decoder, self.attention, self.weights, self.int8_weights)
        return tuple(name for name in names if name is not None)

    @model_validator(mode="after")
    def _has_weights_file(self) -> Self:
        if self.int8_weights is not None and self.weights is None:
            raise ValueError("int8_weights requires a weights file")
        return self


class TargetTokens(Section):
    """Tokens that select the target language."""

    source_prefix: _Prefix = ()  # tokens at the start of sources, after the tokens of the source language
    target_prefix: _Prefix = ()  # forced tokens at the start of targets


class Languages(Section):
    """Languages of a multilingual model, and the tokens that select them."""

    sources: Annotated[dict[LanguageTag, _Prefix], Field(min_length=1, max_length=_MAX_LANGUAGES)]
    """Source language to the tokens at the start of its texts."""
    targets: Annotated[dict[LanguageTag, TargetTokens], Field(min_length=1, max_length=_MAX_LANGUAGES)]
    """Target language to the tokens that select it."""
    pairs: Annotated[frozenset[tuple[LanguageTag, LanguageTag]], Field(max_length=_MAX_PAIRS)] | None = None
    """Supported pairs of source and target; None: every source with every other target."""

    def serves(self, source: str, target: str) -> bool:
        """Return whether a pair is supported; tags are spelled as in the manifest."""
        if self.pairs is not None:
            return (source, target) in self.pairs
        return source in self.sources and target in self.targets and source != target

    def find(self, source: str, target: str) -> tuple[str, str] | None:
        """Return the manifest spelling of a lower-case pair; None if the pair is not supported."""
        sources, targets = self._by_lower_case
        if source not in sources or target not in targets:
            return None
        pair = sources[source], targets[target]
        return pair if self.serves(*pair) else None

    def targets_of(self, source: str) -> tuple[str, ...]:
        """Return the target languages of a source language, in the order of `targets`."""
        return tuple(target for target in self.targets if self.serves(source, target))

    def has_source(self, source: str) -> bool:
        """Return whether a lower-case tag is a source language."""
        return source in self._by_lower_case[0]

    def pairs_served(self) -> Iterator[tuple[str, str]]:
        """Yield source and target of each supported pair."""
        return ((source, target) for source in self.sources for target in self.targets_of(source))

    @cached_property
    def _by_lower_case(self) -> tuple[dict[str, str], dict[str, str]]:
        return {tag.lower(): tag for tag in self.sources}, {tag.lower(): tag for tag in self.targets}

    @field_serializer("pairs", when_used="json")
    def _sorted(self, pairs: frozenset[tuple[str, str]] | None) -> list[tuple[str, str]] | None:
        return None if pairs is None else sorted(pairs)

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for tags in (self.sources, self.targets):
            if len({tag.lower() for tag in tags}) < len(tags):
                raise ValueError("two languages differ only in case")
        for source, target in self.pairs or ():
            if source not in self.sources or target not in self.targets:
                raise ValueError(f"the pair {source} to {target} has an unlisted language")
        return self


class Tokenization(Section):
    """Tokenization that differs from one SentencePiece model with its own ids."""

    source_model: PlainName | None = None  # SentencePiece model for sources; None: the same as for targets
    pieces: PlainName | None = None
    """JSON array of the text of each token id, null for ids without text; None: the ids of SentencePiece.

    Pieces that are not in the array become the unknown token.
    """
    source_pieces: PlainName | None = None  # the same for sources; None: the vocabulary of targets
    source_prefix: _Prefix = ()  # tokens at the start of every source, for example a language tag
    source_suffix: _Prefix | None = None
    """Tokens at the end of every source; None: EOS. Empty for models of OpenNMT-py and eole."""
    target_prefix: _Prefix = ()  # forced tokens at the start of every target
    languages: Languages | None = None
    """Languages of a multilingual model, which cannot have other prefixes; None: one language pair."""
    placeholders: Annotated[tuple[_Placeholder, ...], Field(max_length=256)] = ()
    """Pieces that the model was trained to copy, such as `⟦1⟧`, in the order of their use. They replace protected text.
    Empty: years are used instead."""
    reserved: Annotated[tuple[_Placeholder, ...], Field(max_length=256)] = ()
    """Other pieces with a meaning in training only, such as `⟪1⟫`. No translation contains them."""

    def prefixes(self, source: str, target: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the prefixes of sources and targets of a language pair; raises KeyError for an unknown language."""
        if self.languages is None:
            return self.source_prefix, self.target_prefix
        tokens = self.languages.targets[target]
        return (*self.languages.sources[source], *tokens.source_prefix), tokens.target_prefix

    def fixed_tokens(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the fixed tokens of sources, and of targets, of all language pairs."""
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
    def _is_consistent(self) -> Self:
        if self.source_pieces is not None and self.pieces is None:
            raise ValueError("source_pieces requires pieces")
        if self.languages is not None and (self.source_prefix or self.target_prefix):
            raise ValueError("source_prefix and target_prefix must be empty if languages are given")
        return self


class Score(Section):
    """A quality score, measured when the bundle was created."""

    metric: _Text  # for example `BLEU`
    value: float
    data: _Text  # name of the test set
    signature: _Text = ""  # signature of the metric, as printed by its tool
    precision: _Text = ""  # precision of the graphs
    beam_size: Size = 4


class Provenance(Section):
    """Origin of the weights."""

    exporter_version: _Text
    checkpoint: _Text  # file that the weights were read from
    checkpoint_sha256: _Text
    training_step: int | None = None  # number of optimizer steps; None: unknown
    training_data: Annotated[tuple[_Text, ...], Field(max_length=1000)] = ()  # names of the training data


_Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class ConfidenceWeights(Section):
    """Weights of the features of a translated sentence, see `dragoman_service.text.confidence`."""

    mean_log_prob: _Weight  # mean log-probability of the target tokens
    min_log_prob: _Weight  # log-probability of the least likely target token
    source_length: _Weight  # log(1 + number of source tokens)
    length_ratio: _Weight  # absolute difference between the logarithm of the length ratio and `usual_log_ratio`
    fragmentation: _Weight  # target tokens per target character; high for rare words
    source_fragmentation: _Weight = 0.0  # source tokens per source character
    copied_words: _Weight  # share of target words that also occur in the source
    defect: _Weight  # 1 if the repetition guard found a defect or the translation was truncated, else 0
    mean_probability: _Weight = 0.0  # mean probability of the target tokens
    log_prob_by_length: _Weight = 0.0  # mean_log_prob * source_length
    shortness: _Weight = 0.0  # length_ratio of a target that is shorter than usual, else 0
    hard_violations: _Weight = 0.0  # number of hard violations and remaining defects, at most 4
    soft_violations: _Weight = 0.0  # number of other violations, at most 4

    @cached_property
    def in_order(self) -> tuple[float, ...]:
        """All weights, in the order of the fields."""
        return tuple(getattr(self, name) for name in type(self).model_fields)


class Confidence(Section):
    """Estimator of the probability that a sentence is translated well: a logistic regression."""

    weights: ConfidenceWeights
    bias: _Weight
    usual_log_ratio: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
    """Mean of log((target characters + 1) / (source characters + 1))."""
    good_chrf: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]
    """Minimum chrF against the reference of a sentence that is translated well."""
    data: _Text  # name of the training data of the estimator


class Manifest(Section):
    """Content of `manifest.json`."""

    schema_version: Literal[1, 2, 3, 4, 5, 6, 7]
    name: PlainName
    version: PlainName
    source_language: LanguageTag
    """Source language; a multilingual model uses this language pair for scores and warm-up."""
    target_language: LanguageTag
    architecture: Architecture
    special_ids: SpecialIds
    limits: Limits
    precisions: Annotated[dict[PlainName, GraphFiles], Field(min_length=1, max_length=_MAX_PRECISIONS)]
    """Precision, for example `int8`, to its graphs."""
    default_precision: _Text
    tokenizer: PlainName
    """SentencePiece model, or `NAME.json` for byte-level BPE; `tokenization` may define another for sources."""
    tokenization: Tokenization = Tokenization()
    shortlist: PlainName | None = None
    """File with the likely target tokens of each source token, see `runtimes.shortlist`; None: no shortlist."""
    tensors: Annotated[dict[PlainName, Tensors], Field(max_length=_MAX_PRECISIONS)]
    """Precision to the inputs and outputs of its graphs."""
    files: Annotated[dict[PlainName, FileEntry], Field(max_length=100)]  # all files of the bundle except the manifest
    scores: Annotated[tuple[Score, ...], Field(max_length=1000)] = ()
    confidence: Confidence | None = None  # confidence estimator; None: not measured
    provenance: Provenance
    licence: _Text  # SPDX expression of the licence of the model
    attribution: _Text  # attribution required by the licence

    def named_files(self) -> frozenset[str]:
        """Return the files that other fields refer to; all of them are in `files`."""
        others = {self.tokenizer, *self.tokenization.names(), *([self.shortlist] if self.shortlist else ())}
        return frozenset(others.union(*(files.names() for files in self.precisions.values())))

    def languages(self) -> Languages:
        """Return the language pairs of the model."""
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
    def _expand_version_1(cls, tensors: object, info: ValidationInfo) -> object:
        # In version 1, all precisions share one description.
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
            raise ValueError("a special id is outside the source vocabulary")
        sizes = (shape.num_source_tokens, shape.vocabulary_size)
        for prefix, size in zip(self.tokenization.fixed_tokens(), sizes, strict=True):
            if max(prefix, default=0) >= size:
                raise ValueError("a token of a prefix is outside the vocabulary")
        longest = max(limits.max_source_tokens, limits.max_target_tokens)
        if shape.max_positions is not None and longest > shape.max_positions:
            raise ValueError(f"limit of {longest} tokens exceeds the {shape.max_positions} learned positions")
        return self

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.languages().serves(self.source_language, self.target_language):
            raise ValueError(f"{self.source_language} to {self.target_language} is not one of the language pairs")
        if self.default_precision not in self.precisions:
            raise ValueError(f"default_precision {self.default_precision!r} is not one of {sorted(self.precisions)}")
        if unlisted := self.named_files() - self.files.keys():
            raise ValueError(f"missing checksum of {sorted(unlisted)}")
        if self.tensors.keys() != self.precisions.keys():
            raise ValueError(f"tensors of {sorted(self.tensors)} differ from precisions {sorted(self.precisions)}")
        for name, tensors in self.tensors.items():
            shape = self.architecture
            expected = graph_tensors(shape.num_decoder_layers, tensors.float_type, shape.decoder_type)
            if tensors.attention is None and not self.has_attention(name):  # optional without its graph
                expected = expected.model_copy(update={"attention": None})
            if tensors != expected:
                raise ValueError("tensors differ from those of this schema version")
        return self
