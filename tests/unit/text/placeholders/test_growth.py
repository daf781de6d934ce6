"""Text work is linear in the length of the text, and can be cancelled at any time."""

import sys
from collections.abc import Callable, Sequence
from itertools import islice
from types import FrameType
from typing import Any

import pytest

from dragoman_service.datatypes import SearchConfig, Segment
from dragoman_service.request import Term, TextFormat, TranslationOptions, TranslationRequest
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.planning import TextPlanner
from tests.unit.text.text_fakes import FakeModel

PLAIN, HTML, XML = TextFormat.PLAIN, TextFormat.HTML, TextFormat.XML
NUM_CHARACTERS = 2_400
MAX_GROWTH = 2.5  # of the work on twice the text; quadratic work grows by 4
MAX_LINES_BETWEEN_CHECKS = 10_000  # lines of Python, about 1 ms


def repeated(unit: str) -> Callable[[int], str]:
    return lambda length: unit * (length // len(unit))


def halves(first: str, second: str) -> Callable[[int], str]:
    return lambda length: first * (length // 2 // len(first)) + second * (length // 2 // len(second))


def numbers_and_blocks(length: int) -> str:
    numbers = " ".join(str(100_003 + 7 * index) for index in range(length // 14))
    return numbers + "<p><x/>a " * (length // 18)


SHAPES: dict[str, tuple[TextFormat, Callable[[int], str]]] = {
    "letters": (PLAIN, repeated("a")),
    "sentences": (PLAIN, repeated("One two. ")),
    "blank lines": (PLAIN, repeated(" \n")),
    "bullets": (PLAIN, repeated("-\n")),
    "braces": (PLAIN, repeated("{")),
    "placeholders": (PLAIN, repeated("{x} ")),
    "bars": (PLAIN, repeated("|a")),
    "bars of plurals": (PLAIN, repeated("{n} car|{n} cars\n")),
    "bars of Polyglot": (PLAIN, repeated("a||||")),
    "opened links": (PLAIN, repeated("[[")),
    "opened blocks of ERB": (PLAIN, repeated("<%")),
    "opened blocks of Jinja": (PLAIN, repeated("{%")),
    "percent signs": (PLAIN, repeated("%")),
    "variables": (PLAIN, repeated("$a")),
    "dollar signs": (PLAIN, repeated("$x^")),
    "nested templates": (PLAIN, repeated("${a{")),
    "closed templates": (PLAIN, halves("${{", "}}")),
    "choices of Java": (PLAIN, repeated("{0,choice,0#")),
    "closed choices of Java": (PLAIN, halves("{0,choice,0#", "}")),
    "selectors of Fluent": (PLAIN, repeated("{ $a -> *[b] c ")),
    "closed selectors of Fluent": (PLAIN, halves("{ $a -> *[b] ", "}")),
    "commands of LaTeX": (PLAIN, repeated("\\textbf{")),
    "nested commands of LaTeX": (PLAIN, lambda n: ("\\textbf{" * 15 + "b" + "}" * 15) * (n // 136)),
    "opened shortcodes": (PLAIN, repeated("[a b=c ")),
    "ended shortcodes": (PLAIN, halves("[abc]", "[/abd]")),
    "quotes": (PLAIN, repeated("''a ")),
    "options": (PLAIN, repeated("--ab=c.")),
    "values of options": (PLAIN, repeated(" --ab=" + "." * 100)),
    "calls": (PLAIN, repeated("a.b")),
    "calls without an end": (PLAIN, repeated("a::b->(")),
    "mentions": (PLAIN, repeated("@a.b")),
    "interpolations of Swift": (PLAIN, repeated("\\(a(b")),
    "superscripts in text": (PLAIN, repeated("m<sup>2</sup> ")),
    "opened superscripts": (PLAIN, repeated("m<sup>2")),
    "superscripts": (HTML, repeated("m<sup>2</sup> ")),
    "marks of notes": (HTML, repeated("note<sup>2</sup> ")),
    "names": (PLAIN, repeated("Agnieszka Łukasz ")),
    "opened tags in text": (PLAIN, halves("<b>", "</i>")),
    "ICU in quotes": (PLAIN, repeated("'{a,plural,one{' ")),
    "ICU with quoted heads": (PLAIN, lambda n: "{a,plural," + "one{ '{a,plural,one{ ' }" * (n // 24)),
    "ICU with number signs": (PLAIN, lambda n: "{a,plural,one{" + "#" * n + "}}"),
    "ICU heads": (PLAIN, repeated("{a,plural,one{")),
    "ICU nested": (PLAIN, lambda n: ("{a,plural,one{" * 15 + "b" + "}}" * 15) * (n // 241)),
    "opened tags": (HTML, halves("<b>", "</i>")),
    "opened tags before words": (HTML, halves("<b>", "word. ")),
    "nested tags": (HTML, halves("<b>", "</b>")),
    "tags of words": (HTML, repeated("<b>x</b> ")),
    "unclosed tags": (HTML, repeated("<a b='")),
    "paragraphs": (HTML, repeated("<p>x")),
    "texts of attributes": (HTML, lambda n: "a <b " + "title='a b' " * (n // 12) + ">c</b>"),
    "terms next to attributes": (HTML, repeated("<p>Foo</p><p>b <img alt='x y'> b</p>")),
    "numbers of the message": (HTML, numbers_and_blocks),
    "references": (HTML, repeated("&amp;")),
    "less-than signs": (HTML, repeated("<")),
    "open comments": (HTML, repeated("<!--")),
    "end tags without name": (HTML, repeated("</")),
    "nested code": (HTML, repeated("<code>")),
    "elements of XML": (XML, repeated("<a>x</a> ")),
    "attributes of XML": (XML, repeated("<a title='x'/>")),
}


class CountingBudget:
    """Counts the lines of Python that run between two checks, and ends the work after some of them."""

    def __init__(self, max_checks: int = sys.maxsize) -> None:
        self.num_lines = self.num_checks = self.most_lines = 0
        self._max_checks = max_checks
        self._checked_at = 0

    def check(self) -> None:
        self.num_checks += 1
        self.most_lines = max(self.most_lines, self.num_lines - self._checked_at)
        self._checked_at = self.num_lines
        if self.num_checks > self._max_checks:
            raise TimeoutError

    def check_sentence(self, num_tokens: int) -> None:
        self.check()

    def add(self, segments: Sequence[Segment]) -> None:
        self.check()

    def trace(self, _frame: FrameType, event: str, _argument: Any) -> Any:
        self.num_lines += event == "line"
        return self.trace


def planned(shape: str, length: int, budget: CountingBudget) -> CountingBudget:
    text_format, make_text = SHAPES[shape]
    options = TranslationOptions(format=text_format, terms=(Term(source="Foo", target="Bar"),))
    request = TranslationRequest(
        texts=(make_text(length),), source_language="en", target_language="de", options=options
    )
    planner = TextPlanner(request, model=FakeModel(), search=SearchConfig(), budget=budget, has_attention=True)
    traced = sys.gettrace()
    sys.settrace(budget.trace)
    try:
        planner.plan()
    finally:
        sys.settrace(traced)
    budget.check()
    return budget


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_work_is_linear_in_the_length(shape: str) -> None:
    once, twice = (planned(shape, length, CountingBudget()) for length in (NUM_CHARACTERS, 2 * NUM_CHARACTERS))

    assert twice.num_lines < MAX_GROWTH * once.num_lines + 1000


def test_units_share_the_search_for_free_numbers() -> None:
    budget = CountingBudget()
    placeholders = Placeholders("In 2013 and 1985.", check=budget.check)
    num_checks = budget.num_checks

    units = [list(islice(placeholders, 3)) for _ in range(100)]

    assert units == [["1947", "1962", "2006"]] * 100
    assert budget.num_checks == num_checks > 0


def test_planning_checks_every_few_milliseconds(shape: str) -> None:
    assert planned(shape, NUM_CHARACTERS, CountingBudget()).most_lines < MAX_LINES_BETWEEN_CHECKS


def test_planning_ends_at_the_check_that_raises(shape: str) -> None:
    budget = CountingBudget(max_checks=2)

    with pytest.raises(TimeoutError):
        planned(shape, NUM_CHARACTERS, budget)

    assert budget.num_checks == 3
