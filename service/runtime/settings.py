"""The settings section of the ONNX Runtime edge."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class RuntimeSettings(BaseModel):
    """How networks are run."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device that runs the network. `auto`: a GPU if this ONNX Runtime can use one and the bundle has a precision for
    it, else the CPU; the log says which and why. `cuda` never falls back."""

    device_index: int = Field(default=0, ge=0)
    """Index of the GPU, counted from 0; cuda only."""

    precision: str | None = None
    """Precision of the graphs, such as int8. Unset: on the CPU the bundle's default, on a GPU fp16 or else fp32."""

    gpu_memory_limit_bytes: int | None = Field(default=None, ge=1)
    """GPU memory that each graph of a model may allocate at most: encoder, decoder, and the attention graph if the
    bundle has one; memory of CUDA itself comes on top. Unset: all there is; cuda only."""

    use_tf32: bool = False
    """Round the inputs of fp32 products to 10 bits of mantissa, which newer GPUs multiply faster; cuda only."""

    isolation: Literal["process", "none"] = "process"
    """Where networks run. `process`: in a decoding process for each version of a model, so that decoding and calls do
    not compete for Python's interpreter lock, and a crash of the runtime costs the segments in its batches but not the
    server. `none`: in the server's own process, which takes less memory."""

    num_intra_op_threads: int = Field(default=1, ge=1)
    """CPU threads of an encoder or decoder run. With several decoding threads, 1 gives the most tokens a second; more
    reduce the latency of a single request."""

    num_low_latency_threads: int | None = Field(default=None, ge=1)
    """CPU threads of a decoder run while no other batch of the model runs: reduces the latency of a single request, and
    takes memory for the decoder's weights a second time. Unset: one for each core of the process if the weights of the
    model exceed 16 MiB; smaller networks do not gain from it."""
