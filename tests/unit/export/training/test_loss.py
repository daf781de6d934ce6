import math

import numpy as np
import pytest
import torch

from export.corpus.batches import Batch, make_batch
from export.training.loss import BatchLoss, smoothed_cross_entropy
from tests.unit.export.model.tiny_models import random_ids, tiny_model

ROUNDING = 1e-5
"""float32 sums in another order."""


def make_random_batch(rows: int, *, seed: int = 0) -> Batch:
    lengths = [3 + row for row in range(rows)]
    ids = random_ids(rows, 2 + rows, seed=seed).numpy().astype(np.int32)
    lists = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    return make_batch(lists, lists)


def test_label_smoothing_spreads_its_mass_over_the_vocabulary() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]])
    log_probs = logits[0].double() - math.log(sum(math.exp(logit) for logit in logits[0].tolist()))

    loss = smoothed_cross_entropy(logits, torch.tensor([3]), 0.1)

    by_hand = -(0.9 * log_probs[3] + sum(0.1 / 4 * log_prob for log_prob in log_probs))
    assert float(loss) == pytest.approx(float(by_hand), rel=ROUNDING)


def test_the_loss_is_summed_over_tokens() -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 1])

    total = smoothed_cross_entropy(logits, labels, 0.0)

    log_probs = torch.log_softmax(logits, dim=-1)
    assert float(total) == pytest.approx(-sum(float(log_probs[row, label]) for row, label in enumerate(labels)))


def test_the_loss_is_not_smoothed_outside_training() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.5), make_random_batch(2)

    evaluated = loss.eval()(batch)

    plain = BatchLoss(loss.model, label_smoothing=0.0).eval()(batch)
    assert torch.equal(evaluated, plain)


def test_padding_adds_nothing_to_the_loss() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.1), make_random_batch(3)
    rows = [batch.source_ids[row, :length].numpy().astype(np.int32) for row, length in enumerate((3, 4, 5))]

    alone = [make_batch([row], [row]) for row in rows]

    with torch.no_grad():
        total = sum(float(loss(one)) for one in alone)
        assert float(loss(batch)) == pytest.approx(total, rel=ROUNDING)


def test_under_autocast_the_loss_is_float32() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = BatchLoss(tiny_model(), label_smoothing=0.1)(make_random_batch(2))

    assert loss.dtype == torch.float32
