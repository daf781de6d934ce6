"""What one turn of a decoding thread did and took: the facts from which the forecast learns."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Turn:
    """Newcomers were encoded and a step was taken, or nothing of it if nobody was left; filled in as it goes."""

    num_encoded_tokens: int = 0
    """Source tokens of the newcomers."""

    encode_s: float = 0.0
    """Seconds of their encoder runs, as are the other times."""

    num_rows: int = 0
    """Beams of all segments of the step together; 0 if there was none."""

    step_s: float = 0.0
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
