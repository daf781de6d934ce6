import numpy as np
import pytest
import torch

from dragoman_export.data.batches import Batch, TokenBlock, make_batch
from dragoman_export.training.loss import BatchLoss, smoothed_cross_entropy, symmetric_divergence
from tests.unit.export.tiny_training import random_ids, tiny_model

ROUNDING = 1e-5  # float32 sums in another order.


def make_random_batch(rows: int) -> Batch:
    """Return a batch whose row i has 3 + i tokens on either side."""
    ids = random_ids(rows, 2 + rows).numpy().astype(np.int32)
    lists = [row[: 3 + number] for number, row in enumerate(ids)]
    return make_batch(TokenBlock.of(lists), TokenBlock.of(lists))


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1])
def test_label_smoothing_is_uniform_and_losses_are_summed(label_smoothing: float) -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 1])

    loss = smoothed_cross_entropy(logits, labels, label_smoothing)

    log_probs = torch.log(logits.double().exp() / logits.double().exp().sum(dim=-1, keepdim=True))
    targets = (1 - label_smoothing) * torch.eye(7)[labels] + label_smoothing / 7
    assert float(loss) == pytest.approx(float(-(targets * log_probs).sum()), rel=ROUNDING)


def test_label_smoothing_is_for_training_only() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.5), make_random_batch(2)

    assert torch.equal(loss.eval()(batch), BatchLoss(loss.model, label_smoothing=0.0).eval()(batch))


def test_r_drop_divergence() -> None:
    logits, others = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(3, 5)
    p, q = torch.softmax(logits.double(), -1), torch.softmax(others.double(), -1)

    divergence = symmetric_divergence(logits, others)

    by_hand = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 4
    assert float(divergence) == pytest.approx(float(by_hand), rel=ROUNDING)
    assert float(symmetric_divergence(logits, logits)) == 0


def test_r_drop_is_for_training_only() -> None:
    model, batch = tiny_model(dropout=0.3), make_random_batch(3)
    plain, both = (BatchLoss(model, label_smoothing=0.1, r_drop=weight) for weight in (0.0, 5.0))

    assert torch.equal(both.eval()(batch), plain.eval()(batch))
    torch.manual_seed(1)
    loss = both.train()(batch)
    torch.manual_seed(1)
    first, second = plain.train()(batch), plain(batch)

    assert loss.item() > (first + second).item() / 2
    loss.backward()


def test_r_drop_without_dropout_has_no_divergence() -> None:
    model, batch = tiny_model(dropout=0.0), make_random_batch(3)

    losses = [BatchLoss(model, label_smoothing=0.1, r_drop=weight).train()(batch) for weight in (0.0, 5.0)]

    assert losses[1].item() == pytest.approx(losses[0].item(), rel=ROUNDING)


@torch.no_grad()
def test_padding_does_not_change_the_loss() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.1), make_random_batch(3)
    rows = [batch.source_ids[row, :length].numpy().astype(np.int32) for row, length in enumerate((3, 4, 5))]

    blocks = [TokenBlock.of([row]) for row in rows]
    total = sum(float(loss(make_batch(block, block))) for block in blocks)

    assert float(loss(batch)) == pytest.approx(total, rel=ROUNDING)


def test_loss_is_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = BatchLoss(tiny_model(), label_smoothing=0.1)(make_random_batch(2))

    assert loss.dtype == torch.float32
