"""Compares the graphs of a bundle with the PyTorch model they were made from, on real sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sacrebleu
import torch

from dragoman_export.data.reader import Pair
from dragoman_export.evaluation.translation import BundleTextModel, translate_texts
from dragoman_export.model.transformer import Transformer
from dragoman_export.onnx_export.arithmetic import FloatArray
from dragoman_export.onnx_export.calibration import padded
from dragoman_service.decoding.step_model import StepModel, StepOutput

# Largest difference of a log-probability between two float32 implementations. Both sum some hundred products in
# different orders in each layer. Unlikely tokens have log-probabilities of -30, whose last place is 2e-6.
LOG_PROB_TOLERANCE = 2e-4
BLEU_TOLERANCE = 0.3  # largest loss of int8; half of the reported loss of OPUS-MT models with 8 bits
_STEP_SENTENCES = 8  # sentences per batch of `check_steps`
_COMPARED_SENTENCES = 32  # sentences per batch of `agreement`

TokenPairs = Sequence[tuple[list[int], list[int]]]  # token ids of sources and of their targets, EOS last


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim about a bundle, and its measurement."""

    claim: str
    measured: float
    limit: float  # largest value of `measured` for which the claim holds
    unit: str
    detail: str = ""

    @property
    def holds(self) -> bool:
        """True if the measured value is within the limit; False for NaN."""
        return self.measured <= self.limit


def check_steps(model: Transformer, graph: StepModel, pairs: TokenPairs) -> list[Check]:
    """Compare the log-probabilities of PyTorch and the float32 graphs at every step of given translations."""
    cached, exported, num_steps = 0.0, 0.0, 0
    for start in range(0, len(pairs), _STEP_SENTENCES):
        batch = pairs[start : start + _STEP_SENTENCES]
        expected = list(score_at_once(model, batch))
        cached = max(cached, _largest_difference(expected, score_cached(model, batch)))
        exported = max(exported, _largest_difference(expected, score_exported(graph, batch)))
        num_steps += sum(len(target) for _, target in batch)
    detail = f"largest over {num_steps} target tokens of {len(pairs)} sentences and all of the vocabulary"
    differences = {"PyTorch, cached = uncached": cached, "ONNX fp32 = PyTorch": exported}
    return [
        Check(claim=claim, measured=difference, limit=LOG_PROB_TOLERANCE, unit="nats", detail=detail)
        for claim, difference in differences.items()
    ]


def check_batching(model: BundleTextModel, sources: Sequence[str], *, beam_size: int, precision: str) -> Check:
    """Count the sentences whose translation depends on the batch."""
    together, alone = (translate_texts(model, sources, beam_size=beam_size, batch_size=size).texts for size in (16, 1))
    differing = sum(a != b for a, b in zip(together, alone, strict=True))
    claim = f"ONNX {precision}, alone = in a batch"
    return Check(claim=claim, measured=differing, limit=0, unit="sentences", detail=f"of {len(sources)} sentences")


def check_quality(
    reference: BundleTextModel, quantized: BundleTextModel, pairs: Sequence[Pair], *, beam_size: int, precision: str
) -> Check:
    """Measure the BLEU that a precision loses compared with fp32."""
    targets = [[pair.target for pair in pairs]]
    bleu = []
    for model in (reference, quantized):
        run = translate_texts(model, [pair.source for pair in pairs], beam_size=beam_size, batch_size=16)
        bleu.append(float(sacrebleu.corpus_bleu(run.texts, targets).score))
    return Check(
        claim=f"{precision} is as good as fp32",
        measured=bleu[0] - bleu[1],
        limit=BLEU_TOLERANCE,
        unit="BLEU",
        detail=f"{bleu[0]:.2f} to {bleu[1]:.2f} on {len(pairs)} sentences, beam {beam_size}",
    )


