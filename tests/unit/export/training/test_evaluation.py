import numpy as np
import pytest

from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.training.evaluation import DevSet, dev_loss, evaluate
from dragoman_export.training.loss import BatchLoss
from tests.unit.export.tiny_training import random_ids, tiny_model, tiny_vocabulary

ROUNDING = 1e-5  # float32 sums in another order.
SOURCES = [np.array([*random_ids(1, length, seed=length)[0].tolist(), 2], np.int32) for length in (3, 9, 1, 5)]
LISTS = TokenLists([source.tolist() for source in SOURCES])
CORPUS = EncodedCorpus(sources=LISTS, targets=LISTS)


@pytest.fixture
def loss() -> BatchLoss:
    return BatchLoss(tiny_model(), label_smoothing=0.1).eval()


def test_dev_loss_does_not_depend_on_batches(loss: BatchLoss) -> None:
    losses = [dev_loss(loss, CORPUS, batch_tokens=batch_tokens) for batch_tokens in (1, 12, 1000)]

    assert losses == pytest.approx([losses[0]] * 3, rel=ROUNDING)
    assert 2 < losses[0] < 6  # ln 40 = 3.7


@pytest.mark.parametrize("bleu_sentences", [0, 2, 99])
def test_bleu_is_optional(loss: BatchLoss, bleu_sentences: int) -> None:
    dev = DevSet(corpus=CORPUS, references=("a", "b", "c", "d"))

    evaluation = evaluate(loss, dev, tiny_vocabulary(), bleu_sentences=bleu_sentences, batch_tokens=99)

    assert (evaluation.bleu is None) == (bleu_sentences == 0)
