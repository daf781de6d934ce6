"""The manifest of a bundle, `manifest.json`: what the model is, which files it has, and what was measured of it."""

from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, ValidationInfo, field_serializer, field_validator, model_validator
from pydantic_core import PydanticCustomError

from dragoman_service.bundle.architecture import Architecture, Limits, Section, Size, Tensors, graph_tensors

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

MAX_FILE_BYTES: Final = 16 << 30
"""Largest file of a bundle."""

PlainName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
"""A file, model or version name that cannot leave its directory: no separator, no leading dot."""

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
    """Refuse ONNX Runtime's own format: what a graph in it refers to cannot be checked."""
    if name.lower().endswith(".ort"):
        raise PydanticCustomError("ort", "a graph in ONNX, not in ONNX Runtime's own format (.ort)")
    return name


_GraphName = Annotated[PlainName, AfterValidator(_not_ort)]


class SpecialIds(Section):
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


class FileEntry(Section):
    """Checksum and size of a file."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=MAX_FILE_BYTES)]


class GraphFiles(Section):
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
    """JSON of `Int8Weights`; None: the decoder's weights are not int8 throughout, or not described."""

    def names(self) -> tuple[str, ...]:
        """Return the names of all files."""
        names = (self.encoder, self.decoder, self.attention, self.weights, self.int8_weights)
        return tuple(name for name in names if name is not None)

    @model_validator(mode="after")
    def _describes_a_file(self) -> Self:
        if self.int8_weights is not None and self.weights is None:
            raise ValueError("int8_weights describes the file of weights, of which there is none")
        return self


class TargetTokens(Section):
    """Tokens that tell a model which language to translate into."""

    source_prefix: _Prefix = ()
    """What sources begin with, behind the tokens of their own language."""
    target_prefix: _Prefix = ()
    """What targets are made to begin with."""


class Languages(Section):
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

    def has_source(self, source: str) -> bool:
        """Return whether a language, in lower case, is translated from."""
        return source in self._by_lower_case[0]

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


class Tokenization(Section):
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
    """Tokens that every source ends with; None: EOS. Models of OpenNMT-py and eole have nothing there."""
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


class Score(Section):
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
    beam_size: Size = 4


class Provenance(Section):
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


class ConfidenceWeights(Section):
    """What each thing that is known of a translated sentence says about it; see `dragoman_service.text.confidence`."""

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
    source_fragmentation: _Weight = 0.0
    """Likewise of the source."""
    copied_words: _Weight
    """Share of the words that are words of the source."""
    defect: _Weight
    """1 if the repetition guard found something or the translation was cut off, else 0."""

    @cached_property
    def in_order(self) -> tuple[float, ...]:
        """All of them, in the order above."""
        return tuple(getattr(self, name) for name in type(self).model_fields)


class Confidence(Section):
    """How likely a sentence is translated well: the logistic function of bias and weighted features."""

    weights: ConfidenceWeights
    bias: _Weight
    usual_log_ratio: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
    """Mean logarithm of the ratio of target to source characters."""
    good_chrf: Annotated[float, Field(gt=0, lt=100, allow_inf_nan=False)]
    """What counted as translated well: at least this chrF against the reference."""
    data: _Text
    """What it was fitted on."""


class Manifest(Section):
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
    """Says which target tokens are likely for a source, see `runtimes.shortlist`; None: the bundle does not."""
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
