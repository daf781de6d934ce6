"""Attention against PyTorch's fused kernel."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dragoman_export.model.layers import scaled_dot_product_attention
from tests.unit.export.tiny_training import mask_of

ROUNDING = 1e-5  # float32 sums in another order; scores are of the order of 1
BFLOAT16_ROUNDING = 0.05  # bfloat16 keeps 8 bits, and both kernels round at different places

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
