"""Which candidates a search may take: special tokens never, EOS not before the minimum length."""

import numpy as np
from numpy.typing import NDArray

from service.decoding.step_model import FloatArray, StepOutput, VocabularySpec

BoolArray = NDArray[np.bool_]


class CandidateRules:
    """The rules of one vocabulary, applied to the candidate arrays of a whole batch."""

    def __init__(self, vocabulary: VocabularySpec) -> None:
        self._eos_id = vocabulary.eos_id
        self._vocabulary_size = vocabulary.size
        special = {vocabulary.pad_id, vocabulary.bos_id, vocabulary.unk_id} - {vocabulary.eos_id}
        self._never = sorted(token for token in special if 0 <= token < vocabulary.size)
        # Added to a log-probability: 0 where a token is allowed, -inf where it never is.
        self._bias = np.zeros(vocabulary.size, dtype=np.float32)
        self._bias[self._never] = -np.inf

    def num_candidates(self, beam_size: int) -> int:
        """C that makes the search over candidates equal to the search over the whole vocabulary.

        Of one row, at most `beam_size` continuations survive and EOS may finish, so the best `beam_size + 1` allowed
        ones suffice; the forbidden ones may stand before them. A forbidden EOS takes the place of the allowed one.
        """
        return min(beam_size + 1 + len(self._never), self._vocabulary_size)

    def apply(self, output: StepOutput, *, forbids_eos: BoolArray) -> FloatArray:
        """Return the log-probabilities with those of forbidden candidates set to -inf.

        Args:
            output: candidates, [B, K, C].
            forbids_eos: [B] True for segments whose targets are still too short to end.
        """
        allowed: FloatArray = output.log_probs + self._bias[output.token_ids]
        if forbids_eos.any():
            allowed[(output.token_ids == self._eos_id) & forbids_eos[:, None, None]] = -np.inf
        return allowed
