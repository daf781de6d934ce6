"""`dragoman export train`: trains a model on parallel text in a run folder."""

import argparse
import dataclasses
import itertools
import math
import platform
import random
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import sentencepiece
import torch

from dragoman_export.bundle_writer import exporter_version
from dragoman_export.cli.flags import add_flags, given
from dragoman_export.cli.run_file import read_run_file, run_file
from dragoman_export.data.augmentation import augment_all
from dragoman_export.data.formats import files_of
from dragoman_export.data.mixing import draw_copies, repeated
from dragoman_export.data.reader import ParallelFiles
from dragoman_export.data.vocabulary import (
    ImportedCodec,
    TextCodec,
    Vocabulary,
    VocabularyConfig,
    default_characters,
    train_vocabulary,
)
from dragoman_export.errors import (
    CheckpointConflictError,
    CorpusError,
    OutOfMemoryError,
    RunFolderError,
    SettingError,
)
from dragoman_export.importers.portable import TokenizerFiles
from dragoman_export.model.config import DROPOUTS, PRESETS, ModelConfig
from dragoman_export.model.transformer import Transformer
from dragoman_export.trained_model import read_model
from dragoman_export.training.checkpoint import load_model, with_vocabulary, write_atomically
from dragoman_export.training.config import TRAINING_PRESETS, DataConfig, RunConfig, TrainingConfig
from dragoman_export.training.loop import Trainer
from dragoman_export.training.ranks import Ranks, keep_freed_memory, limit_kernel_caches
from dragoman_export.training.report import Report
from dragoman_export.training.run_folder import RunFolder
from dragoman_export.training.text import PlainText, TrainingText, encode_text, read_text, texts_of, write_translations
from dragoman_service.bundle.files import file_entry

# fields without a flag: trained vocabularies have fixed ids and are shared by source and target
_VOCABULARY_FIELDS = frozenset({"pad_id", "bos_id", "eos_id", "unk_id", "decoder_start_id", "source_vocabulary_size"})
# fields whose flag has another name
_FLAGS = {"num_encoder_layers": "encoder-layers", "num_decoder_layers": "decoder-layers", "num_heads": "heads"}
# flags that are invalid with --resume
ONLY_NEW = (
    *("preset", "initialize_from", "initialize_vocabulary"),
    *("vocabulary", "normalization", "required_characters", "subwords"),
)
# fields that cannot change on resume
_FIXED = (*(name for name in ModelConfig.__slots__ if name not in DROPOUTS), "optimizer")
_NORMALIZATION = "nmt_nfkc"
_DEFAULT_PRESET = "small"

