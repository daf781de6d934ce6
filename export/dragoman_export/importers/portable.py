"""The portable format of a model: what importers of other systems write and `export bundle` reads.

A directory with

- `config.json`: `{"format": 1, "model": {...}, "limits": {...}}`, the fields of `ModelConfig` and of
  `dragoman_service.bundle.architecture.Limits`, those without a default at least;
- `model.safetensors`: the tensors of our `Transformer`, by the names of its state dict, in F32, F16 or BF16;
- `tokenizer.json`: `model`, the file name of the SentencePiece model of targets, and whatever is not the default in
  `dragoman_service.bundle.manifest.Tokenization`; the files that it names lie beside it.

What a reader does not know is an error, as is a tensor too many, one too few, or one of another shape.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from safetensors.torch import save_file
from torch import Tensor

from dragoman_export.errors import ImportFormatError, RunFolderError
from dragoman_export.importers.files import read_json, read_plain, read_tensors
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_service.bundle.architecture import Architecture, Limits
from dragoman_service.bundle.manifest import PlainName, SpecialIds, Tokenization
from dragoman_service.text.tokenizer import SentencePieceTokenizer

WEIGHTS_NAME = "model.safetensors"
_CONFIG_NAME = "config.json"
_TOKENIZER_NAME = "tokenizer.json"

MAX_TOKENS: Final = 512
"""Longest sequences that a bundle takes unless asked for more: hardly a model was trained on longer ones."""

_MODEL_CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)


class TokenizerDescription(Tokenization):
    """What `tokenizer.json` says."""

    model: PlainName
    """SentencePiece model, of sources as well unless `source_model` is there."""

    @property
    def tokenization(self) -> Tokenization:
        """All but `model`, as a manifest has it."""
        return Tokenization(**self.model_dump(exclude={"model"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """A tokenizer on its way from one directory to another."""

    description: TokenizerDescription
    files: Mapping[str, bytes]
    """Content of every file that the description names."""

    @classmethod
    def read(cls, directory: Path) -> "TokenizerFiles":
        """Read `tokenizer.json` and what it names; ImportFormatError if a file is missing or not what it should be."""
        fields = read_json(directory / _TOKENIZER_NAME)
        try:
            description = TokenizerDescription.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise _invalid(directory / _TOKENIZER_NAME, error) from error
        names = (description.model, *description.names())
        return cls(description=description, files={name: read_plain(directory / name) for name in names})

    def write(self, directory: Path) -> None:
        """Write the files that the description names."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    def write_described(self, directory: Path) -> None:
        """Write the same and `tokenizer.json`, as `read` expects."""
        self.write(directory)
        text = self.description.model_dump_json(indent=2, exclude_defaults=True)
        (directory / _TOKENIZER_NAME).write_text(text + "\n", encoding="utf-8")

    def open_at(self, directory: Path, config: ModelConfig) -> SentencePieceTokenizer:
        """Return the tokenizer that was written to a directory; BundleError if a file is not what it should be."""
        ids = SpecialIds(pad=config.pad_id, bos=config.start_id, eos=config.eos_id, unk=config.unk_id)
        has_own_ids = self.description.pieces is not None
        path = directory / self.description.model
        return SentencePieceTokenizer(path, self.description.tokenization, ids if has_own_ids else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """A model of another system in our terms."""

    config: ModelConfig
    limits: Limits
    weights: Mapping[str, Tensor]
    """By the names of `Transformer`."""
    tokenizer: TokenizerFiles


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    model: dict[str, Any]
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableModel:
    """A directory in the portable format, of which only the two descriptions have been read."""

    directory: Path
    config: ModelConfig
    limits: Limits
    """Longest sequences that the model is for."""
    tokenizer_files: TokenizerFiles

    @classmethod
    def is_at(cls, directory: Path) -> bool:
        """Return whether a directory holds weights in this format."""
        return (directory / WEIGHTS_NAME).is_file()

    @classmethod
    def open(cls, directory: Path) -> "PortableModel":
        """Read the descriptions; ImportFormatError if one is missing, or says what it must not."""
        path = directory / _CONFIG_NAME
        try:
            described = _Config.model_validate_json(json.dumps(read_json(path)))
            if unknown := described.model.keys() - ModelConfig.__dataclass_fields__.keys():
                name = min(unknown)
                raise ImportFormatError(f"{path}: model.{name} is {described.model[name]!r}: no such field")
            config = _MODEL_CONFIG.validate_json(json.dumps(described.model), strict=True)
            check_sizes(config, path)
        except ValidationError as error:
            raise _invalid(path, error) from error
        return cls(
            directory=directory,
            config=config,
            limits=described.limits,
            tokenizer_files=TokenizerFiles.read(directory),
        )

    def load(self) -> Transformer:
        """Return the network, in evaluation mode; ImportFormatError if tensors do not fit the configuration."""
        return load_weights(self.config, read_tensors(self.directory / WEIGHTS_NAME), self.directory / WEIGHTS_NAME)

    def open_tokenizer(self) -> SentencePieceTokenizer:
        """Return the tokenizer; BundleError if a file is not what it should be."""
        return self.tokenizer_files.open_at(self.directory, self.config)


def check_sizes(config: ModelConfig, origin: Path) -> None:
    """Raise ImportFormatError, naming the file it comes from, if a network is larger than a bundle can describe."""
    fields = config.to_dict()
    try:
        Architecture(**{name: fields[name] for name in Architecture.model_fields})
    except ValidationError as error:
        raise _invalid(origin, error) from error


def load_weights(config: ModelConfig, weights: Mapping[str, Tensor], origin: Path) -> Transformer:
    """Return a network with given weights, in evaluation mode.

    Raises:
        ImportFormatError: naming the first tensor that is missing, too many, or of another shape.
    """
    with torch.device("meta"):
        expected = {name: tuple(tensor.shape) for name, tensor in Transformer(config).state_dict().items()}
    for name in sorted(expected.keys() | weights.keys()):
        found = tuple(weights[name].shape) if name in weights else "missing"
        if found != expected.get(name, "none"):
            raise ImportFormatError(f"{origin}: tensor {name} is {found}: expected {expected.get(name, 'none')}")
    model = Transformer(config)
    model.load_state_dict(dict(weights))
    return model.eval()


def write_portable(
    output: Path, config: ModelConfig, limits: Limits, weights: Mapping[str, Tensor], tokenizer: TokenizerFiles
) -> PortableModel:
    """Write a model into a directory that must not exist, and return it.

    Raises:
        ImportFormatError: if the weights do not fit the configuration.
        RunFolderError: if the directory exists or cannot be made.
    """
    load_weights(config, weights, output / WEIGHTS_NAME)
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(f"cannot make {output}: {error.strerror}") from error
    tokenizer.write_described(output)
    described = {"format": 1, "model": config.to_dict(), "limits": limits.model_dump()}
    (output / _CONFIG_NAME).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.float().contiguous() for name, tensor in weights.items()}, output / WEIGHTS_NAME)
    return PortableModel.open(output)


def _invalid(path: Path, error: ValidationError) -> ImportFormatError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "content"
    return ImportFormatError(f"{path}: {place} is {first['input']!r}: {first['msg']}")
