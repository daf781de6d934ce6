"""The settings section of the ONNX Runtime edge."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class RuntimeSettings(BaseModel):
    """How networks are run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: Annotated[
        Literal["cpu", "cuda", "auto"],
        Field(
            description="What runs the network; auto: cuda if this ONNX Runtime has it and can run the precision, "
            "else cpu."
        ),
    ] = "cpu"

    device_index: Annotated[int, Field(ge=0, description="Which GPU, counted from 0; cuda only.")] = 0

    precision: Annotated[
        str | None, Field(description="Which graphs of a bundle to run, such as int8; unset: the bundle's default.")
    ] = None

    num_intra_op_threads: Annotated[
        int,
        Field(
            ge=1,
            description="CPU threads inside one encoder or decoder run. With several decoding threads 1 gives the most "
            "tokens a second; more answer a lone caller sooner.",
        ),
    ] = 1
