"""Writes model bundles: graphs, tokenizer and the manifest that `dragoman_service.bundle` checks."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
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
    """A bundle cannot be written as requested."""


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
    with _new_directory(output) as directory:
        if isinstance(vocabulary, TokenizerFiles):
            tokenizer = vocabulary
        else:
            placeholders = tuple(piece for piece in PLACEHOLDERS if piece in vocabulary.reserved)
            described = TokenizerDescription(model=_TOKENIZER_NAME, placeholders=placeholders)
            tokenizer = TokenizerFiles(description=described, files={_TOKENIZER_NAME: vocabulary.model})
        tokenizer.write(directory)
        files = {
            precision: write_graphs(directory, network, precision, description.limits)
            for precision in description.precisions
        }
        manifest = _manifest(directory, network, files, tokenizer.description, description)
        _write_manifest(directory, manifest)
    return manifest


def upgrade_bundle(source: Path, output: Path) -> Manifest:
    """Copy a bundle atomically and add the description of its int8 weights.

    Graphs, translations and other files, such as a model card, are unchanged.

    Raises:
        BundleError: if the bundle is damaged.
        BundleWriteError: if the directory exists, or there is nothing to describe.
        ImportFormatError: if a graph was not written by this exporter.
    """

    def extend(directory: Path, manifest: Manifest) -> dict[str, Any]:
        if described := [name for name, files in manifest.precisions.items() if files.int8_weights is not None]:
            raise BundleWriteError(f"{source} already describes its int8 weights: {', '.join(described)}")
        precisions = {name: _with_int8_weights(directory, name, manifest) for name in manifest.precisions}
        if precisions == manifest.precisions:
            raise BundleWriteError(f"{source} has no decoder with int8 weights in a file")
        return {"precisions": precisions}

    return _extended(source, output, extend)


def add_shortlist(source: Path, output: Path, shortlist: Shortlist) -> Manifest:
    """Copy a bundle atomically and add or replace its shortlist.

    Raises:
        BundleError: if the bundle is damaged.
        BundleWriteError: if the directory exists.
    """

    def extend(directory: Path, _: Manifest) -> dict[str, Any]:
        (directory / _SHORTLIST_NAME).write_bytes(shortlist.to_bytes())
        return {"shortlist": _SHORTLIST_NAME}

    return _extended(source, output, extend)


def add_confidence(source: Path, output: Path, confidence: Confidence) -> Manifest:
    """Copy a bundle atomically and add or replace its confidence model; errors as of `add_shortlist`."""
    return _extended(source, output, lambda *_: {"confidence": confidence})


def _extended(source: Path, output: Path, extend: Callable[[Path, Manifest], dict[str, Any]]) -> Manifest:
    # `extend` adds files to a copy of the bundle and returns the changed fields of its manifest.
    manifest = open_bundle(source).manifest
    with _new_directory(output) as directory:
        for path in source.iterdir():
            if path.is_file():
                shutil.copyfile(path, directory / path.name)
        changes = {**extend(directory, manifest), "schema_version": SCHEMA_VERSION}
        manifest = manifest.model_copy(update=changes)
        names = sorted(manifest.files.keys() | manifest.named_files())
        manifest = manifest.model_copy(update={"files": {name: file_entry(directory / name) for name in names}})
        _write_manifest(directory, manifest)
    return manifest


def _with_int8_weights(directory: Path, precision: str, manifest: Manifest) -> GraphFiles:
    # Returns the files of a precision, with a description of its int8 weights if all decoder products are int8.
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
    # Writes the manifest and opens every part of the bundle, so that an invalid bundle is not kept.
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    bundle = open_bundle(directory)
    for precision in manifest.precisions:
        bundle.int8_weights(precision)
    open_tokenizer(bundle)
    if manifest.shortlist is not None:
        open_shortlist(bundle)


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
    del described["precisions"]
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
            tensors={name: graph_tensors(config.num_decoder_layers, FLOAT_TYPES[name]) for name in files},
            files={path.name: file_entry(path) for path in sorted(directory.iterdir())},
        )
    except ValidationError as error:
        raise BundleWriteError(f"invalid manifest: {error}") from error


@contextmanager
def _new_directory(output: Path) -> Iterator[Path]:
    # A temporary sibling directory that is renamed to `output` on success.
    if output.exists():
        raise BundleWriteError(f"{output} already exists")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        yield temporary
        temporary.chmod(0o755)  # mkdtemp grants access to its owner only
        temporary.rename(output)
    except BaseException:
        shutil.rmtree(temporary)
        raise
