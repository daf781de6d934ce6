import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dragoman_export.evaluation.torch_search import translate_ids, translate_whole
from dragoman_export.model.transformer import Transformer
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.unit.export.tiny_training import random_ids, tiny_model, tiny_vocabulary

BOS, EOS = 1, 2
SOURCES = [[*random_ids(1, length, seed=length)[0].tolist(), EOS] for length in (3, 9, 1, 5)]
greedily = functools.partial(translate_ids, beam_size=1, length_penalty=0.0)


@pytest.fixture
def talkative() -> Transformer:
    """A network with larger weights, so that its output depends on the source."""
    model = tiny_model()
    for weight in (*model.encoder.parameters(), *model.decoder.parameters()):
        weight.data *= 3
    return model


@torch.inference_mode()
def next_log_probs(model: Transformer, source: list[int], target: list[int]) -> Tensor:
    memory = model.encode(torch.tensor([source]), None)
    return model.decode(torch.tensor([[BOS, *target]]), memory, None)[0, -1].log_softmax(dim=-1)


def normalizer(length: int) -> float:
    return float(((5 + length) / 6) ** 0.6)


def plain_beam_search(model: Transformer, source: list[int], size: int) -> list[int]:
    """Return the best target of a beam search over lists."""
    live, ended = [(0.0, list[int]())], list[tuple[float, list[int]]]()
    for length in range(1, len(source) + 51):
        candidates = [
            (score + float(log_prob), [*ids, token])
            for score, ids in live
            for token, log_prob in enumerate(next_log_probs(model, source, ids))
        ]
        best = sorted(candidates, key=lambda each: -each[0])[: 2 * size]
        ended += [(score / normalizer(length), ids[:-1]) for score, ids in best[:size] if ids[-1] == EOS]
        live = [(score, ids) for score, ids in best if ids[-1] != EOS][:size]
        if len(ended) >= size or (ended and live[0][0] / normalizer(length) <= max(ended)[0]):
            break
    return max(ended)[1] if ended else live[0][1]


def test_greedy_search_takes_the_likeliest_tokens(talkative: Transformer) -> None:
    source, expected = SOURCES[1], list[int]()
    while len(expected) <= len(source) + 50 and EOS not in expected:
        expected.append(int(next_log_probs(talkative, source, expected).argmax()))

    (decoded,) = greedily(talkative, [source], batch_tokens=1)

    assert decoded == expected[: len(decoded)]
    assert expected[len(decoded)] == EOS or len(decoded) >= len(source) + 49


@pytest.mark.parametrize(("size", "scale"), [(2, 1.0), (4, 0.3)])
def test_beam_search_equals_a_search_over_lists(talkative: Transformer, size: int, scale: float) -> None:
    talkative.embedding.weight.data *= scale

    found = translate_ids(talkative, SOURCES, batch_tokens=1000, beam_size=size, length_penalty=0.6)

    expected = [plain_beam_search(talkative, source, size) for source in SOURCES]
    same = [ids[: len(other)] == other[: len(ids)] for ids, other in zip(found, expected, strict=True)]
    assert all(same)


@pytest.mark.parametrize(("batch_tokens", "size"), [(1000, 1), (12, 3)])
def test_translations_do_not_depend_on_the_batch(talkative: Transformer, batch_tokens: int, size: int) -> None:
    translate = functools.partial(translate_ids, talkative, beam_size=size, length_penalty=0.6)

    translations = translate(SOURCES, batch_tokens=batch_tokens)

    assert len(set(map(tuple, translations))) == len(SOURCES)
    assert translations == [translate([source], batch_tokens=1)[0] for source in SOURCES]


def test_translation_has_a_length_limit() -> None:
    translations = greedily(tiny_model(), SOURCES, batch_tokens=1000)

    assert all(len(ids) <= len(source) + 50 for ids, source in zip(translations, SOURCES, strict=True))


def test_targets_start_with_the_prefix(talkative: Transformer) -> None:
    translations = translate_ids(talkative, SOURCES, batch_tokens=12, beam_size=2, length_penalty=0.6, prefix=(7, 9))

    assert all(ids[:2] == [7, 9] for ids in translations)


def test_texts_longer_than_the_positions_are_cut(tmp_path: Path) -> None:
    (tmp_path / "vocabulary.model").write_bytes(tiny_vocabulary().model)
    tokenizer = SentencePieceTokenizer(tmp_path / "vocabulary.model")
    model = tiny_model(seed=3, vocabulary_size=tokenizer.vocabulary_size, positions="learned", max_positions=8)
    sources = ["red", "red green blue " * 10, "red green blue " * 20]

    short, *long = translate_whole(model, tokenizer, sources, beam_size=2)

    assert long[0] == long[1] != short
