"""Estimate of the GPU memory that KV caches and decoder steps can use."""

from typing import Final

from dragoman_service.bundle.architecture import Architecture, FloatType, Limits
from dragoman_service.decoding.step_model import CacheMemory
from dragoman_service.runtimes.onnx.kv_pool import LENGTH_BUCKET, round_up
from dragoman_service.runtimes.onnx_cuda.device_batch import KEPT_LENGTHS
from dragoman_service.runtimes.settings import RuntimeSettings

_WORKSPACE_BYTES: Final = 1 << 30  # CUDA, its libraries and the largest encoder runs; estimated, not measured
_WEIGHT_COPIES: Final = 2  # upper bound: encoder and decoder load their weights from the same file
_LOGIT_COPIES: Final = 3  # float32 logits, log-probabilities, and log-probabilities padded to whole chunks
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
    """Return the memory for KV caches and steps, and the maximum that a segment uses.

    The maximum assumes a source and hypotheses of the maximum length, and hypotheses without common tokens. It includes
    the old and the new buffers, which exist at the same time while a cache changes its length.

    `free_bytes` is the free memory of the device after the weights are loaded. Returns None if neither it nor a budget
    is known.
    """
    budget = settings.gpu_memory_budget_bytes
    limits_bytes = [] if budget is None else [budget - _WEIGHT_COPIES * weights_bytes]
    limits_bytes += [] if free_bytes is None else [free_bytes]
    if not limits_bytes:
        return None
    token_bytes = 2 * network.num_decoder_layers * network.key_size * _ITEM_BYTES[float_type]
    num_layouts = (KEPT_LENGTHS if settings.cuda_graphs else 1) + 1
    source_bytes = token_bytes * round_up(limits.max_source_tokens, LENGTH_BUCKET)
    target_bytes = token_bytes * round_up(limits.max_target_tokens, LENGTH_BUCKET)
    return CacheMemory(
        available_bytes=min(limits_bytes) - _WORKSPACE_BYTES,
        source_bytes=(num_layouts + 1) * source_bytes,  # + 1 for the encoder output
        row_bytes=num_layouts * target_bytes + _LOGIT_COPIES * 4 * network.vocabulary_size,
    )
