"""How many candidates a step needs, and what the segments' own rules make of those the model gave."""

import numpy as np

from service.decoding.beam_state import BeamState
from service.decoding.constraints import CandidateRules
from service.decoding.step_model import FloatArray, IntArray, StepOutput


def num_candidates(state: BeamState, *, rules: CandidateRules) -> int:
    """C of the next step: what the neediest segment needs to search as if over the whole vocabulary."""
    most = rules.num_candidates(state.widest_beam)
    if not state.members.has_rules and not state.members.drawn:
        return most
    for segment, (own, sampler) in enumerate(zip(state.target_rules, state.samplers, strict=True)):
        if own is not None or sampler is not None:
            most = max(most, num_own_candidates(state, segment, rules=rules))
    return most


def num_own_candidates(state: BeamState, segment: int, *, rules: CandidateRules) -> int:
    """Return how many candidates one segment needs for itself, whatever its neighbours need."""
    own, sampler = state.target_rules[segment], state.samplers[segment]
    if state.lengths[segment] < state.prefix_lengths[segment]:
        return 1
    num_taken = sampler.num_choices(rules.vocabulary_size) if sampler else state.searches[segment].beam_size
    return rules.num_candidates(num_taken + (own.num_lowered if own else 0))


def ranked_candidates(state: BeamState, output: StepOutput, *, rules: CandidateRules) -> StepOutput:
    """Return as many candidates a row as the widest beam needs, after the segments' own rules have lowered some.

    So however many more the model gave because one segment needs them, the others rank no more than without it.
    """
    width = rules.num_candidates(state.widest_beam)
    if output.log_probs.shape[2] == width and not state.members.has_rules:
        return output
    log_probs, token_ids = output.log_probs[:, :, :width], output.token_ids[:, :, :width]
    ruled = [segment for segment, own in enumerate(state.target_rules) if own and not state.samplers[segment]]
    if ruled:
        log_probs, token_ids = log_probs.copy(), token_ids.copy()
    for segment in ruled:
        num_rows = min(state.num_live(segment), output.log_probs.shape[1])
        lowered = _lowered(state, segment, output.log_probs[segment, :num_rows], output.token_ids[segment, :num_rows])
        log_probs[segment, :num_rows], token_ids[segment, :num_rows] = (array[:, :width] for array in lowered)
    return StepOutput(log_probs=log_probs, token_ids=token_ids)


def drawn_candidates(
    state: BeamState, segment: int, output: StepOutput, *, rules: CandidateRules
) -> tuple[FloatArray, IntArray]:
    """Return log-probabilities, descending, and tokens [N, C] that the N live rows of a segment may draw.

    C depends on the segment alone; tokens not allowed have -inf.
    """
    rows, width = slice(state.num_live(segment)), num_own_candidates(state, segment, rules=rules)
    token_ids = output.token_ids[segment, rows, :width]
    forbids_eos = state.lengths[segment] < state.min_tokens[segment]
    allowed = rules.apply(
        StepOutput(log_probs=output.log_probs[None, segment, rows, :width], token_ids=token_ids[None]),
        forbids_eos=np.array([forbids_eos]),
    )
    return _lowered(state, segment, np.fmax(allowed[0], np.float32(-np.inf)), token_ids)


def _lowered(state: BeamState, segment: int, log_probs: FloatArray, token_ids: IntArray) -> tuple[FloatArray, IntArray]:
    """Return candidates [N, C] of a segment's live rows under its own rules, sorted again; ties keep their order."""
    own = state.target_rules[segment]
    lowered = own.apply(log_probs, token_ids) if own else log_probs
    order = (-lowered).argsort(axis=1, kind="stable")
    return np.take_along_axis(lowered, order, axis=1), np.take_along_axis(token_ids, order, axis=1)
