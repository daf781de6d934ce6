"""The compared models, written for all systems."""

import functools
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import torch
from sentencepiece import sentencepiece_model_pb2
from torch import Tensor, nn

from dragoman_export.bundle_writer import BundleDescription, exporter_version, write_bundle
from dragoman_export.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Vocabulary
from dragoman_export.importers.bundle import read_network
from dragoman_export.model.config import PRESETS
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.calibration import calibrate
from dragoman_export.onnx_export.network import Network
from dragoman_service.bundle.architecture import Limits
from dragoman_service.bundle.files import open_bundle
from dragoman_service.bundle.manifest import Provenance
from loadtests.benchmarks.interface import Device, ModelFiles

MODELS: Final = ("base", "shipped")  # Transformer-base with random weights, and the bundled model
SPECIAL_IDS: Final = (PAD_ID, BOS_ID, UNK_ID)  # except EOS
FIRST_ORDINARY_ID: Final = max(*SPECIAL_IDS, EOS_ID) + 1
BASE_VOCABULARY_SIZE: Final = 32_000
_SHIPPED: Final = Path(__file__).resolve().parents[2] / "deploy" / "models" / "dragoman_models" / "en-de" / "1"
_SEED: Final = 20170612
_CALIBRATION_PAIRS: Final = 32
_LIMITS: Final = Limits(max_source_tokens=256, max_target_tokens=256)
_WIDTH: Final = 512
_SOURCE_DIMENSION: Final = 256  # sin(i / 100) in position encodings of this width
_END_DIMENSION: Final = 258  # sin(p / 104)
_RESERVED: Final = [_SOURCE_DIMENSION, _END_DIMENSION]
_GAIN: Final = 20.0  # of the end dimension before the projection to the vocabulary
_EOS_WEIGHT: Final = 40.0  # of the end dimension in the embedding of EOS; 40 * 20 / 104 = 8 logit units per token
_PROBE_LENGTHS: Final = (6, 10, 16, 24, 32, 44)
_NUM_PROBES: Final = 4


def prepare_model(directory: Path, model: str, *, ends: bool = False, gpu: Device | None = None) -> ModelFiles:
    """Write one of `MODELS`, replacing existing files.

    Args:
        directory: for the files.
        model: Transformer-base has random weights with a fixed seed.
        ends: targets of Transformer-base end with EOS at different lengths, instead of only at a limit.
        gpu: write the precisions for a GPU.
    """
    if model == "base":
        vocabulary, limits, network = (
            artificial_vocabulary(BASE_VOCABULARY_SIZE),
            _LIMITS,
            _base_network(ends=ends, is_calibrated=not gpu),
        )
    else:
        bundle = open_bundle(_SHIPPED)
        precision = next(name for name in ("fp32", "fp16", "int8") if name in bundle.manifest.precisions)
        vocabulary, limits = Vocabulary.load(bundle.tokenizer_path), bundle.manifest.limits
        network = read_network(bundle, precision)
    return write_model(directory, network, vocabulary, limits, precisions=("fp16", "fp32") if gpu else ("fp32", "int8"))


def _base_network(*, ends: bool, is_calibrated: bool) -> Network:
    config = replace(PRESETS["base"], vocabulary_size=BASE_VOCABULARY_SIZE, norm="post")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = Transformer(config).eval()
    if ends:
        make_targets_end(model)
    if not is_calibrated:
        return Network.of(model)
    generator, words = random.Random(_SEED), range(config.vocabulary_size)
    pairs = [(generator.choices(words, k=24), generator.choices(words, k=32)) for _ in range(_CALIBRATION_PAIRS)]
    return Network.of(model, calibrate(model, pairs))


def write_model(
    directory: Path,
    network: Network,
    vocabulary: Vocabulary,
    limits: Limits,
    *,
    precisions: tuple[str, ...] = ("fp32", "int8"),
) -> ModelFiles:
    """Write a network for every installed system, replacing existing files; the last precision is the default."""
    shutil.rmtree(directory, ignore_errors=True)
    files = ModelFiles(directory.resolve())
    files.bundle_path.parent.mkdir(parents=True)
    description = BundleDescription(
        name=files.directory.name,
        version="1",
        source_language="en",
        target_language="de",
        limits=limits,
        precisions=precisions,
        provenance=Provenance(exporter_version=exporter_version(), checkpoint="compared", checkpoint_sha256="0" * 64),
    )
    write_bundle(files.bundle_path, network, vocabulary, description)
    if find_spec("ctranslate2"):
        from loadtests.benchmarks.system_ctranslate2 import convert  # noqa: PLC0415 - it may not be installed

        convert(network, files.ctranslate2_path)
    return files


