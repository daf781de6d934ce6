"""Dev loss and BLEU during training."""

from dataclasses import dataclass

import numpy as np
import sacrebleu
import torch

from dragoman_export.data.batches import BatchingConfig, EncodedCorpus, Epoch
from dragoman_export.data.vocabulary import TextCodec
from dragoman_export.evaluation.torch_search import translate_ids
from dragoman_export.training.loss import BatchLoss


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
    prefixes = dev.corpus.prefixes()
    sources = [np.append(prefixes[index], dev.corpus.sources[index]) for index in chosen]
    translations = translate_ids(
        loss.model,
        sources,
        batch_tokens=batch_tokens,
        beam_size=1,
        length_penalty=0.0,
        prefix=vocabulary.target_prefix,
    )
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
