"""How many segments the memory of a GPU holds: what is free, less what is there already, over what a segment takes."""

from typing import Final

from dragoman_service.bundle.architecture import Architecture, FloatType, Limits
from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET, round_up
from dragoman_service.runtimes.onnx_cuda.device_batch import KEPT_LENGTHS
from dragoman_service.runtimes.settings import RuntimeSettings

_WORKSPACE_BYTES: Final = 1 << 30
"""Estimated, not measured: CUDA and its libraries, and the largest runs of the encoder."""

_WEIGHT_COPIES: Final = 2
"""Encoder and decoder each load what they use of one file; the table of embeddings is used by both."""

_LOGIT_COPIES: Final = 3
"""Logits, their logarithms, and these padded to whole chunks, in 32 bits."""

_ITEM_BYTES: Final = {"float32": 4, "float16": 2}


def cache_memory(
    network: Architecture,
    limits: Limits,
    float_type: FloatType,
    settings: RuntimeSettings,
    *,
    weights_bytes: int,
    free_bytes: int | None,
) -> CacheMemory | None:
    """Return the memory for caches and steps, and what a segment takes of it at most; None if nothing is known of it.

    A segment takes most with a source and hypotheses of the greatest length that share no token. While caches move to
    memory of another length, both are there.

    Args:
        network: that runs.
        limits: of sources and targets.
        float_type: of keys and values.
        settings: may have a budget.
        weights_bytes: size of the files of graphs and weights.
        free_bytes: memory of the device that is free now that weights are loaded; None if the device does not tell.
    """
    budget = settings.gpu_memory_budget_bytes
    left = [] if budget is None else [budget - _WEIGHT_COPIES * weights_bytes]
    left += [] if free_bytes is None else [free_bytes]
    if not left:
        return None
    token_bytes = 2 * network.num_decoder_layers * network.key_size * _ITEM_BYTES[float_type]
    num_layouts = (KEPT_LENGTHS if settings.cuda_graphs else 1) + 1
    source_bytes = token_bytes * round_up(limits.max_source_tokens, LENGTH_BUCKET)
    target_bytes = token_bytes * round_up(limits.max_target_tokens, LENGTH_BUCKET)
    return CacheMemory(
        available_bytes=min(left) - _WORKSPACE_BYTES,
        source_bytes=(num_layouts + 1) * source_bytes,  # and as the encoder has left it
        row_bytes=num_layouts * target_bytes + _LOGIT_COPIES * 4 * network.vocabulary_size,
    )
