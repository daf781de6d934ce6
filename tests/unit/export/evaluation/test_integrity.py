"""Generated texts, the check of their translations, and `dragoman export evaluate --integrity`."""

import json
import re
from collections import Counter
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dragoman_export.__main__ import main
from dragoman_export.evaluation.integrity import values
from dragoman_export.evaluation.integrity.cases import DIRECTIONS, FRAMES, KINDS, generate
from dragoman_export.evaluation.integrity.checks import Case, check_case
from dragoman_export.evaluation.integrity.measure import Answer, measure, table, with_totals
from dragoman_service.request import TextFormat
from tests.integrity_cases import CASES

GENERATED = generate(1800, seed=7)
HTML = {"format": TextFormat.HTML}
XML = {"format": TextFormat.XML}


def case(source: str, **fields: Any) -> Case:
    return Case(kind="number", source=source, source_language="en", target_language="de", **fields)


@pytest.mark.parametrize(
    ("source", "answer", "fields"),
    [
        # parts to keep
        ("See {n}.", "Siehe {n}.", {"keep": ("{n}",)}),
        ("It is 1,250.50 EUR.", "Es sind 1.250,50 EUR.", {"keep": (("1,250.50", "1.250,50"), ("EUR", "€"))}),
        ("It is $5.", "Es sind 5 Dollar.", {"keep": (("$", "Dollar"),)}),
        ("See %s and %s.", "Siehe %s und %s.", {"keep": ("%s",)}),
        ("Name\tCity", "Name\tStadt", {"keep": ("\t",)}),
        ("`a` is here.", "Hier ist `a`.", {"keep": ("`a`",)}),
        ("It is 2.", "Es sind 2.", {"keep": ("2",)}),
        ("<p>a &lt; b</p>", "<p>a &lt; b</p>", {"keep": ("&lt;",), **HTML}),
        ("<p>a &lt; b</p>", "<p>a &lt; b</p>", {"keep": ("<",), **HTML}),
        ("<p>AT&amp;T</p>", "<p>AT&amp;T</p>", {"keep": ("AT&T",), **HTML}),
        ("{a}x", "{a}x", {"keep": ("{a}",)}),
        ("[b]Go,[/b] now", "[b]Geh[/b], jetzt", {"keep": ("[b]", "[/b]")}),
        ("Go,  now", "Geh  jetzt", {"keep": ("  ",)}),
        # symbols, digits, quotation marks
        ("Ten percent", "Zehn %", {}),
        ("Ten dollars", "Zehn $", {}),
        ("He was 3rd in 2019.", "2019 war er 3.", {}),
        ('He said "no".', "Er sagte „nein“.", {}),
        ("Yes – no", "Ja - nein", {}),
        # empty and copied translations
        ("on", "an", {"is_translated": True}),
        ("!!!", "!!!", {"has_letters": False}),
        # endings
        ("Wait...", "Warte...", {"has_ending": True}),
        ("Note -", "Hinweis –", {"has_ending": True}),
        ("<b>Wait…</b>", "<b>Warte…</b>", {"has_ending": True, **HTML}),
        ("Hello ;)", "Hallo ;)", {"has_ending": True}),
        ("Wait", "Warte", {"has_ending": True}),
        # capitals
        ("GO HOME", "GEH NACH HAUSE", {"is_in_capitals": True}),
        ("GO TO {name}", "GEH ZU {name}", {"is_in_capitals": True, "keep": ("{name}",)}),
        # escapes
        (r"Don\'t go\n", r"Geh nicht\n", {"has_escapes": True}),
        (r"Say \"a\".", r"It isn't \"a\".", {"has_escapes": True}),
        (r"It\'s \u00e4", r"Das ist\'s \u00e4", {"has_escapes": True}),
        # markup
        ("<b>a</b> <i>c</i>", "<i>c</i> <b>a</b>", HTML),
        ("<b>a <i>c</i></b>", "<b><i>c</i> a</b>", HTML),
        ("a<br>b", "a<br>b", HTML),
        ("a <b></b> c", "a c <b></b>", HTML),
        ('to <x id="1"></x>.', 'zu <x id="1"></x>.', XML),
        ('un<x id="1"/>a', 'un<x id="1"/>a', XML),
        ("<b>c</i>", "<b>d</i>", HTML),
    ],
)
def test_intact_answer_has_no_damage(source: str, answer: str, fields: dict[str, Any]) -> None:
    assert check_case(case(source, **fields), answer) == []


