"""Processes of a run, and settings of the memory allocator and kernel caches on a CPU."""

import ctypes
import os
import sys
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous

from dragoman_export.data.batches import Batch
from dragoman_export.model.layers import use_fast_attention


class Ranks:
    """The processes of a run and their exchange of values."""

    def __init__(self) -> None:
        """Join the group if `torchrun` started this process: NCCL with GPUs, otherwise Gloo."""
        self.count = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
            use_fast_attention()
        if self.count > 1:
            backend = "nccl" if self.device.type == "cuda" else "gloo"
            self._store, _, _ = next(rendezvous("env://"))
            distributed.init_process_group(backend, store=self._store, rank=self.rank, world_size=self.count)

    @property
    def is_main(self) -> bool:
        """True in the process that writes files and prints."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch | None:
        """Return this rank's rows of a batch that all ranks have, every n-th row; None if there are too few."""
        if self.count == 1:
            return batch
        num_rows, length = batch.target_ids.shape
        if num_rows <= self.rank:
            return None
        rows, columns = batch.label_positions // length, batch.label_positions % length
        is_ours = rows % self.count == self.rank
        mask = batch.source_mask
        return Batch(
            source_ids=batch.source_ids[self.rank :: self.count],
            source_mask=None if mask is None else mask[self.rank :: self.count],
            target_ids=batch.target_ids[self.rank :: self.count],
            label_positions=(rows // self.count * length + columns)[is_ours],
            labels=batch.labels[is_ours],
        )

    def sum(self, tensor: Tensor) -> Tensor:
        """Replace the tensor, on `device`, by its sum over all ranks, and return it."""
        if self.count > 1:
            distributed.all_reduce(tensor)
        return tensor

    def sum_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Replace every gradient by its sum over all ranks, in one exchange."""
        if self.count == 1:
            return
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.sum(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(flat, [gradient.numel() for gradient in gradients])
        torch._foreach_copy_(gradients, [part.view_as(each) for each, part in zip(gradients, parts, strict=True)])

    def gather(self, value: Any) -> list[Any]:
        """Return the picklable value of every rank, in order; all ranks must call this."""
        values: list[Any] = [value] * self.count
        if self.count > 1:
            distributed.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Wait until all ranks have called this."""
        if self.count > 1:
            distributed.barrier()

    def close(self) -> None:
        """Leave the group after the last exchange of all ranks.

        Gloo aborts a process whose peer leaves during an exchange. A barrier is an exchange that ends at a different
        time in each rank, so the ranks wait for each other with the key-value store.
        """
        if self.count > 1:
            self._store.set(f"closed/{self.rank}", "")
            self._store.wait([f"closed/{rank}" for rank in range(self.count)])
            distributed.destroy_process_group()


_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8  # mallopt(3) parameters of glibc
_GIB = 1 << 30


def keep_freed_memory() -> None:
    """Serve all allocations from one heap that keeps freed memory; no effect without glibc.

    Otherwise tensors of some megabytes are mapped, faulted in, zeroed and unmapped each time.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, 2 * _GIB - 1), (_TOP_PAD, _GIB // 16), (_ARENA_MAX, 1)):
        mallopt(parameter, value)


_NUM_CACHED_KERNELS = 64  # more than the shapes of products in one step


def limit_kernel_caches() -> None:
    """Reduce the kernel caches of oneDNN and PyTorch; call before the first product.

    Both cache 1,024 kernels of half a megabyte each, and batches rarely repeat shapes. Kernels between freed tensors
    also fragment the heap: with a vocabulary of 10,000 it grew to 13 GB in 2,000 steps, and steps were slower. Existing
    environment variables are kept.
    """
    for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(name, str(_NUM_CACHED_KERNELS))