_VOCABULARY_PAIRS = 500_000  # pairs from which a vocabulary is learned, spread evenly; limits memory use
_CHARACTER_PAIRS = 10_000  # pairs that tell which characters a vocabulary requires


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of text and output, and one per field of the model and of training."""
    _add_text_flags(parser)
    add_flags(
        parser,
        ModelConfig,
        title="network (with --resume, only dropouts may change)",
        presets=PRESETS,
        leave_out=_VOCABULARY_FIELDS,
        flags=_FLAGS,
    )
    add_flags(
        parser,
        TrainingConfig,
        title="training (with --resume, other settings are unchanged)",
        presets={name: TRAINING_PRESETS[name] for name in PRESETS},
    )


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    file_help = (
        "Run file: flags in YAML or TOML, without their dashes, optionally in sections. Flags given here override it."
    )
    parser.add_argument("run_file", type=Path, nargs="?", metavar="RUN_FILE", help=file_help)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="Folder of the run. Required here or in the run file."
    )
    parser.add_argument("--dump", action="store_true", help="Print all settings as a run file and exit.")
    dry_help = (
        "Read the text, train three steps, print sizes, expected times and a batch, and exit without writing files."
    )
    parser.add_argument("--dry-run", action="store_true", help=dry_help)
    parser.add_argument("--resume", action="store_true", help="Continue from the last checkpoint in --output.")
    from_help = "Bundle, import, run folder or checkpoint to start from, with its vocabulary. Default: random weights."
    parser.add_argument("--initialize-from", type=Path, metavar="PATH", help=from_help)
    old_help = (
        "SentencePiece model of that checkpoint, if the run has another: a new piece starts as the mean of the old "
        "pieces that spell it. Default: vocabulary of the run."
    )
    parser.add_argument("--initialize-vocabulary", type=Path, metavar="FILE", help=old_help)
    parser.add_argument("--preset", choices=PRESETS, help="Defaults of all settings. Default: small.")
    for name, purpose in (("train", "Training"), ("dev", "Development")):
        text = (
            f"{purpose} text: source<TAB>target lines, .jsonl, .parquet, .tmx or a Hugging Face dataset directory, "
            "also compressed. FILE:SOURCE,TARGET names columns, or languages in TMX. Default: source,target. A last "
            "@SOURCE,TARGET, such as FILE@en,de, names the languages of the file, for a multilingual model."
        )
        parser.add_argument(f"--{name}", type=Path, nargs="+", metavar="FILE", help=text)
        for side in ("source", "target"):
            text = f"{side.capitalize()} lines of {purpose.lower()} text, in addition to --{name}."
            parser.add_argument(f"--{name}-{side}", type=Path, metavar="FILE", help=text)
    weights_help = (
        "Draws of each pair per epoch, for each file of --train and then --train-source: 2.25 is two copies of the "
        "file and another quarter of it in each epoch. Default: 1."
    )
    parser.add_argument("--weights", type=float, nargs="+", metavar="WEIGHT", help=weights_help)
    temperature_help = (
        "Choose the weights: a language pair, or a file without languages, with n pairs has a share proportional to "
        "n^(1/T) of an epoch, which keeps its size. 1: the sizes of the text; 5 is usual for languages of unequal size."
    )
    parser.add_argument("--temperature", type=float, metavar="T", help=temperature_help)
    malformed_help = "Largest share of malformed lines, from 0 to 1. Default: 0.001."
    parser.add_argument("--max-malformed", type=float, metavar="SHARE", help=malformed_help)
    vocabulary_help = "SentencePiece model. Default: learned from the training text."
    parser.add_argument("--vocabulary", type=Path, metavar="FILE", help=vocabulary_help)
    lexicon_help = "lexicon.json of another run, for --placeholder-words. Default: learned from the training text."
    parser.add_argument("--lexicon", type=Path, metavar="FILE", help=lexicon_help)
    rule_help = f"SentencePiece normalization rule of a learned vocabulary. Default: {_NORMALIZATION}."
    parser.add_argument("--normalization", metavar="RULE", help=rule_help)
    characters_help = (
        "Characters that each have a piece in a learned vocabulary. Default: Latin letters, punctuation, currency and "
        "common signs for text in Latin letters and at least 4000 pieces, otherwise none: the text decides."
    )
    parser.add_argument("--required-characters", metavar="TEXT", help=characters_help)
    type_help = "Type of a learned vocabulary. Default: unigram."
    parser.add_argument("--subwords", choices=("unigram", "bpe"), help=type_help)


def run(args: argparse.Namespace) -> int:
    """Train, in one process or as one of those started by `torchrun`."""
    keep_freed_memory()
    limit_kernel_caches()
    _apply_run_file(args)
    if args.dump:
        print(_dumped(args), end="")
        return 0
    if args.dry_run:
        with tempfile.TemporaryDirectory() as folder:
            return _run(args, RunFolder(Path(folder)))
    return _run(args, RunFolder(args.output))


def _apply_run_file(args: argparse.Namespace) -> None:
    # Sets the flags that were not given to the values of the run file.
    if args.run_file:
        for name, value in vars(read_run_file(args.run_file, add_arguments)).items():
            if getattr(args, name, None) is None:
                setattr(args, name, value)
    if args.output is None:
        raise SettingError("--output", None, "a folder")
    if args.resume and (args.dry_run or args.run_file):
        other = "--dry-run" if args.dry_run else "RUN_FILE"
        raise SettingError("--resume", "given", f"no {other}, as the run folder has the settings")


def _dumped(args: argparse.Namespace) -> str:
    initial = _read_initial(args)[0] if args.initialize_from else None
    config = new_config(args, initial.config if initial else None)
    paths = {
        name: getattr(args, name) for name in ("initialize_from", "initialize_vocabulary", "vocabulary", "lexicon")
    }
    options = {name: getattr(args, name) for name in ("normalization", "required_characters", "subwords")}
    mixing = {"weights": list(config.data.weights) or None, "temperature": config.data.temperature}
    text = {
        flag: value
        for name in ("train", "dev")
        for flag, value in (
            (name, [str(path) for path in getattr(args, name) or ()] or None),
            *((f"{name}_{side}", getattr(args, f"{name}_{side}")) for side in ("source", "target")),
        )
    }
    model = {name: value for name, value in config.model.to_dict().items() if name not in _VOCABULARY_FIELDS}
    sections: dict[str, Any] = {
        "output": str(args.output),
        "preset": args.preset or _DEFAULT_PRESET,
        "data": {**_flags({**text, **mixing, **paths, **options}), "max-malformed": config.data.max_malformed},
        "model": _flags(model),
        "training": _flags(config.training.to_dict()),
    }
    return run_file(sections)


def _flags(fields: Mapping[str, Any]) -> dict[str, Any]:
    # Keys of a run file; paths as text.
    return {
        _FLAGS.get(name, name.replace("_", "-")): str(value) if isinstance(value, Path) else value
        for name, value in fields.items()
    }


def _run(args: argparse.Namespace, folder: RunFolder) -> int:
    ranks = Ranks()
    initial, tokenizer = _read_initial(args) if args.initialize_from else (None, None)
    config = resumed_config(args, folder) if args.resume else new_config(args, initial.config if initial else None)
    if config.training.threads:
        torch.set_num_threads(config.training.threads)
    seed = config.training.seed + ranks.rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
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
        _report_skipped_epoch(trainer.resume(folder.last_checkpoint()), trainer, report)
    if args.dry_run:
        report.message(trainer.preview())
        return 0
    if ranks.is_main:
        folder.write_settings(config.to_dict())
        if not args.resume:
            folder.write_environment(_environment(config, ranks))
    try:
        trainer.run()
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(config.training.batch_tokens, config.training.accumulation) from error
    ranks.close()
    return 0


def _environment(config: RunConfig, ranks: Ranks) -> dict[str, Any]:
    files = (*config.data.train, *config.data.dev)
    paths = [file for each in files for path in (each.source, each.target) if path for file in files_of(path)]
    return {
        "dragoman": exporter_version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sentencepiece": sentencepiece.__version__,
        "device": torch.cuda.get_device_name() if ranks.device.type == "cuda" else platform.processor() or "cpu",
        "threads": torch.get_num_threads(),
        "ranks": ranks.count,
        "sha256": {str(path): file_entry(path).sha256 for path in paths},
    }


def _commit() -> str | None:
    # Of the checkout that this package is in.
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return None


def _read_initial(args: argparse.Namespace) -> tuple[Transformer, Vocabulary | TokenizerFiles | None]:
    # The initial network, and its tokenizer unless flags replace it.
    path = args.initialize_from
    if not (args.vocabulary or args.initialize_vocabulary):
        return read_model(path)
    return (load_model(path) if path.is_file() else read_model(path)[0]), None


def new_config(args: argparse.Namespace, network: ModelConfig | None = None) -> RunConfig:
    """Return the preset changed by the flags; an initial network keeps all settings except dropouts."""
    preset = args.preset or _DEFAULT_PRESET
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
        data=DataConfig(train=_files(args, "train"), dev=_files(args, "dev"), **share, **_mixing(args)),
    )


def resumed_config(args: argparse.Namespace, folder: RunFolder) -> RunConfig:
    """Return the settings of a run folder changed by the flags."""
    for name in ONLY_NEW:
        if getattr(args, name) is not None:
            raise SettingError(f"--{name}", str(getattr(args, name)), "no value with --resume")
    fields = folder.read_settings()
    try:
        stored = RunConfig.from_dict(fields)
    except (KeyError, TypeError) as error:
        raise RunFolderError(f"invalid settings in {folder.path}: {error}") from error
    model, training = given(args, ModelConfig), given(args, TrainingConfig)
    _check_unchanged({**stored.model.to_dict(), **stored.training.to_dict()}, {**model, **training})
    data: dict[str, Any] = {name: files for name in ("train", "dev") if (files := _files(args, name))} | _mixing(args)
    if args.max_malformed is not None:
        data["max_malformed"] = args.max_malformed
    return RunConfig(
        model=dataclasses.replace(stored.model, **model),
        training=dataclasses.replace(stored.training, **training),
        data=dataclasses.replace(stored.data, **data),
    )


def _check_unchanged(stored: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    conflicts = {
        name: (stored[name], value) for name, value in requested.items() if name in _FIXED and stored[name] != value
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
    # The main rank writes the vocabulary of a new run.
    training = config.training
    lexicon = args.lexicon or (folder.lexicon if args.resume and folder.lexicon.is_file() else None)
    text = read_text(config.data, report, training.augmentation, lexicon)
    if ranks.is_main and text.translations:
        write_translations(folder.lexicon, text.translations)
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
            raise SettingError("concatenate", training.concatenate, "0 with an imported tokenizer")
        files = TokenizerFiles.read(folder.tokenizer)
        if files.description.languages and not config.data.language_pairs:
            expected = "languages, as FILE@en,de, for a multilingual model"
            raise SettingError("--train", str(config.data.train[0].source), expected)
        vocabulary = ImportedCodec(files.open_at(folder.tokenizer, config.model))
    else:
        vocabulary = Vocabulary.load(folder.vocabulary)
    if missing := [piece for piece in training.augmentation.reserved if piece not in vocabulary.reserved]:
        raise CorpusError(f"the vocabulary lacks pieces {' '.join(missing)}, required by --placeholders and --tags")
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
    report.message(f"learning a vocabulary of {size} pieces")
    copies = draw_copies(text.train.sizes, text.weights, seed=training.seed, epoch=0)
    first_epoch = augment_all(
        repeated(texts_of(text.train), copies),
        training.augmentation,
        seed=(training.seed, 0),
        translations=text.translations,
    )
    stride = math.ceil(copies.sum() / _VOCABULARY_PAIRS)
    sentences = (side for pair in itertools.islice(first_epoch, 0, None, stride) for side in pair)
    model_type: Literal["unigram", "bpe"] = args.subwords or "unigram"
    normalization = args.normalization or _NORMALIZATION
    required = args.required_characters
    if required is None:
        some = itertools.islice(texts_of(text.train), 0, None, math.ceil(text.train.num_pairs / _CHARACTER_PAIRS))
        required = default_characters(itertools.chain.from_iterable(some), size)
    config = VocabularyConfig(
        size=size,
        normalization=normalization,
        required_characters=required,
        model_type=model_type,
        reserved=training.augmentation.reserved,
        target_languages=tuple(dict.fromkeys(target for _, target in run.data.language_pairs)),
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
    torch.manual_seed(config.training.seed)  # same weights on every rank
    model = Transformer(config.model)
    if initial:
        _check_unchanged(initial.config.to_dict(), model.config.to_dict())
        model.load_state_dict(initial.state_dict())
    model = model.to(ranks.device)
    torch.manual_seed(config.training.seed + ranks.rank)  # different dropout on every rank
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    threads = torch.get_num_threads()
    report.message(f"{num_parameters:,} parameters, {threads} threads, {ranks.count} ranks")
    report.record("start", num_parameters=num_parameters, ranks=ranks.count, threads=threads)
    return Trainer(model, config.training, text, folder=folder, ranks=ranks)


def _report_skipped_epoch(changed: Mapping[str, tuple[Any, Any]], trainer: Trainer, report: Report) -> None:
    if changed:
        changes = ", ".join(f"{name} was {old}, is {new}" for name, (old, new) in changed.items())
        report.message(f"batches changed ({changes}): skipping the rest of epoch {trainer.progress.epoch - 1}")
        report.record("epoch_skipped", step=trainer.progress.step, epoch=trainer.progress.epoch - 1, changed=changed)


def _mixing(args: argparse.Namespace) -> dict[str, Any]:
    # Fields of DataConfig; none if neither flag is given.
    if args.weights is None and args.temperature is None:
        return {}
    return {"weights": tuple(args.weights or ()), "temperature": args.temperature}


def _files(args: argparse.Namespace, name: str) -> tuple[ParallelFiles, ...]:
    files = [ParallelFiles(source=path) for path in getattr(args, name) or ()]
    source, target = getattr(args, f"{name}_source"), getattr(args, f"{name}_target")
    if (source is None) != (target is None):
        raise SettingError(f"--{name}-source", source, f"a file, together with --{name}-target")
    if source is not None:
        files.append(ParallelFiles(source=source, target=target))
    return tuple(files)
