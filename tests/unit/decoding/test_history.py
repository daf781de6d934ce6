import numpy as np

from service.decoding.beam_state import History


def take_step(history: History, tokens: list[list[int]], parents: list[list[int]]) -> None:
    """Let each segment take a step; the log-probability of a token is its number, negative."""
    history.record(np.array(tokens), np.array(parents), -np.array(tokens, np.float32))


def test_a_hypothesis_is_read_back_through_its_parents() -> None:
    history = History(1)
    take_step(history, [[10, 11]], [[0, 0]])
    take_step(history, [[20, 21]], [[1, 0]])
    take_step(history, [[30, 31]], [[1, 0]])

    assert history.trace(0, row=0, length=3) == ([10, 21, 30], [-10.0, -21.0, -30.0])
    assert history.trace(0, row=1, length=3) == ([11, 20, 31], [-11.0, -20.0, -31.0])
    assert history.trace(0, row=0, length=3, first=1) == ([21, 30], [-21.0, -30.0])
    assert history.trace(0, row=1, length=0) == ([], [])


def test_a_segment_may_move_and_join_late() -> None:
    history = History(2)
    take_step(history, [[10], [11]], [[0], [0]])
    history.keep([1])
    take_step(history, [[20]], [[0]])
    history.add_segments(1)
    take_step(history, [[30], [31]], [[0], [0]])
    history.keep([1, 0])
    take_step(history, [[41], [40]], [[0], [0]])

    assert history.trace(1, row=0, length=4)[0] == [11, 20, 30, 40]
    assert history.trace(0, row=0, length=2)[0] == [31, 41]


def test_steps_are_forgotten_with_the_last_segment_that_took_them() -> None:
    history = History(1)
    take_step(history, [[10]], [[0]])
    history.add_segments(1)
    take_step(history, [[20], [21]], [[0], [0]])

    history.keep([1])

    assert history.num_steps == 1
    assert history.trace(0, row=0, length=1)[0] == [21]

    history.keep([])

    assert history.num_steps == 0
