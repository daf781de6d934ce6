import math

import numpy as np
import pytest
import torch

from dragoman_export.data.batches import Batch, make_batch
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.loss import BatchLoss, smoothed_cross_entropy, symmetric_divergence
from tests.unit.export.model.tiny_models import random_ids, tiny_config, tiny_model

ROUNDING = 1e-5  # float32 sums in another order.


def make_random_batch(rows: int, *, seed: int = 0) -> Batch:
    lengths = [3 + row for row in range(rows)]
    ids = random_ids(rows, 2 + rows, seed=seed).numpy().astype(np.int32)
    lists = [row[:length] for row, length in zip(ids, lengths, strict=True)]
    return make_batch(lists, lists)


def test_label_smoothing_is_uniform() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]])
    log_probs = logits[0].double() - math.log(sum(math.exp(logit) for logit in logits[0].tolist()))

    loss = smoothed_cross_entropy(logits, torch.tensor([3]), 0.1)

    by_hand = -(0.9 * log_probs[3] + sum(0.1 / 4 * log_prob for log_prob in log_probs))
    assert float(loss) == pytest.approx(float(by_hand), rel=ROUNDING)


def test_loss_is_summed_over_tokens() -> None:
    logits, labels = torch.randn(5, 7), torch.tensor([0, 6, 3, 3, 1])

    total = smoothed_cross_entropy(logits, labels, 0.0)

    log_probs = torch.log_softmax(logits, dim=-1)
    assert float(total) == pytest.approx(-sum(float(log_probs[row, label]) for row, label in enumerate(labels)))


def test_label_smoothing_is_for_training_only() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.5), make_random_batch(2)

    evaluated = loss.eval()(batch)

    plain = BatchLoss(loss.model, label_smoothing=0.0).eval()(batch)
    assert torch.equal(evaluated, plain)


def test_r_drop_divergence() -> None:
    logits, others = torch.randn(3, 5, generator=torch.Generator().manual_seed(1)), torch.zeros(3, 5)
    p, q = torch.softmax(logits.double(), -1), torch.softmax(others.double(), -1)

    divergence = symmetric_divergence(logits, others)

    by_hand = ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 4
    assert float(divergence) == pytest.approx(float(by_hand), rel=ROUNDING)
    assert float(symmetric_divergence(logits, logits)) == 0


def test_r_drop_is_for_training_only() -> None:
    model, batch = Transformer(tiny_config(dropout=0.3)), make_random_batch(3)
    plain, both = (BatchLoss(model, label_smoothing=0.1, r_drop=weight) for weight in (0.0, 5.0))

    assert torch.equal(both.eval()(batch), plain.eval()(batch))
    torch.manual_seed(1)
    loss = both.train()(batch)
    torch.manual_seed(1)
    first, second = plain.train()(batch), plain(batch)

    assert loss.item() > (first + second).item() / 2
    loss.backward()


def test_r_drop_without_dropout_has_no_divergence() -> None:
    model, batch = Transformer(tiny_config(dropout=0.0)), make_random_batch(3)

    losses = [BatchLoss(model, label_smoothing=0.1, r_drop=weight).train()(batch) for weight in (0.0, 5.0)]

    assert losses[1].item() == pytest.approx(losses[0].item(), rel=ROUNDING)


def test_padding_does_not_change_the_loss() -> None:
    loss, batch = BatchLoss(tiny_model(), label_smoothing=0.1), make_random_batch(3)
    rows = [batch.source_ids[row, :length].numpy().astype(np.int32) for row, length in enumerate((3, 4, 5))]

    alone = [make_batch([row], [row]) for row in rows]

    with torch.no_grad():
        total = sum(float(loss(one)) for one in alone)
        assert float(loss(batch)) == pytest.approx(total, rel=ROUNDING)


def test_loss_is_float32_under_autocast() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = BatchLoss(tiny_model(), label_smoothing=0.1)(make_random_batch(2))

    assert loss.dtype == torch.float32
