"""Number of draws of each training pair in an epoch: weights of files, or a temperature.

Weight 2.25 draws each pair of a file twice, and another quarter of the file a third time in each epoch.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

CopyArray = NDArray[np.int32]
_Item = TypeVar("_Item")


def temperature_weights(sizes: Sequence[int], groups: Sequence[Hashable], temperature: float) -> tuple[float, ...]:
    """Return the weight of each file that gives a group of n pairs a share proportional to n ** (1 / temperature).

    An epoch has as many pairs as the text (Arivazhagan et al. 2019, arXiv:1907.05019, section 4.2).

    Args:
        sizes: pairs of each file.
        groups: group of each file, such as its language pair.
        temperature: 1 keeps the sizes; larger values approach equal shares.
    """
    totals = Counter[Hashable]()
    for size, group in zip(sizes, groups, strict=True):
        totals[group] += size
    shares = {group: total ** (1 / temperature) for group, total in totals.items() if total}
    factor = sum(sizes) / sum(shares.values())
    return tuple(factor * shares[group] / totals[group] if totals[group] else 1.0 for group in groups)


def draw_copies(sizes: Sequence[int], weights: Sequence[float], *, seed: int, epoch: int) -> CopyArray:
    """Return how often each pair is drawn in an epoch [N], the pairs of all files in order."""
    files = enumerate(zip(sizes, weights, strict=True))
    return np.concatenate([_copies(size, weight, (seed, number), epoch) for number, (size, weight) in files])


def _copies(size: int, weight: float, seed: tuple[int, int], epoch: int) -> CopyArray:
    whole, fraction = divmod(weight, 1)
    copies = np.full(size, int(whole), np.int32)
    first, last = int(fraction * size * epoch), int(fraction * size * (epoch + 1))
    if first < last:
        # The samples of all epochs form an endless row of random orders, so each pair is drawn equally often.
        for number in range(first // size, (last - 1) // size + 1):
            order = np.random.default_rng((*seed, number)).permutation(size)
            copies[order[max(0, first - number * size) : last - number * size]] += 1
    return copies


def repeated(items: Iterable[_Item], copies: CopyArray) -> Iterator[_Item]:
    """Yield each item as often as `copies` [N] has it."""
    return chain.from_iterable(map(repeat, items, copies.data))
