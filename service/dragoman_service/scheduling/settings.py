"""Settings of the scheduler: limits of queue and batches."""

import sys
from typing import Final, Self

from pydantic import Field

from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.errors import ConfigError
from dragoman_service.threads import num_cores
from dragoman_service.toml import SettingsSection

_BATCHES_ON_GPU: Final = 2
_DEFAULT_NICENESS: Final = 15  # if the threads that answer requests do not have short time slices
_DEFAULT_SEGMENTS_ON_GPU: Final = 128  # more segments make each step longer; chosen, not measured


class SchedulingSettings(SettingsSection):
    """Limits of the queue and the batches of one model; the defaults suit decoding on a CPU."""

    max_queue_segments: int = Field(default=4096, ge=1)
    """Maximum number of queued segments. A request whose segments do not all fit is rejected as a whole."""

    max_queue_decode_cost: int = Field(default=4_325_376, ge=1)
    """Maximum decode cost of the queued segments. The decode cost of a segment is the number of its source tokens
    (including EOS) plus its beam size times its expected decoder steps, which the server learns."""

    max_caller_queue_share: float = Field(default=0.5, gt=0, le=1)
    """Share of both queue limits that one caller (API key, or host) can hold. While other callers have queued segments,
    it is a share of the room that they leave: with 0.5, two callers hold at most a third each, and a new caller always
    finds room. 1: no limit per caller."""

    max_cached_bytes: int = Field(default=0, ge=0, le=64 << 30)
    """Memory for the results of decoded sentences, for each model version. A repeated sentence with the same options
    gets the same result without decoding. 0: off. If it is on, a caller can detect whether another caller had the same
    sentence translated: the `timings` of the response show zero for queue, encoding and decoding."""

    max_batch_segments: int = Field(default=32, ge=1)
    """Maximum number of segments in a batch. On a CPU, a model of the size of Transformer-base gains nothing beyond 16,
    a small one gains up to 64. On a GPU, the limit is at most what its memory holds with the longest sources and
    targets and the default beam size; unset, it is that number, at most 128."""

    max_batch_padded_tokens: int = Field(default=4096, ge=1)
    """Maximum number of segments in a batch times the tokens of its longest source. Only a batch of one segment can
    exceed it."""

    max_batch_rows: int = Field(default=128, ge=1)
    """Maximum number of segments in a batch times its widest beam. Only a batch of one segment can exceed it. The limit
    keeps one request with a wide beam from slowing down the steps of many others. On a GPU, the limit is at most the
    number of segments times the default beam size; unset, it is that number."""

    num_workers: int | None = Field(default=None, ge=1)
    """Worker threads of each replica; each decodes a batch of its own. Unset: two on a GPU, so that one batch is ranked
    on the CPU during the step of the other; on the CPU one for each core of the process, shared by all replicas of the
    model. While other models on the CPU have segments, only a share of the threads admits segments, at least one."""

    decoding_niceness: int | None = Field(default=None, ge=0, le=19)
    """Niceness that worker threads add to their priority, so that the threads that answer requests run first (Linux
    only). Unset: 0 if those threads have short time slices (Linux 6.12 or later), else 15. With 0 and without short
    time slices, rejections are late while every core decodes. With 15, decoding gets almost no time on cores that other
    processes of the same control group keep busy."""

    max_bulk_wait_s: float = Field(default=5.0, ge=0)
    """Seconds that bulk segments wait behind interactive segments. After that, the next bulk segment joins first each
    time that a batch has room."""

    max_step_s: float = Field(default=60.0, gt=0, le=3600)
    """Maximum duration of a decoder step, in seconds. If a step takes longer, the worker process is stuck: the server
    kills and restarts it, and the segments in its batches fail. Ignored with `runtime.isolation` `none`."""

    @property
    def niceness(self) -> int:
        """Niceness of worker threads, relative to the threads that answer requests."""
        return _DEFAULT_NICENESS if self.decoding_niceness is None else self.decoding_niceness

    def with_short_slices(self) -> Self:
        """Return the settings for a process whose other threads have short time slices: niceness 0 unless set."""
        return self if self.decoding_niceness is not None else self.model_copy(update={"decoding_niceness": 0})

    def on(self, device: str, *, num_replicas: int = 1) -> Self:
        """Return the settings of each replica on `cpu` or `cuda`, with the number of worker threads."""
        if self.num_workers is not None:
            return self
        num_workers = max(1, num_cores() // num_replicas) if device == "cpu" else _BATCHES_ON_GPU
        return self.model_copy(update={"num_workers": num_workers})

    def within(self, memory: CacheMemory, *, beam_size: int) -> Self:
        """Return the settings with batches that fit into the memory of a device.

        Raises:
            ConfigError: if the memory does not hold one segment per batch.
        """
        num_batches = self.num_workers or 1
        possible = memory.max_segments(beam_size, num_batches=num_batches)
        if not possible:
            # A batch reserves memory for one more segment.
            min_bytes = 2 * num_batches * memory.segment_bytes(beam_size)
            expected = f"at least {min_bytes} bytes in addition to weights and workspace"
            raise ConfigError("runtime.gpu_memory_budget_bytes", memory.available_bytes, expected)
        is_set = self.model_fields_set
        segments = min(
            possible, self.max_batch_segments if "max_batch_segments" in is_set else _DEFAULT_SEGMENTS_ON_GPU
        )
        rows = min(segments * beam_size, self.max_batch_rows if "max_batch_rows" in is_set else sys.maxsize)
        return self.model_copy(update={"max_batch_segments": segments, "max_batch_rows": rows})
