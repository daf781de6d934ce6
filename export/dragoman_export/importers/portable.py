"""The portable format of a model, which importers write and `dragoman export bundle` reads.

A directory with

- `config.json`: `{"format": 1, "model": {...}, "limits": {...}}`: fields of `ModelConfig` and
  `dragoman_service.bundle.architecture.Limits`; fields with a default are optional;
- `model.safetensors`: the state dict of `Transformer` in F32, F16 or BF16;
- `tokenizer.json`: `model`, the file name of the SentencePiece model of targets, and the fields of
  `dragoman_service.bundle.manifest.Tokenization` that differ from their default; the files it names.

Unknown fields, and missing, additional or misshapen tensors are errors.
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

MAX_TOKENS: Final = 512  # default limit of bundles; few models were trained on longer sequences
_MODEL_CONFIG: TypeAdapter[ModelConfig] = TypeAdapter(ModelConfig)


class TokenizerDescription(Tokenization):
    """Content of `tokenizer.json`."""

    model: PlainName  # SentencePiece model, also of sources unless `source_model` is set

    @property
    def tokenization(self) -> Tokenization:
        """All but `model`, as a manifest has it."""
        return Tokenization(**self.model_dump(exclude={"model"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """Description and files of a tokenizer."""

    description: TokenizerDescription
    files: Mapping[str, bytes]  # content of every file in the description

    @classmethod
    def read(cls, directory: Path) -> "TokenizerFiles":
        """Read `tokenizer.json` and its files; ImportFormatError if one is missing or invalid."""
        fields = read_json(directory / _TOKENIZER_NAME)
        try:
            description = TokenizerDescription.model_validate_json(json.dumps(fields))
        except ValidationError as error:
            raise _invalid(directory / _TOKENIZER_NAME, error) from error
        names = (description.model, *description.names())
        return cls(description=description, files={name: read_plain(directory / name) for name in names})

    def write(self, directory: Path) -> None:
        """Write the files of the description."""
        for name, content in self.files.items():
            (directory / name).write_bytes(content)

    def write_described(self, directory: Path) -> None:
        """Write the files and `tokenizer.json`, as `read` expects."""
        self.write(directory)
        text = self.description.model_dump_json(indent=2, exclude_defaults=True)
        (directory / _TOKENIZER_NAME).write_text(text + "\n", encoding="utf-8")

    def open_at(self, directory: Path, config: ModelConfig) -> SentencePieceTokenizer:
        """Open the tokenizer in the directory it was written to; BundleError if a file is damaged."""
        ids = SpecialIds(pad=config.pad_id, bos=config.start_id, eos=config.eos_id, unk=config.unk_id)
        has_own_ids = self.description.pieces is not None
        path = directory / self.description.model
        return SentencePieceTokenizer(path, self.description.tokenization, ids if has_own_ids else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """A model of another system, converted."""

    config: ModelConfig
    max_tokens: int  # longest source and target
    weights: Mapping[str, Tensor]  # by the names of `Transformer`
    tokenizer: TokenizerFiles

    @property
    def limits(self) -> Limits:
        """Limits of a bundle."""
        return Limits(max_source_tokens=self.max_tokens, max_target_tokens=self.max_tokens)


class _Config(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    format: Literal[1]
    model: dict[str, Any]
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class PortableModel:
    """A directory in the portable format with loaded descriptions."""

    directory: Path
    config: ModelConfig
    limits: Limits  # longest sequences of the model
    tokenizer_files: TokenizerFiles

    @classmethod
    def open(cls, directory: Path) -> "PortableModel":
        """Read the descriptions; ImportFormatError if one is missing or invalid."""
        path = directory / _CONFIG_NAME
        try:
            described = _Config.model_validate_json(json.dumps(read_json(path)))
            if unknown := described.model.keys() - ModelConfig.__dataclass_fields__.keys():
                name = min(unknown)
                raise ImportFormatError(f"{path}: model.{name} is {described.model[name]!r}: unknown field")
            config = _MODEL_CONFIG.validate_json(json.dumps(described.model), strict=True)
            check_sizes(config, path)
        except ValidationError as error:
            raise _invalid(path, error) from error
        return cls(
            directory=directory, config=config, limits=described.limits, tokenizer_files=TokenizerFiles.read(directory)
        )

    def load(self) -> Transformer:
        """Return the network in evaluation mode; ImportFormatError if tensors do not match the configuration."""
        return load_weights(self.config, read_tensors(self.directory / WEIGHTS_NAME), self.directory / WEIGHTS_NAME)

    def open_tokenizer(self) -> SentencePieceTokenizer:
        """Return the tokenizer; BundleError if a file is damaged."""
        return self.tokenizer_files.open_at(self.directory, self.config)


def check_sizes(config: ModelConfig, origin: Path) -> None:
    """Raise ImportFormatError if a network exceeds the limits of a bundle."""
    fields = config.to_dict()
    try:
        Architecture(**{name: fields[name] for name in Architecture.model_fields})
    except ValidationError as error:
        raise _invalid(origin, error) from error


def load_weights(config: ModelConfig, weights: Mapping[str, Tensor], origin: Path) -> Transformer:
    """Return a network with the given weights, in evaluation mode; ImportFormatError if a tensor does not match."""
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
    """Write a model into a new directory.

    Raises:
        ImportFormatError: if the weights do not match the configuration.
        RunFolderError: if the directory exists or cannot be created.
    """
    load_weights(config, weights, output / WEIGHTS_NAME)
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise RunFolderError(f"cannot create {output}: {error.strerror}") from error
    tokenizer.write_described(output)
    described = {"format": 1, "model": config.to_dict(), "limits": limits.model_dump()}
    (output / _CONFIG_NAME).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
    save_file({name: tensor.float().contiguous() for name, tensor in weights.items()}, output / WEIGHTS_NAME)
    return PortableModel.open(output)


def _invalid(path: Path, error: ValidationError) -> ImportFormatError:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "content"
    return ImportFormatError(f"{path}: {place} is {first['input']!r}: {first['msg']}")
