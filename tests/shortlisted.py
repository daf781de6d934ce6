"""Reference of a step with a shortlist, in NumPy on top of a model with the whole vocabulary."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dragoman_service.decoding.step_model import EncodedSource, IntArray, StepBatch, StepModel, StepOutput
from dragoman_service.runtimes.shortlist import Shortlist
from tests.fakes import WrappedBatch, WrappedModel


class ShortlistedModel(WrappedModel):
    """A model whose targets contain only tokens in the shortlist of their source."""

    def __init__(self, inner: StepModel, shortlist: Shortlist) -> None:
        super().__init__(inner)
        self.shortlist = shortlist

    def new_batch(self) -> StepBatch:
        """Return an empty running batch."""
        return _ShortlistedBatch(self, self.inner.new_batch())


class _ShortlistedBatch(WrappedBatch):
    def __init__(self, model: ShortlistedModel, inner: StepBatch) -> None:
        super().__init__(model, inner)
        self._shortlist = model.shortlist
        self._is_listed: list[NDArray[np.bool_]] = []  # [V] of each segment

    def start(self, sources: Sequence[EncodedSource]) -> None:
        super().start(sources)
        for source in sources:
            is_listed = np.zeros(self._shortlist.vocabulary_size, np.bool_)
            is_listed[self._shortlist.of(source.source_ids)] = True
            self._is_listed.append(is_listed)

    def step(self, token_ids: IntArray, parents: IntArray, *, num_candidates: int | IntArray) -> StepOutput:
        whole = super().step(token_ids, parents, num_candidates=self._shortlist.vocabulary_size)
        return restricted(whole, np.stack(self._is_listed), num_candidates=int(np.max(num_candidates)))

    def drop(self, keep: Sequence[int]) -> None:
        super().drop(keep)
        self._is_listed = [self._is_listed[index] for index in keep]


def restricted(whole: StepOutput, is_listed: NDArray[np.bool_], *, num_candidates: int) -> StepOutput:
    """Exclude tokens outside the shortlist of the segment from the softmax.

    Args:
        whole: all V tokens of every row [B, K, V], best first.
        is_listed: [B, V].
        num_candidates: C; where a list is shorter, tokens that are not listed follow, with minus infinity.
    """
    is_kept = np.take_along_axis(is_listed[:, None, :], whole.token_ids, axis=2)  # [B, K, V]
    log_probs = np.where(is_kept, whole.log_probs.astype(np.float64), -np.inf)
    log_probs -= np.logaddexp.reduce(log_probs, axis=2, keepdims=True)
    order = np.argsort(~is_kept, axis=2, kind="stable")[:, :, :num_candidates]
    return StepOutput(
        log_probs=np.take_along_axis(log_probs, order, axis=2).astype(np.float32),
        token_ids=np.take_along_axis(whole.token_ids, order, axis=2),
    )
