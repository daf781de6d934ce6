"""Attention against PyTorch's fused kernel, and decoding step by step against decoding at once."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dragoman_export.model.layers import scaled_dot_product_attention
from tests.unit.export.tiny_training import mask_of, random_ids, tiny_model

ROUNDING = 1e-5
"""float32 sums in another order; scores are of the order of 1."""

BFLOAT16_ROUNDING = 0.05
"""bfloat16 keeps 8 bits, and both kernels round at different places."""

MASKS = {
    "none": None,
    "padding": mask_of([6, 2, 4])[:, None, None, :],
    "causal": torch.ones(6, 6, dtype=torch.bool).tril(),
    "both": mask_of([6, 2, 4])[:, None, None, :] & torch.ones(6, 6, dtype=torch.bool).tril(),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, ROUNDING), (torch.bfloat16, BFLOAT16_ROUNDING)])
def test_attention_agrees_with_the_fused_kernel(mask: Tensor | None, dtype: torch.dtype, tolerance: float) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 3, 2, 6, 8, dtype=dtype)

    ours = scaled_dot_product_attention(query, key, value, mask)

    fused = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(ours, fused, atol=tolerance, rtol=0)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("lengths", [[5, 5, 5], [5, 1, 3]], ids=["even", "padded"])
@torch.inference_mode()
def test_steps_with_a_cache_agree_with_decoding_at_once(norm: str, lengths: list[int]) -> None:
    model, source_ids, target_ids = tiny_model(norm=norm), random_ids(3, 5), random_ids(3, 8, seed=1)
    mask = None if min(lengths) == 5 else mask_of(lengths)
    memory = model.encode(source_ids, mask)

    cache = model.start(memory, mask)
    steps = [model.step(target_ids[:, position], position, cache) for position in range(8)]

    at_once = torch.log_softmax(model.decode(target_ids, memory, mask), dim=-1)
    torch.testing.assert_close(torch.stack(steps, dim=1), at_once, atol=ROUNDING, rtol=0)
