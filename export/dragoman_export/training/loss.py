"""Label-smoothed cross-entropy of the next token."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman_export.data.batches import Batch
from dragoman_export.model.transformer import Transformer


class BatchLoss(nn.Module):
    """A network and its loss in one module, so that both are compiled and cast together."""

    def __init__(self, model: Transformer, *, label_smoothing: float, r_drop: float = 0.0) -> None:
        """Wrap a network; `r_drop` is the weight of the divergence between two passes, 0 for one pass."""
        super().__init__()
        self.model = model
        self.label_smoothing = label_smoothing
        self.r_drop = r_drop

    def forward(self, batch: Batch) -> Tensor:
        """Return the loss in nats summed over the target tokens of a batch, EOS included; a float32 scalar.

        With `r_drop`, the mean of two training passes plus their divergence. Padding is not projected to the
        vocabulary, which is the largest product of a small network.
        """
        return self.of_states(self.states(batch), batch.labels)

    def states(self, batch: Batch) -> list[Tensor]:
        """Return the decoder's states [N, d_model] of the target tokens, without padding, of each pass."""
        return [self._pass(batch) for _ in range(2 if self.training and self.r_drop else 1)]

    def of_states(self, states: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the summed loss of states [N, d_model] of each pass against labels [N]."""
        logits = [self.model.project(each) for each in states]
        label_smoothing = self.label_smoothing if self.training else 0.0
        losses = [smoothed_cross_entropy(each, labels, label_smoothing) for each in logits]
        if len(logits) == 1:
            return losses[0]
        return (losses[0] + losses[1]) / 2 + self.r_drop * symmetric_divergence(*logits)

    def _pass(self, batch: Batch) -> Tensor:
        memory = self.model.encode(batch.source_ids, batch.source_mask)
        states = self.model.decode_states(batch.target_ids, memory, batch.source_mask)
        return states.flatten(0, 1).index_select(0, batch.label_positions)


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the summed cross-entropy of logits [N, V] against labels [N] smoothed by e.

    The target distribution is (1 - e) at the label plus e / V everywhere, Szegedy et al. 2016 (arXiv:1512.00567),
    section 7.
    """
    with torch.autocast(logits.device.type, enabled=False):
        return functional.cross_entropy(logits.float(), labels, reduction="sum", label_smoothing=label_smoothing)


def symmetric_divergence(logits: Tensor, others: Tensor) -> Tensor:
    """Return a quarter of the two Kullback-Leibler divergences between softmax rows [N, V], summed over rows.

    That is half of equation 2 of Liang et al. 2021 (arXiv:2106.14448), whose loss is the sum of both passes; here it is
    their mean.
    """
    with torch.autocast(logits.device.type, enabled=False):
        log_p, log_q = (functional.log_softmax(rows.float(), dim=-1) for rows in (logits, others))
        # KL(p||q) + KL(q||p) = sum (p - q) (log p - log q)
        return ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum() / 4
