"""Plain PyTorch: the network that is trained, decoded with a cache and a batched beam search. A baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from export.graph.network import Network
from export.model.transformer import DecoderCache, Transformer
from loadtests.peers.models import network_of
from loadtests.peers.systems import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds
from service.decoding.scoring import score


class TorchSystem:
    """One process-wide thread pool, as PyTorch has it; streams and int8 are not for it."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        """Load the network."""
        self.model = self.load(network_of(files))
        self._num_threads = settings.num_threads

    def load(self, network: Network) -> Any:
        """Return the model of the library."""
        raise NotImplementedError

    def search(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        """Return the best hypothesis of each source of a batch, in order."""
        raise NotImplementedError

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in order; batches of similar length, one after another."""
        torch.set_num_threads(self._num_threads)
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        outputs: dict[int, Output] = {}
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            with torch.inference_mode():
                outputs.update(zip(batch, self.search([sources[index] for index in batch], search), strict=True))
        return [outputs[index] for index in range(len(sources))]

    def close(self) -> None:
        """Nothing to do."""


class PyTorchSystem(TorchSystem):
    """Our network and a search of a page."""

    def load(self, network: Network) -> Transformer:
        """Return the network in evaluation mode."""
        return load_network(network)

    def search(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        """Search a batch."""
        return _search(self.model, sources, search)


def load_network(network: Network) -> Transformer:
    """Return the PyTorch model with given weights, in evaluation mode."""
    model = Transformer(network.config).eval()
    model.load_state_dict({name: torch.tensor(weight) for name, weight in network.weights.items()})
    return model


def padded(sources: Sequence[TokenIds], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, S] and a mask [B, S] that is True at real tokens."""
    longest = max(map(len, sources))
    ids = torch.tensor([[*source, *[pad_id] * (longest - len(source))] for source in sources])
    lengths = torch.tensor([len(source) for source in sources])
    return ids, torch.arange(longest) < lengths[:, None]


@dataclass(slots=True)
class _Beams:
    """The search of one batch, changed in place."""

    log_probs: Tensor
    """[B, K]"""
    tokens: Tensor
    """[B, K, T], BOS not stored."""
    finished: list[list[Output]]
    """Of each segment, at most K count."""
    eos_id: int

    def is_over(self, beam_size: int) -> bool:
        return all(len(finished) >= beam_size for finished in self.finished)


def _search(model: Transformer, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
    num_beams, num_segments = search.beam_size, len(sources)
    cache = _start(model, sources, num_beams)
    log_probs = torch.full((num_segments, num_beams), -torch.inf)
    log_probs[:, 0] = 0.0  # the others are copies of it
    beams = _Beams(
        log_probs=log_probs,
        tokens=torch.zeros((num_segments, num_beams, 0), dtype=torch.int64),
        finished=[[] for _ in sources],
        eos_id=model.config.eos_id,
    )
    newest = torch.full((num_segments * num_beams,), model.config.bos_id)
    for position in range(search.longest_target(max(map(len, sources)))):
        steps = model.step(newest, position, cache)
        rows = _extend(beams, steps, search, is_barred=position < search.min_target_tokens)
        if beams.is_over(num_beams):
            break
        _reorder(cache, rows)
        newest = beams.tokens[:, :, -1].flatten()
    return [_best(beams, segment, search) for segment in range(num_segments)]


def _start(model: Transformer, sources: Sequence[TokenIds], num_beams: int) -> DecoderCache:
    ids, mask = padded(sources, model.config.pad_id)
    cache = model.start(model.encode(ids, mask), mask)
    repeated = tuple((_repeat(key, num_beams), _repeat(value, num_beams)) for key, value in cache.cross_attention)
    return DecoderCache(cross_attention=repeated, self_attention=None, mask=_repeat(mask[:, None, None, :], num_beams))


def _repeat(tensor: Tensor, num_beams: int) -> Tensor:
    return tensor.repeat_interleave(num_beams, dim=0)


def _extend(beams: _Beams, steps: Tensor, search: SearchOptions, *, is_barred: bool) -> Tensor:
    """Take the best 2K continuations: EOS among the first K finishes, the best K others live; return their rows."""
    num_segments, num_beams = beams.log_probs.shape
    vocabulary_size = steps.size(1)
    steps[:, list(search.suppressed_tokens)] = -torch.inf
    if is_barred:
        steps[:, beams.eos_id] = -torch.inf
    totals = beams.log_probs[:, :, None] + steps.view(num_segments, num_beams, vocabulary_size)
    best, flat = totals.flatten(1).topk(2 * num_beams)  # [B, 2K]
    tokens, parents = flat % vocabulary_size, flat // vocabulary_size
    is_eos = tokens == beams.eos_id
    _finish(beams, best, parents, is_eos[:, :num_beams], search)
    live = is_eos.long().argsort(dim=1, stable=True)[:, :num_beams]  # others first, each part in order
    tokens, parents = tokens.gather(1, live), parents.gather(1, live)
    beams.log_probs = best.gather(1, live)
    rows = (torch.arange(num_segments)[:, None] * num_beams + parents).flatten()
    history = beams.tokens.flatten(0, 1)[rows].view(num_segments, num_beams, -1)
    beams.tokens = torch.cat((history, tokens[:, :, None]), dim=2)
    return rows


def _finish(beams: _Beams, best: Tensor, parents: Tensor, is_eos: Tensor, search: SearchOptions) -> None:
    length = beams.tokens.size(2) + 1
    for segment, column in is_eos.nonzero().tolist():
        total = float(best[segment, column])
        if math.isfinite(total):
            history = beams.tokens[segment, parents[segment, column]].tolist()
            ranked = score(total, length=length, alpha=search.length_penalty)
            beams.finished[segment].append(Output(token_ids=(*history, beams.eos_id), score=ranked))


def _reorder(cache: DecoderCache, rows: Tensor) -> None:
    cache.self_attention = tuple((key[rows], value[rows]) for key, value in cache.self_attention or ())


def _best(beams: _Beams, segment: int, search: SearchOptions) -> Output:
    if finished := beams.finished[segment]:
        return max(finished[: search.beam_size], key=lambda output: output.score)
    tokens = beams.tokens[segment, 0].tolist()
    total = score(float(beams.log_probs[segment, 0]), length=len(tokens), alpha=search.length_penalty)
    return Output(token_ids=tuple(tokens), score=total)
