"""Hypotheses that grow side by side without competing: one token drawn at random for each, or forced on the only one.

They live in the rows of the running batch like the beams beside them.
"""

import numpy as np

from service.decoding.beam_state import BeamState, Survivors
from service.decoding.candidates import drawn_candidates
from service.decoding.constraints import CandidateRules
from service.decoding.finishing import Finisher
from service.decoding.sampling import Sampler
from service.decoding.step_model import FloatArray, IntArray, StepOutput


def force_token(state: BeamState, survivors: Survivors, segment: int) -> None:
    """Append the next token of a prefix: nothing is chosen, so nothing is added to the log-probability."""
    survivors.put(
        segment,
        log_probs=np.zeros(1),
        tokens=np.array([state.searches[segment].target_prefix[state.lengths[segment]]]),
        parents=np.zeros(1, np.int64),
        steps=np.zeros(1, np.float32),
    )


def draw_tokens(
    state: BeamState,
    survivors: Survivors,
    segment: int,
    *,
    sampler: Sampler,
    candidates: tuple[FloatArray, IntArray],
    eos_id: int,
    finisher: Finisher,
) -> None:
    """Append a token drawn at random to every chain of a segment; those that draw EOS finish.

    Args:
        state: before the step.
        survivors: of the step; the segment's rows are replaced.
        segment: index into the batch.
        sampler: of the segment.
        candidates: of its live rows, as `drawn_candidates` gives them.
        eos_id: token that ends a hypothesis.
        finisher: takes the chains that end.
    """
    parents = _parents(state, segment, candidates[0])
    choices, token_ids = candidates[0][parents], candidates[1][parents]
    columns = sampler.draw(choices)
    rows = np.arange(len(parents))
    tokens, steps = token_ids[rows, columns], choices[rows, columns]
    log_probs = state.log_probs[segment, parents] + steps
    is_eos = tokens == eos_id
    for row in is_eos.nonzero()[0].tolist():
        finisher.finish(
            segment, parent=int(parents[row]), log_prob=float(log_probs[row]), eos_log_prob=float(steps[row])
        )
    survivors.put(
        segment, log_probs=log_probs[~is_eos], tokens=tokens[~is_eos], parents=parents[~is_eos], steps=steps[~is_eos]
    )


def _parents(state: BeamState, segment: int, choices: FloatArray) -> IntArray:
    """Return the row that each chain continues; all begin in the same one. A chain without a possible token dies."""
    if state.lengths[segment] == state.prefix_lengths[segment]:
        choices = choices[[0] * state.searches[segment].num_hypotheses]
        parents = np.zeros(len(choices), np.int64)
    else:
        parents = np.arange(len(choices))
    return parents[np.isfinite(choices[:, 0])]


def advance_chains(
    state: BeamState,
    survivors: Survivors,
    output: StepOutput,
    *,
    rules: CandidateRules,
    eos_id: int,
    finisher: Finisher,
) -> Survivors:
    """Return the survivors of a step with the rows of the segments of `BeamState.steered` in place."""
    forced = state.forced
    for segment in forced:
        force_token(state, survivors, segment)
    for segment, sampler in enumerate(state.samplers):
        if sampler is not None and segment not in forced:
            survivors = survivors.widened(state.widest_beam)
            candidates = drawn_candidates(state, segment, output, rules=rules)
            draw_tokens(
                state,
                survivors,
                segment,
                sampler=sampler,
                candidates=candidates,
                eos_id=eos_id,
                finisher=finisher,
            )
    return survivors
