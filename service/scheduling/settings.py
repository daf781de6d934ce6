"""The settings of scheduling: how much may wait and how much is decoded together."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field

from service.cores import num_cores


class SchedulingSettings(BaseModel):
    """Limits of one model's queue and batches; the defaults suit CPU decoding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_queue_segments: int = Field(
        default=4096,
        ge=1,
        description="Segments that may wait. A request whose segments do not all find a place is refused whole, "
        "so one with more segments than this is always refused.",
    )
    max_queue_tokens: int = Field(
        default=131_072,
        ge=1,
        description="Source tokens (EOS counted) that may wait; the same rule as for segments.",
    )
    max_batch_segments: int = Field(
        default=32,
        ge=1,
        description="Segments decoded together by one thread. On a CPU a network as large as Transformer-base gains "
        "nothing beyond 16, a small one gains up to 64.",
    )
    max_batch_padded_tokens: int = Field(
        default=4096,
        ge=1,
        description="Segments of a batch times its longest source, in tokens; only a single segment may exceed it.",
    )
    max_batch_rows: int = Field(
        default=128,
        ge=1,
        description="Segments of a batch times its widest beam; only a single segment may exceed it. "
        "Keeps one request with a wide beam from widening the step of many others.",
    )
    num_decoding_threads: int | None = Field(
        default=None,
        ge=1,
        description="Threads of a model that decode, each with a batch of its own; unset: one for each core of the "
        "process on the CPU, one on a GPU.",
    )
    bulk_patience_s: float = Field(
        default=5.0,
        ge=0,
        description="Seconds a bulk segment waits behind interactive ones before it takes the next place.",
    )

    def on(self, device: str) -> Self:
        """Return the settings for a model that runs on a device, `cpu` or `cuda`: what was unset is decided."""
        if self.num_decoding_threads is not None:
            return self
        return self.model_copy(update={"num_decoding_threads": num_cores() if device == "cpu" else 1})
