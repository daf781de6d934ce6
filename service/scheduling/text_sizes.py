"""What texts come to that nobody has split or tokenized yet: segments and tokens, learned from those before."""

from collections.abc import Sequence

from service.datatypes import SearchConfig, Segment
from service.scheduling.estimate import Estimate

_STAND_IN_ID = 0


class TextSizes:
    """Learns how many segments, of how many tokens, a character makes; not thread-safe: the scheduler guards it."""

    def __init__(self) -> None:
        self._tokens_per_character = Estimate()
        self._segments_per_character = Estimate()

    def learn(self, num_characters: int, segments: Sequence[Segment]) -> None:
        """Take notice of what the texts of a request, of so many characters together, became."""
        if num_characters:
            num_tokens = sum(len(segment.source_ids) for segment in segments)
            self._tokens_per_character.record(num_tokens, per=num_characters)
            self._segments_per_character.record(len(segments), per=num_characters)

    def stand_ins(self, num_characters: int, search: SearchConfig) -> list[Segment]:
        """Return segments such as the texts of a request are expected to become; none as long as nothing is known."""
        tokens, segments = self._tokens_per_character.value, self._segments_per_character.value
        if not (num_characters and tokens and segments):
            return []
        num_segments = max(1, round(num_characters * segments))
        source_ids = (_STAND_IN_ID,) * max(1, round(num_characters * tokens / num_segments))
        return [Segment(source_ids=source_ids, search=search)] * num_segments
