"""`python -m dragoman_export train`: from parallel text to a learned model in a run folder."""

import argparse
import dataclasses
import itertools
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dragoman_export.cli.flags import add_flags, given
from dragoman_export.data.augmentation import vary_all
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.data.vocabulary import ImportedCodec, TextCodec, Vocabulary, VocabularyConfig, train_vocabulary
from dragoman_export.errors import CheckpointConflictError, CorpusError, RunFolderError, SettingError
from dragoman_export.importers.bundle import read_model
from dragoman_export.importers.portable import TokenizerFiles
from dragoman_export.model.config import DROPOUTS, PRESETS, ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.checkpoint import load_model, with_vocabulary, write_atomically
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig, TrainingConfig
from dragoman_export.training.loop import Trainer
from dragoman_export.training.ranks import Ranks, keep_freed_memory, limit_kernel_caches
from dragoman_export.training.report import Report
from dragoman_export.training.run_folder import RunFolder
from dragoman_export.training.text import PlainText, TrainingText, encode_text, read_text, texts_of

_VOCABULARY_FIELDS = frozenset({"pad_id", "bos_id", "eos_id", "unk_id", "decoder_start_id", "source_vocabulary_size"})
"""Model fields without a flag: every vocabulary made here has the same ids and is that of source and target."""

_FLAGS = {"num_encoder_layers": "encoder-layers", "num_decoder_layers": "decoder-layers", "num_heads": "heads"}
"""Model fields whose flag is not named like the field."""

_ONLY_NEW = ("preset", "initialize_from", "initialize_vocabulary", "vocabulary", "normalization", "subwords")
"""Flags that mean nothing to a run that is resumed."""

_FIXED = (*(name for name in ModelConfig.__slots__ if name not in DROPOUTS), "optimizer")
"""Fields that a run keeps when it is resumed."""

_NORMALIZATION = "nmt_nfkc"

_VOCABULARY_PAIRS = 500_000
"""Of larger corpora a vocabulary is learned from at most so many pairs, spread evenly: that is what takes memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags: where text and results are, and one for every field of the model and of training."""
    _add_text_flags(parser)
    add_flags(
        parser,
        ModelConfig,
        title="the network (with --resume, only dropouts may change)",
        presets=PRESETS,
        leave_out=_VOCABULARY_FIELDS,
        flags=_FLAGS,
    )
    add_flags(
        parser,
        TrainingConfig,
        title="training (with --resume, what is not given stays as it was)",
        presets={name: TRAINING_PRESETS[name] for name in PRESETS},
    )


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="Folder of the run.")
    parser.add_argument("--resume", action="store_true", help="Go on from the last checkpoint in --output.")
    parser.add_argument(
        "--initialize-from",
        type=Path,
        metavar="PATH",
        help="Bundle, import, run folder or checkpoint whose network is trained further, with its vocabulary unless "
        "--vocabulary names the same. Default: random weights.",
    )
    parser.add_argument(
        "--initialize-vocabulary",
        type=Path,
        metavar="FILE",
        help="SentencePiece model of that checkpoint, if the run has another: a new piece begins as the mean of those "
        "that spell it there. Default: that of the run.",
    )
    parser.add_argument("--preset", choices=PRESETS, help="Whose defaults all settings have. Default: small.")
    for name, purpose in (("train", "to learn from"), ("dev", "to measure on")):
        parser.add_argument(
            f"--{name}", type=Path, nargs="+", metavar="TSV", help=f"Text {purpose}: source<TAB>target lines, or gzip."
        )
        for side in ("source", "target"):
            text = f"{side.capitalize()} lines of text {purpose}, plain or gzip, instead of or besides --{name}."
            parser.add_argument(f"--{name}-{side}", type=Path, metavar="FILE", help=text)
    parser.add_argument(
        "--max-malformed",
        type=float,
        metavar="SHARE",
        help="Most malformed lines, a share from 0 to 1. Default: 0.001.",
    )
    parser.add_argument(
        "--vocabulary", type=Path, metavar="FILE", help="SentencePiece model to use. Default: one is learned."
    )
    parser.add_argument(
        "--normalization",
        metavar="RULE",
        help=f"SentencePiece rule a learned vocabulary applies to text. Default: {_NORMALIZATION}.",
    )
    parser.add_argument(
        "--subwords", choices=("unigram", "bpe"), help="Kind of a learned vocabulary. Default: unigram."
    )


def flag_of(field: str) -> str:
    """Return the flag of a field of the model or of training."""
    return f"--{_FLAGS.get(field, field.replace('_', '-'))}"


