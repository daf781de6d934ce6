"""`dragoman export import`: imports a model of another system, or a bundle, for `dragoman export bundle`."""

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from dragoman_export.errors import ImportFormatError, SettingError
from dragoman_export.importers.bundle import read_network
from dragoman_export.importers.ctranslate2.directory import read_ctranslate2
from dragoman_export.importers.eole import read_eole
from dragoman_export.importers.fairseq import read_fairseq
from dragoman_export.importers.huggingface import read_huggingface
from dragoman_export.importers.marian import read_marian
from dragoman_export.importers.opennmt import read_opennmt
from dragoman_export.importers.portable import ImportedModel, write_portable
from dragoman_export.training.checkpoint import save_checkpoint, write_atomically
from dragoman_export.training.run_folder import RunFolder
from dragoman_service.bundle.files import open_bundle
from dragoman_service.bundle.manifest import Tokenization


@dataclass(frozen=True, slots=True, kw_only=True)
class _Format:
    meaning: str
    flags: tuple[str, ...]  # of `_FLAGS`, arguments of `read`
    read: Callable[..., ImportedModel] | None = None  # from a path to a model; None: a bundle


_TAGS: Final = ("source_tag", "target_tag")
_SPM: Final = ("source_spm", "target_spm")
_LANGUAGES: Final = ("source_languages", "target_languages")

_FORMATS: Final[Mapping[str, _Format]] = {
    "bundle": _Format(meaning="a bundle, as a run folder to continue training or evaluate", flags=("precision",)),
    "fairseq": _Format(
        meaning="a fairseq checkpoint, or its directory, with dictionaries and SentencePiece models",
        flags=("text", *_SPM),
        read=read_fairseq,
    ),
    "huggingface": _Format(
        meaning="a directory of Hugging Face transformers: Marian (OPUS-MT), M2M-100, NLLB, mBART-50, BART",
        flags=(*_TAGS, *_LANGUAGES),
        read=read_huggingface,
    ),
    "ctranslate2": _Format(
        meaning="a model directory of CTranslate2",
        flags=(*_TAGS, *_LANGUAGES, *_SPM, "source_eos"),
        read=read_ctranslate2,
    ),
    "marian": _Format(
        meaning="a directory of Marian, such as an OPUS-MT archive, or its model (.npz or .bin)",
        flags=("target_tag", *_LANGUAGES, *_SPM),
        read=read_marian,
    ),
    "opennmt": _Format(meaning="a checkpoint of OpenNMT-py 3", flags=_SPM, read=read_opennmt),
    "eole": _Format(meaning="a model directory of eole", flags=_SPM, read=read_eole),
}

_FLAGS: Final = sorted({flag for each in _FORMATS.values() for flag in each.flags})


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("path", type=Path, metavar="PATH", help="model to import")
    formats = "; ".join(f"{name}: {each.meaning}" for name, each in _FORMATS.items())
    parser.add_argument("--from", dest="format", choices=_FORMATS, required=True, help=formats)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="directory to make")
    parser.add_argument("--precision", help="precision of a bundle (its default)")
    text_help = "directory of vocabularies and SentencePiece models (directory of PATH)"
    parser.add_argument("--text", type=Path, metavar="DIR", help=text_help)
    for side in ("source", "target"):
        spm_help = f"SentencePiece model of {side}s (the only one in the directory)"
        parser.add_argument(f"--{side}-spm", type=Path, metavar="FILE", help=spm_help)
        parser.add_argument(
            f"--{side}-tag",
            metavar="TAG",
            help=f"{side} language of a bundle for one pair, in the model's spelling: de, deu_Latn, de_DE, >>deu<<",
        )
        parser.add_argument(
            f"--{side}-languages",
            type=lambda tags: tags.split(","),
            metavar="TAG,TAG",
            help=f"{side} languages of a multilingual bundle, as BCP-47 tags or as the model spells them (all)",
        )
    parser.add_argument(
        "--source-eos",
        choices=("yes", "no"),
        help="whether sources end with </s>, if a CTranslate2 directory does not define it",
    )


def run(args: argparse.Namespace) -> int:
    """Write the model in the portable format or as a run folder, and print its configuration."""
    chosen = _FORMATS[args.format]
    given = {flag: getattr(args, flag) for flag in _FLAGS}
    for flag, value in given.items():
        if value is not None and flag not in chosen.flags:
            raise SettingError(f"--{flag.replace('_', '-')}", value, f"no value with --from {args.format}")
    if chosen.read is None:
        return _import_bundle(args)
    imported = chosen.read(args.path, **{flag: given[flag] for flag in chosen.flags})
    written = write_portable(args.output, imported.config, imported.limits, imported.weights, imported.tokenizer)
    num_parameters = sum(tensor.numel() for tensor in imported.weights.values())
    print(f"{args.output}: {num_parameters:,} parameters of {args.path}")
    for name, value in written.config.to_dict().items():
        print(f"  {name:24} {value}")
    if languages := imported.tokenizer.description.languages:
        for side, tags in (("source languages", languages.sources), ("target languages", languages.targets)):
            print(f"  {side:24} {' '.join(tags)}")
    return 0


def _import_bundle(args: argparse.Namespace) -> int:
    # Writes `imported.pt`, with the activation scales of int8 if there are any, and the vocabulary.
    bundle = open_bundle(args.path)
    # Placeholders are pieces of the vocabulary, so `bundle` describes them again.
    if bundle.manifest.tokenization.model_copy(update={"placeholders": (), "reserved": ()}) != Tokenization():
        raise ImportFormatError(f"{args.path} has an imported tokenizer: import the original files again")
    network = read_network(bundle, args.precision)
    folder = RunFolder(args.output)
    folder.create()
    weights = {name: torch.tensor(array) for name, array in network.weights.items()}
    roundings = {path: (one.scale, one.zero_point, one.levels) for path, one in network.roundings.items()}
    content = {"model": weights, "model_config": network.config.to_dict(), "roundings": roundings}
    save_checkpoint(folder.imported, content)
    write_atomically(folder.vocabulary, bundle.tokenizer_path.read_bytes())
    print(f"{folder.imported}: weights of {bundle.manifest.name}/{bundle.manifest.version}")
    return 0
