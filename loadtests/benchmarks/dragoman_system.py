"""This system, offline: the engine and the runtime that serve, without queue and gRPC."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.runtimes.native.step_model import open_step_model
from dragoman_service.runtimes.settings import RuntimeSettings
from loadtests.benchmarks.systems import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds


class System:
    """As many engines as streams, each in a thread of its own, over one loaded model."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        """Load the graphs; a run has as many threads as wanted, which a lone stream keeps awake."""
        is_lone = settings.num_streams == 1
        runtime = RuntimeSettings(
            device=settings.device,
            precision=settings.precision,
            num_intra_op_threads=1 if is_lone else settings.num_threads,
            num_low_latency_threads=settings.num_threads if is_lone else 1,
        )
        model = open_step_model(files.open(), runtime)
        self._engines = [RunningBatch(model) for _ in range(settings.num_streams)]  # kept, as a server keeps them
        self._threads = ThreadPoolExecutor(settings.num_streams, thread_name_prefix="decoding")

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order; segments join and leave the running batches.

        Each stream takes its own fair share if all fit at once, else all take from one iterator, the longest first;
        threads may share an iterator over a list: each index comes out once.
        """
        segments = [_segment(source_ids, search) for source_ids in sources]
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        num_streams = len(self._engines)
        shares = [iter(order[stream::num_streams]) for stream in range(num_streams)]
        if len(sources) > num_streams * batch_size:
            shares = [iter(order)] * num_streams
        outputs: dict[int, Output] = {}
        for done in self._threads.map(partial(_drain, segments, batch_size), self._engines, shares):
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
    segments: Sequence[Segment], batch_size: int, engine: RunningBatch, waiting: Iterator[int]
) -> dict[int, Output]:
    """Decode what waits until nothing does; return the outputs by index."""
    running, done = dict[int, int](), dict[int, Output]()
    while True:
        if engine.num_segments <= batch_size // 2:  # joining one by one would cost an encoder run each
            joining = list(islice(waiting, batch_size - engine.num_segments))
            if joining:
                handles = engine.start([segments[index] for index in joining])
                running.update(zip(handles, joining, strict=True))
        if not running:
            return done
        for ended in engine.step().ended:
            best = ended.hypotheses[0]
            done[running.pop(ended.segment_id)] = Output(token_ids=best.token_ids, score=best.score)
