import numpy as np
import pytest
import torch

from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.evaluation import DevSet, decode_greedily, dev_loss, evaluate, translate_greedily
from dragoman_export.training.loss import BatchLoss
from tests.unit.export.tiny_training import random_ids, tiny_model, tiny_vocabulary

ROUNDING = 1e-5  # float32 sums in another order.
SOURCES = [np.array([*random_ids(1, length, seed=length)[0].tolist(), 2], np.int32) for length in (3, 9, 1, 5)]
LISTS = TokenLists([source.tolist() for source in SOURCES])
CORPUS = EncodedCorpus(sources=LISTS, targets=LISTS)


@pytest.fixture
def talkative() -> Transformer:
    """A network with larger weights, so that its output depends on the source."""
    model = tiny_model()
    for weight in (*model.encoder.parameters(), *model.decoder.parameters()):
        weight.data *= 3
    return model


@pytest.fixture
def loss() -> BatchLoss:
    return BatchLoss(tiny_model(), label_smoothing=0.1).eval()


@torch.inference_mode()
def test_greedy_decoding_takes_the_likeliest_tokens(talkative: Transformer) -> None:
    source_ids, expected = random_ids(1, 6), [1]
    memory = talkative.encode(source_ids, None)
    while len(expected) <= 6 + 50 and expected[-1] != 2:
        expected.append(int(talkative.decode(torch.tensor([expected]), memory, None)[0, -1].argmax()))

    (decoded,) = decode_greedily(talkative, source_ids, None)

    assert [1, *decoded] == (expected[:-1] if expected[-1] == 2 else expected)


@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_greedy_translations_do_not_depend_on_the_batch(talkative: Transformer, batch_tokens: int) -> None:
    translations = translate_greedily(talkative, SOURCES, batch_tokens)

    assert len(set(map(tuple, translations))) == len(SOURCES)
    assert translations == [translate_greedily(talkative, [source], 1)[0] for source in SOURCES]


def test_greedy_translation_has_a_length_limit() -> None:
    translations = translate_greedily(tiny_model(), SOURCES, 1000)

    assert all(len(ids) <= len(source) + 50 for ids, source in zip(translations, SOURCES, strict=True))


def test_dev_loss_does_not_depend_on_batches(loss: BatchLoss) -> None:
    losses = [dev_loss(loss, CORPUS, batch_tokens=batch_tokens) for batch_tokens in (1, 12, 1000)]

    assert losses == pytest.approx([losses[0]] * 3, rel=ROUNDING)
    assert 2 < losses[0] < 6  # ln 40 = 3.7


@pytest.mark.parametrize("bleu_sentences", [0, 2, 99])
def test_bleu_is_optional(loss: BatchLoss, bleu_sentences: int) -> None:
    dev = DevSet(corpus=CORPUS, references=("a", "b", "c", "d"))

    evaluation = evaluate(loss, dev, tiny_vocabulary(), bleu_sentences=bleu_sentences, batch_tokens=99)

    assert (evaluation.bleu is None) == (bleu_sentences == 0)
