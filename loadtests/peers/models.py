"""The models compared, laid out once in a directory where every worker finds them."""

import functools
import importlib
import random
import shutil
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from sentencepiece import sentencepiece_model_pb2

from export.bundle import BundleDescription, exporter_version, write_bundle
from export.corpus.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from export.graph.network import Network
from export.graph.quantize import measure_ranges
from export.importers.bundle import read_network
from export.model.config import PRESETS
from export.model.transformer import Transformer
from loadtests.peers.ending import end_by_itself
from loadtests.peers.systems import ModelFiles, Precision
from service.bundle import Bundle, Limits, Provenance, open_bundle

MODELS: Final = ("base", "shipped")
"""Transformer-base with random weights, and the model that ships."""

PRECISIONS: Final[tuple[Precision, ...]] = ("fp32", "int8")
"""Each model is written at both, the last one as its default."""

SPECIAL_IDS: Final = (PAD_ID, BOS_ID, UNK_ID)
"""Of every vocabulary made here, EOS apart."""

_PREFERRED_PRECISIONS: Final = ("fp32", "fp16", "int8")
"""Whose weights are taken from a bundle that exists already: the first that it has."""

BASE_VOCABULARY_SIZE: Final = 32_000
"""Of Transformer-base."""

_SHIPPED: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "en-de" / "1"
_SEED: Final = 20170612
_CALIBRATION_PAIRS: Final = 32
_LIMITS: Final = Limits(max_source_tokens=256, max_target_tokens=256)


def prepare_model(directory: Path, model: str, *, ends: bool = False) -> ModelFiles:
    """Write one of `MODELS` for every system that runs here, in place of what is there; `ends` as of `prepare_base`."""
    files = prepare_base(directory, ends=ends) if model == "base" else prepare_bundle(directory, open_bundle(_SHIPPED))
    if find_spec("ctranslate2"):
        importlib.import_module("loadtests.peers.ctranslate2_system").convert(network_of(files), files.ctranslate2_path)
    return files


def prepare_base(directory: Path, *, ends: bool = False) -> ModelFiles:
    """Write Transformer-base with random weights of a fixed seed; it says nothing, at the cost of one that does.

    With `ends`, targets end by themselves, at different lengths, and not only at a limit.
    """
    config = replace(PRESETS["base"], vocabulary_size=BASE_VOCABULARY_SIZE, norm="post")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Transformer(config).eval()
    if ends:
        end_by_itself(model)
    network = Network.of(model, measure_ranges(model, _made_up_pairs(config.vocabulary_size)))
    return write_model(directory, network, made_up_vocabulary(BASE_VOCABULARY_SIZE), _LIMITS)


def _made_up_pairs(vocabulary_size: int) -> list[tuple[list[int], list[int]]]:
    """Return pairs like those that are translated, for the ranges of activations."""
    generator = random.Random(_SEED)
    return [
        (generator.choices(range(vocabulary_size), k=24), generator.choices(range(vocabulary_size), k=32))
        for _ in range(_CALIBRATION_PAIRS)
    ]


def prepare_bundle(directory: Path, bundle: Bundle) -> ModelFiles:
    """Write the model of a bundle at both precisions, from the most exact weights that the bundle has."""
    precision = next(name for name in _PREFERRED_PRECISIONS if name in bundle.manifest.precisions)
    vocabulary = Vocabulary.load(bundle.tokenizer_path)
    return write_model(directory, read_network(bundle, precision), vocabulary, bundle.manifest.limits)


def network_of(files: ModelFiles) -> Network:
    """Return the weights, as all other systems get them."""
    return read_network(files.open(), "fp32")


def write_model(directory: Path, network: Network, vocabulary: Vocabulary, limits: Limits) -> ModelFiles:
    """Write a network into a directory, in place of what another run left there."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    files = ModelFiles(directory=directory)
    description = BundleDescription(
        name=directory.name,
        version="1",
        source_language="en",
        target_language="de",
        limits=limits,
        precisions=PRECISIONS,
        provenance=Provenance(exporter_version=exporter_version(), checkpoint="compared", checkpoint_sha256="0" * 64),
    )
    write_bundle(files.bundle_path, network, vocabulary, description)
    return files


def served_models(files: ModelFiles) -> Path:
    """Return a directory of models that holds this one alone."""
    directory = files.directory / "served"
    manifest = files.open().manifest
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(files.bundle_path, directory / manifest.name / manifest.version)
    return directory


@functools.cache
def made_up_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary for a network that says nothing: special pieces, then a made-up one for each id."""
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    special: Mapping[int, tuple[str, int]] = {
        PAD_ID: ("<pad>", model.SentencePiece.CONTROL),
        BOS_ID: ("<s>", model.SentencePiece.CONTROL),
        EOS_ID: ("</s>", model.SentencePiece.CONTROL),
        UNK_ID: ("<unk>", model.SentencePiece.UNKNOWN),
    }
    for token_id in range(size):
        piece, kind = special.get(token_id, (f"\u2581{made_up_word(token_id)}", model.SentencePiece.NORMAL))
        model.pieces.add(piece=piece, score=-float(token_id), type=kind)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID
    return Vocabulary(model.SerializeToString())


def made_up_word(token_id: int) -> str:
    """Return the word of the made-up vocabulary that is a token by itself."""
    return f"w{token_id}"
