"""Dev loss and BLEU during training."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import sacrebleu
import torch
from torch import Tensor

from dragoman_export.data.batches import BatchingConfig, EncodedCorpus, Epoch, make_batch
from dragoman_export.data.vocabulary import TextCodec
from dragoman_export.model.transformer import Transformer
from dragoman_export.training.loss import BatchLoss
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class DevSet:
    """Development text."""

    corpus: EncodedCorpus
    references: tuple[str, ...]  # target texts of `corpus`, in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores on the development text."""

    loss: float  # cross-entropy in nats per target token, EOS included, without label smoothing
    bleu: float | None  # sacreBLEU of greedy translations, 0 to 100; None if nothing was translated


def evaluate(
    loss: BatchLoss, dev: DevSet, vocabulary: TextCodec, *, bleu_sentences: int, batch_tokens: int
) -> Evaluation:
    """Score a model in evaluation mode; call inside the autocast context."""
    chosen = np.linspace(0, len(dev.corpus) - 1, min(bleu_sentences, len(dev.corpus))).astype(int).tolist()
    mean_loss = dev_loss(loss, dev.corpus, batch_tokens=batch_tokens)
    if not chosen:
        return Evaluation(loss=mean_loss, bleu=None)
    sources = [dev.corpus.sources[index] for index in chosen]
    translations = translate_greedily(loss.model, sources, batch_tokens, prefix=vocabulary.target_prefix)
    references = [dev.references[index] for index in chosen]
    bleu = sacrebleu.corpus_bleu(vocabulary.decode(translations), [references])
    return Evaluation(loss=mean_loss, bleu=float(bleu.score))


@torch.inference_mode()
def dev_loss(loss: BatchLoss, corpus: EncodedCorpus, *, batch_tokens: int) -> float:
    """Return the mean loss in nats per target token."""
    batches = Epoch(corpus, BatchingConfig(batch_tokens=batch_tokens, max_tokens=1), 0)
    device = loss.model.embedding.weight.device
    total = sum(float(loss(batches.batch(index).to(device))) for index in range(len(batches)))
    return total / int(corpus.targets.lengths.sum())


def translate_greedily(
    model: Transformer,
    sources: Sequence[np.ndarray[tuple[int], np.dtype[np.int32]]],
    batch_tokens: int,
    *,
    prefix: Sequence[int] = (),
) -> list[list[int]]:
    """Translate sources, including prefix and EOS, with the likeliest token at every step.

    Returns target ids without EOS in the order of the sources, at most 50 more than each has. `batch_tokens` is the
    most source tokens decoded together, padding included; `prefix` starts every target.
    """
    translations: list[list[int]] = [[] for _ in sources]
    for rows in _by_length([len(source) for source in sources], batch_tokens):
        chosen = [sources[row] for row in rows]
        batch = make_batch(chosen, chosen, pad_id=model.config.pad_id).to(model.embedding.weight.device)
        targets = decode_greedily(model, batch.source_ids, batch.source_mask, prefix=prefix)
        for row, ids in zip(rows, targets, strict=True):
            translations[row] = ids[: len(sources[row]) + EXTRA_TARGET_TOKENS]  # without padding
    return translations


@torch.inference_mode()
def decode_greedily(
    model: Transformer, source_ids: Tensor, source_mask: Tensor | None, *, prefix: Sequence[int] = ()
) -> list[list[int]]:
    """Return the greedy target of each source [B, S] without EOS; each starts with `prefix`.

    A target has at most S + 50 tokens, or the number of learned positions.
    """
    cache = model.start(model.encode(source_ids, source_mask), source_mask)
    newest = torch.full_like(source_ids[:, 0], model.config.start_id)
    is_done = torch.zeros_like(newest, dtype=torch.bool)
    targets = []
    most = source_ids.size(1) + EXTRA_TARGET_TOKENS
    for position in range(min(most, model.config.max_positions or most)):
        newest = model.step(newest, position, cache).argmax(dim=-1)
        if position < len(prefix):
            newest = torch.full_like(newest, prefix[position])
        targets.append(newest)
        is_done |= newest == model.config.eos_id
        if bool(is_done.all()):
            break
    eos_id = model.config.eos_id
    return [row[: row.index(eos_id)] if eos_id in row else row for row in torch.stack(targets, dim=1).tolist()]


def _by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        size = max(1, batch_tokens // lengths[order[0]])
        yield order[:size]
        order = order[size:]
