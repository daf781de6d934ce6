"""How a server over another system is set up."""

import re
from dataclasses import dataclass
from typing import Final

from loadtests.peers.systems import Peer, Precision, SystemSettings

PRECISIONS: Final[dict[Peer, Precision]] = {"ctranslate2": "int8", "transformers": "fp32"}
"""What can be served so, at the precision at which it is quickest: Transformers has no int8 on CPUs."""

_PATTERN: Final = re.compile(r"(\d+)x(\d+),b(\d+),w(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """The usual dynamic batching."""

    num_streams: int = 1
    """Batches translated at the same time; inter_threads of CTranslate2."""

    num_threads: int = 1
    """Threads of each; intra_threads of CTranslate2."""

    max_batch_size: int = 32
    """Most sentences of a batch."""

    max_wait_s: float = 0.005
    """How long the first sentence of a batch waits for others."""

    max_waiting: int = 4096
    """Most sentences that wait; callers who come then are refused."""

    @property
    def name(self) -> str:
        """Such as `2x1,b32,w5`: streams, threads of each, sentences of a batch, milliseconds of waiting."""
        return f"{self.num_streams}x{self.num_threads},b{self.max_batch_size},w{1000 * self.max_wait_s:g}"

    @classmethod
    def parse(cls, name: str) -> "BatchingSettings":
        """Return the settings of a name; ValueError if it is none."""
        match = _PATTERN.fullmatch(name)
        if match is None or not all(map(int, match.groups()[:3])):
            raise ValueError(f"{name!r}: expected STREAMSxTHREADS,bSENTENCES,wMILLISECONDS, such as 2x1,b32,w5")
        streams, threads, size = map(int, match.groups()[:3])
        wait_s = float(match.group(4)) / 1000
        return cls(num_streams=streams, num_threads=threads, max_batch_size=size, max_wait_s=wait_s)

    def of_system(self, peer: Peer) -> SystemSettings:
        """Return the settings of the system behind."""
        return SystemSettings(
            peer=peer,
            precision=PRECISIONS[peer],
            num_streams=self.num_streams,
            num_threads=self.num_threads,
            batch_size=self.max_batch_size,
        )
