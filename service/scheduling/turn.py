"""What one turn of a batch did and took: the facts from which answers, metrics and the forecast are made."""

from dataclasses import dataclass, field

from service.decoding.running_batch import EndedSegment
from service.scheduling.batching import BatchLoad


@dataclass(slots=True, kw_only=True)
class Turn:
    """Newcomers were encoded and a step was taken, or nothing of it if nobody was left; filled in as it goes."""

    newcomers: tuple[int, ...] = ()
    """Keys of the segments that were encoded."""

    num_encoded_tokens: int = 0
    """Source tokens of the newcomers."""

    encode_began_s: float = 0.0
    """On the batch's clock."""

    encode_s: float = 0.0
    """Seconds of their encoder runs, as are the other times."""

    load: BatchLoad = field(default_factory=BatchLoad)
    """Of those who took part in the step."""

    step_rows: int = 0
    """Rows that the network stepped: those of each segment, dead ones counted, times segments."""

    num_rows: int = 0
    """Beams of all segments of the step together; 0 if there was none."""

    step_s: float = 0.0
    step_ended_s: float = 0.0
    """On the batch's clock."""

    ended: tuple[EndedSegment, ...] = ()
    """Who ended with the step; handles are keys."""

    late: tuple[int, ...] = ()
    """Keys of those who were dropped after the step, as their deadline had passed."""

    fault: str = ""
    """What was raised, as Python prints it."""

    lost: tuple[int, ...] = ()
    """Keys of those who were in the batch when it was raised, newcomers included: nobody is in it any more."""

    busy_s: float = 0.0
    """The whole turn."""

    num_tokens: int = 0
    """Source tokens of the segments that ended."""

    num_steps: int = 0
    """Steps that the segments that ended took part in, added up."""

    @property
    def work(self) -> int:
        """Work tokens done: source tokens encoded, and rows that took a step."""
        return self.num_encoded_tokens + self.num_rows
