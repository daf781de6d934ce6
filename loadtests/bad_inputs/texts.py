"""Kinds of input that are bad by their text, and otherwise in order."""

import random
from collections.abc import Callable
from typing import Final

from dragoman.v1 import translation_pb2 as pb

from loadtests.bad_inputs import characters
from loadtests.bad_inputs.characters import CHARACTER_SHAPES, Shape
from loadtests.bad_inputs.inputs import (
    LEFT,
    OK,
    Content,
    Draw,
    Expected,
    Method,
    document_content,
    possibly,
    translate_content,
)
from loadtests.bad_inputs.structures import STRUCTURE_SHAPES

SHAPES: Final = {**CHARACTER_SHAPES, **STRUCTURE_SHAPES}
"""Every shape of text, by name."""

_ROWS_PER_INPUT: Final = 8
_SMALL_CHARACTERS: Final = 300
_LARGE_SHARE: Final = 0.03
_RICH_SHARE: Final = 0.1
_RICH_CHARACTERS: Final = 40
"""An answer with attention has room for so many tokens only, of which a character may make dozens."""

_ANSWERED_CHARACTERS: Final = 2000
"""Texts up to this must be translated; longer ones may come to more tokens than a request may have."""

_LEAVES_AFTER: Final = 2


def unicode_rows(draw: Draw) -> Content:
    """Return characters of rows of the code space; so many inputs one after the other have all of it."""
    rows = [
        characters.row((draw.index * _ROWS_PER_INPUT + offset) % characters.NUM_ROWS, draw.generator)
        for offset in range(_ROWS_PER_INPUT)
    ]
    texts = [
        text if draw.generator.random() < 0.5 else f"A man {text} reads."
        for text in rows
        if text  # surrogates have no row of their own
    ] or ["A man."]
    return translate_content(draw.limits, *texts, expected=OK, method=_unary_or_stream(draw.generator))


def shaped(shape: Shape) -> Callable[[Draw], Content]:
    """Return a kind whose texts have this shape, of all lengths, over every method."""

    def content(draw: Draw) -> Content:
        generator = draw.generator
        is_large = generator.random() < _LARGE_SHARE
        size = generator.randint(1000, draw.limits.max_text_characters) if is_large else _small_size(generator)
        options = None if is_large or generator.random() > _RICH_SHARE else _rich_options(generator)
        if options:
            size = min(size, _RICH_CHARACTERS)
        if generator.random() < 0.2:
            text = shape(generator, size)
            expected = _expected(len(text), field="text")
            return document_content(draw.limits, text, expected=expected, options=_for_documents(options))
        num_texts = 1 if is_large or options else generator.choice((1, 1, 2, 5))
        texts = [shape(generator, max(1, size // num_texts)) for _ in range(num_texts)]
        expected = _expected(sum(map(len, texts)), field="texts")
        return translate_content(
            draw.limits, *texts, expected=expected, method=_unary_or_stream(generator), options=options
        )

    content.__doc__ = shape.__doc__
    return content


def megabytes(draw: Draw) -> Content:
    """Return a document of the greatest size, of any shape; whoever reads it leaves after a few sentences."""
    names = sorted(SHAPES)
    shape = SHAPES[names[draw.index % len(names)]]
    size = draw.limits.max_document_characters // draw.generator.choice((1, 2))
    unit = shape(draw.generator, 4096)
    text = (unit * (size // len(unit) + 1))[:size]
    expected = possibly(LEFT)
    return document_content(draw.limits, text, expected=expected, leaves_after=_LEAVES_AFTER)


def html_format(draw: Draw) -> Content:
    """Return HTML said to be HTML, which is refused where it is not implemented."""
    shape = draw.generator.choice((STRUCTURE_SHAPES["html-bombs"], STRUCTURE_SHAPES["entity-bombs"]))
    text = shape(draw.generator, draw.generator.choice((20, 400, 8000)))
    options = pb.DecodingOptions(format=pb.TEXT_FORMAT_HTML, beam_size=1, max_target_tokens=3)
    expected = possibly("UNIMPLEMENTED", field="options.format")
    if draw.generator.random() < 0.3:
        return document_content(draw.limits, text, expected=expected, options=options)
    method = _unary_or_stream(draw.generator)
    return translate_content(draw.limits, text, expected=expected, method=method, options=options)


def _expected(num_characters: int, *, field: str) -> Expected:
    return OK if num_characters <= _ANSWERED_CHARACTERS else possibly("INVALID_ARGUMENT", field=field)


def _small_size(generator: random.Random) -> int:
    """Return a size of which small ones are likelier."""
    return int(_SMALL_CHARACTERS ** generator.random())


def _unary_or_stream(generator: random.Random) -> Method:
    return generator.choice((Method.UNARY, Method.UNARY, Method.STREAM))


def _rich_options(generator: random.Random) -> pb.DecodingOptions:
    """Return options under which an answer holds everything that it can."""
    options = pb.DecodingOptions(
        beam_size=2,
        num_hypotheses=2,
        max_target_tokens=generator.choice((4, 16)),
        split_sentences=generator.random() < 0.7,
        return_scores=True,
        return_tokens=True,
        return_alignment=True,
    )
    if generator.random() < 0.5:
        options.return_attention = pb.ATTENTION_DETAIL_AVERAGED
    return options


def _for_documents(options: pb.DecodingOptions | None) -> pb.DecodingOptions | None:
    if options:
        options.ClearField("split_sentences")
    return options
