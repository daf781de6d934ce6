"""Cross-entropy of the next token, label-smoothed in training."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from export.corpus.batches import Batch
from export.model.transformer import Transformer


class BatchLoss(nn.Module):
    """A network and its loss in one module, so that both can be compiled and cast together."""

    def __init__(self, model: Transformer, *, label_smoothing: float) -> None:
        """Wrap a network; its parameters stay its own.

        Args:
            model: whose parameters are learned.
            label_smoothing: mass spread evenly over the vocabulary (section 5.4 of the paper).
        """
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss in nats summed over the target tokens of a batch, EOS counted; a float32 scalar.

        Padding is never projected to the vocabulary: that product is the largest of a small network.
        """
        memory = self.model.encode(batch.source_ids, batch.source_mask)
        states = self.model.decode_states(batch.target_ids, memory, batch.source_mask)
        logits = self.model.project(states.flatten(0, 1).index_select(0, batch.label_positions))  # [N, V]
        return smoothed_cross_entropy(logits, batch.labels, self.label_smoothing if self.training else 0.0)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the summed cross-entropy of logits [N, V] against labels [N] smoothed by e.

    The target distribution is (1 - e) at the label plus e / V everywhere, Szegedy et al. 2016
    (arXiv:1512.00567), section 7.
    """
    with torch.autocast(logits.device.type, enabled=False):
        return functional.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)