def run(args: argparse.Namespace) -> int:
    """Train, in one process or as one of those that `torchrun` started."""
    keep_freed_memory()
    limit_kernel_caches()
    folder, ranks = RunFolder(args.output), Ranks()
    initial, tokenizer = _read_initial(args) if args.initialize_from else (None, None)
    config = _resumed_config(args, folder) if args.resume else new_config(args, initial.config if initial else None)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    _seed(config.training.seed + ranks.rank)
    if ranks.is_main and not args.resume:
        folder.create()
    report = Report(folder, is_silent=not ranks.is_main)
    text = _prepare_text(args, config, folder, ranks, report=report, tokenizer=tokenizer)
    model = dataclasses.replace(config.model, vocabulary_size=len(text.vocabulary))
    config = dataclasses.replace(config, model=model)
    if initial and args.initialize_vocabulary:
        initial = with_vocabulary(
            initial, Vocabulary.load(args.initialize_vocabulary), Vocabulary.load(folder.vocabulary)
        )
    trainer = _make_trainer(config, text, folder, ranks, report=report, initial=initial)
    if args.resume:
        _tell_skip(trainer.resume(folder.last_checkpoint()), trainer, report)
    if ranks.is_main:
        folder.write_settings(config.to_dict())
    trainer.run()
    ranks.close()
    return 0


def _read_initial(args: argparse.Namespace) -> tuple[Transformer, Vocabulary | TokenizerFiles | None]:
    """Return the network that a run begins with, and its tokenizer unless flags say another.

    Raises:
        BundleError: if a bundle is damaged.
        ImportFormatError: if an imported model is not what it should be.
        RunFolderError: if there is no model, or a checkpoint without a vocabulary.
    """
    path = args.initialize_from
    if not (args.vocabulary or args.initialize_vocabulary):
        return read_model(path)
    return (load_model(path) if path.is_file() else read_model(path)[0]), None


def new_config(args: argparse.Namespace, network: ModelConfig | None = None) -> RunConfig:
    """Return the preset with what the flags change; a network that is trained further has its dropouts only."""
    preset = args.preset or "small"
    model = PRESETS[preset]
    if network is not None:
        model = dataclasses.replace(network, **{name: getattr(model, name) for name in DROPOUTS})
    training, changes = TRAINING_PRESETS[preset], given(args, TrainingConfig)
    if training.max_steps and "max_steps" in changes:
        changes = {"cooldown_steps": training.cooldown_steps * changes["max_steps"] // training.max_steps, **changes}
    share = {} if args.max_malformed is None else {"max_malformed": args.max_malformed}
    return RunConfig(
        model=dataclasses.replace(model, **given(args, ModelConfig)),
        training=dataclasses.replace(training, **changes),
        data=DataConfig(train=_files(args, "train"), dev=_files(args, "dev"), **share),
    )


def _resumed_config(args: argparse.Namespace, folder: RunFolder) -> RunConfig:
    """Return the stored settings with what the flags change.

    Raises:
        SettingError: if a flag means nothing to a run that is resumed.
        CheckpointConflictError: if a flag asks for another architecture or optimizer.
        RunFolderError: if there are no such settings.
    """
    for name in _ONLY_NEW:
        if getattr(args, name) is not None:
            raise SettingError(f"--{name}", str(getattr(args, name)), "nothing with --resume")
    fields = folder.read_settings()
    try:
        stored = RunConfig.from_dict(fields)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"cannot use the settings of {folder.path}: {error}") from error
    model, training = given(args, ModelConfig), given(args, TrainingConfig)
    _check_unchanged({**stored.model.to_dict(), **stored.training.to_dict()}, {**model, **training})
    data: dict[str, Any] = {name: files for name in ("train", "dev") if (files := _files(args, name))}
    if args.max_malformed is not None:
        data["max_malformed"] = args.max_malformed
    return RunConfig(
        model=dataclasses.replace(stored.model, **model),
        training=dataclasses.replace(stored.training, **training),
        data=dataclasses.replace(stored.data, **data),
    )


