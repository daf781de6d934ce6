"""Plain PyTorch: our trained network with a KV cache and a batched beam search. A baseline."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dragoman_export.importers.bundle import read_network
from dragoman_export.model.transformer import DecoderCache, Transformer
from dragoman_export.onnx_export.network import Network
from dragoman_service.decoding.beam_state import score
from loadtests.benchmarks.interface import ModelFiles, Output, SearchOptions, SystemSettings, TokenIds


class System:
    """The network of our trainer, in the thread pool of PyTorch; no streams, no int8."""

    def __init__(self, files: ModelFiles, settings: SystemSettings) -> None:
        precision = torch.float16 if settings.precision == "fp16" else torch.float32
        self._model = self._load(network_of(files)).to(settings.device, precision)
        self._num_threads = settings.num_threads

    def translate(self, sources: Sequence[TokenIds], search: SearchOptions, *, batch_size: int) -> list[Output]:
        """Return the best hypothesis of each source, in batches of similar length."""
        torch.set_num_threads(self._num_threads)
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        outputs: dict[int, Output] = {}
        for first in range(0, len(order), batch_size):
            batch = order[first : first + batch_size]
            with torch.inference_mode():
                outputs.update(zip(batch, self._search([sources[index] for index in batch], search), strict=True))
        return [outputs[index] for index in range(len(sources))]

    def _load(self, network: Network) -> Any:
        return load_network(network)

    def _search(self, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
        return beam_search(self._model, sources, search)


def network_of(files: ModelFiles) -> Network:
    """Return the weights of a model."""
    return read_network(files.open(), "fp32")


def load_network(network: Network) -> Transformer:
    """Return the PyTorch model in evaluation mode."""
    model = Transformer(network.config).eval()
    model.load_state_dict({name: torch.tensor(weight) for name, weight in network.weights.items()})
    return model


def padded(sources: Sequence[TokenIds], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return token ids [B, S] and a mask [B, S] of real tokens."""
    longest = max(map(len, sources))
    ids = torch.tensor([[*source, *[pad_id] * (longest - len(source))] for source in sources])
    lengths = torch.tensor([len(source) for source in sources])
    return ids, torch.arange(longest) < lengths[:, None]


def beam_search(model: Transformer, sources: Sequence[TokenIds], search: SearchOptions) -> list[Output]:
    """Return the best hypothesis of each source of a batch.

    In each step, EOS among the best K continuations finishes a hypothesis, and the best K others of the best 2K stay
    live. The search ends when K hypotheses of each source have finished.
    """
    num_segments, num_beams, eos_id = len(sources), search.beam_size, model.config.eos_id
    cache = _start(model, sources, num_beams)
    log_probs = torch.full((num_segments, num_beams), -torch.inf)
    log_probs[:, 0] = 0.0  # the others are copies
    tokens = torch.full((num_segments, num_beams, 1), model.config.bos_id)
    finished: list[list[Output]] = [[] for _ in sources]
    for position in range(search.longest_target(sources)):
        steps = model.step(tokens[:, :, -1].flatten(), position, cache)
        steps[:, list(search.suppressed_tokens)] = -torch.inf
        if position < search.min_target_tokens:
            steps[:, eos_id] = -torch.inf
        totals = log_probs[:, :, None] + steps.view(num_segments, num_beams, -1)
        best, flat = totals.flatten(1).topk(2 * num_beams)  # [B, 2K]
        parents, newest = flat // steps.size(1), flat % steps.size(1)
        histories = tokens.gather(1, parents[:, :, None].expand(-1, -1, position + 1))
        extended = torch.cat((histories, newest[:, :, None]), dim=2)  # [B, 2K, T]
        is_eos = newest == eos_id
        for segment, column in is_eos[:, :num_beams].nonzero().tolist():
            if math.isfinite(best[segment, column]):
                finished[segment].append(_output(extended[segment, column], best[segment, column], search))
        if all(len(hypotheses) >= num_beams for hypotheses in finished):
            break
        live = is_eos.long().argsort(dim=1, stable=True)[:, :num_beams]  # stable: others first
        log_probs, parents = best.gather(1, live), parents.gather(1, live)
        tokens = extended.gather(1, live[:, :, None].expand(-1, -1, position + 2))
        rows = (torch.arange(num_segments)[:, None] * num_beams + parents).flatten()
        cache.self_attention = tuple((key[rows], value[rows]) for key, value in cache.self_attention or ())
    return [
        max(hypotheses[:num_beams], key=lambda output: output.score)
        if (hypotheses := finished[segment])
        else _output(tokens[segment, 0], log_probs[segment, 0], search)
        for segment in range(num_segments)
    ]


def _start(model: Transformer, sources: Sequence[TokenIds], num_beams: int) -> DecoderCache:
    ids, mask = padded(sources, model.config.pad_id)
    one = model.start(model.encode(ids, mask), mask)

    def repeated(tensor: Tensor) -> Tensor:
        return tensor.repeat_interleave(num_beams, dim=0)

    cross = tuple((repeated(key), repeated(value)) for key, value in one.cross_attention)
    return DecoderCache(cross_attention=cross, self_attention=None, mask=repeated(mask[:, None, None, :]))


def _output(tokens: Tensor, log_prob: Tensor, search: SearchOptions) -> Output:
    token_ids = tuple(tokens[1:].tolist())  # BOS first
    ranked = score(float(log_prob), length=len(token_ids), alpha=search.length_penalty)
    return Output(token_ids=token_ids, score=ranked)
