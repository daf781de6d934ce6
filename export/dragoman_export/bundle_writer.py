"""Writes a model bundle: graphs, tokenizer and the manifest that `dragoman_service.bundle` checks."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import onnx_ir as ir
from pydantic import ValidationError

from dragoman_export.data.augmentation import PLACEHOLDERS
from dragoman_export.data.vocabulary import Vocabulary
from dragoman_export.errors import ExportError
from dragoman_export.importers.portable import TokenizerDescription, TokenizerFiles
from dragoman_export.onnx_export.int8_weights import describe_weights
from dragoman_export.onnx_export.network import ARITHMETICS, FLOAT_TYPES, Network, write_graphs, write_int8_weights
from dragoman_export.onnx_export.write import WeightsFile
from dragoman_service.bundle.architecture import Limits, graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry, open_bundle
from dragoman_service.bundle.manifest import (
    SCHEMA_VERSION,
    Confidence,
    GraphFiles,
    Manifest,
    Provenance,
    Score,
    SpecialIds,
)
from dragoman_service.runtimes.shortlist import Shortlist, open_shortlist
from dragoman_service.text.tokenizer import open_tokenizer

_TOKENIZER_NAME = "tokenizer.model"
_SHORTLIST_NAME = "shortlist.bin"


class BundleWriteError(ExportError):
    """A bundle cannot be written as asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleDescription:
    """What a manifest says that neither weights nor vocabulary tell."""

    name: str
    version: str
    source_language: str
    target_language: str
    limits: Limits
    precisions: tuple[str, ...]
    """Of `ARITHMETICS`; the last one is the default."""
    provenance: Provenance
    scores: tuple[Score, ...] = ()
    licence: str = "NOASSERTION"
    """SPDX expression; the default is SPDX's word for: nothing is claimed."""
    attribution: str = ""


def write_bundle(
    output: Path, network: Network, vocabulary: Vocabulary | TokenizerFiles, description: BundleDescription
) -> Manifest:
    """Write a bundle into a new directory, which appears whole or not at all.

    Raises:
        BundleError: if the tokenizer of another system does not fit the network.
        BundleWriteError: if the directory exists, or the description or the vocabulary does not fit.
    """
    if unknown := set(description.precisions) - set(ARITHMETICS):
        raise BundleWriteError(f"no such precision: {', '.join(sorted(unknown))}; known: {', '.join(ARITHMETICS)}")
    if isinstance(vocabulary, Vocabulary) and len(vocabulary) != network.config.vocabulary_size:
        sizes = f"{len(vocabulary)} pieces, the model {network.config.vocabulary_size}"
        raise BundleWriteError(f"the vocabulary has {sizes}")
    with _new_directory(output) as directory:
        tokenizer = vocabulary if isinstance(vocabulary, TokenizerFiles) else _of_one_model(vocabulary)
        tokenizer.write(directory)
        files = {
            precision: write_graphs(directory, network, precision, description.limits)
            for precision in description.precisions
        }
        manifest = _manifest(directory, network, files, tokenizer.description, description)
        _write_manifest(directory, manifest)
    return manifest


def upgrade_bundle(source: Path, output: Path) -> Manifest:
    """Copy a bundle into a new directory, and describe there the weights of its int8 graphs.

    Graphs and translations stay the same. The directory appears whole or not at all; other files of the source, such
    as a model card, come along.

    Raises:
        BundleError: if the bundle is damaged.
        BundleWriteError: if the directory exists, or there is nothing to describe.
        ImportFormatError: if a graph is not as this exporter makes them.
    """
    manifest = open_bundle(source).manifest
    if described := [name for name, files in manifest.precisions.items() if files.int8_weights is not None]:
        raise BundleWriteError(f"{source} describes its int8 weights already: {', '.join(described)}")
    with _copied(source, output) as directory:
        precisions = {name: _described(directory, name, manifest) for name in manifest.precisions}
        if precisions == manifest.precisions:
            raise BundleWriteError(f"{source} has no decoder whose products are all int8, with its weights in a file")
        return _add(directory, manifest, {"precisions": precisions})


