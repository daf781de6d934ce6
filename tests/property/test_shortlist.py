"""Lexicons are probability distributions; shortlists hold the tokens with the best scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dragoman_export.data.lexicon import TokenPair, learn_lexicon
from dragoman_service.runtimes.shortlist import SIZE_STEP, Shortlist

V = 6
_SIDES = st.lists(st.integers(0, V - 1), min_size=1, max_size=5)
_TEXTS = st.lists(st.tuples(_SIDES, _SIDES), min_size=1, max_size=12)

_SIZE = 300


@given(pairs=_TEXTS, iterations=st.integers(1, 8))
def test_probabilities_of_each_source_token_sum_to_one(pairs: list[TokenPair], iterations: int) -> None:
    lexicon = learn_lexicon(pairs, vocabulary_size=V, iterations=iterations)

    sums = np.bincount(lexicon.sources, lexicon.probabilities, minlength=V + 1)
    sources = {token for source, _ in pairs for token in source} | {V}
    assert sums == pytest.approx([float(token in sources) for token in range(V + 1)])
    assert (np.diff(lexicon.sources * V + lexicon.targets) > 0).all()


@given(pairs=_TEXTS)
def test_no_iteration_lowers_the_likelihood(pairs: list[TokenPair]) -> None:
    log_likelihoods = np.array(learn_lexicon(pairs, vocabulary_size=V, iterations=8).log_likelihoods)

    assert (np.diff(log_likelihoods) >= -1e-9).all()
    assert (log_likelihoods <= 1e-9).all()


@given(pairs=_TEXTS, data=st.data())
def test_lexicon_is_independent_of_the_order_of_sentences(pairs: list[TokenPair], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(pairs))

    one, other = (learn_lexicon(text, vocabulary_size=V) for text in (pairs, shuffled))

    assert one.targets.tolist() == other.targets.tolist()
    assert one.probabilities == pytest.approx(other.probabilities)


@st.composite
def shortlists(draw: st.DrawFn) -> Shortlist:
    counts = draw(arrays.arrays(np.int32, _SIZE, elements=st.integers(0, 5), fill=st.just(0)))
    begins = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    token_ids = np.concatenate(
        [np.zeros(0, np.int32), *(draw(st.permutations(range(_SIZE)))[:count] for count in counts[counts > 0])]
    )
    probabilities = draw(
        arrays.arrays(np.float16, len(token_ids), elements=st.sampled_from([1.0, 0.5, 0.25, 0.01]), fill=st.just(0.1))
    )
    return Shortlist(
        threshold=draw(st.sampled_from([0.001, 0.1, 0.3, 1.0])),
        max_size=draw(st.sampled_from([64, 128, 256, _SIZE])),
        begins=begins,
        token_ids=token_ids.astype(np.int32),
        shares=draw(arrays.arrays(np.float32, _SIZE, elements=st.sampled_from([0.0, 0.125, 1.0]), fill=st.just(0.0))),
        probabilities=probabilities,
    )


@given(shortlist=shortlists(), source_ids=st.lists(st.integers(0, _SIZE - 1), max_size=40))
def test_shortlist_holds_the_best_tokens_above_the_threshold(shortlist: Shortlist, source_ids: list[int]) -> None:
    scores = shortlist.shares.astype(np.float64)
    for source in source_ids:
        for entry in range(shortlist.begins[source], shortlist.begins[source + 1]):
            scores[shortlist.token_ids[entry]] += float(shortlist.probabilities[entry])
    best_first = sorted(range(_SIZE), key=lambda token: (-shortlist.scores(source_ids)[token], token))

    listed = shortlist.of(source_ids)

    assert shortlist.scores(source_ids) == pytest.approx(scores)
    num_likely = int((shortlist.scores(source_ids) >= shortlist.threshold).sum())
    size = min(max(-(-num_likely // SIZE_STEP) * SIZE_STEP, SIZE_STEP), shortlist.max_size)
    assert listed.tolist() == sorted(best_first[:size])


@given(shortlist=shortlists())
def test_shortlist_can_be_written_and_read(shortlist: Shortlist) -> None:
    content = shortlist.to_bytes()

    assert Shortlist.from_bytes(content).to_bytes() == content


@given(shortlist=shortlists(), data=st.data())
def test_damaged_file_is_rejected_or_read_within_bounds(shortlist: Shortlist, data: st.DataObject) -> None:
    content = bytearray(shortlist.to_bytes())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3)):
        content[place] = data.draw(st.integers(0, 255))

    try:
        read = Shortlist.from_bytes(bytes(content))
    except ValueError:
        return

    listed = read.of(range(read.vocabulary_size))
    assert len(listed) <= read.max_size