@pytest.mark.parametrize(
    ("source", "answer", "fields", "problem"),
    [
        ("See {n}.", "Siehe n.", {"keep": ("{n}",)}, "occurs 0 times instead of 1"),
        ("See {n}.", "Siehe {n} {n}.", {"keep": ("{n}",)}, "occurs 2 times instead of 1"),
        ("See {n} now.", "Siehe {n}jetzt.", {"keep": ("{n}",)}, "touches a word"),
        ("See {n} now.", "Siehejetzt{n} nun.", {"keep": ("{n}",)}, "touches a word"),
        ("{n} files", "{n}-Dateien", {"keep": ("{n} ",)}, "occurs 0 times"),
        ("It is 95.00 EUR.", "Es sind 95.000 EUR.", {"keep": (("95.00", "95,00"),)}, "occurs 0 times"),
        ("It is 95.", "Es sind 1.95.", {"keep": ("95",)}, "occurs 0 times"),
        ("It is 95.", "Es sind 95,2.", {"keep": ("95",)}, "occurs 0 times"),
        ("Name\tCity", "Name Stadt", {"keep": ("\t",)}, "occurs 0 times"),
        ("Hello  you", "Hallo du", {"keep": ("  ",)}, "occurs 0 times"),
        ("<p>a &lt; b</p>", "<p>a b</p>", {"keep": ("<",), **HTML}, "occurs 2 times instead of 3"),
        ("<p>a &lt; b</p>", "<p>a b</p>", {"keep": ("&lt;",), **HTML}, "occurs 0 times"),
        ("a → b", "a POWERSHELL b", {}, "'POWERSHELL' appears"),
        ("a → b", "a \ufffd b", {}, "appears"),
        ("a [b] c", "a ⟪1⟫b⟪/1⟫ c", {}, "appears"),
        ("See 5.", "Nein 5.", {"never": ("Nein",)}, "'Nein' appears"),
        ("© 2026 Example", "® 2026 Beispiel", {}, "'®' was added"),
        ("£3", "©3", {}, "'©' was added"),
        ("bold", "**fett**", {}, "'*' was added"),
        ("in 2018", "in 18", {}, "digits '02' are missing"),
        ("1000000 people", "100000 Leute", {}, "digits '0' are missing"),
        ("in May", "im Mai 5", {}, "'5' were added"),
        ('He said "no".', "Er sagte nein“.", {}, "1 quotation marks instead of 2"),
        ("left", "", {}, "no letter or digit"),
        ("left", "--", {}, "no letter or digit"),
        ("<b>left</b>", "<b></b>", HTML, "no letter or digit"),
        ("GREEN", "GREEN", {"is_translated": True}, "copy of the source"),
        ("Undo", "undo ", {"is_translated": True}, "copy of the source"),
        ("Wait...", "Warte.", {"has_ending": True}, "ends with '.'"),
        ("Wait…", "Warte...", {"has_ending": True}, "ends with '...'"),
        ("Really?!", "Wirklich?", {"has_ending": True}, "ends with '?'"),
        ("Hello ;)", "Hallo;", {"has_ending": True}, "ends with ';'"),
        ("Wait", "Warte.", {"has_ending": True}, "ends with '.'"),
        ("Hello.", "Hallo!", {"has_ending": True}, "ends with '!'"),
        ("GO HOME", "GEH nach HAUSE", {"is_in_capitals": True}, "lower-case letters 'nach'"),
        (r"Mike\'s apple", r"Mike\s Apfel", {"has_escapes": True}, "incomplete escape"),
        (r"the \"window\"", r"das \"Fenster\ nicht", {"has_escapes": True}, "incomplete escape"),
        (r"Don\'t", "Tu's nicht", {"has_escapes": True}, "incomplete escape"),
        ("We sell <b>fresh</b> bread.", "Wir verkaufen <b></b>frisches Brot.", HTML, "<b> is empty"),
        ("<b>a</b> <b>c</b>", "<b>a c</b> <b></b>", HTML, "<b> is empty"),
        ("<b>a</b>", "a", HTML, "lost tags ['</b>', '<b>']"),
        ("<b>a</b>", "<i>a</i>", HTML, "added tags"),
        ("<b>a <i>c</i></b>", "<b>a <i>c</b></i>", HTML, "not nested"),
        ("a <b>c</b>", "a </b>c<b>", HTML, "not nested"),
        ('Save <x id="1"></x>.', 'Retten<x id="1"></x>.', XML, "touches a word"),
        ('Save <x id="1"/> now.', 'Rette <x id="1"/>nun.', XML, "touches a word"),
    ],
)
def test_damage_is_reported(source: str, answer: str, fields: dict[str, Any], problem: str) -> None:
    assert problem in "; ".join(check_case(case(source, **fields), answer))


def test_cases_are_divided_evenly_among_kinds_and_directions() -> None:
    counts = Counter((each.kind, each.source_language, each.target_language) for each in GENERATED)

    assert set(counts) == {(kind, *direction) for kind in KINDS for direction in DIRECTIONS}
    assert set(counts.values()) == {50}


def test_cases_depend_on_the_seed_only() -> None:
    assert generate(200, seed=7) == generate(200, seed=7)
    assert generate(200, seed=7) != generate(200, seed=8)


def test_cases_of_a_direction_do_not_depend_on_the_other() -> None:
    own = [each for each in GENERATED if each.source_language == "en"]

    assert generate(900, seed=7, directions=[("en", "de")]) == own


def test_sources_of_a_kind_are_distinct() -> None:
    assert len({(each.kind, each.source_language, each.source) for each in GENERATED}) == len(GENERATED)


