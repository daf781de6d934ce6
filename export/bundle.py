"""Writes a model bundle: graphs, tokenizer and the manifest that `service.bundle` checks."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import ValidationError

from export.corpus.vocabulary import UNK_ID, Vocabulary
from export.errors import ExportError
from export.graph.network import ARITHMETICS, FLOAT_TYPES, Network, write_graphs
from export.model.config import ModelConfig
from service.bundle import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    Architecture,
    GraphFiles,
    Limits,
    Manifest,
    Provenance,
    Score,
    SpecialIds,
    file_entry,
    graph_tensors,
)

_TOKENIZER_NAME = "tokenizer.model"


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


def write_bundle(output: Path, network: Network, vocabulary: Vocabulary, description: BundleDescription) -> Manifest:
    """Write a bundle into a new directory, which appears whole or not at all.

    Raises:
        BundleWriteError: if the directory exists, or the description or the vocabulary does not fit.
    """
    if unknown := set(description.precisions) - set(ARITHMETICS):
        raise BundleWriteError(f"no such precision: {', '.join(sorted(unknown))}; known: {', '.join(ARITHMETICS)}")
    if len(vocabulary) != network.config.vocabulary_size:
        sizes = f"{len(vocabulary)} pieces, the model {network.config.vocabulary_size}"
        raise BundleWriteError(f"the vocabulary has {sizes}")
    with _new_directory(output) as directory:
        (directory / _TOKENIZER_NAME).write_bytes(vocabulary.model)
        files = {
            precision: write_graphs(directory, network, precision, description.limits)
            for precision in description.precisions
        }
        manifest = _manifest(directory, network.config, files, description)
        (directory / MANIFEST_NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def exporter_version() -> str:
    """Return the version of this package, or `unknown` when it runs from a source tree that is not installed."""
    try:
        return version("dragoman")
    except PackageNotFoundError:
        return "unknown"


def _manifest(
    directory: Path, config: ModelConfig, files: dict[str, GraphFiles], description: BundleDescription
) -> Manifest:
    special_ids = SpecialIds(pad=config.pad_id, bos=config.bos_id, eos=config.eos_id, unk=UNK_ID)
    try:
        return Manifest(
            schema_version=SCHEMA_VERSION,
            name=description.name,
            version=description.version,
            source_language=description.source_language,
            target_language=description.target_language,
            architecture=_architecture(config),
            special_ids=special_ids,
            limits=description.limits,
            precisions=files,
            default_precision=description.precisions[-1],
            tokenizer=_TOKENIZER_NAME,
            tensors={name: graph_tensors(config.num_decoder_layers, FLOAT_TYPES[name]) for name in files},
            files={path.name: file_entry(path) for path in sorted(directory.iterdir())},
            scores=description.scores,
            provenance=description.provenance,
            licence=description.licence,
            attribution=description.attribution,
        )
    except ValidationError as error:
        raise BundleWriteError(f"the manifest would not be valid: {error}") from error


def _architecture(config: ModelConfig) -> Architecture:
    fields = config.to_dict()
    return Architecture(**{name: fields[name] for name in Architecture.model_fields})


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
