"""Reads model directories of CTranslate2: Transformers that translate, in every precision that it stores.

What the attributes mean is read from its specifications and from its C++, and proved against it by tests.
"""

import json
import math
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, Final, get_args

import torch
from torch import Tensor

from export.errors import ImportFormatError
from export.importers.files import ForeignConfig, read_plain
from export.importers.huggingface_text import Text
from export.importers.language_tags import WantedLanguages, languages_of_source_tags, languages_of_tags
from export.importers.portable import MAX_TOKENS, ImportedModel, check_sizes
from export.importers.vocabulary_text import SentencePieceFiles, Vocabularies, arranged
from export.model.config import ModelConfig
from export.model.layers import sinusoidal_positions
from service.bundle.architecture import Limits, SinusoidLayout
from service.bundle.files import open_file
from service.bundle.manifest import MAX_FILE_BYTES, Languages

_VERSIONS: Final = range(2, 7)
"""Of the binary format."""
_MAX_VARIABLES: Final = 1 << 16
_MAX_RANK: Final = 4
_DTYPES: Final = (torch.float32, torch.int8, torch.int16, torch.int32, torch.float16, torch.bfloat16)
"""By their number, from version 4 on."""
_DTYPES_BY_SIZE: Final = {4: torch.float32, 2: torch.int16, 1: torch.int8}
"""By the bytes of an element, before."""

_NUM_HEADS: Final = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
"""By the specification, where the number is not stored."""
_LAST_REVISION: Final = 7
_OTHER_SPECS: Final = {
    "WhisperSpec": "it writes down speech",
    "TransformerDecoderSpec": "it has no encoder, as language models",
    "TransformerEncoderSpec": "it has no decoder",
}

_ACTIVATIONS: Final = {0: "relu", 2: "swish", 3: "gelu"}
_OTHER_ACTIVATIONS: Final = {1: "GELU by tanh", 4: "GELU by sigmoid", 5: "tanh", 6: "sigmoid"}

_REASONS: Final = {
    r"relative_attention": "a relative position bias, as T5 has",
    r"relative": "relative positions",
    r"rotary": "rotary positions of parts of heads, with another base than 10000, or scaled",
    r"alibi": "attention with linear biases",
    r"embeddings_[1-9]": "several embeddings of a source token",
    r"project_(in|out)": "embeddings of another width",
    r"weight_zero": "AWQ quantization",
    r"/(q|k|v)_norm": "normalised queries, keys or values",
    r"(shared|input|post_attention|pre_feedforward|post_feedforward)_layer_norm": "other normalisations in a layer",
    r"sliding_window": "attention within a window",
    r"softcapping": "capped logits",
}
"""What variables belong to that no network of ours computes."""

_OF_BOTH_STACKS: Final = ("num_heads", "pre_norm", "activation", "embeddings_merge")
"""Attributes that revisions before 5 have once for the model."""

_GLOBAL_INT16_SCALE: Final = 1000.0
"""Of 16-bit weights that were stored without a scale."""

_SAME_POSITIONS: Final = 1e-5, 1e-6
"""Largest difference of stored sinusoids from computed ones, and what each position adds to it by the rounding of its
angle. Those that were stored as halves differ by more, and are taken as they are."""
_MAX_POSITIONS: Final = 1024
"""Rows kept of such a table, and of learned ones."""
_OFFSETS: Final = range(4)
"""Positions at which stored sinusoids may begin."""

_NO_LOGIT: Final = -1e4
"""Bias of a token that was not in the vocabulary: its probability is zero, and no half is infinite."""

_SOURCE_TAGS: Final = ">>deu<<"
_TAGS: Final = {
    _SOURCE_TAGS: re.compile(r">>(\S+)<<"),
    "__de__": re.compile(r"__([a-z]{2,3})__"),
    "deu_Latn": re.compile(r"([a-z]{3}_[A-Z][a-z]{3})"),
    "de_DE": re.compile(r"([a-z]{2}_[A-Z]{2})"),
}
"""Tokens that tell a language, and its name in them: those of Marian (sources begin with that of the target), M2M-100,
NLLB and mBART-50 (both sides begin with their own)."""