@functools.cache
def artificial_vocabulary(size: int) -> Vocabulary:
    """Return a vocabulary of special pieces and one artificial word per id."""
    model = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    special: Mapping[int, tuple[str, int]] = {
        PAD_ID: ("<pad>", model.SentencePiece.CONTROL),
        BOS_ID: ("<s>", model.SentencePiece.CONTROL),
        EOS_ID: ("</s>", model.SentencePiece.CONTROL),
        UNK_ID: ("<unk>", model.SentencePiece.UNKNOWN),
    }
    for token_id in range(size):
        piece, kind = special.get(token_id, (f"\u2581{artificial_word(token_id)}", model.SentencePiece.NORMAL))
        model.pieces.add(piece=piece, score=-float(token_id), type=kind)
    trainer = model.trainer_spec
    trainer.pad_id, trainer.bos_id, trainer.eos_id, trainer.unk_id = PAD_ID, BOS_ID, EOS_ID, UNK_ID
    return Vocabulary(model.SerializeToString())


def artificial_word(token_id: int) -> str:
    """Return the artificial word of a token."""
    return f"w{token_id}"


def make_targets_end(model: Transformer, *, ratio: float = 1.1) -> None:
    """Change random weights in place so that targets have about `ratio` times the length of their sources.

    Otherwise every target would have the maximum length, which favours systems that translate a batch at once. Limits
    per request are not an alternative, because those systems put only requests with equal limits into one batch.

    Two dimensions of the residual stream are reserved, so that random weights neither read nor write them:

    - in the encoder, the position encoding sin(i / 100). A head of the last cross-attention averages it over the source
      tokens; the mean grows with the length of the source;
    - in the decoder, sin(p / 104) of the token's position, from which that head subtracts a multiple of the mean. EOS
      is embedded along this dimension: its logit rises by several units per token and exceeds all others at the wanted
      length.

    Raises ValueError if the model is not post-norm of width 512.
    """
    if model.config.d_model != _WIDTH or model.config.norm != "post":
        raise ValueError(f"{model.config.norm}-norm of width {model.config.d_model}: expected post-norm of {_WIDTH}")
    with torch.no_grad():
        model.embedding.weight[:, _RESERVED] = 0.0
        model.embedding.weight[model.config.eos_id] = 0.0
        model.embedding.weight[model.config.eos_id, _END_DIMENSION] = _EOS_WEIGHT
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                if module.in_features == _WIDTH:
                    module.weight[:, _RESERVED] = 0.0
                if name.endswith((".output", ".outer")):
                    module.weight[_RESERVED] = 0.0
        _preserve_reserved(model)
        _amplify_length_difference(model, ratio)


def _preserve_reserved(model: Transformer) -> None:
    """Choose scale and bias of each normalization so that it preserves the reserved dimensions."""

    def adapt(norm: nn.LayerNorm, inputs: tuple[Tensor, ...]) -> None:
        norm.weight[_RESERVED] = inputs[0].std(dim=-1).median()
        norm.bias[_RESERVED] = inputs[0].mean(dim=-1).median()

    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    handles = [norm.register_forward_pre_hook(adapt) for norm in norms]
    ids = _random_ids(model, max(_PROBE_LENGTHS), torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids, dtype=torch.bool)
    model.decode(ids, model.encode(ids, mask), mask)
    for handle in handles:
        handle.remove()


def _amplify_length_difference(model: Transformer, ratio: float) -> None:
    """Let the first head of the last cross-attention subtract the source length from the position, and amplify."""
    last = model.get_submodule(f"decoder.layers.{model.config.num_decoder_layers - 1}")
    attention, head = last.get_submodule("cross_attention"), slice(0, model.config.head_size)
    for name in ("query", "key", "value"):
        attention.get_submodule(name).get_parameter("weight")[head] = 0.0
    attention.get_submodule("value").get_parameter("weight")[0, _SOURCE_DIMENSION] = 1.0
    norm, output = last.get_submodule("feed_forward_norm"), attention.get_submodule("output").get_parameter("weight")
    for part in norm.parameters():
        part[_END_DIMENSION] *= _GAIN
    without = torch.stack(list(_eos_logits(model, ratio)))
    output[_END_DIMENSION, 0] = -1.0
    taken = torch.stack(list(_eos_logits(model, ratio))) - without
    unknown = torch.stack((taken, torch.ones_like(taken)), dim=1)
    share, offset = torch.linalg.lstsq(unknown, -without[:, None]).solution[:, 0]  # least squares to 0
    output[_END_DIMENSION, 0] = -share
    norm.get_parameter("bias")[_END_DIMENSION] += offset / _EOS_WEIGHT


def _eos_logits(model: Transformer, ratio: float) -> Iterator[Tensor]:
    """Yield the mean logit of EOS at the wanted end for each of `_PROBE_LENGTHS`."""
    generator = torch.Generator().manual_seed(2)
    for length in _PROBE_LENGTHS:
        ids = _random_ids(model, length + round(ratio * length), generator)
        ids[:, length - 1], ids[:, length] = model.config.eos_id, model.config.bos_id
        source, mask = ids[:, :length], torch.ones(_NUM_PROBES, length, dtype=torch.bool)
        logits = model.decode(ids[:, length:], model.encode(source, mask), mask)
        yield logits[:, -1, model.config.eos_id].mean()


def _random_ids(model: Transformer, length: int, generator: torch.Generator) -> Tensor:
    return torch.randint(FIRST_ORDINARY_ID, model.config.vocabulary_size, (_NUM_PROBES, length), generator=generator)
