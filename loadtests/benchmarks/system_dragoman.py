"""This system offline: decoding and runtime without scheduler and gRPC."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.runtimes.factory import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.benchmarks.interface import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds


class System:
    """A running batch per stream, each in its own thread, over one loaded model."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        is_single = settings.num_streams == 1
        runtime = RuntimeSettings(
            device=settings.device,
            precision=settings.precision,
            instruction_set="avx2" if settings.isa else "auto",
            num_intra_op_threads=1 if is_single else settings.num_threads,
            num_low_latency_threads=settings.num_threads if is_single else 1,
        )
        model = open_step_model(files.open(), runtime)
        self._batches = [RunningBatch(model) for _ in range(settings.num_streams)]
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="decoding")

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source; segments join and leave the running batches.

        Streams share the sources equally if all fit at once; otherwise all streams take from one iterator, the longest
        first.
        """
        segments = [_segment(source_ids, search) for source_ids in sources]
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        num_streams = len(self._batches)
        shares = [iter(order[stream::num_streams]) for stream in range(num_streams)]
        if len(sources) > num_streams * batch_size:
            shares = [iter(order)] * num_streams
        outputs: dict[int, Output] = {}
        for done in self._threads.map(partial(_drain, segments, batch_size), self._batches, shares):
            outputs.update(done)
        return [outputs[index] for index in range(len(sources))]


def _segment(source_ids: TokenIds, search: SearchOptions) -> Segment:
    config = SearchConfig(
        beam_size=search.beam_size,
        length_penalty=search.length_penalty,
        min_target_tokens=search.min_target_tokens,
        max_target_tokens=search.longest_target([source_ids]),
    )
    return Segment(source_ids=source_ids, search=config)


def _drain(
    segments: Sequence[Segment], batch_size: int, batch: RunningBatch, waiting: Iterator[int]
) -> dict[int, Output]:
    running, done = dict[int, int](), dict[int, Output]()
    while True:
        if batch.num_segments <= batch_size // 2:  # joining one by one would need an encoder run for each
            joining = list(islice(waiting, batch_size - batch.num_segments))
            if joining:
                handles = batch.start([segments[index] for index in joining])
                running.update(zip(handles, joining, strict=True))
        if not running:
            return done
        for ended in batch.step(max_seconds=math.inf).ended:
            best = ended.hypotheses[0]
            done[running.pop(ended.segment_id)] = Output(token_ids=best.token_ids, score=best.score)