@torch.inference_mode()
def score_at_once(model: Transformer, pairs: TokenPairs) -> Iterator[FloatArray]:
    """Yield the log-probabilities [B, V] of every step of given translations, computed without a cache."""
    source_ids, mask = padded([source for source, _ in pairs], model.config.pad_id)
    inputs = torch.from_numpy(_inputs(pairs, start_id=model.config.start_id))
    logits = model.decode(inputs, model.encode(source_ids, mask), mask)
    for log_probs in torch.log_softmax(logits.float(), dim=-1).unbind(dim=1):
        yield log_probs.numpy()


@torch.inference_mode()
def score_cached(model: Transformer, pairs: TokenPairs) -> Iterator[FloatArray]:
    """Yield the same, computed step by step with PyTorch's cache."""
    source_ids, mask = padded([source for source, _ in pairs], model.config.pad_id)
    cache = model.start(model.encode(source_ids, mask), mask)
    for position, token_ids in enumerate(_inputs(pairs, start_id=model.config.start_id).T):
        yield model.step(torch.from_numpy(token_ids), position, cache).numpy()


def score_exported(graph: StepModel, pairs: TokenPairs) -> Iterator[FloatArray]:
    """Yield the same, computed step by step by the graphs."""
    size = graph.limits.vocabulary.size
    for output in _steps(graph, pairs, num_candidates=size):
        log_probs = np.empty((len(pairs), size), dtype=np.float32)
        np.put_along_axis(log_probs, output.token_ids[:, 0], output.log_probs[:, 0], axis=1)
        yield log_probs


def gain_of_other_source_end(graph: StepModel, pairs: TokenPairs, *, eos_id: int) -> float:
    """Return how much likelier translations are, in nats per token, with the other end of sources: with or without EOS.

    A value well above 0 means that the model was trained with the other end.
    """

    def total(sources: Sequence[list[int]]) -> float:
        log_probs = 0.0
        for source, (_, target) in zip(sources, pairs, strict=True):
            steps = score_exported(graph, [(source, target)])
            log_probs += sum(float(step[0, token_id]) for step, token_id in zip(steps, target, strict=True))
        return log_probs

    own = [source for source, _ in pairs]
    other = [
        source[:-1] if source[-1] == eos_id else [*source[: graph.limits.max_source_tokens - 1], eos_id]
        for source in own
    ]
    return (total(other) - total(own)) / sum(len(target) for _, target in pairs)


def _steps(graph: StepModel, pairs: TokenPairs, *, num_candidates: int) -> Iterator[StepOutput]:
    batch = graph.new_batch()
    batch.start(graph.encode([source for source, _ in pairs]))
    parents = np.zeros((len(pairs), 1), dtype=np.int64)
    for token_ids in _inputs(pairs, start_id=graph.limits.vocabulary.bos_id).T:
        yield batch.step(token_ids[:, None], parents, num_candidates=num_candidates)


def agreement(reference: StepModel, other: StepModel, pairs: TokenPairs) -> tuple[float, int]:
    """Return the share of target tokens at which two models predict the same token, and the number of tokens."""
    num_equal, num_tokens = 0, 0
    by_length = sorted(pairs, key=lambda pair: len(pair[1]))  # a batch needs as many steps as its longest target
    for start in range(0, len(pairs), _COMPARED_SENTENCES):
        batch = by_length[start : start + _COMPARED_SENTENCES]
        lengths = np.array([len(target) for _, target in batch])
        expected, found = (
            [output.token_ids[:, 0, 0].copy() for output in _steps(graph, batch, num_candidates=1)]
            for graph in (reference, other)
        )
        for position, is_equal in enumerate(map(np.equal, expected, found)):
            num_equal += int(is_equal[position < lengths].sum())
        num_tokens += int(lengths.sum())
    return num_equal / num_tokens, num_tokens


def _largest_difference(expected: Sequence[FloatArray], found: Iterator[FloatArray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(expected, found, strict=True))


def _inputs(pairs: TokenPairs, *, start_id: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    # Decoder input [B, T]: start and target without EOS; short rows repeat their last token.
    longest = max(len(target) for _, target in pairs)
    rows = [[start_id, *target[:-1]] for _, target in pairs]
    return np.array([row + row[-1:] * (longest - len(row)) for row in rows], dtype=np.int64)
