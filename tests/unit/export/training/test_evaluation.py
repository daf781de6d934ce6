import numpy as np
import pytest
import torch

from dragoman_export.data.batches import EncodedCorpus, TokenLists
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.evaluation import DevSet, decode_greedily, dev_loss, evaluate, translate_greedily
from dragoman_export.training.loss import BatchLoss
from tests.unit.export.data.tiny_text import tiny_vocabulary
from tests.unit.export.model.tiny_models import random_ids, tiny_model

ROUNDING = 1e-5  # float32 sums in another order.

SOURCES = [np.array([*random_ids(1, length, seed=length)[0].tolist(), 2], np.int32) for length in (3, 9, 1, 5)]


def talkative_model() -> Transformer:
    """Return a network with larger weights, so that its output depends on the source."""
    model = tiny_model()
    for weight in (*model.encoder.parameters(), *model.decoder.parameters()):
        weight.data *= 3
    return model


def make_dev_set() -> DevSet:
    lists = TokenLists([source.tolist() for source in SOURCES])
    return DevSet(corpus=EncodedCorpus(sources=lists, targets=lists), references=("a", "b", "c", "d"))


@torch.inference_mode()
def decode_without_cache(source: list[int], length: int) -> list[int]:
    model, target_ids = talkative_model(), [1]
    memory = model.encode(torch.tensor([source]), None)
    while len(target_ids) <= length:
        target_ids.append(int(model.decode(torch.tensor([target_ids]), memory, None)[0, -1].argmax()))
    return target_ids[1:]


def test_greedy_decoding_takes_the_likeliest_tokens() -> None:
    source_ids = random_ids(1, 6)

    (decoded,) = decode_greedily(talkative_model(), source_ids, None)

    expected = decode_without_cache(source_ids[0].tolist(), 6 + 50)
    assert decoded == (expected[: expected.index(2)] if 2 in expected else expected)


@pytest.mark.parametrize("batch_tokens", [1, 12, 1000])
def test_greedy_translations_do_not_depend_on_the_batch(batch_tokens: int) -> None:
    model = talkative_model()

    translations = translate_greedily(model, SOURCES, batch_tokens)

    assert len(set(map(tuple, translations))) == len(SOURCES)
    assert translations == [translate_greedily(model, [source], 1)[0] for source in SOURCES]


def test_greedy_translation_has_a_length_limit() -> None:
    translations = translate_greedily(tiny_model(), SOURCES, 1000)

    assert all(len(ids) <= len(source) + 50 for ids, source in zip(translations, SOURCES, strict=True))


def test_dev_loss_does_not_depend_on_batches() -> None:
    loss, corpus = BatchLoss(tiny_model(), label_smoothing=0.1).eval(), make_dev_set().corpus

    losses = [dev_loss(loss, corpus, batch_tokens=batch_tokens) for batch_tokens in (1, 12, 1000)]

    assert losses == pytest.approx([losses[0]] * 3, rel=ROUNDING)
    assert 2 < losses[0] < 6  # ln 40 = 3.7


@pytest.mark.parametrize("bleu_sentences", [0, 2, 99])
def test_bleu_is_optional(bleu_sentences: int) -> None:
    loss = BatchLoss(tiny_model(), label_smoothing=0.1).eval()

    evaluation = evaluate(loss, make_dev_set(), tiny_vocabulary(), bleu_sentences=bleu_sentences, batch_tokens=99)

    assert (evaluation.bleu is None) == (bleu_sentences == 0)
