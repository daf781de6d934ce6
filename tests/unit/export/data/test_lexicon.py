import numpy as np
import pytest

from dragoman_export.data.lexicon import Lexicon, learn_lexicon, learn_translations

A, B, X, Y = range(4)
EMPTY_WORD = 4


def probability(lexicon: Lexicon, source: int, target: int) -> float:
    place = (lexicon.sources == source) & (lexicon.targets == target)
    return float(lexicon.probabilities[place].sum())


def test_first_iteration_counts_links_equally() -> None:
    first, second = (
        learn_lexicon([([A, B], [X, Y]), ([A], [X])], vocabulary_size=4, iterations=count) for count in (1, 2)
    )

    # In the first pair each of three sources has a third of either target; in the second each of two has a half of X.
    expected = {(A, X): 5 / 7, (A, Y): 2 / 7, (B, X): 1 / 2, (B, Y): 1 / 2, (EMPTY_WORD, X): 5 / 7}
    assert {link: probability(first, *link) for link in expected} == pytest.approx(expected)
    # At first every source gives either target with 1/2; then X and Y of the first pair, and X of the second.
    likelihoods = (5 / 7 + 1 / 2 + 5 / 7) / 3, (2 / 7 + 1 / 2 + 2 / 7) / 3, (5 / 7 + 5 / 7) / 2
    assert second.log_likelihoods == pytest.approx((3 * np.log(1 / 2), np.log(likelihoods).sum()))


def test_one_pair_disambiguates_another() -> None:
    das, haus, buch, ein, the, house, book, a = range(8)
    pairs = [([das, haus], [the, house]), ([das, buch], [the, book]), ([ein, buch], [a, book])]

    lexicon = learn_lexicon(pairs, vocabulary_size=8, iterations=50)

    for source, target in ((das, the), (haus, house), (buch, book), (ein, a)):
        assert probability(lexicon, source, target) > 0.95


def test_tokens_that_never_cooccur_have_no_entry() -> None:
    lexicon = learn_lexicon([([A], [X]), ([B], [Y]), ([], [X]), ([A], [])], vocabulary_size=4)

    links = list(zip(lexicon.sources.tolist(), lexicon.targets.tolist(), strict=True))
    assert links == [(A, X), (B, Y), (EMPTY_WORD, X), (EMPTY_WORD, Y)]


_NO_PAIR, _OUTSIDE = "no pair has tokens on both sides", "outside the vocabulary of 4"


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([], _NO_PAIR),
        ([([], [X])], _NO_PAIR),
        ([([A], [X]), ([4], [X])], _OUTSIDE),
        ([([A], [X]), ([A], [X, 4])], _OUTSIDE),
        ([([A], [X]), ([A, -1], [X])], _OUTSIDE),
        ([([A], [X]), ([A], [-1])], _OUTSIDE),
    ],
)
def test_invalid_text_is_rejected(pairs: list[tuple[list[int], list[int]]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn_lexicon(pairs, vocabulary_size=4)


def test_translations_must_be_likely_in_both_directions() -> None:
    pairs = [
        (f"the {noun} {verb} rare{noun}{number}".split(), f"das {other} {action} selten{noun}{number}".split())
        for noun, other in (("dog", "hund"), ("cat", "katze"))
        for verb, action in (("sees", "sieht"), ("hears", "hört"), ("bites", "beißt"))
        for number in range(4)
    ]

    found = learn_translations(pairs)
    without_articles = learn_translations(pairs, max_share=0.5)

    assert found["the"] >= {"das"}
    for word, other in (("dog", "hund"), ("cat", "katze"), ("sees", "sieht")):
        assert without_articles[word] == found[word] - {"das"} == {other}
    assert found.keys() == {"the", "dog", "cat", "sees", "hears", "bites"} == {"the", *without_articles}
    assert learn_translations(pairs, max_share=0.1) == {}


def test_text_without_frequent_words_has_no_translations() -> None:
    assert learn_translations([(["once"], ["einmal"])]) == {}
    assert learn_translations([]) == {}
