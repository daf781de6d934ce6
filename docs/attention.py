"""Measure where the attention heads of a bundle point: at neighbouring tokens, or at the aligned source word.

The network reads sources and references. The aligned word of a target token contains the source token with the highest
probability by IBM Model 1 (`dragoman_export.data.lexicon`), if the other direction selects the same pair of tokens.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import one_hot

from dragoman_export.cli.plot import attention_weights
from dragoman_export.data.lexicon import DoubleArray, Lexicon, learn_lexicon
from dragoman_export.data.reader import Pair
from dragoman_export.trained_model import open_model
from loadtests.report.report import new_figure

PLACES = {  # where the heads of a stack can point
    "encoder": ("previous", "same", "next"),
    "decoder": ("previous", "same"),
    "cross": ("aligned",),
}
SHIFTS = {"previous": -1, "same": 0, "next": 1}
UNIFORM = "uniform"  # a head with equal weights


def head_shares(bundle: Path, sample: Sequence[Pair], text: Sequence[Pair]) -> dict[str, Any]:
    """Return shares by stack, head (`LAYER.HEAD` or `uniform`) and place; alignments are learned from `text`.

    `weight` is the mean attention weight on a place, `maximum` the share of queries with the largest weight there.
    Queries without the place, such as the first token, which has no previous one, do not count.
    """
    torch.set_num_threads(1)
    model, tokenizer = open_model(bundle)
    ids = [(tokenizer.encode(pair.source), tokenizer.encode_target(pair.target)) for pair in text]
    size = max(model.config.vocabulary_size, model.config.num_source_tokens)
    forward, backward = (
        learn_lexicon(pairs, vocabulary_size=size) for pairs in (ids, [(target, source) for source, target in ids])
    )
    sums: dict[tuple[str, str, str], Any] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for pair in sample:
        source, target = tokenizer.encode_pair(pair.source, pair.target)
        words = np.cumsum([piece.startswith("▁") for piece in tokenizer.source_pieces(source)]).tolist()
        aligned = aligned_words(source, target, words, forward, backward)
        for stack, weights in attention_weights(model, source, target).items():
            largest = one_hot(weights.argmax(dim=-1), weights.size(-1))
            uniform = torch.ones(weights.shape[-2:])
            uniform = uniform.tril() if stack == "decoder" else uniform
            for place in PLACES[stack]:
                points = aligned if place == "aligned" else torch.eye(len(weights[0, 0])).roll(SHIFTS[place], -1)
                points = points.triu() if place == "next" else points.tril() if place == "previous" else points
                rows = points.any(dim=-1)
                counts[stack, place] += int(rows.sum())
                for kind, shares in (("weight", weights), ("maximum", largest)):
                    sums[stack, place, kind] += (shares * points).sum(dim=-1)[..., rows].sum(dim=-1)
                sums[stack, place, UNIFORM] += float(((points * uniform).sum(-1) / uniform.sum(-1))[rows].sum())
    return {
        stack: {
            **{
                f"{layer + 1}.{head + 1}": {
                    place: {
                        kind: float(sums[stack, place, kind][layer, head]) / counts[stack, place]
                        for kind in ("weight", "maximum")
                    }
                    for place in places
                }
                for layer, head in np.ndindex(*sums[stack, places[0], "weight"].shape)
            },
            UNIFORM: {place: {"weight": sums[stack, place, UNIFORM] / counts[stack, place]} for place in places},
        }
        for stack, places in PLACES.items()
    }


def aligned_words(
    source: Sequence[int], target: Sequence[int], words: Sequence[int], forward: Lexicon, backward: Lexicon
) -> Tensor:
    """Return float [T, S]: 1 at the tokens of the source word that is aligned with a target token.

    `words` are the numbers of the source tokens' words. EOS, the last token of both sides, is not aligned.
    """
    points = torch.zeros(len(target), len(source))
    likely = probabilities(forward, source[:-1], target[:-1])  # [S, T]
    sources = likely.argmax(axis=0)
    targets = probabilities(backward, target[:-1], source[:-1]).argmax(axis=0)
    for place, token in enumerate(sources):
        if targets[token] == place and likely[token, place] > 0:
            points[place, torch.tensor(words) == words[token]] = 1
    return points


def probabilities(lexicon: Lexicon, sources: Sequence[int], targets: Sequence[int]) -> DoubleArray:
    """Return t(target | source) [S, T]; 0 for tokens that do not occur together."""
    known = lexicon.sources * lexicon.vocabulary_size + lexicon.targets
    keys = np.add.outer(np.array(sources) * lexicon.vocabulary_size, np.array(targets))
    indices = np.searchsorted(known, keys).clip(max=len(known) - 1)
    return np.where(known[indices] == keys, lexicon.probabilities[indices], 0.0)


def preferred(head: Mapping[str, Mapping[str, float]]) -> str:
    """Return the place with most of the largest weights of a head."""
    return max(head, key=lambda place: head[place]["maximum"])


def plot_heads(found: Mapping[str, Any]) -> Figure:
    """Draw the preferred place of each head and its share of the largest weights, by model and stack."""
    figure, axes = new_figure(len(found), len(PLACES), size=(10, 4.2 * len(found)))
    panels = [(model, stack) for model in found for stack in PLACES]
    for axis, (model, stack) in zip(axes, panels, strict=True):
        heads = {name: head for name, head in found[model][stack].items() if name != UNIFORM}
        places = {tuple(int(part) for part in name.split(".")): preferred(head) for name, head in heads.items()}
        shares = np.zeros(np.max(list(places), axis=0))
        for (layer, head), place in places.items():
            shares[layer - 1, head - 1] = share = heads[f"{layer}.{head}"][place]["maximum"]
            color = "black" if share > 0.6 else "white"
            axis.text(head, layer, f"{place}\n{share:.0%}", ha="center", va="center", fontsize=8, color=color)
        extent = (0.5, shares.shape[1] + 0.5, shares.shape[0] + 0.5, 0.5)
        axis.imshow(shares, vmin=0, vmax=1, cmap="viridis", extent=extent, aspect="auto")
        ticks = {"xticks": range(1, shares.shape[1] + 1), "yticks": range(1, shares.shape[0] + 1)}
        axis.set(title=f"{model}: {stack}", xlabel="head", ylabel="layer", **ticks)
    return figure
