"""Which set-ups of a system compete for being its best in a case."""

import itertools
from typing import Final

from loadtests.peers.cases import Case, Mode
from loadtests.peers.systems import Peer, Precision, SystemSettings

MANY_SOURCES: Final = 64
"""Above so many at once, systems cut the work into batches of a size that suits them."""

_BATCH_SIZES: Final = (16, 32, 64)


def contenders(
    case: Case, peer: Peer, precision: Precision, *, max_threads: int, isas: tuple[str, ...], mode: Mode
) -> list[SystemSettings]:
    """Return every set-up worth a try with at most `max_threads` busy cores.

    Args:
        case: whose calls must be cut into batches.
        peer: PyTorch and Transformers have one stream.
        precision: of the weights.
        max_threads: of all streams together.
        isas: instruction sets that CTranslate2 is tried with, the empty one for its own choice; the others at one batch
            size.
        mode: the short one tries fewer.
    """
    if case.kind == "agreement":
        return [SystemSettings(peer=peer, precision=precision, num_threads=max_threads)]
    has_streams = peer in ("dragoman", "ctranslate2") and case.call_size > 1
    layouts = _layouts(max_threads, max_streams=max_threads if has_streams else 1)
    found = []
    for (streams, threads), isa in itertools.product(layouts, isas if peer == "ctranslate2" else ("",)):
        found += [
            SystemSettings(
                peer=peer,
                precision=precision,
                num_streams=streams,
                num_threads=threads,
                batch_size=batch_size,
                isa=isa,
            )
            for batch_size in _batch_sizes(case.call_size, peer, streams, mode)[: 1 if isa else None]
        ]
    return found


def _layouts(max_threads: int, *, max_streams: int) -> list[tuple[int, int]]:
    """Return streams and the threads of each: powers of two, and all cores."""
    counts = sorted({max_threads, *(2**power for power in range(max_threads.bit_length()))})
    return [
        (streams, threads)
        for streams, threads in itertools.product(counts, counts)
        if streams <= max_streams and streams * threads <= max_threads
    ]


def _batch_sizes(call_size: int, peer: Peer, num_streams: int, mode: Mode) -> list[int]:
    share = -(-call_size // num_streams)
    if call_size > MANY_SOURCES:
        return list(_BATCH_SIZES[::2] if mode == "short" else _BATCH_SIZES)
    if mode == "short":
        return [share]
    if peer == "dragoman":  # deals shares by itself
        return sorted({min(16, share), share})
    return sorted({share, call_size})
