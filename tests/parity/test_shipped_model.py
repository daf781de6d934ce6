"""The bundled model on real sentences: translations are bit-identical alone and in a batch."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from dragoman_service.bundle.files import open_bundle
from dragoman_service.datatypes import Hypothesis, SamplingConfig, SearchConfig, Segment
from dragoman_service.decoding.running_batch import RunningBatch
from dragoman_service.runtimes.onnx.step_model import OnnxStepModel
from dragoman_service.runtimes.settings import RuntimeSettings
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import SentencePieceTokenizer
from tests.real_text import real_sentences

_BUNDLE = Path(__file__).parents[2] / "deploy" / "models" / "dragoman_models" / "en-de" / "1"
_MAX_BATCH_SEGMENTS = 24
_OPTIONS = (
    SearchConfig(),
    SearchConfig(beam_size=1),
    SearchConfig(beam_size=2, length_penalty=0.0),
    SearchConfig(beam_size=5, num_hypotheses=5, length_penalty=1.0, min_target_tokens=8),
    SearchConfig(no_repeat_ngram_size=2, repetition_penalty=1.2),
    SearchConfig(repetition_guard=True, num_hypotheses=2),
    SearchConfig(beam_size=3, target_prefix=(40, 50), suppressed_tokens=frozenset({60, 61})),
    SearchConfig(beam_size=2, num_hypotheses=2, sampling=SamplingConfig(top_k=20, temperature=0.8, seed=7)),
)
"""Consecutive sentences have different options."""


@pytest.mark.parametrize("precision", open_bundle(_BUNDLE).manifest.precisions)
@pytest.mark.slow
def test_translation_of_a_real_sentence_is_equal_alone_and_in_a_changing_batch(precision: str) -> None:
    model = OnnxStepModel(open_bundle(_BUNDLE), RuntimeSettings(precision=precision))
    segments = _segments(model, count=100)

    together = _decode_together(model, segments, random.Random(3))  # noqa: S311 (no secret)

    alone = [_decode_together(model, [segment], random.Random(0))[0] for segment in segments]  # noqa: S311
    differing = [index for index, hypotheses in enumerate(together) if hypotheses != alone[index]]
    assert differing == []


def _segments(model: OnnxStepModel, *, count: int) -> list[Segment]:
    tokenizer = SentencePieceTokenizer(_BUNDLE / "tokenizer.model")
    encoded = [(*tokenizer.encode(sentence), tokenizer.eos_id) for sentence in real_sentences(count)]
    return [
        Segment(source_ids=source_ids, search=_limited(_OPTIONS[index % len(_OPTIONS)], len(source_ids), model))
        for index, source_ids in enumerate(encoded)
    ]


def _limited(search: SearchConfig, num_source_tokens: int, model: OnnxStepModel) -> SearchConfig:
    longest = min(num_source_tokens + EXTRA_TARGET_TOKENS, model.limits.max_target_tokens)
    return replace(search, max_target_tokens=longest)


def _decode_together(
    model: OnnxStepModel, segments: list[Segment], chance: random.Random
) -> list[tuple[Hypothesis, ...]]:
    """Decode all segments; a random number of them joins before some of the steps."""
    engine, waiting, running = RunningBatch(model), list(enumerate(segments)), dict[int, int]()
    ended: dict[int, tuple[Hypothesis, ...]] = {}
    while waiting or running:
        if waiting and (not running or chance.random() < 0.5):
            joining = [
                waiting.pop() for _ in range(min(len(waiting), chance.randint(0, _MAX_BATCH_SEGMENTS - len(running))))
            ]
            if joining:
                handles = engine.start([segment for _, segment in joining])
                running.update(zip(handles, (index for index, _ in joining), strict=True))
        if running:
            ended.update({running.pop(one.segment_id): one.hypotheses for one in engine.step().ended})
    return [ended[index] for index in range(len(segments))]
