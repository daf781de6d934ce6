from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dragoman_export.data.batches import Batch, BatchingConfig, Epoch, rounded_lengths
from dragoman_export.model.transformer import Transformer
from dragoman_export.training import passes
from dragoman_export.training.loss import BatchLoss
from dragoman_export.training.passes import GraphPasses, Passes, padded
from tests.unit.export.tiny_training import encode, make_model, make_pairs

TOKENS = 128
ROUNDING = 1e-4  # float32 sums in another order


def needs_gpu(test: Callable[[], None]) -> Callable[[], None]:
    no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch has no GPU")
    return pytest.mark.gpu(no_gpu(test))


def batches(count: int = 120) -> list[Batch]:
    config = BatchingConfig(batch_tokens=TOKENS, max_tokens=256, has_rounded_lengths=True)
    epoch = Epoch(encode(make_pairs(count)), config, 0)
    return [epoch.batch(index) for index in range(len(epoch))]


def gradients(model: Transformer, run: Callable[[Batch], Tensor], batch: Batch) -> tuple[float, list[Tensor]]:
    """Return the loss and gradients of a batch; gradients become zero again."""
    loss = float(run(batch))
    found = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        found.append(parameter.grad.cpu().clone())
        parameter.grad.zero_()
    return loss, found


def test_padded_batch_has_the_same_loss_and_gradients() -> None:
    model = make_model(dropout=0.0)
    passes = Passes(BatchLoss(model, label_smoothing=0.1), bf16=False, is_compiled=False, device=torch.device("cpu"))

    for batch in batches():
        loss, expected = gradients(model, passes.run, batch)
        padded_loss, actual = gradients(model, passes.run, padded(batch, TOKENS))
        assert padded_loss == pytest.approx(loss, rel=ROUNDING)
        torch.testing.assert_close(actual, expected, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("options", "r_drop"), [({}, 5.0), ({"tied_embeddings": "none", "projection_bias": True}, 0.0)]
)
def test_parts_have_the_loss_and_gradients_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], r_drop: float
) -> None:
    model = make_model(dropout=0.1, **options)
    loss = BatchLoss(model, label_smoothing=0.1, r_drop=r_drop).train()
    monkeypatch.setattr(passes, "_PART_LOGITS", 5 * model.config.vocabulary_size)
    parts = Passes(loss, bf16=False, is_compiled=False, device=torch.device("cpu"))

    def whole(batch: Batch) -> Tensor:
        total = loss(batch)
        total.backward()
        return total.detach()  # type: ignore[no-any-return]

    for batch in batches():
        torch.manual_seed(1)
        value, expected = gradients(model, whole, batch)
        torch.manual_seed(1)
        in_parts, actual = gradients(model, parts.run, batch)
        assert in_parts == pytest.approx(value, rel=ROUNDING)
        torch.testing.assert_close(actual, expected, atol=ROUNDING, rtol=ROUNDING)


def test_padded_batches_have_few_shapes_within_the_budget() -> None:
    shapes = [(*each.source_ids.shape, each.target_ids.size(1)) for each in (padded(b, TOKENS) for b in batches(1000))]

    assert len(set(shapes)) < len(shapes) / 4
    assert all(rows * max(source, target) <= TOKENS for rows, source, target in shapes)


def test_padding_fits_learned_positions() -> None:
    longest = max(max(batch.source_ids.size(1), batch.target_ids.size(1)) for batch in batches())
    assert longest % 4  # would be rounded up

    padded_batches = [padded(batch, TOKENS, max_positions=longest) for batch in batches()]

    assert max(max(batch.source_ids.size(1), batch.target_ids.size(1)) for batch in padded_batches) == longest


def test_rounded_lengths() -> None:
    lengths = np.array([1, 4, 5, 32, 33, 64, 65, 129, 256])

    assert rounded_lengths(lengths).tolist() == [4, 4, 8, 32, 40, 64, 80, 160, 256]


@needs_gpu
def test_graphs_have_the_losses_and_gradients_of_the_cpu() -> None:
    device, model = torch.device("cuda"), make_model(dropout=0.0)
    reference = make_model(dropout=0.0)
    on_cpu = Passes(
        BatchLoss(reference, label_smoothing=0.1), bf16=False, is_compiled=False, device=torch.device("cpu")
    )
    graphs = GraphPasses(BatchLoss(model.cuda(), label_smoothing=0.1), bf16=False, batch_tokens=TOKENS, device=device)

    for _ in range(3):  # eager, recorded, replayed
        for batch in batches():
            loss, expected = gradients(reference, on_cpu.run, batch)
            graph_loss, actual = gradients(model, lambda each: graphs.run(graphs.prepare(each)), batch)
            assert graph_loss == pytest.approx(loss, rel=1e-3)
            torch.testing.assert_close(actual, expected, atol=1e-2, rtol=1e-2)


@needs_gpu
def test_replays_draw_new_dropout() -> None:
    device, model = torch.device("cuda"), make_model(dropout=0.5).cuda()
    graphs = GraphPasses(BatchLoss(model, label_smoothing=0.1), bf16=True, batch_tokens=TOKENS, device=device)
    batch = graphs.prepare(batches()[0])

    losses = {float(graphs.run(batch)) for _ in range(6)}

    assert len(losses) == 6
