"""Memory use of a training process."""

import subprocess
import sys
from typing import Final

import pytest
import torch

_MULTIPLY_MANY_SHAPES: Final = """
import psutil, torch
from dragoman_export.training.ranks import limit_kernel_caches
limit_kernel_caches()
weight, process = torch.ones(512, 512, dtype=torch.bfloat16), psutil.Process()
before = process.memory_info().rss
for rows in range(1, 601):
    torch.ones(rows, 512, dtype=torch.bfloat16) @ weight
print((process.memory_info().rss - before) >> 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bf16 kernels for this CPU")
def test_kernel_caches_are_limited() -> None:
    # in a child process, because oneDNN reads the limit once
    command = [sys.executable, "-c", _MULTIPLY_MANY_SHAPES]
    grown_mb = int(subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    assert grown_mb < 200  # 425 if all are kept