def _check_unchanged(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    conflicts = {
        name: (stored[name], value) for name, value in asked.items() if name in _FIXED and stored[name] != value
    }
    if conflicts:
        raise CheckpointConflictError(conflicts)


def _prepare_text(
    args: argparse.Namespace,
    config: RunConfig,
    folder: RunFolder,
    ranks: Ranks,
    *,
    report: Report,
    tokenizer: Vocabulary | TokenizerFiles | None,
) -> TrainingText:
    """Read and encode all text; a new run's vocabulary is written by the main rank."""
    training = config.training
    text = read_text(config.data, report, training.variation)
    if ranks.is_main and not args.resume:
        made = tokenizer or _make_vocabulary(args, text, config, report)
        if isinstance(made, Vocabulary):
            write_atomically(folder.vocabulary, made.model)
        else:
            folder.tokenizer.mkdir(exist_ok=True)
            made.write_described(folder.tokenizer)
    ranks.wait()
    vocabulary: TextCodec
    if folder.tokenizer.is_dir():
        if training.concatenate:
            raise SettingError("concatenate", training.concatenate, "0 with the tokenizer of another system")
        files = TokenizerFiles.read(folder.tokenizer)
        vocabulary = ImportedCodec(files.open_at(folder.tokenizer, config.model))
    else:
        vocabulary = Vocabulary.load(folder.vocabulary)
    if missing := [piece for piece in training.variation.reserved if piece not in vocabulary.reserved]:
        raise CorpusError(f"the vocabulary has no pieces {' '.join(missing)}, which --placeholders and --tags need")
    return encode_text(
        text,
        vocabulary,
        max_tokens=training.max_tokens,
        is_drawn=training.is_drawn,
        report=report,
        directory=folder.path,
    )


def _make_vocabulary(args: argparse.Namespace, text: PlainText, run: RunConfig, report: Report) -> Vocabulary:
    if args.vocabulary:
        return Vocabulary.load(args.vocabulary)
    size, training = run.model.vocabulary_size, run.training
    report.tell(f"learning a vocabulary of {size} pieces")
    first_epoch = vary_all(
        texts_of(text.train), training.variation, seed=training.seed, epoch=0, translations=text.translations
    )
    stride = math.ceil(text.train.num_pairs / _VOCABULARY_PAIRS)
    sentences = (side for pair in itertools.islice(first_epoch, 0, None, stride) for side in pair)
    model_type: Literal["unigram", "bpe"] = args.subwords or "unigram"
    normalization = args.normalization or _NORMALIZATION
    config = VocabularyConfig(
        size=size, normalization=normalization, model_type=model_type, reserved=training.variation.reserved
    )
    return train_vocabulary(sentences, config)


def _make_trainer(
    config: RunConfig,
    text: TrainingText,
    folder: RunFolder,
    ranks: Ranks,
    *,
    report: Report,
    initial: Transformer | None,
) -> Trainer:
    torch.manual_seed(config.training.seed)  # the same weights on every rank
    model = Transformer(config.model)
    if initial:
        _copy_weights(initial, model)
    model = model.to(ranks.device)
    torch.manual_seed(config.training.seed + ranks.rank)  # other dropout on every rank
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    threads = torch.get_num_threads()
    report.tell(f"{num_parameters:,} parameters, {threads} threads, {ranks.count} ranks")
    report.record("start", num_parameters=num_parameters, ranks=ranks.count, threads=threads)
    return Trainer(model, config.training, text, folder=folder, ranks=ranks)


def _copy_weights(trained: Transformer, model: Transformer) -> None:
    """Give a model the weights of another; CheckpointConflictError if that has another architecture."""
    stored, asked = trained.config.to_dict(), model.config.to_dict()
    conflicts = {name: (stored[name], asked[name]) for name in stored if name in _FIXED and stored[name] != asked[name]}
    if conflicts:
        raise CheckpointConflictError(conflicts)
    model.load_state_dict(trained.state_dict())


def _tell_skip(changed: Mapping[str, tuple[Any, Any]], trainer: Trainer, report: Report) -> None:
    """Tell why an epoch was not finished, if one was not."""
    if changed:
        told = ", ".join(f"{name} was {old} and is {new}" for name, (old, new) in changed.items())
        report.tell(f"batches are cut otherwise ({told}): the rest of epoch {trainer.progress.epoch - 1} is skipped")
        report.record("epoch_skipped", step=trainer.progress.step, epoch=trainer.progress.epoch - 1, changed=changed)


def _files(args: argparse.Namespace, name: str) -> tuple[ParallelFiles, ...]:
    """Return the TSV files and the two parallel files given for `train` or `dev`."""
    files = [ParallelFiles(source=path) for path in getattr(args, name) or ()]
    source, target = getattr(args, f"{name}_source"), getattr(args, f"{name}_target")
    if (source is None) != (target is None):
        raise SettingError(f"--{name}-source", source, f"to be given together with --{name}-target")
    if source is not None:
        files.append(ParallelFiles(source=source, target=target))
    return tuple(files)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
