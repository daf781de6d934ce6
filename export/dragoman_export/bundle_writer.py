"""Writes model bundles: graphs, tokenizer and the manifest that `dragoman_service.bundle` checks."""

from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from dragoman_export.bundle_extension import new_directory, write_manifest
from dragoman_export.data.augmentation import PLACEHOLDERS
from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import BundleWriteError
from dragoman_export.importers.portable import TokenizerDescription, TokenizerFiles
from dragoman_export.onnx_export.network import ARITHMETICS, FLOAT_TYPES, Network, write_graphs
from dragoman_service.bundle.architecture import Limits, graph_tensors
from dragoman_service.bundle.files import file_entry
from dragoman_service.bundle.manifest import (
    SCHEMA_VERSION,
    GraphFiles,
    Languages,
    Manifest,
    Provenance,
    Score,
    SpecialIds,
)

_TOKENIZER_NAME = "tokenizer.model"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDescription:
    """Fields of `Manifest` that follow neither from the weights nor from the vocabulary."""

    name: str
    version: str
    source_language: str
    target_language: str
    limits: Limits
    precisions: tuple[str, ...]  # keys of `ARITHMETICS`; the last one is the default
    provenance: Provenance
    languages: Languages | None = None  # of a multilingual model that was trained here; imports have their own
    scores: tuple[Score, ...] = ()
    licence: str = "NOASSERTION"  # SPDX expression
    attribution: str = ""


def write_bundle(
    output: Path, network: Network, vocabulary: Vocabulary | TokenizerFiles, description: BundleDescription
) -> Manifest:
    """Write a bundle into a new directory atomically.

    Raises:
        BundleError: if an imported tokenizer does not fit the network.
        BundleWriteError: if the directory exists, or the description or the vocabulary does not fit.
    """
    if unknown := set(description.precisions) - set(ARITHMETICS):
        raise BundleWriteError(f"unsupported precision {', '.join(sorted(unknown))}; expected {', '.join(ARITHMETICS)}")
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) != network.config.vocabulary_size:
        size = network.config.vocabulary_size
        raise BundleWriteError(f"the vocabulary has {len(vocabulary)} pieces: expected {size}, the size of the model")
    with new_directory(output) as directory:
        if isinstance(vocabulary, TokenizerFiles):
            tokenizer = vocabulary
        else:
            placeholders = tuple(piece for piece in PLACEHOLDERS if piece in vocabulary.reserved)
            described = TokenizerDescription(
                model=_TOKENIZER_NAME,
                placeholders=placeholders,
                reserved=tuple(piece for piece in vocabulary.reserved if piece not in placeholders),
                languages=description.languages,
            )
            tokenizer = TokenizerFiles(description=described, files={_TOKENIZER_NAME: vocabulary.model})
        tokenizer.write(directory)
        files = {
            precision: write_graphs(directory, network, precision, description.limits)
            for precision in description.precisions
        }
        manifest = _manifest(directory, network, files, tokenizer.description, description)
        write_manifest(directory, manifest)
    return manifest


def exporter_version() -> str:
    """Return the version of this package, or `unknown` if it is not installed."""
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "unknown"


def _manifest(
    directory: Path,
    network: Network,
    files: dict[str, GraphFiles],
    tokenizer: TokenizerDescription,
    description: BundleDescription,
) -> Manifest:
    config = network.config
    described = {field.name: getattr(description, field.name) for field in fields(description)}
    del described["precisions"], described["languages"]
    special_ids = SpecialIds(pad=config.pad_id, bos=config.start_id, eos=config.eos_id, unk=config.unk_id)
    try:
        return Manifest(
            schema_version=SCHEMA_VERSION,
            **described,
            architecture=network.architecture,
            special_ids=special_ids,
            precisions=files,
            default_precision=description.precisions[-1],
            tokenizer=tokenizer.model,
            tokenization=tokenizer.tokenization,
            tensors={
                name: graph_tensors(config.num_decoder_layers, FLOAT_TYPES[name], config.decoder_type) for name in files
            },
            files={path.name: file_entry(path) for path in sorted(directory.iterdir())},
        )
    except ValidationError as error:
        raise BundleWriteError(f"invalid manifest: {error}") from error
