"""The settings of scheduling: how much may wait and how much is decoded together."""

import sys
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field

from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.errors import ConfigError
from dragoman_service.threads import num_cores

_BATCHES_ON_GPU: Final = 2

_NICENESS: Final = 15
"""Of decoding threads where nothing else lets the threads that answer calls run before them."""

_MOST_ON_GPU: Final = 128
"""Segments of a batch, unless more are asked for: more make a step longer for all. Chosen, not measured."""


class SchedulingSettings(BaseModel):
    """Limits of one model's queue and batches; the defaults suit CPU decoding."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    max_queue_segments: int = Field(default=4096, ge=1)
    """Segments that may wait. A request whose segments do not all fit is rejected as a whole."""

    max_queue_work_tokens: int = Field(default=4_325_376, ge=1)
    """Expected work that may wait, in work tokens: for each segment its source tokens (EOS counted) and its beam size
    times the decoder steps expected, which is learned."""

    max_caller_queue_share: float = Field(default=0.5, gt=0, le=1)
    """Share of both bounds of the queue that one caller (API key, or host) may take; where others wait, it is the
    same share of what they leave: with 0.5, two callers get a third each at most, and the next one always finds
    room. 1: all, whoever comes first."""

    max_cached_bytes: int = Field(default=0, ge=0, le=64 << 30)
    """Memory for the results of decoded sentences, for each model version. The same sentence with the same options then
    gets the same answer without decoding. 0: off. If it is on, a caller can find out whether another caller had the
    same sentence translated: `timings` of the answer show zero for queue, encoding and decoding."""

    max_batch_segments: int = Field(default=32, ge=1)
    """Segments decoded together by one thread. On a CPU a network as large as Transformer-base gains nothing beyond 16,
    a small one gains up to 64. On a GPU no more than its memory holds with the longest sources and targets and the
    default beam; unless this is set, as many as that, and at most 128."""

    max_batch_padded_tokens: int = Field(default=4096, ge=1)
    """Segments of a batch times its longest source, in tokens; only a single segment may exceed it."""

    max_batch_rows: int = Field(default=128, ge=1)
    """Segments of a batch times its widest beam; only a single segment may exceed it. Keeps one request with a wide
    beam from widening the step of many others. On a GPU no more than its segments with the default beam; unless this is
    set, as many as that."""

    num_workers: int | None = Field(default=None, ge=1)
    """Threads of an engine that decode, each with a batch of its own; unset: two on a GPU, so that one batch is
    ranked on the CPU while the other's step runs; on the CPU one for each core of the process, which all engines of the
    model share."""

    decoding_niceness: int | None = Field(default=None, ge=0, le=19)
    """How much lower the priority of decoding threads is than that of the threads that answer calls, in steps of
    niceness (Linux only); unset: 0 where these are given a core as soon as they need it for their short time slices
    (Linux 6.12 or later), else 15. With 0 and no short slices rejections come late while every core decodes; with 15
    decoding gets next to nothing of cores that other processes of the same control group keep busy."""

    max_bulk_wait_s: float = Field(default=5.0, ge=0)
    """Seconds that bulk segments wait behind interactive ones before one of them gets the next place, each time that
    one is free."""

    max_step_s: float = Field(default=60.0, gt=0, le=3600)
    """Seconds that a step of a batch may take. If none has ended for longer, the decoding process is stuck: it is
    killed and started again, and the segments in its batches get an error. Nothing is done with `runtime.isolation`
    `none`."""

    @property
    def niceness(self) -> int:
        """How much lower the priority of decoding threads is."""
        return _NICENESS if self.decoding_niceness is None else self.decoding_niceness

    def beside_short_slices(self) -> Self:
        """Return the settings for a process whose other threads have short slices: unless set, no lower priority."""
        return self if self.decoding_niceness is not None else self.model_copy(update={"decoding_niceness": 0})

    def on(self, device: str, *, num_replicas: int = 1) -> Self:
        """Return the settings for each engine of a model on `cpu` or `cuda`: what was unset is decided."""
        if self.num_workers is not None:
            return self
        num_threads = max(1, num_cores() // num_replicas) if device == "cpu" else _BATCHES_ON_GPU
        return self.model_copy(update={"num_workers": num_threads})

    def within(self, memory: CacheMemory, *, beam_size: int) -> Self:
        """Return the settings for batches that the memory of a device holds; those that are smaller are kept.

        Raises:
            ConfigError: if the memory does not hold one segment in each batch.
        """
        num_batches = self.num_workers or 1
        possible = memory.max_segments(beam_size, num_batches=num_batches)
        if not possible:
            expected = (
                f"at least {2 * num_batches * memory.segment_bytes(beam_size)} bytes beside weights and workspace"
            )
            raise ConfigError("runtime.gpu_memory_budget_bytes", memory.available_bytes, expected)
        segments = min(possible, self.max_batch_segments if self._has("max_batch_segments") else _MOST_ON_GPU)
        rows = min(segments * beam_size, self.max_batch_rows if self._has("max_batch_rows") else sys.maxsize)
        return self.model_copy(update={"max_batch_segments": segments, "max_batch_rows": rows})

    def _has(self, name: str) -> bool:
        """Say whether somebody has set a field."""
        return name in self.model_fields_set
