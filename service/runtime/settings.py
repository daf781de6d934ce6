"""The settings section of the ONNX Runtime edge."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class RuntimeSettings(BaseModel):
    """How networks are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Field(
            description="Device that runs the network; `auto`: a GPU if this ONNX Runtime can use one and the bundle "
            "has a precision for it, else the CPU; the log says which and why. `cuda` never falls back."
        ),
    ] = "auto"

    device_index: Annotated[int, Field(ge=0, description="Index of the GPU, from 0; cuda only.")] = 0

    precision: Annotated[
        str | None,
        Field(
            description="Precision of the graphs to run, such as int8; unset: on the CPU the bundle's default, on a "
            "GPU fp16 or else fp32."
        ),
    ] = None

    gpu_memory_limit_bytes: Annotated[
        int | None,
        Field(
            ge=1,
            description="Most GPU memory that each graph of a model (encoder, decoder, attention) may reserve; the "
            "memory of CUDA itself is extra. Unset: no limit; cuda only.",
        ),
    ] = None

    use_tf32: Annotated[
        bool,
        Field(
            description="Round the inputs of fp32 products to 10 bits of mantissa, which newer GPUs multiply faster; "
            "cuda only."
        ),
    ] = False

    isolation: Annotated[
        Literal["process", "none"],
        Field(
            description="Where networks run. `process`: a process for each version of a model, so that decoding and "
            "calls do not compete for Python's lock, and a crash of the runtime costs the segments in its batches and "
            "not the server. `none`: the server's own process, which takes less memory."
        ),
    ] = "process"

    num_intra_op_threads: Annotated[
        int,
        Field(
            ge=1,
            description="CPU threads inside one encoder or decoder run. With several decoding threads 1 gives the most "
            "tokens per second; more answer a single caller sooner.",
        ),
    ] = 1

    num_lone_threads: Annotated[
        int | None,
        Field(
            ge=1,
            description="CPU threads inside a decoder run while no other batch of the model runs: answers a single "
            "caller sooner, takes memory for the decoder's weights once more. Unset: one for each core of the "
            "process if the model's weights exceed 16 MiB; smaller networks gain nothing.",
        ),
    ] = None
