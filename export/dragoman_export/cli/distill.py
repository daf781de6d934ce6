"""`dragoman export distill`: translates training text with a teacher, for a smaller model to learn from.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947): the student learns from the teacher's beam
search instead of the references, which are more diverse and harder to learn. The teacher is a bundle, a checkpoint or
an ensemble. On a CPU, `dragoman translate-dataset` runs a bundle.
"""

import argparse
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from dragoman_export.bundle_writer import exporter_version
from dragoman_export.cli.flags import add_shared
from dragoman_export.data.reader import SEPARATORS, Pair, PairFiles, files_of_one_pair, map_chunks
from dragoman_export.data.translate_dataset import LineTranslation
from dragoman_export.errors import CorpusError, SettingError
from dragoman_export.evaluation.ensemble import open_text_model
from dragoman_export.evaluation.torch_search import translate_whole
from dragoman_export.evaluation.translation import translate_texts
from dragoman_export.model.layers import use_fast_attention
from dragoman_export.trained_model import TrainedModel, open_model
from dragoman_export.training.checkpoint import replaced, write_atomically
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry
from dragoman_service.runtimes.settings import RuntimeSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    teacher_help = "bundle, checkpoint or run folder; several form an ensemble"
    parser.add_argument("--teacher", type=Path, nargs="+", required=True, metavar="PATH", help=teacher_help)
    add_shared(parser, "data", help="source<TAB>target lines")
    output_help = "source<TAB>translation lines in the order of the data; a partial TSV.part or TSV.parts is continued"
    add_shared(parser, "output", metavar="TSV", help=output_help)
    add_shared(parser, "precision", "beam")
    add_shared(parser, "batch-size", default=64)
    add_shared(parser, "threads", help="CPU threads, or processes for one bundle, each with its own batch (1)")
    device_help = "cuda: one teacher decodes with PyTorch in batches of thousands of texts, which are not split (cpu)"
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help=device_help)
    parser.add_argument("--save-every", type=int, default=1000, metavar="N", help="texts between writes (1000)")


def run(args: argparse.Namespace) -> int:
    """Translate the remaining text.

    Raises:
        CorpusError: if the output exists, or a partial output belongs to other text or another teacher.
    """
    if args.output.exists():
        raise CorpusError(f"{args.output} already exists")
    pairs = PairFiles.scan(files_of_one_pair(args.data), max_malformed=0.0)
    if args.device == "cpu" and len(args.teacher) == 1 and (args.teacher[0] / MANIFEST_NAME).is_file():
        _translate_dataset(args, pairs)
    else:
        _decode(args, pairs)
    print(f"{args.output}: {pairs.num_pairs:,} pairs")
    return 0


def _translate_dataset(args: argparse.Namespace, pairs: PairFiles) -> None:
    translation = LineTranslation.of(args, args.teacher[0])
    rows = translation.run(pair.source for pair in pairs)
    _check_origin(args, _origin_path(args), has_begun=False)
    with replaced(args.output) as file:
        for pair, (_, row) in zip(pairs, rows, strict=True):
            file.write(_line(pair, row["translation"] if row else ""))
    shutil.rmtree(translation.directory)


def _line(pair: Pair, translation: str) -> bytes:
    # An empty translation is replaced by the reference.
    return f"{pair.source}\t{translation.translate(SEPARATORS).strip() or pair.target}\n".encode()


def _origin_path(args: argparse.Namespace) -> Path:
    path: Path = args.output
    return path.with_name(f"{path.name}.json")


def _decode(args: argparse.Namespace, pairs: PairFiles) -> None:
    part = args.output.with_name(f"{args.output.name}.part")
    _check_origin(args, _origin_path(args), has_begun=part.exists())
    num_done = _recover(part, pairs)
    with (
        _open_teacher(args) as (translate, precision),
        part.open("ab") as file,
        tqdm(total=pairs.num_pairs, initial=num_done, unit="pair") as progress,
        ThreadPoolExecutor(args.threads) as pool,
    ):
        progress.write(f"teacher: {', '.join(map(str, args.teacher))}, {precision}, beam {args.beam}")
        left = itertools.islice(pairs, num_done, None)
        for chunk, texts in map_chunks(pool, translate, left, size=args.save_every, num_ahead=2 * args.threads):
            file.writelines(map(_line, chunk, texts))
            file.flush()
            os.fsync(file.fileno())
            progress.update(len(chunk))
    part.replace(args.output)


_Translate = Callable[[list[Pair]], Sequence[str]]


@contextmanager
def _open_teacher(args: argparse.Namespace) -> Iterator[tuple[_Translate, str]]:
    # Yields a function that translates the sources of pairs, and the precision.
    if args.device == "cuda":
        yield _open_on_gpu(args), "bfloat16 on the GPU"
        return
    with open_text_model(args.teacher, RuntimeSettings(precision=args.precision)) as (teacher, precision):

        def translate(some: list[Pair]) -> Sequence[str]:
            sources = [pair.source for pair in some]
            return translate_texts(
                teacher, sources, beam_size=args.beam, batch_size=args.batch_size, shows_progress=False
            ).texts

        yield translate, precision


def _open_on_gpu(args: argparse.Namespace) -> _Translate:
    if len(args.teacher) > 1 or args.precision:
        given = args.precision or f"{len(args.teacher)} teachers"
        raise SettingError("--device", "cuda", f"one teacher and no --precision instead of {given}")
    if not torch.cuda.is_available():
        raise SettingError("--device", "cuda", "a GPU that PyTorch can use")
    model, tokenizer = open_model(args.teacher[0])
    model.cuda()
    use_fast_attention()

    return lambda some: translate_whole(model, tokenizer, [pair.source for pair in some], beam_size=args.beam)


def _check_origin(args: argparse.Namespace, path: Path, *, has_begun: bool) -> None:
    # Writes the settings of the translations to a file; a partial output must have the same settings.
    # a manifest contains the checksums of all other files
    models = [
        teacher / MANIFEST_NAME if (teacher / MANIFEST_NAME).is_file() else TrainedModel.find(teacher).checkpoint
        for teacher in args.teacher
    ]
    origin: dict[str, Any] = {
        "teachers": [
            {"path": str(teacher), "sha256": file_entry(model).sha256}
            for teacher, model in zip(args.teacher, models, strict=True)
        ],
        "data": [str(file) for file in args.data],
        "precision": args.precision,
        "beam": args.beam,
        "exporter": exporter_version(),
    }
    if not has_begun:
        write_atomically(path, (json.dumps(origin, indent=2) + "\n").encode())
        return
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorpusError(f"cannot read {path}: {error}") from error
    changed = [name for name, value in origin.items() if stored.get(name) != value]
    if changed:
        differences = ", ".join(f"{name} was {stored.get(name)!r}" for name in changed)
        raise CorpusError(f"{path.with_suffix('.part')} has other settings ({differences}): delete it to start again")


def _recover(part: Path, pairs: Iterable[Pair]) -> int:
    # Number of translated pairs; truncates an incomplete last line.
    if not part.exists():
        return 0
    num_done, end, expected = 0, 0, iter(pairs)
    with part.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            pair = next(expected, None)
            if pair is None or line.partition(b"\t")[0] != pair.source.encode():
                raise CorpusError(f"{part}:{num_done + 1} does not match the text: delete the file to start again")
            num_done, end = num_done + 1, end + len(line)
        file.truncate(end)
    return num_done