def add_shortlist(source: Path, output: Path, shortlist: Shortlist) -> Manifest:
    """Copy a bundle into a new directory with a shortlist, in place of the one that it may have had.

    Nothing else changes. The directory appears whole or not at all.

    Raises:
        BundleError: if the bundle is damaged, or the shortlist is not of its vocabulary.
        BundleWriteError: if the directory exists.
    """
    manifest = open_bundle(source).manifest
    with _copied(source, output) as directory:
        (directory / _SHORTLIST_NAME).write_bytes(shortlist.to_bytes())
        return _add(directory, manifest, {"shortlist": _SHORTLIST_NAME})


def add_confidence(source: Path, output: Path, confidence: Confidence) -> Manifest:
    """Copy a bundle into a new directory with a confidence, in place of the one that it may have had.

    Nothing else changes: it translates as before. The directory appears whole or not at all.

    Raises:
        BundleError: if the bundle is damaged.
        BundleWriteError: if the directory exists.
    """
    manifest = open_bundle(source).manifest
    with _copied(source, output) as directory:
        return _add(directory, manifest, {"confidence": confidence})


@contextmanager
def _copied(source: Path, output: Path) -> Iterator[Path]:
    """Yield a copy of a bundle that takes its place if all goes well."""
    with _new_directory(output) as directory:
        for path in source.iterdir():
            if path.is_file():
                shutil.copyfile(path, directory / path.name)
        yield directory


def _add(directory: Path, manifest: Manifest, changes: dict[str, Any]) -> Manifest:
    """Write the manifest of a bundle to which files were added, and return it."""
    manifest = manifest.model_copy(update={**changes, "schema_version": SCHEMA_VERSION})
    files = {name: file_entry(directory / name) for name in sorted(manifest.files.keys() | manifest.named_files())}
    manifest = manifest.model_copy(update={"files": files})
    _write_manifest(directory, manifest)
    return manifest


def _described(directory: Path, precision: str, manifest: Manifest) -> GraphFiles:
    """Describe int8 weights, if all products of the decoder are int8; return the files of the precision."""
    files = manifest.precisions[precision]
    if files.weights is None:
        return files
    weights = WeightsFile(directory / files.weights)
    encoder, decoder = (ir.load(directory / name) for name in (files.encoder, files.decoder))
    described = describe_weights(encoder, decoder, weights, manifest.architecture, manifest.limits)
    if described is None:
        return files
    return files.model_copy(update={"int8_weights": write_int8_weights(directory, precision, described)})


def _write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json` if the service can read the bundle; BundleError if it could not."""
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    bundle = open_bundle(directory)
    for precision in manifest.precisions:
        bundle.int8_weights(precision)
    open_tokenizer(bundle)
    if manifest.shortlist is not None:
        open_shortlist(bundle)


def exporter_version() -> str:
    """Return the version of this package, or `unknown` when it runs from a source tree that is not installed."""
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
    special_ids = SpecialIds(
        pad=config.pad_id,
        bos=config.start_id,
        eos=config.eos_id,
        unk=config.unk_id,
    )
    try:
        return Manifest(
            schema_version=SCHEMA_VERSION,
            name=description.name,
            version=description.version,
            source_language=description.source_language,
            target_language=description.target_language,
            architecture=network.architecture,
            special_ids=special_ids,
            limits=description.limits,
            precisions=files,
            default_precision=description.precisions[-1],
            tokenizer=tokenizer.model,
            tokenization=tokenizer.tokenization,
            tensors={name: graph_tensors(config.num_decoder_layers, FLOAT_TYPES[name]) for name in files},
            files={path.name: file_entry(path) for path in sorted(directory.iterdir())},
            scores=description.scores,
            provenance=description.provenance,
            licence=description.licence,
            attribution=description.attribution,
        )
    except ValidationError as error:
        raise BundleWriteError(f"the manifest would not be valid: {error}") from error


def _of_one_model(vocabulary: Vocabulary) -> TokenizerFiles:
    """Return the files of a vocabulary with SentencePiece's own ids."""
    placeholders = tuple(piece for piece in PLACEHOLDERS if piece in vocabulary.reserved)
    description = TokenizerDescription(model=_TOKENIZER_NAME, placeholders=placeholders)
    return TokenizerFiles(description=description, files={_TOKENIZER_NAME: vocabulary.model})


@contextmanager
def _new_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary directory beside `output` that takes its place if all goes well."""
    if output.exists():
        raise BundleWriteError(f"{output} exists already")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp gives access to its owner only
        temporary.rename(output)
    except BaseException:
        shutil.rmtree(temporary)
        raise
