"""Copies a bundle and adds a precision, a description of int8 weights, a shortlist or a confidence model.

Imports no PyTorch, so that bundles can be converted without it.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from dragoman_export.errors import BundleWriteError
from dragoman_export.importers.bundle import read_network
from dragoman_export.onnx_export.int8_weights import describe_weights
from dragoman_export.onnx_export.network import FLOAT_TYPES, write_graphs, write_int8_weights
from dragoman_export.onnx_export.write import WeightsFile
from dragoman_service.bundle.architecture import graph_tensors
from dragoman_service.bundle.files import MANIFEST_NAME, Bundle, file_entry, open_bundle
from dragoman_service.bundle.manifest import SCHEMA_VERSION, Confidence, GraphFiles, Manifest
from dragoman_service.runtimes.shortlist import Shortlist, open_shortlist
from dragoman_service.text.tokenizer import open_tokenizer

_MOST_EXACT = "fp32"
_SHORTLIST_NAME = "shortlist.bin"


def add_precision(source: Path, output: Path, precision: str) -> Manifest:
    """Copy a bundle atomically and add graphs of another precision.

    Their weights are those of fp32 if the bundle has it, otherwise of its default precision: integers times the factor
    of their row. The default precision stays the same.

    Raises:
        BundleError: if the bundle is damaged.
        BundleWriteError: if the directory exists, the bundle has the precision, or a weight is out of its range.
        ImportFormatError: if a graph was not written by this exporter.
    """

    def extend(directory: Path, manifest: Manifest) -> dict[str, Any]:
        if precision in manifest.precisions:
            raise BundleWriteError(f"{source} already has {precision}: {', '.join(manifest.precisions)}")
        origin = _MOST_EXACT if _MOST_EXACT in manifest.precisions else manifest.default_precision
        network = read_network(Bundle(directory=directory, manifest=manifest), origin)
        files = write_graphs(directory, network, precision, manifest.limits)
        shape = manifest.architecture
        tensors = graph_tensors(shape.num_decoder_layers, FLOAT_TYPES[precision], shape.decoder_type)
        return {
            "precisions": {**manifest.precisions, precision: files},
            "tensors": {**manifest.tensors, precision: tensors},
        }

    return _extended(source, output, extend)


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
    with new_directory(output) as directory:
        for path in source.iterdir():
            if path.is_file():
                shutil.copyfile(path, directory / path.name)
        changes = {**extend(directory, manifest), "schema_version": SCHEMA_VERSION}
        manifest = manifest.model_copy(update=changes)
        names = sorted(manifest.files.keys() | manifest.named_files())
        manifest = manifest.model_copy(update={"files": {name: file_entry(directory / name) for name in names}})
        write_manifest(directory, manifest)
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


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest and open every part of the bundle, so that an invalid bundle is not kept."""
    (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    bundle = open_bundle(directory)
    for precision in manifest.precisions:
        bundle.int8_weights(precision)
    open_tokenizer(bundle)
    if manifest.shortlist is not None:
        open_shortlist(bundle)


@contextmanager
def new_directory(output: Path) -> Iterator[Path]:
    """Yield a temporary sibling directory that is renamed to `output` on success."""
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
