import numpy as np
import pytest

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.text.alignment import Offset, Weights, align, alignment_layer, head_average, shifted


def _pieces(marked: str) -> tuple[str, list[Offset]]:
    """Return a text whose pieces are separated by `|`, and the offset of each piece; none if it is empty."""
    pieces = marked.split("|") if marked else []
    ends = np.cumsum([len(piece) for piece in pieces]).tolist()
    return "".join(pieces), list(zip([0, *ends], ends, strict=False))


def _align(weights: Weights, source: str, target: str) -> list[tuple[str, str, float]]:
    """Return the linked source, the linked target and the weight of each link of two texts."""
    source_text, source_offsets = _pieces(source)
    target_text, target_offsets = _pieces(target)
    links = align(
        weights, source=source_text, source_offsets=source_offsets, target=target_text, target_offsets=target_offsets
    )
    assert all(0 <= link.weight <= 1 for link in links)
    return [
        (source_text[one.source.start : one.source.end], target_text[one.target.start : one.target.end], one.weight)
        for one in links
    ]


@pytest.mark.parametrize(("num_layers", "layer"), [(1, 0), (2, 1), (3, 1), (6, 4)])
def test_last_layer_but_one_is_read_in_deep_decoders(num_layers: int, layer: int) -> None:
    attention = np.zeros((num_layers, 2, 1, 1), dtype=np.float32)
    attention[layer, 1] = 1.0

    assert alignment_layer(num_layers) == layer
    assert head_average(attention) == 0.5


ALIGNMENTS = {
    "most attention": (
        [[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.0, 0.1, 0.9]],
        "I| see",
        "seh| ich",
        [("see", "seh", 0.7), ("I", "ich", 0.6)],
    ),
    "EOS is ignored": ([[0.2, 0.8], [0.9, 0.1]], "I", "ich", [("I", "ich", 0.2)]),
    "tokens of a word with the same source": (
        [[0.5, 0.0], [0.7, 0.0], [0.9, 0.1]],
        "house|s",
        "Häu|ser| Haus",
        [("house", "Häuser", 0.6), ("house", "Haus", 0.9)],
    ),
    "full stop is outside words": (
        [[0.9, 0.1], [0.8, 0.2]],
        "house",
        "Haus|.",
        [("house", "Haus", 0.9), ("house", ".", 0.8)],
    ),
    "tokens of a word with different sources": (
        [[0.9, 0.1], [0.2, 0.8]],
        "front| door",
        "Haus|tür",
        [("front", "Haus", 0.9), ("door", "tür", 0.8)],
    ),
    "tokens of one character": ([[0.3, 0.2, 0.2, 0.3], [0.6, 0.1, 0.1, 0.2]], "a|||é", "|ß", [("é", "ß", 0.55)]),
    "white space belongs to the next token": (
        [[0.1, 0.2, 0.7], [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]],
        "a| |b",
        "x| |y",
        [("b", "x", 0.9), ("b", "y", 0.6)],
    ),
    "white space at the end": (
        [[0.4, 0.3, 0.3], [0.8, 0.1, 0.1], [0.2, 0.1, 0.7]],
        "a|b| ",
        "x| y| ",
        [("b", "x", 0.6), ("a", "y", 0.5)],
    ),
    "weight of at most 1": ([[0.6, 0.4000001]], "|a", "x", [("a", "x", 1.0)]),
    "source without visible characters": ([[1.0, 0.0], [0.0, 1.0]], " ", "x", []),
    "target without visible characters": ([[1.0, 0.0], [0.0, 1.0]], "a", " ", []),
    "no tokens": ([[1.0, 0.0], [0.0, 1.0]], "", "", []),
    "no target": ([[1.0, 0.0], [0.0, 1.0]], "a", "", []),
}


@pytest.mark.parametrize(("weights", "source", "target", "links"), ALIGNMENTS.values(), ids=ALIGNMENTS)
def test_target_tokens_are_linked_to_the_source_with_the_most_attention(
    weights: list[list[float]], source: str, target: str, links: list[tuple[str, str, float]]
) -> None:
    aligned = _align(np.array(weights, dtype=np.float32), source, target)

    assert [(*texts, round(weight, 4)) for *texts, weight in aligned] == links


def test_shifted_links_index_the_longer_texts() -> None:
    link = AlignmentLink(source=Span(start=0, end=2), target=Span(start=1, end=3), weight=0.5)

    assert list(shifted([link], source_by=10, target_by=20)) == [
        AlignmentLink(source=Span(start=10, end=12), target=Span(start=21, end=23), weight=0.5)
    ]