def test_copy_of_the_source_is_intact_except_for_missing_translation() -> None:
    problems = {each.source: check_case(each, each.source) for each in GENERATED}

    assert set(chain(*problems.values())) == {"copy of the source"}


@pytest.mark.parametrize("kind", [kind for kind in KINDS if any(each.keep for each in GENERATED if each.kind == kind)])
def test_answer_without_a_kept_part_is_damaged(kind: str) -> None:
    own = [each for each in GENERATED if each.kind == kind and each.keep and each.format is TextFormat.PLAIN]

    assert len(own) >= 10
    for each in own:
        for kept in each.keep:
            (form,) = {form for form in ((kept,) if isinstance(kept, str) else kept) if form in each.source} or {""}
            assert check_case(each, each.source.replace(form, " ", 1) if form else ""), (each, kept)


@pytest.mark.parametrize("kind", ["number", "amount", "identifier"])
def test_changed_digit_is_damage(kind: str) -> None:
    for each in (each for each in GENERATED if each.kind == kind):
        for digit in re.finditer(r"\d", each.source):
            for changed in ("", digit[0] * 2, str((int(digit[0]) + 1) % 10)):
                answer = each.source[: digit.start()] + changed + each.source[digit.end() :]
                assert check_case(each, answer), answer


def test_every_family_has_twelve_frames_in_each_language() -> None:
    assert len(FRAMES) >= 12
    assert all(set(family) == {"en", "de"} for family in FRAMES.values())
    assert all(len(set(each)) == len(each) >= 12 for family in FRAMES.values() for each in family.values())


def test_values_cover_many_languages_and_frameworks() -> None:
    names = list(chain.from_iterable(values.NAMES.values()))

    assert len(values.NAMES) >= 15
    assert len(set(names)) >= 150
    assert not any(name.isascii() for name in names)
    assert len(values.PLACEHOLDERS) >= 40


@pytest.mark.parametrize(
    ("whole", "decimals", "accepted", "rejected"),
    [
        (
            "1250",
            "50",
            ["1,250.50", "1.250,50", "1250.50", "1250,50", "1 250,50"],
            ["1.250.50", "1,250,50", "12,50.50"],
        ),
        ("1000000", "", ["1000000", "1,000,000", "1.000.000", "1’000’000"], ["100,0000"]),
        ("95", "00", ["95.00", "95,00"], ["9500", "95"]),
        ("7", "", ["7"], ["7.0"]),
    ],
)
def test_number_forms_have_the_same_value(whole: str, decimals: str, accepted: list[str], rejected: list[str]) -> None:
    forms = values.number_forms(whole, decimals)

    assert set(accepted) <= set(forms)
    assert not set(rejected) & set(forms)


def test_generated_ibans_have_valid_check_digits() -> None:
    for seed in range(20):
        text = values.IDENTIFIERS["IBAN"](Random(seed)).replace(" ", "")  # noqa: S311
        assert re.fullmatch(r"DE\d{20}", text)
        assert int(text[4:] + "1314" + text[2:4]) % 97 == 1


def test_rows_count_damage_without_warnings() -> None:
    cases = [case("See 5."), case("See 6."), case("See 7.")]
    answers = [
        Answer(text="Siehe 5."),
        Answer(text="Siehe.", warnings=("NUMBER_CHANGED", "ENDING_CHANGED"), num_second_searches=1),
        Answer(text="Siehe.", num_second_searches=1),
    ]

    row, total = with_totals(measure(cases, answers))

    assert (row.num_cases, row.num_intact, row.num_silent, row.num_warnings, row.num_second_searches) == (3, 1, 1, 2, 2)
    assert row.intact_percent == pytest.approx(100 / 3)
    assert (total.kind, total.num_cases, total.num_silent) == ("all", 3, 1)
    assert len(table([row, total])) == 3


def test_test_data_has_all_kinds_and_fits_its_checks() -> None:
    assert {each.kind for each in CASES.values()} == set(KINDS)
    assert len(CASES) >= 120
    for each in CASES.values():
        assert set(check_case(each, each.source)) <= {"copy of the source"} | {
            f"{text!r} appears" for text in each.never
        }


def test_bundle_is_measured(fp32_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = tmp_path / "scores.json"
    flags = ["--integrity", "--integrity-cases", str(2 * len(KINDS)), "--beam", "1", "--scores", str(scores)]

    assert main(["evaluate", "--bundle", str(fp32_bundle), *flags]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(KINDS) + 1
    listed = json.loads(scores.read_text(encoding="utf-8"))
    assert [each["metric"] for each in listed] == ["intact"] * (len(KINDS) + 1)
    assert all(0 <= each["value"] <= 100 for each in listed)
    assert listed[-1]["data"] == f"{2 * len(KINDS)} generated texts, all, en to de"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--bundle", "missing"], "--data"),
        (["--target", "localhost:1", "--integrity"], "--integrity"),
        (["--bundle", "missing", "--integrity", "--integrity-cases", "3"], "--integrity-cases is 3"),
    ],
)
def test_flags_that_do_not_fit_are_rejected(flags: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *flags]) == 1

    assert message in capsys.readouterr().err
