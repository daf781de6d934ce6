"""A trained model: files of checkpoint and vocabulary, or a bundle."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import RunFolderError
from dragoman_export.importers.bundle import read_network
from dragoman_export.importers.portable import (
    WEIGHTS_NAME,
    PortableModel,
    TokenizerDescription,
    TokenizerFiles,
    load_weights,
)
from dragoman_export.model.config import ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.checkpoint import load_checkpoint, load_model
from dragoman_export.training.config import DataConfig, TrainingConfig
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, open_bundle
from dragoman_service.bundle.manifest import Languages, TargetTokens, Tokenization
from dragoman_service.text.tokenizer import SentencePieceTokenizer, open_tokenizer

_AVERAGE_NAME = "average.pt"  # written by `dragoman export average`


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """The files of a trained or imported model."""

    checkpoint: Path
    run: RunFolder  # contains the vocabulary; unused by an import
    portable: PortableModel | None = None  # imported from another system; None: trained here, or imported from a bundle
    tokenizer_files: TokenizerFiles | None = None  # imported tokenizer; None: one SentencePiece model in the run folder

    @classmethod
    def find(cls, path: Path) -> "TrainedModel":
        """Return the model at a path: a checkpoint inside a run folder, or the folder itself.

        A folder is searched for the average, the checkpoint with the lowest dev loss, and an import, in this order.
        ImportFormatError if a portable model is damaged, RunFolderError if checkpoint or vocabulary are missing.
        """
        run = RunFolder(path)
        if (path / WEIGHTS_NAME).is_file():
            portable = PortableModel.open(path)
            files = portable.tokenizer_files
            return cls(checkpoint=path / WEIGHTS_NAME, run=run, portable=portable, tokenizer_files=files)
        candidates = [path / _AVERAGE_NAME, run.best, run.imported] if path.is_dir() else [path]
        checkpoint = next((candidate for candidate in candidates if candidate.is_file()), None)
        if checkpoint is None:
            raise RunFolderError(f"no checkpoint at {' or '.join(map(str, candidates))}")
        folders = [RunFolder(folder) for folder in checkpoint.parents[:2]]
        holders = [folder for folder in folders if folder.vocabulary.is_file() or folder.tokenizer.is_dir()]
        if not holders:
            raise RunFolderError(f"no vocabulary at {' or '.join(str(folder.vocabulary) for folder in folders)}")
        directory = holders[0].tokenizer
        tokenizer_files = TokenizerFiles.read(directory) if directory.is_dir() else None
        return cls(checkpoint=checkpoint, run=holders[0], tokenizer_files=tokenizer_files)

    def load(self) -> Transformer:
        """Return the network in evaluation mode; RunFolderError or ImportFormatError on failure."""
        return load_model(self.checkpoint) if self.portable is None else self.portable.load()

    def read_settings(self) -> Mapping[str, Any]:
        """Return config.json of the run folder; empty if there is none or the model was imported."""
        has_settings = self.portable is None and (self.run.path / "config.json").is_file()
        return self.run.read_settings() if has_settings else {}

    @property
    def limits(self) -> Limits:
        """Limits of an imported model, or the longest training pair."""
        if self.portable is not None:
            return self.portable.limits
        max_tokens = self.read_settings().get("training", {}).get("max_tokens", TrainingConfig().max_tokens)
        return Limits(max_source_tokens=max_tokens, max_target_tokens=max_tokens)

    def read_data(self) -> DataConfig | None:
        """Return the text of the run; None if the model was imported. RunFolderError if the settings are damaged."""
        settings = self.read_settings()
        try:
            return DataConfig.from_dict(settings["data"]) if "data" in settings else None
        except (KeyError, TypeError, ValueError) as error:
            raise RunFolderError(f"invalid settings of the run: {error!r}") from error

    @property
    def languages(self) -> Languages | None:
        """Languages of a multilingual model; None: one language pair.

        A model that was trained here translates every source language to every target language of its training text.
        CorpusError if the vocabulary lacks a language, RunFolderError if the settings are damaged.
        """
        if self.tokenizer_files is not None:
            return self.tokenizer_files.description.languages
        data = self.read_data()
        pairs = data.language_pairs if data else ()
        if not pairs:
            return None
        vocabulary = Vocabulary.load(self.run.vocabulary)
        prefixes = {target: vocabulary.language_prefix(source, target) for source, target in pairs}
        return Languages(
            sources={source: () for source, _ in pairs},
            targets={target: TargetTokens(source_prefix=prefix) for target, prefix in prefixes.items()},
        )

    @property
    def first_pair(self) -> tuple[str, str] | None:
        """First language pair of a multilingual model."""
        languages = self.languages
        return next(languages.pairs_served(), None) if languages else None

    def read_vocabulary(self) -> Vocabulary | TokenizerFiles:
        """Return the tokenizer for a bundle; CorpusError if the vocabulary is damaged."""
        return self.tokenizer_files or Vocabulary.load(self.run.vocabulary)

    def open_tokenizer(self) -> SentencePieceTokenizer:
        """Return the tokenizer, for `first_pair` of a multilingual model; BundleError if its files are damaged."""
        pair = self.first_pair
        if self.portable is not None:
            tokenizer = self.portable.open_tokenizer()
        elif self.tokenizer_files is not None:
            config = ModelConfig(**load_checkpoint(self.checkpoint)["model_config"])
            tokenizer = self.tokenizer_files.open_at(self.run.tokenizer, config)
        else:
            tokenizer = SentencePieceTokenizer(self.run.vocabulary, Tokenization(languages=self.languages))
        return tokenizer.for_pair(*pair) if pair else tokenizer


def open_model(path: Path) -> tuple[Transformer, SentencePieceTokenizer]:
    """Return network, in evaluation mode, and tokenizer of a bundle, or of a path for `TrainedModel.find`.

    BundleError, ImportFormatError or RunFolderError if a part is damaged or missing.
    """
    if not (path / MANIFEST_NAME).is_file():
        trained = TrainedModel.find(path)
        return trained.load(), trained.open_tokenizer()
    bundle = open_bundle(path)
    return _load(bundle), open_tokenizer(bundle)


def read_model(path: Path) -> tuple[Transformer, Vocabulary | TokenizerFiles]:
    """Return the network, and the tokenizer as a bundle or run needs it; raises as `open_model`."""
    if not (path / MANIFEST_NAME).is_file():
        trained = TrainedModel.find(path)
        return trained.load(), trained.read_vocabulary()
    bundle = open_bundle(path)
    tokenization = bundle.manifest.tokenization
    if tokenization == Tokenization():
        return _load(bundle), Vocabulary.load(bundle.tokenizer_path)
    description = TokenizerDescription(model=bundle.tokenizer_path.name, **tokenization.model_dump())
    files = {name: (path / name).read_bytes() for name in (description.model, *description.names())}
    return _load(bundle), TokenizerFiles(description=description, files=files)


def _load(bundle: Bundle) -> Transformer:
    network = read_network(bundle)
    weights = {name: torch.tensor(array) for name, array in network.weights.items()}
    return load_weights(network.config, weights, bundle.directory)