def read_ctranslate2(
    directory: Path,
    *,
    source_spm: Path | None = None,
    target_spm: Path | None = None,
    source_tag: str | None = None,
    target_tag: str | None = None,
    source_languages: Sequence[str] | None = None,
    target_languages: Sequence[str] | None = None,
    source_eos: str | None = None,
) -> ImportedModel:
    """Read a directory that a converter of CTranslate2 wrote.

    Args:
        directory: with `model.bin`, the vocabularies and, from version 6 of the format on, `config.json`.
        source_spm: SentencePiece model of sources; None: `source.spm`, or the only one, in the directory.
        target_spm: the same of targets.
        source_tag: language of sources as the vocabulary spells it, for one pair of a model of many languages.
        target_tag: the same of targets.
        source_languages: those translated from by a model of many, as BCP-47 tags or as the vocabulary spells them;
            None: all that it has tags of.
        target_languages: the same of those translated into.
        source_eos: `yes` or `no`: whether sources end with EOS, where the directory leaves that to its caller.

    Raises:
        ImportFormatError: naming what is missing or cannot be imported.
    """
    wanted = WantedLanguages.of(source_tag, target_tag, source_languages, target_languages)
    path = directory / "model.bin"
    binary = _Binary.read(path)
    variables = Variables(binary.tensors, path, revision=binary.revision)
    variables.default_num_heads = _NUM_HEADS[binary.spec]
    settings = _read_settings(directory, variables, binary.version)
    tokens = SpecialTokens.take(settings)
    epsilon = settings.take_optional("layer_norm_epsilon", float)
    settings.ignore(["multi_query_attention"])  # as the shapes say
    settings.finish()
    lists = read_vocabularies(directory, tokens.unk)
    is_marian = bool(variables.attribute("decoder/start_from_zero_embedding", 0))
    start = None if is_marian else tokens.start
    vocabularies = Vocabularies.fitted(*lists, eos=tokens.eos, unk=tokens.unk, start=start, origin=directory)
    spm = SentencePieceFiles.find(directory, source_spm, target_spm)
    learned = spm.check((vocabularies.source, vocabularies.target))
    models = spm.read()
    known = _find_tags(vocabularies, learned)
    tags = _find_pair(vocabularies, wanted, known, directory)
    languages = None if any(tags) else _find_languages(wanted, known, directory)
    is_known = is_marian or languages is not None or any(tags)
    has_eos = _has_eos(tokens, source_eos, vocabularies, directory, is_known=is_known)
    bos = (_find(vocabularies.source, tokens.bos, directory),) if tokens.adds_bos else ()
    network = Network(variables, vocabularies, epsilon)
    config = network.config()
    most = min(network.num_positions, MAX_TOKENS)
    return ImportedModel(
        config=config,
        limits=Limits(max_source_tokens=most, max_target_tokens=most),
        weights=network.weights,
        tokenizer=Text(
            model=models[1],
            source_model=None if models[0] == models[1] else models[0],
            pieces=vocabularies.target,
            source_pieces=None if vocabularies.source == vocabularies.target else vocabularies.source,
            source_prefix=() if languages else (*bos, *tags[0]),
            target_prefix=tags[1],
            languages=languages and _with_bos(languages, bos),
            source_suffix=None if has_eos else (),
        ).files(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binary:
    """What `model.bin` holds."""

    spec: str
    version: int
    revision: int
    tensors: Mapping[str, Tensor]
    """Variables as they are stored; those with several names are one tensor."""

    @classmethod
    def read(cls, path: Path) -> "_Binary":
        """Read a file of which nothing is believed: no length is larger than what is left of it."""
        try:
            with open_file(path, max_bytes=MAX_FILE_BYTES) as file:
                return cls._parse(_Reader(file, path), path)
        except OSError as error:
            raise ImportFormatError(f"cannot read {path}: {error.strerror or error}") from error

    @classmethod
    def _parse(cls, reader: "_Reader", path: Path) -> "_Binary":
        version = reader.number("I")
        if version not in _VERSIONS:
            first, last = _VERSIONS[0], _VERSIONS[-1]
            raise ImportFormatError(f"{path} has version {version} of the binary format: expected {first} to {last}")
        spec, revision = reader.text(), reader.number("I")
        if spec not in _NUM_HEADS:
            reason = _OTHER_SPECS.get(spec, "only Transformers with encoder and decoder are")
            raise ImportFormatError(f"{path}: a model of kind {spec!r} cannot be served: {reason}")
        if not 2 <= revision <= _LAST_REVISION:
            raise ImportFormatError(f"{path}: revision {revision} of {spec}: expected 2 to {_LAST_REVISION}")
        tensors: dict[str, Tensor] = {}
        for _ in range(reader.count()):
            name, tensor = reader.text(), reader.tensor(version)
            if name in tensors:
                raise reader.error(f"a second variable {name}")
            tensors[name] = tensor
        for _ in range(reader.count() if version >= 3 else 0):
            alias, name = reader.text(), reader.text()
            if name not in tensors or alias in tensors:
                raise reader.error(f"an alias {alias} of {name}")
            tensors[alias] = tensors[name]
            if f"{name}_scale" in tensors:
                tensors[f"{alias}_scale"] = tensors[f"{name}_scale"]
        reader.finish()
        return cls(spec=spec, version=version, revision=revision, tensors=tensors)


class _Reader:
    """The primitives of the binary format, little-endian."""

    def __init__(self, file: BufferedReader, path: Path) -> None:
        self._file = file
        self._path = path
        self._left = file.seek(0, 2)
        file.seek(0)

    def error(self, found: str) -> ImportFormatError:
        """Return an error that names the file."""
        return ImportFormatError(f"{self._path} is damaged: it has {found}")

    def number(self, kind: str) -> int:
        """Return an unsigned integer of a kind of `struct`."""
        (value,) = struct.unpack(f"<{kind}", self._take(struct.calcsize(kind)))
        return int(value)

    def count(self) -> int:
        """Return a number of variables."""
        count = self.number("I")
        if count > _MAX_VARIABLES:
            raise self.error(f"{count} variables, more than {_MAX_VARIABLES}")
        return count

    def text(self) -> str:
        """Return a string, which ends with a zero byte."""
        content = self._take(self.number("H"))
        try:
            return content.rstrip(b"\0").decode()
        except UnicodeDecodeError as error:
            raise self.error(f"a name that is no UTF-8: {bytes(content[:40])!r}") from error

    def tensor(self, version: int) -> Tensor:
        """Return a variable behind its name."""
        rank = self.number("B")
        if rank > _MAX_RANK:
            raise self.error(f"a variable of {rank} dimensions")
        shape = [self.number("I") for _ in range(rank)]
        kind = self.number("B")
        known: Mapping[int, torch.dtype] = dict(enumerate(_DTYPES)) if version >= 4 else _DTYPES_BY_SIZE
        if kind not in known:
            raise self.error(f"an element type {kind}")
        dtype = known[kind]
        num_bytes = self.number("I") * (1 if version >= 4 else dtype.itemsize)
        if num_bytes != math.prod(shape) * dtype.itemsize or num_bytes == 0:
            raise self.error(f"{num_bytes} bytes of a variable with the shape {shape}")
        return torch.frombuffer(self._take(num_bytes), dtype=dtype).reshape(shape)

    def finish(self) -> None:
        """Refuse what is left."""
        if self._left:
            raise self.error(f"{self._left} bytes behind its end")

    def _take(self, num_bytes: int) -> bytearray:
        if num_bytes > self._left:
            raise self.error(f"a length of {num_bytes} bytes, with {self._left} left")
        self._left -= num_bytes
        content = bytearray(num_bytes)
        if self._file.readinto(content) != num_bytes:
            raise self.error("become shorter")
        return content


class Variables:
    """The variables of a model, each to be used once."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path, *, revision: int = _LAST_REVISION) -> None:
        """Take them, those of an older revision by their present names; `path` is what errors name."""
        self.path = path
        self.default_num_heads = 8
        """Where no number is stored."""
        self._left = dict(tensors)
        self._floats: dict[int, Tensor] = {}
        for name in _OF_BOTH_STACKS:
            if revision < 5 and name in self._left:
                stored = self._left.pop(name)
                for stack in ("encoder", "decoder"):
                    self._left.setdefault(f"{stack}/{name}", stored)
        if revision < 5:
            for name in ("alignment_layer", "alignment_heads", "layernorm_embedding"):
                self._left.pop(name, None)
            if self.attribute("with_relative_position", 0):
                raise ImportFormatError(f"{path}: with_relative_position cannot be served: relative positions")
        for name in [name for name in self._left if name.startswith("encoder/embeddings/")]:
            self._left[name.replace("/embeddings/", "/embeddings_0/")] = self._left.pop(name)

    def has(self, name: str) -> bool:
        """Return whether a variable is left."""
        return name in self._left

    def attribute(self, name: str, default: float) -> float:
        """Return a number; ImportFormatError if it is an array."""
        stored = self._left.pop(name, None)
        if stored is None:
            return default
        if stored.numel() != 1:
            raise ImportFormatError(f"{self.path}: {name} has the shape {list(stored.shape)}: expected one number")
        return float(stored)

    def take(self, name: str) -> Tensor | None:
        """Return a variable as it is stored, None if there is none."""
        return self._left.pop(name, None)

    def require(self, name: str, *allowed: float) -> None:
        """Refuse a number, if there is one, that is none of those allowed."""
        value = self.attribute(name, allowed[0])
        if not any(math.isclose(value, each, rel_tol=1e-5) for each in allowed):
            raise ImportFormatError(f"{self.path}: {name} is {value:g}{_reason(name)}")

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        stored = self._left.pop(name, None)
        return default if stored is None else bytes(stored.flatten().to(torch.uint8).tolist()).decode(errors="replace")

    def array(self, name: str) -> Tensor:
        """Return a vector or matrix in float32; ImportFormatError if it is missing, or its scales do not fit."""
        if name not in self._left:
            raise ImportFormatError(f"{self.path}: there is no variable {name}")
        stored = self._left.pop(name)
        scale = self._left.pop(f"{name}_scale", None)
        if stored.is_floating_point():
            return stored.float()
        if id(stored) not in self._floats:
            self._floats[id(stored)] = self._dequantized(name, stored, scale)
        return self._floats[id(stored)]

    def finish(self) -> None:
        """Raise ImportFormatError, naming the first variable that was not read."""
        for name in sorted(self._left):
            raise ImportFormatError(f"{self.path}: nothing is known of the variable {name}{_reason(name)}")

    def num_layers(self, stack: str) -> int:
        """Return the number of layers, which count from 0."""
        count = 0
        while any(name.startswith(f"{stack}/layer_{count}/") for name in self._left):
            count += 1
        return count

    def _dequantized(self, name: str, stored: Tensor, scale: Tensor | None) -> Tensor:
        """Return integers divided by their scale, that of each row or one of all."""
        if scale is None and stored.dtype == torch.int16:
            scale = torch.tensor(_GLOBAL_INT16_SCALE)
        if scale is None or stored.dtype == torch.int32:
            raise ImportFormatError(f"{self.path}: {name} has integers without a scale")
        if scale.numel() not in (1, len(stored)) or not bool((scale.float().isfinite() & (scale != 0)).all()):
            raise ImportFormatError(f"{self.path}: {name}_scale does not have a number for each row of {name}")
        return stored.float() / scale.float().reshape(-1, *[1] * (stored.dim() - 1))


def _reason(name: str) -> str:
    for pattern, reason in _REASONS.items():
        if re.search(pattern, name):
            return f", which cannot be served: {reason}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Special tokens as a configuration spells them, and what is added to sources."""

    unk: str
    bos: str
    eos: str
    start: str
    adds_bos: bool
    adds_eos: bool

    @classmethod
    def read(cls, directory: Path) -> "SpecialTokens":
        """Read those of a directory."""
        path = directory / "model.bin"
        binary = _Binary.read(path)
        variables = Variables(binary.tensors, path, revision=binary.revision)
        return cls.take(_read_settings(directory, variables, binary.version))

    @classmethod
    def take(cls, settings: ForeignConfig) -> "SpecialTokens":
        """Take them out of a configuration; ImportFormatError if decoding begins with what the caller gives."""
        start = settings.take_optional("decoder_start_token", str)
        if start is None:
            raise ImportFormatError(
                f"{settings.path}: decoder_start_token is None: decoding that begins with a token of the caller, such "
                "as the tag of a language, cannot be served"
            )
        return cls(
            unk=settings.take("unk_token", str, default="<unk>"),
            bos=settings.take("bos_token", str, default="<s>"),
            eos=settings.take("eos_token", str, default="</s>"),
            start=start,
            adds_bos=settings.take("add_source_bos", bool, default=False),
            adds_eos=settings.take("add_source_eos", bool, default=False),
        )


def _read_settings(directory: Path, variables: Variables, version: int) -> ForeignConfig:
    """Return `config.json`, or what older versions of the format have in its place among the variables."""
    path = directory / "config.json"
    if version >= 6:
        return ForeignConfig.read(path)
    spelled = {name: variables.text(name, default) for name, default in _SPELLED.items()}
    has_start = not variables.attribute("user_decoder_start_tokens", 0)
    start = spelled["bos_token" if variables.attribute("with_target_bos", 1) else "eos_token"]
    return ForeignConfig(
        variables.path,
        {
            **spelled,
            "add_source_bos": bool(variables.attribute("with_source_bos", 0)),
            "add_source_eos": bool(variables.attribute("with_source_eos", 0)),
            "decoder_start_token": start if has_start else None,
        },
    )


_SPELLED: Final = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}


def read_vocabularies(directory: Path, unk: str) -> tuple[list[str], list[str]]:
    """Return the tokens of sources and targets, by their ids."""
    for names in (("shared_vocabulary",) * 2, ("source_vocabulary", "target_vocabulary")):
        found = [_vocabulary_path(directory, name) for name in names]
        if found[0] is not None and found[1] is not None:
            source, target = (_read_vocabulary(path, unk) for path in (found[0], found[1]))
            return source, target
    raise ImportFormatError(
        f"{directory} has neither shared_vocabulary nor source_ and target_vocabulary, .json or .txt"
    )


def _vocabulary_path(directory: Path, name: str) -> Path | None:
    paths = (directory / f"{name}.{suffix}" for suffix in ("json", "txt"))
    return next((path for path in paths if path.exists()), None)


def _read_vocabulary(path: Path, unk: str) -> list[str]:
    """Return tokens; like CTranslate2 itself with the unknown token at the end if it is not among them."""
    try:
        text = read_plain(path).decode()
        tokens = json.loads(text) if path.suffix == ".json" else text.removesuffix("\n").split("\n")
    except (ValueError, RecursionError) as error:
        raise ImportFormatError(f"{path} holds no tokens: {error}") from error
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise ImportFormatError(f"{path} holds no list of tokens")
    return tokens if unk in tokens else [*tokens, unk]


def _find(pieces: Sequence[str | None], token: str, directory: Path) -> int:
    if token not in pieces:
        raise ImportFormatError(f"{directory}: the vocabulary has no {token}")
    return pieces.index(token)


_Tags = Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
"""By kind, ids of the tags that the vocabularies of sources and of targets have, by the names of the languages."""


def _find_tags(vocabularies: Vocabularies, learned: Collection[str]) -> _Tags:
    """Return what may be tags of languages; pieces that were learned from texts are none, whatever they look like."""
    found = {
        kind: (_matches(pattern, vocabularies.source, learned), _matches(pattern, vocabularies.target, learned))
        for kind, pattern in _TAGS.items()
    }
    return {kind: sides for kind, sides in found.items() if sides[0]}


def _matches(pattern: re.Pattern[str], pieces: Sequence[str | None], learned: Collection[str]) -> dict[str, int]:
    others = ((piece, token_id) for token_id, piece in enumerate(pieces) if piece and piece not in learned)
    matches = ((pattern.fullmatch(piece), token_id) for piece, token_id in others)
    return {match[1]: token_id for match, token_id in matches if match}


def _find_pair(
    vocabularies: Vocabularies, wanted: WantedLanguages, known: _Tags, directory: Path
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of the tags that sources and targets of one pair begin with, empty if none is wanted."""
    source = _spelled(wanted.source_tag, vocabularies.source)
    target = _spelled(wanted.target_tag, vocabularies.target)
    if target is not None and target.startswith(">>") and source is None:
        return (_find(vocabularies.source, target, directory),), ()
    if source is not None and target is not None:
        return (_find(vocabularies.source, source, directory),), (_find(vocabularies.target, target, directory),)
    if source is not None or target is not None:
        ids = {token_id for sources, _ in known.values() for token_id in sources.values()}
        some = ", ".join(str(vocabularies.source[token_id]) for token_id in sorted(ids)[:8]) or "no tags"
        raise ImportFormatError(f"{directory}: give the tags of source and target language; the vocabulary has {some}")
    return (), ()


def _find_languages(wanted: WantedLanguages, known: _Tags, directory: Path) -> Languages | None:
    """Return the languages of a model of many, None if it is one of one pair; ImportFormatError if that is unclear."""
    named = {*wanted.sources, *wanted.targets}
    kinds = list(known)
    if len(kinds) > 1:
        kinds = [kind for kind in kinds if named and named <= {*known[kind][0], *known[kind][1]}] or kinds
    if len(kinds) > 1:
        raise ImportFormatError(
            f"{directory}: tokens such as {' and '.join(kinds)} may be the tags of languages: give --source-languages "
            "and --target-languages as those that are spell them (de, deu_Latn, de_DE), or the tags of one pair"
        )
    if not named and (not kinds or len(known[kinds[0]][0]) == 1):
        return None
    if not kinds or kinds[0] == _SOURCE_TAGS:
        return languages_of_source_tags(wanted, known[kinds[0]][0] if kinds else {}, directory)
    return languages_of_tags(wanted, *known[kinds[0]], directory)


def _with_bos(languages: Languages, bos: tuple[int, ...]) -> Languages:
    """Return languages whose sources begin with BOS before their tags, if there is any."""
    return languages.model_copy(update={"sources": {tag: (*bos, *ids) for tag, ids in languages.sources.items()}})


def _spelled(tag: str | None, pieces: Sequence[str | None]) -> str | None:
    return next((each for each in (f"__{tag}__", f">>{tag}<<", tag) if each in pieces), tag) if tag else None


def _has_eos(
    tokens: SpecialTokens, wanted: str | None, vocabularies: Vocabularies, directory: Path, *, is_known: bool
) -> bool:
    """Return whether sources end with EOS; ImportFormatError if nothing tells."""
    if wanted is not None and tokens.adds_eos:
        raise ImportFormatError(f"{directory}: add_source_eos is True: do not say whether sources end with EOS")
    if wanted is not None:
        return wanted == "yes"
    if tokens.adds_eos or is_known:
        return True
    if "<blank>" in vocabularies.target:  # OpenNMT, whose sources have what the configuration says and nothing else
        return False
    raise ImportFormatError(
        f"{directory}: add_source_eos is False, and callers of CTranslate2 may add EOS themselves: give --source-eos "
        "yes (for what was converted from Hugging Face transformers) or no"
    )


class Network:
    """Takes the network out of the variables."""

    def __init__(
        self,
        variables: Variables,
        vocabularies: Vocabularies,
        epsilon: float | None,
        *,
        has_positions: bool = True,
    ) -> None:
        """Read everything.

        Args:
            variables: of the model.
            vocabularies: of both sides.
            epsilon: of the normalisations; None: the configuration leaves it open.
            has_positions: whether sinusoids, beginning with the position 1, are added where no table is stored and no
                head is rotated.
        """
        self._variables = variables
        self._vocabularies = vocabularies
        self.weights: dict[str, Tensor] = {}
        """By the names of `Transformer`."""
        self.num_positions = MAX_TOKENS
        """Longest sequence."""
        self._facts: dict[str, Any] = {}
        """Of `ModelConfig`, as far as they are known."""
        self._read_tables()
        for stack in ("encoder", "decoder"):
            self._read_stack(stack)
        self._read_positions(has_positions=has_positions)
        default = 1e-5 if self._facts["norm_kind"] == "layer" else 1e-6
        self._facts["norm_epsilon"] = default if epsilon is None else epsilon
        variables.attribute("encoder/multi_query_attention", 0)  # as num_heads_kv says
        variables.require("decoder/alibi", 0)
        variables.require("decoder/scale_outputs", 1)
        for name in ("alibi_use_positive_positions", "scale_alibi", "alignment_layer", "alignment_heads"):
            variables.attribute(f"decoder/{name}", 0)  # of linear biases, and of the attention that is returned
        variables.finish()

    def config(self) -> ModelConfig:
        """Return what the network is; ImportFormatError if it is larger than a bundle can describe."""
        ids = self._vocabularies
        special: dict[str, Any] = {
            "pad_id": ids.pad_id,
            "bos_id": ids.start_id,
            "eos_id": ids.eos_id,
            "unk_id": ids.unk_id,
        }
        config = ModelConfig(**self._facts, **special)
        check_sizes(config, self._variables.path)
        return config

    def _fact(self, name: str, value: object, where: str) -> None:
        """Note what holds for the whole network; ImportFormatError if it is not so everywhere."""
        if self._facts.setdefault(name, value) != value:
            raise ImportFormatError(
                f"{self._variables.path}: {name} of {where} is {value}, of what precedes {self._facts[name]}: expected "
                "the same everywhere"
            )

    def _put(self, name: str, weight: Tensor) -> None:
        self.weights[name] = weight.clone()  # variables may share what they hold, files of safetensors must not

    def _read_tables(self) -> None:
        """Read embeddings and projection, and arrange them by our token ids."""
        ids = self._vocabularies
        source = self._table("encoder/embeddings_0/weight", ids.source_rows)
        target = self._table("decoder/embeddings/weight", ids.target_rows)
        projection = self._table("decoder/projection/weight", ids.target_rows)
        is_tied = torch.equal(target, projection)
        tied = "none" if not is_tied else "all" if torch.equal(source, target) else "decoder"
        tables = {"all": {}, "decoder": {"encoder.embedding": source}}
        tables["none"] = {**tables["decoder"], "projection": projection}
        self.weights = {f"{name}.weight": table for name, table in {"embedding": target, **tables[tied]}.items()}
        has_bias = self._variables.has("decoder/projection/bias")
        if has_bias or None in ids.target_rows:
            stored = self._variables.array("decoder/projection/bias") if has_bias else torch.zeros(len(projection))
            bias = arranged(stored, ids.target_rows)
            bias[[row is None for row in ids.target_rows]] = _NO_LOGIT
            self.weights["projection.bias"] = bias
        self._facts = {
            "vocabulary_size": len(target),
            "source_vocabulary_size": None if len(source) == len(target) else len(source),
            "d_model": target.shape[1],
            "tied_embeddings": tied,
            "projection_bias": "projection.bias" in self.weights,
        }

    def _table(self, name: str, rows: Sequence[int | None]) -> Tensor:
        table = self._variables.array(name)
        num_tokens = sum(row is not None for row in rows)
        if table.dim() != 2 or len(table) != num_tokens:
            found = f"the shape {list(table.shape)}"
            raise ImportFormatError(f"{self._variables.path}: {name} has {found}: expected {num_tokens} rows")
        return arranged(table, rows)

    def _read_stack(self, stack: str) -> None:
        variables = self._variables
        num_heads = int(variables.attribute(f"{stack}/num_heads", variables.default_num_heads))
        if num_heads < 1:
            raise ImportFormatError(f"{variables.path}: {stack}/num_heads is {num_heads}: expected at least 1")
        self._fact("num_heads", num_heads, stack)
        self._fact("norm", "pre" if variables.attribute(f"{stack}/pre_norm", 1) else "post", stack)
        self._fact("embedding_norm", variables.has(f"{stack}/layernorm_embedding/gamma"), stack)
        self._fact("final_norm", variables.has(f"{stack}/layer_norm/gamma"), stack)
        self._fact("scale_embeddings", self._scales(stack), stack)
        variables.attribute(f"{stack}/embeddings_merge", 0)  # of several embeddings of one token
        variables.require(f"{stack}/sliding_window", 0)
        activation = int(variables.attribute(f"{stack}/activation", 0))
        if activation not in _ACTIVATIONS:
            found = f"{activation} ({_OTHER_ACTIVATIONS.get(activation, 'unknown')})"
            known = ", ".join(f"{number} ({name})" for number, name in _ACTIVATIONS.items())
            raise ImportFormatError(f"{variables.path}: {stack}/activation is {found}: expected {known}")
        num_layers = variables.num_layers(stack)
        self._facts[f"num_{stack}_layers"] = num_layers
        for layer in range(num_layers):
            theirs, ours = f"{stack}/layer_{layer}", f"{stack}.layers.{layer}"
            self._read_attention(f"{theirs}/self_attention", f"{ours}.self_attention", is_self=True)
            if stack == "decoder":
                self._read_attention(f"{theirs}/attention", f"{ours}.cross_attention", is_self=False)
            self._read_feed_forward(f"{theirs}/ffn", f"{ours}.feed_forward", _ACTIVATIONS[activation])
        if self._facts["embedding_norm"]:
            self._read_norm(f"{stack}/layernorm_embedding", f"{stack}.embedding_norm")
        if self._facts["final_norm"]:
            self._read_norm(f"{stack}/layer_norm", f"{stack}.norm")

    def _scales(self, stack: str) -> bool:
        """Return whether embeddings are multiplied by sqrt(d_model): a flag, or the factor itself."""
        old = self._variables.take(f"{stack}/embeddings_0/multiply_by_sqrt_depth")
        stored = self._variables.take(f"{stack}/scale_embeddings")
        flag = old if stored is None else stored
        if flag is None or flag.dtype == torch.int8:
            return flag is None or bool(flag)
        factor = float(flag)
        is_scaled = math.isclose(factor, math.sqrt(self._facts["d_model"]), rel_tol=1e-3)
        if not is_scaled and factor != 1:
            expected = f"1 or sqrt({self._facts['d_model']})"
            raise ImportFormatError(
                f"{self._variables.path}: {stack}/scale_embeddings is {factor:g}: expected {expected}"
            )
        return is_scaled

    def _read_attention(self, theirs: str, ours: str, *, is_self: bool) -> None:
        """Read one attention block, of which queries, keys and values are stored as one matrix, or keys and values."""
        variables, num_heads = self._variables, int(self._facts["num_heads"])
        head_size = int(variables.attribute(f"{theirs}/head_dim", self._facts["d_model"] // num_heads))
        num_kv_heads = int(variables.attribute(f"{theirs}/num_heads_kv", num_heads))
        if num_kv_heads < 1 or num_heads % num_kv_heads or head_size < 1:
            raise ImportFormatError(
                f"{variables.path}: {theirs} has {num_heads} heads of {head_size}, {num_kv_heads} of keys"
            )
        has_pairs = is_self and self._read_rotation(theirs, head_size)
        self._fact("head_dim", None if head_size * num_heads == self._facts["d_model"] else head_size, theirs)
        self._fact("num_kv_heads", None if num_kv_heads == num_heads else num_kv_heads, theirs)
        variables.require(f"{theirs}/queries_scale", head_size**-0.5)
        sizes = {"query": num_heads * head_size, "key": num_kv_heads * head_size, "value": num_kv_heads * head_size}
        groups = [["query", "key", "value"]] if is_self else [["query"], ["key", "value"]]
        # Query head h looks at keys h // group of theirs, and h modulo the number of ours.
        group = num_heads // num_kv_heads
        order = [head % num_kv_heads * group + head // num_kv_heads for head in range(num_heads)]
        for index, names in enumerate(groups):
            rows = [sizes[name] for name in names]
            for part, fused in self._linear(f"{theirs}/linear_{index}").items():
                if len(fused) != sum(rows):
                    found = f"{len(fused)} rows: expected {sum(rows)}"
                    raise ImportFormatError(f"{variables.path}: {theirs}/linear_{index}/{part} has {found}")
                for name, weight in zip(names, torch.split(fused, rows), strict=True):
                    by_head = weight.reshape(-1, head_size, *weight.shape[1:])
                    if name == "query":
                        by_head = by_head[order]
                    if has_pairs and name != "value":
                        by_head = _in_halves(by_head)
                    self._put(f"{ours}.{name}.{part}", by_head.reshape(weight.shape))
        output = self._linear(f"{theirs}/linear_{len(groups)}")
        columns = torch.arange(num_heads * head_size).reshape(num_heads, head_size)[order].flatten()
        if output["weight"].shape[1] != len(columns):
            raise ImportFormatError(
                f"{variables.path}: {theirs}/linear_{len(groups)}/weight does not have {len(columns)} columns"
            )
        self._put(f"{ours}.output.weight", output["weight"][:, columns])
        self._put(f"{ours}.output.bias", output["bias"])
        self._read_norm(f"{theirs}/layer_norm", f"{ours}_norm")

    def _read_rotation(self, theirs: str, head_size: int) -> bool:
        """Return whether what is rotated are pairs of neighbours within a head; ours are half a head apart.

        Heads are rotated as a whole, with the base 10000, or not at all; ImportFormatError for all else.
        """
        variables, is_rotary = self._variables, self._variables.has(f"{theirs}/rotary_dim")
        self._fact("rotary_positions", is_rotary, theirs)
        if not is_rotary:
            return False
        variables.require(f"{theirs}/rotary_dim", 0, head_size)
        variables.require(f"{theirs}/rotary_base", 10000)
        if head_size % 2:
            raise ImportFormatError(f"{variables.path}: {theirs} has heads of {head_size}: expected an even number")
        return bool(variables.attribute(f"{theirs}/rotary_interleave", 1))

    def _read_feed_forward(self, theirs: str, ours: str, activation: str) -> None:
        is_gated = self._variables.has(f"{theirs}/linear_0_noact/weight")
        if is_gated and activation != "swish":
            raise ImportFormatError(f"{self._variables.path}: {theirs} is gated by {activation}: expected swish")
        self._fact("activation", "swiglu" if is_gated else activation, theirs)
        names = {"outer": "linear_1", "inner": "linear_0_noact" if is_gated else "linear_0"}
        for name, stored in {**names, **({"gate": "linear_0"} if is_gated else {})}.items():
            for part, weight in self._linear(f"{theirs}/{stored}").items():
                self._put(f"{ours}.{name}.{part}", weight)
        self._fact("ffn_size", len(self.weights[f"{ours}.inner.weight"]), theirs)
        self._read_norm(f"{theirs}/layer_norm", f"{ours}_norm")

    def _linear(self, name: str) -> dict[str, Tensor]:
        """Return weight and bias of a product; the latter is zero where none is stored."""
        weight = self._variables.array(f"{name}/weight")
        if weight.dim() != 2:
            raise ImportFormatError(f"{self._variables.path}: {name}/weight has {weight.dim()} dimensions")
        has_bias = self._variables.has(f"{name}/bias")
        return {
            "weight": weight,
            "bias": self._variables.array(f"{name}/bias") if has_bias else weight.new_zeros(len(weight)),
        }

    def _read_norm(self, theirs: str, ours: str) -> None:
        is_layer = self._variables.has(f"{theirs}/beta")
        self._fact("norm_kind", "layer" if is_layer else "rms", theirs)
        self._put(f"{ours}.weight", self._variables.array(f"{theirs}/gamma"))
        if is_layer:
            self._put(f"{ours}.bias", self._variables.array(f"{theirs}/beta"))

    def _read_positions(self, *, has_positions: bool) -> None:
        """Read position encodings: sinusoids of some kind, whatever was learned, or what holds if none are stored."""
        if self._facts.pop("rotary_positions", False):
            self._facts["positions"] = "rotary"
            return
        names = {stack: f"{stack}/position_encodings/encodings" for stack in ("encoder", "decoder")}
        stored = {stack: self._variables.array(name) for stack, name in names.items() if self._variables.has(name)}
        if len(stored) == 1:
            raise ImportFormatError(f"{self._variables.path}: {names[min(stored)]} without that of the other stack")
        if not stored and not has_positions:
            self._facts["positions"] = "none"
            return
        if not stored:
            self._facts |= {"positions": "sinusoidal", "sinusoid_layout": "fairseq", "position_offset": 1}
            return
        self.num_positions = min(len(table) for table in stored.values())
        tables = {stack: table[: self.num_positions] for stack, table in stored.items()}
        kinds = {_sinusoids(table, self._facts["d_model"]) for table in tables.values()}
        (kind, *others) = kinds
        if kind is not None and not others:
            self._facts |= {"positions": "sinusoidal", "sinusoid_layout": kind[0], "position_offset": kind[1]}
            return
        self.num_positions = min(self.num_positions, _MAX_POSITIONS)
        self._facts |= {"positions": "learned", "max_positions": self.num_positions}
        for stack, table in tables.items():
            self._put(f"{stack}.positions.weight", table[: self.num_positions])


def _in_halves(heads: Tensor) -> Tensor:
    """Return rows [H, D, ...] of queries or keys with pairs half a head apart that were neighbours."""
    return heads.reshape(len(heads), -1, 2, *heads.shape[2:]).transpose(1, 2).reshape(heads.shape)


def _sinusoids(table: Tensor, d_model: int) -> tuple[SinusoidLayout, int] | None:
    """Return layout and first position of a table of sinusoids; None if it is something else."""
    first, more = _SAME_POSITIONS
    tolerance = first + more * torch.arange(len(table))[:, None]
    for layout in get_args(SinusoidLayout):
        for offset in _OFFSETS:
            expected = sinusoidal_positions(len(table), d_model, offset=offset, layout=layout)
            if expected.shape == table.shape and bool(((table - expected).abs() <= tolerance).all()):
                return layout, offset
    return None
