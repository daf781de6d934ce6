"""Beam search in PyTorch: slower on a CPU than the engines of the service, but fast on a GPU in large batches.

The search of `dragoman_service.decoding` is the reference. This one has no options and returns the best target only.
A sentence ends when K of its hypotheses have ended, or its best live one does not exceed them.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dragoman_export.data.batches import TokenBlock, make_batch
from dragoman_export.evaluation.translation import DEFAULT_LENGTH_PENALTY
from dragoman_export.model.transformer import DecoderCache, Transformer
from dragoman_service.text.planning import EXTRA_TARGET_TOKENS
from dragoman_service.text.tokenizer import SentencePieceTokenizer

# source tokens of a batch, padding included; each has a row per hypothesis
_BATCH_TOKENS = {"cuda": 1 << 16, "cpu": 1 << 12}
_STEPS_PER_SHRINK = 4  # steps between removals of finished sentences, which wait for the device


def translate_ids(
    model: Transformer,
    sources: Sequence[Sequence[int] | NDArray[np.int32]],
    *,
    batch_tokens: int,
    beam_size: int,
    length_penalty: float,
    prefix: Sequence[int] = (),
) -> list[list[int]]:
    """Translate sources, including prefix and EOS; return target ids without EOS in the order of the sources.

    A target has at most 50 tokens more than its source. `batch_tokens` is the most source tokens decoded together,
    padding included; `prefix` starts every target. Call inside an autocast context for reduced precision.
    """
    translations: list[list[int]] = [[] for _ in sources]
    for rows in _by_length([len(source) for source in sources], batch_tokens):
        chosen = TokenBlock.of([sources[row] for row in rows])
        batch = make_batch(chosen, chosen, pad_id=model.config.pad_id).to(model.embedding.weight.device)
        search = _BeamSearch(
            model, batch.source_ids, batch.source_mask, beam_size=beam_size, length_penalty=length_penalty
        )
        for row, ids in zip(rows, search.run(prefix), strict=True):
            translations[row] = ids
    return translations


def translate_whole(
    model: Transformer, tokenizer: SentencePieceTokenizer, sources: Sequence[str], *, beam_size: int
) -> list[str]:
    """Translate texts, which are not split, on the device of the model: a GPU in bfloat16, a CPU in float32.

    Sources longer than a learned table of positions are cut.
    """
    device, longest = model.embedding.weight.device.type, model.config.max_positions
    encoded = [tokenizer.encode_pair(source, "")[0] for source in sources]
    if longest:
        encoded = [ids if len(ids) <= longest else [*ids[: longest - 1], ids[-1]] for ids in encoded]
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        targets = translate_ids(
            model,
            encoded,
            batch_tokens=_BATCH_TOKENS[device],
            beam_size=beam_size,
            length_penalty=DEFAULT_LENGTH_PENALTY,
            prefix=tokenizer.target_prefix,
        )
    return [tokenizer.decode(ids) for ids in targets]


class _BeamSearch:
    # B sentences that are not finished, K hypotheses of each; `_rows` [B] are their rows in the batch.

    @torch.inference_mode()
    def __init__(
        self,
        model: Transformer,
        source_ids: Tensor,
        source_mask: Tensor | None,
        *,
        beam_size: int,
        length_penalty: float,
    ) -> None:
        self._model, self._size, self._length_penalty = model, beam_size, length_penalty
        num_rows, device = len(source_ids), source_ids.device
        lengths = torch.full((num_rows,), source_ids.size(1)) if source_mask is None else source_mask.sum(dim=1)
        most = model.config.max_positions or 2 * source_ids.size(1) + EXTRA_TARGET_TOKENS
        self._limits = (lengths.to(device) + EXTRA_TARGET_TOKENS).clamp(max=most)
        self._cache = model.start(model.encode(source_ids, source_mask), source_mask)
        _select(self._cache, torch.arange(num_rows, device=device).repeat_interleave(beam_size))
        self._rows = torch.arange(num_rows, device=device)
        self._newest = torch.full((num_rows * beam_size,), model.config.start_id, device=device)
        self._history = self._newest.new_zeros((num_rows, beam_size, 0))
        self._scores = torch.full((num_rows, beam_size), -torch.inf, device=device)
        self._scores[:, 0] = 0.0
        self._num_ended = self._rows.new_zeros(num_rows)
        self._best_scores = torch.full((num_rows,), -torch.inf, device=device)
        self._best: list[list[int]] = [[] for _ in range(num_rows)]
        self._finished: list[tuple[Tensor, Tensor, Tensor]] = []  # which sentences improved, to what, of which rows

    @torch.inference_mode()
    def run(self, prefix: Sequence[int]) -> list[list[int]]:
        position = 0
        while len(self._rows):
            self._step(position, prefix[position] if position < len(prefix) else None)
            position += 1
            if position % _STEPS_PER_SHRINK == 0 or position >= int(self._limits.max()):
                self._shrink(position)
        return self._best

    def _step(self, position: int, forced: int | None) -> None:
        size, eos_id = self._size, self._model.config.eos_id
        log_probs = self._model.step(self._newest, position, self._cache).view(len(self._rows), size, -1)
        vocabulary_size = log_probs.size(-1)
        if forced is not None:
            log_probs = torch.full_like(log_probs, -torch.inf)
            log_probs[..., forced] = 0.0
        # at most K of the best 2 K candidates end
        totals, flat = (self._scores[:, :, None] + log_probs).flatten(1).topk(2 * size)
        parents, tokens = flat // vocabulary_size, flat % vocabulary_size
        ends = tokens == eos_id
        self._finish(totals, parents, ends, length=position + 1)
        self._scores, kept = totals.masked_fill(ends, -torch.inf).topk(size)
        parents, tokens = parents.gather(1, kept), tokens.gather(1, kept)
        history = self._history.gather(1, parents[:, :, None].expand(-1, -1, position))
        self._history = torch.cat((history, tokens[:, :, None]), dim=2)
        self._newest = tokens.flatten()
        first = torch.arange(len(self._rows), device=parents.device)[:, None] * size
        _select(self._cache, (first + parents).flatten(), own_only=True)

    def _finish(self, totals: Tensor, parents: Tensor, ends: Tensor, *, length: int) -> None:
        # Records the best hypothesis that ends among the first K candidates, or at the limit the best live one.
        ends = ends & (torch.arange(ends.size(1), device=ends.device) < self._size)
        is_last = (self._limits <= length)[:, None] & torch.isneginf(self._best_scores)[:, None] & ~ends.any(1, True)
        best, place = totals.masked_fill(~(ends | is_last), -torch.inf).max(dim=1)
        best = best / self._normalizer(length)
        improved = (best > self._best_scores) & (self._num_ended < self._size)
        self._num_ended = self._num_ended + ends.sum(dim=1)
        self._best_scores = torch.where(improved, best, self._best_scores)
        chosen = self._history.gather(1, parents.gather(1, place[:, None])[:, :, None].expand(-1, -1, length - 1))
        self._finished.append((self._rows, improved, chosen[:, 0]))

    def _shrink(self, position: int) -> None:
        # Takes finished hypotheses to the host and drops sentences that can't get better ones.
        for rows, improved, chosen in self._finished:
            for row, ids in zip(rows[improved].tolist(), chosen[improved].tolist(), strict=True):
                self._best[row] = ids
        self._finished.clear()
        is_better = self._scores[:, 0] / self._normalizer(position) > self._best_scores
        is_live = is_better & (self._num_ended < self._size) & (self._limits > position)
        kept = is_live.nonzero()[:, 0]
        if len(kept) == len(self._rows):
            return
        self._rows, self._limits = self._rows[kept], self._limits[kept]
        self._history, self._scores = self._history[kept], self._scores[kept]
        self._num_ended, self._best_scores = self._num_ended[kept], self._best_scores[kept]
        rows = (kept[:, None] * self._size + torch.arange(self._size, device=kept.device)).flatten()
        self._newest = self._newest[rows]
        _select(self._cache, rows)

    def _normalizer(self, length: int) -> float:
        # Wu et al. 2016 (arXiv:1609.08144), equation 14, as in the service
        return float(((5 + length) / 6) ** self._length_penalty)


def _select(cache: DecoderCache, rows: Tensor, *, own_only: bool = False) -> None:
    # Keeps rows of the cache in this order; `own_only`: of the target, because the sources do not change.
    cache.layers = tuple(tuple(part[rows] for part in state) for state in cache.layers)
    if own_only:
        return
    cache.cross_attention = tuple((key[rows], value[rows]) for key, value in cache.cross_attention)
    cache.mask = None if cache.mask is None else cache.mask[rows]


def _by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        size = max(1, batch_tokens // lengths[order[0]])
        yield order[:size]
        order = order[size:]
