"""`python -m dragoman_export distill`: translates the text of a run with a teacher, for a smaller model to learn from.

That is sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947): the student learns from what beam
search finds with the teacher in place of the references, which is more alike and easier to learn. The teacher is a
bundle, a checkpoint, or several of them as an ensemble, and translates as a server does.
"""

import argparse
import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dragoman_export.bundle_writer import exporter_version
from dragoman_export.data.reader import Pair, PairFiles, ParallelFiles
from dragoman_export.ensemble import open_text_model
from dragoman_export.errors import CorpusError
from dragoman_export.onnx_export.network import TrainedModel
from dragoman_export.onnx_export.translation import translate_texts
from dragoman_export.training.checkpoint import write_atomically
from dragoman_service.bundle.files import MANIFEST_NAME, file_entry
from dragoman_service.runtimes.settings import RuntimeSettings

_SEPARATORS = str.maketrans("\t\n\r", "   ")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "--teacher",
        type=Path,
        nargs="+",
        required=True,
        metavar="PATH",
        help="bundle, checkpoint or run folder; several translate together, by the mean of their probabilities",
    )
    parser.add_argument("--data", type=Path, nargs="+", required=True, metavar="TSV", help="source<TAB>target lines")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="TSV",
        help="source<TAB>translation lines, in the order of the data; until it is whole it is OUTPUT.part, from which "
        "the same command goes on after an interruption",
    )
    parser.add_argument("--precision", help="graphs of bundles to run (each bundle's default)")
    parser.add_argument("--beam", type=int, default=4, metavar="K", help="live hypotheses; 1 is greedy search (4)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="B", help="texts translated together (64)")
    parser.add_argument("--threads", type=int, default=1, metavar="T", help="CPU threads, each with a batch (1)")
    parser.add_argument("--save-every", type=int, default=1000, metavar="N", help="texts between writes (1000)")


def run(args: argparse.Namespace) -> int:
    """Translate what is not translated yet, and say where it is.

    Raises:
        CorpusError: if the output is there already, or what was begun is of other text or another teacher.
    """
    if args.output.exists():
        raise CorpusError(f"{args.output} exists already")
    pairs = PairFiles.scan([ParallelFiles(source=path) for path in args.data], max_malformed=0.0)
    part = args.output.with_name(f"{args.output.name}.part")
    _check_origin(args, args.output.with_name(f"{args.output.name}.json"), has_begun=part.exists())
    num_done = _recover(part, pairs)
    settings = RuntimeSettings(precision=args.precision)
    with (
        open_text_model(args.teacher, settings) as (teacher, precision),
        part.open("ab") as file,
        tqdm(total=pairs.num_pairs, initial=num_done, unit="pair") as progress,
        ThreadPoolExecutor(args.threads) as pool,
    ):
        progress.write(f"teacher: {', '.join(map(str, args.teacher))}, {precision}, beam {args.beam}")

        def translate(some: list[Pair]) -> tuple[str, ...]:
            sources = [pair.source for pair in some]
            return translate_texts(
                teacher, sources, beam_size=args.beam, batch_size=args.batch_size, shows_progress=False
            ).texts

        left = itertools.islice(pairs, num_done, None)
        chunks = iter(lambda: list(itertools.islice(left, args.save_every)), [])
        for chunk, texts in _in_order(pool, translate, chunks, num_ahead=2 * args.threads):
            file.write("".join(_lines(chunk, texts)).encode())
            file.flush()
            os.fsync(file.fileno())
            progress.update(len(chunk))
    part.replace(args.output)
    print(f"{args.output}: {pairs.num_pairs:,} pairs")
    return 0


def _in_order(
    pool: ThreadPoolExecutor,
    translate: Callable[[list[Pair]], tuple[str, ...]],
    chunks: Iterable[list[Pair]],
    *,
    num_ahead: int,
) -> Iterator[tuple[list[Pair], tuple[str, ...]]]:
    """Yield chunks with their translations in order, of which no more than `num_ahead` wait."""
    waiting = deque[tuple[list[Pair], Future[tuple[str, ...]]]]()
    for chunk in chunks:
        waiting.append((chunk, pool.submit(translate, chunk)))
        if len(waiting) > num_ahead:
            first, texts = waiting.popleft()
            yield first, texts.result()
    for first, texts in waiting:
        yield first, texts.result()


def _lines(pairs: Sequence[Pair], texts: Sequence[str]) -> Iterator[str]:
    """Yield a line for each pair; where the teacher says nothing, its own target stays."""
    for pair, text in zip(pairs, texts, strict=True):
        yield f"{pair.source}\t{text.translate(_SEPARATORS).strip() or pair.target}\n"


def _check_origin(args: argparse.Namespace, path: Path, *, has_begun: bool) -> None:
    """Write what decides the translations beside them; CorpusError if those begun come of something else."""
    origin: dict[str, Any] = {
        "teachers": [{"path": str(teacher), "sha256": _checksum(teacher)} for teacher in args.teacher],
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
        told = ", ".join(f"{name} was {stored.get(name)!r}" for name in changed)
        raise CorpusError(f"the translations begun at {path.with_suffix('.part')} are others: {told}; delete them")


def _checksum(teacher: Path) -> str:
    manifest = teacher / MANIFEST_NAME  # which has the checksums of all other files
    return file_entry(manifest if manifest.is_file() else TrainedModel.find(teacher).checkpoint).sha256


def _recover(part: Path, pairs: Iterable[Pair]) -> int:
    """Return how many pairs are translated already; a last line that was not written to its end is cut off."""
    if not part.exists():
        return 0
    num_done, end, expected = 0, 0, iter(pairs)
    with part.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            pair = next(expected, None)
            if pair is None or line.partition(b"\t")[0] != pair.source.encode():
                raise CorpusError(f"{part}:{num_done + 1} is no translation of this text; delete it to begin anew")
            num_done, end = num_done + 1, end + len(line)
        file.truncate(end)
    return num_done
