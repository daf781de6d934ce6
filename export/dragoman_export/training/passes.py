"""Forward and backward passes of a batch; on a GPU as CUDA graphs, which start all kernels of a pass by one launch."""

import torch
from torch import Tensor

from dragoman_export.data.batches import Batch, rounded_lengths
from dragoman_export.training.loss import BatchLoss

_IGNORED_LABEL = -100  # of `torch.nn.functional.cross_entropy`
_PART_LOGITS = 5 << 19  # 10 MiB of float32


class Passes:
    """Forward and backward pass of a batch; adds the gradients to the parameters.

    On a CPU, logits exist for some rows at a time: those of a whole batch do not fit its caches.
    """

    def __init__(self, loss: BatchLoss, *, bf16: bool, is_compiled: bool, device: torch.device) -> None:
        """Wrap a loss whose network is on `device`."""
        self._loss = loss
        self._whole = torch.compile(loss, dynamic=True) if is_compiled else loss
        self._has_parts = device.type == "cpu" and not is_compiled
        self._bf16 = bf16
        self._device = device

    def autocast(self) -> torch.autocast:
        """Return the context in which the network runs."""
        return torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._bf16)

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as `run` takes it; on a GPU, without waiting for the copy."""
        return batch.to(self._device)

    def run(self, batch: Batch) -> Tensor:
        """Add the gradients of a prepared batch; return its loss, a scalar on the device."""
        if self._has_parts:
            return self._run_in_parts(batch)
        with self.autocast():
            loss: Tensor = self._whole(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _run_in_parts(self, batch: Batch) -> Tensor:
        with self.autocast():
            states: list[Tensor] = self._loss.states(batch)
        inputs, total = [each.detach().requires_grad_() for each in states], torch.zeros(())
        num_rows = max(1, _PART_LOGITS // self._loss.model.config.vocabulary_size)
        for begin in range(0, len(batch.labels), num_rows):
            part = slice(begin, begin + num_rows)
            with self.autocast():
                loss = self._loss.of_states([each[part] for each in inputs], batch.labels[part])
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        torch.autograd.backward(states, [each.grad for each in inputs])
        return total


class GraphPasses(Passes):
    """Passes that record a CUDA graph when a shape of a batch recurs.

    A small network spends most of a step on the launches of about a thousand kernels. Batches are padded to few shapes;
    gradients keep their memory.
    """

    def __init__(
        self,
        loss: BatchLoss,
        *,
        bf16: bool,
        batch_tokens: int,
        device: torch.device,
        max_positions: int | None = None,
    ) -> None:
        """Wrap a loss; `batch_tokens` is the limit of the plan, with rounded lengths. Changes the current stream."""
        super().__init__(loss, bf16=bf16, is_compiled=False, device=device)
        self._batch_tokens, self._max_positions = batch_tokens, max_positions
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[int, ...], tuple[torch.cuda.CUDAGraph, Batch, Tensor]] = {}
        self._seen: set[tuple[int, ...]] = set()
        torch.cuda.set_stream(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]  # the default stream cannot be captured
        for parameter in loss.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def prepare(self, batch: Batch) -> Batch:
        """Return the padded batch on the GPU, without waiting for the copy."""
        return padded(batch, self._batch_tokens, self._max_positions).to(self._device)

    def run(self, batch: Batch) -> Tensor:
        """Add the gradients of a prepared batch; return its loss, a scalar on the device."""
        shape = (*batch.source_ids.shape, batch.target_ids.size(1))
        if shape not in self._seen:  # also initialises the libraries for this shape
            self._seen.add(shape)
            return super().run(batch)
        if shape not in self._graphs:
            self._graphs[shape] = self._captured(batch)
        graph, inputs, loss = self._graphs[shape]
        for destination, tensor in zip(inputs, batch, strict=True):
            if destination is not None and tensor is not None:
                destination.copy_(tensor)
        graph.replay()
        return loss.clone()

    def _captured(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, Tensor]:
        inputs = Batch(*(None if tensor is None else tensor.clone() for tensor in batch))  # type: ignore[arg-type]
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            loss = super().run(inputs)
        finally:
            graph.capture_end()
        return graph, inputs, loss


def padded(batch: Batch, batch_tokens: int, max_positions: int | None = None) -> Batch:
    """Pad a batch on the CPU to rounded lengths and all rows of `batch_tokens`; the loss stays the same.

    Lengths do not exceed a table of `max_positions`, which batches fit.
    Every position of the target has a label; padding has one that the loss ignores.
    """
    (num_rows, source_length), target_length = batch.source_ids.shape, batch.target_ids.size(1)
    lengths = rounded_lengths(torch.tensor((source_length, target_length)).numpy())
    if max_positions is not None:
        lengths = lengths.clip(max=max_positions)
    most = max(num_rows, batch_tokens // int(lengths.max()))
    sources, targets = (torch.zeros((most, int(length)), dtype=torch.int64) for length in lengths)
    mask = torch.zeros(sources.shape, dtype=torch.bool)
    mask[:, 0] = True  # a softmax needs one position
    sources[:num_rows, :source_length] = batch.source_ids
    targets[:num_rows, :target_length] = batch.target_ids
    mask[:num_rows, :source_length] = True if batch.source_mask is None else batch.source_mask
    labels = torch.full((num_rows * target_length,), _IGNORED_LABEL)
    labels[batch.label_positions] = batch.labels
    every_label = torch.full(targets.shape, _IGNORED_LABEL)
    every_label[:num_rows, :target_length] = labels.view(num_rows, target_length)
    return Batch(
        source_ids=sources,
        source_mask=mask,
        target_ids=targets,
        label_positions=torch.arange(targets.numel()),
        labels=every_label.flatten(),
    )
