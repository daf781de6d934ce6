"""What freed memory is given back to the system."""

import sys

import psutil
import pytest

from export.training.ranks import return_freed_memory

_BLOCK_BYTES = 64 << 10
_NUM_BLOCKS = 2000


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be asked for it")
def test_what_is_free_between_blocks_in_use_is_given_back() -> None:
    blocks = [bytearray(_BLOCK_BYTES) for _ in range(_NUM_BLOCKS)]
    in_use = blocks[::10]
    del blocks
    before = psutil.Process().memory_info().rss
    return_freed_memory()
    returned = before - psutil.Process().memory_info().rss
    assert returned > _NUM_BLOCKS * _BLOCK_BYTES / 2
    assert len(in_use) == _NUM_BLOCKS // 10
