import re
from collections.abc import Sequence

import pytest

from dragoman_service.datatypes import AlignmentLink, Span
from dragoman_service.request import ProtectedKind, ProtectionOptions
from dragoman_service.text.placeholders.masking import Placeholders
from dragoman_service.text.placeholders.patterns import compile_protection
from dragoman_service.text.placeholders.placement import RepairAction
from dragoman_service.text.placeholders.protected_units import protected_units, with_placeholders
from dragoman_service.text.placeholders.restoration import Assembler, forced_prefix, restore
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.placeholders.text_units import TextUnit, plain_unit

REMOVED, INSERTED = RepairAction.REMOVED, RepairAction.INSERTED


def unit_of(text: str, placeholders: Sequence[str] = ()) -> TextUnit:
    protection = compile_protection(ProtectionOptions(), ())
    return protected_units(plain_unit(text), protection, Placeholders(text, placeholders))[0]


def links_of(unit: TextUnit, target: str, pairs: Sequence[tuple[str, str]]) -> list[AlignmentLink]:
    """Link the first occurrences of words."""
    links = []
    for source_word, target_word in pairs:
        start, position = unit.text.index(source_word), target.index(target_word)
        source = Span(start=start, end=start + len(source_word))
        linked = Span(start=position, end=position + len(target_word))
        links.append(AlignmentLink(source=source, target=linked, weight=0.5))
    return sorted(links, key=lambda link: link.target.start)


def assembled(
    text: str, unit: TextUnit, target: str, links: Sequence[AlignmentLink] | None
) -> tuple[str, list[RepairAction]]:
    restored = restore(unit, target, links)
    whole = Assembler(text, [(unit.source, restored.fragments)]).assemble()
    return whole.text, [repair.action for repair in restored.repairs]


@pytest.mark.parametrize(
    ("text", "target", "pairs", "expected", "actions"),
    [
        ("Hello {name}!", "Hallo 2013!", [("Hello", "Hallo"), ("!", "!")], "Hallo {name}!", []),
        (
            "Hello {name}, go!",
            "Geh, hallo!",
            [("Hello", "hallo"), ("go", "Geh"), ("!", "!")],
            "Geh, hallo {name}!",
            [INSERTED],
        ),
        ("Hello {name}", "Hallo 2013 und 2013", [("Hello", "Hallo"), ("Hello", "und")], "Hallo {name} und", [REMOVED]),
        ("I see <b>it</b>", "Es sehe ich", [("I", "ich"), ("see", "sehe"), ("it", "Es")], "<b>Es</b> sehe ich", []),
        ("{a} {b} x", "20131947 X", [("x", "X")], "{a} {b} X", []),
    ],
    ids=["replaced", "missing", "duplicated", "tag", "joined numbers"],
)
def test_codes_are_restored(
    text: str, target: str, pairs: list[tuple[str, str]], expected: str, actions: list[RepairAction]
) -> None:
    unit = unit_of(text)

    assert assembled(text, unit, target, links_of(unit, target, pairs)) == (expected, actions)


def test_elements_stay_nested_and_disjoint() -> None:
    text, target = "<x><y>a b</y></x> <z>c d</z>", "D A C B"
    unit = unit_of(text)
    links = links_of(unit, target, [("a", "A"), ("b", "B"), ("c", "C"), ("d", "D")])

    result, _ = assembled(text, unit, target, links)

    assert result.index("<x>") < result.index("<y>") < result.index("</y>") < result.index("</x>")
    assert result.index("</x>") < result.index("<z>") or result.index("</z>") < result.index("<x>")


@pytest.mark.parametrize(
    "text",
    [
        "{a}{b}",
        "x{a}y {b}1",
        "1{a}",
        "<b>a</b>b <i>{x}</i>",
        "a <img/> b",
        "a <m id=1 /> b",
        "a <m> b",
        "<b>Go <i>on</i></b>on",
        "<b> a </b> b.",
    ],
)
def test_text_translated_into_itself_is_unchanged(text: str) -> None:
    unit = unit_of(text)
    spans = [Span(start=i, end=i + 1) for i, character in enumerate(unit.text) if not character.isspace()]
    links = [AlignmentLink(source=span, target=span, weight=1.0) for span in spans]

    assert assembled(text, unit, unit.text, links) == (text, [])


@pytest.mark.parametrize("tag", ["<m id=1 />", "<m/>", '<my-icon name="a"/>'])
def test_unknown_empty_element_between_words_is_a_word(tag: str) -> None:
    assert unit_of(f"a {tag} b").text == "a 2013 b"


@pytest.mark.parametrize("text", ["a <img/> b", "a<m/> b", "a <m>b</m>"])
def test_other_tags_are_no_words(text: str) -> None:
    assert "2013" not in unit_of(text).text


def test_forced_prefix_contains_the_missing_placeholders() -> None:
    unit = unit_of("Hello {name}, go {x}!")
    target = "Hallo, geh 1947!"
    links = links_of(unit, target, [("Hello", "Hallo"), ("go", "geh"), ("!", "!")])

    assert forced_prefix(unit, target, links) == "Hallo 2013"
    assert forced_prefix(unit, "Hallo 2013, geh 1947!", None) is None
    assert forced_prefix(unit, "Hallo 2013 2013, geh 1947!", None) == ""


def test_trained_placeholders_precede_years_and_none_occurs_in_the_text() -> None:
    unit = unit_of("⟦2⟧ {a}, {b} in 2013, {c}{d}", ("⟦1⟧", "⟦2⟧", "⟦3⟧"))

    assert unit.text == "⟦2⟧ ⟦1⟧, ⟦3⟧ in 2013, 1947 1985"
    assert unit.placeholders == ["⟦1⟧", "⟦3⟧", "1947", "1985"]


@pytest.mark.parametrize(
    ("target", "expected", "actions"),
    [
        ("⟦2⟧-Klasse von ⟦1⟧2013", "{b}-Klasse von {a}{c}", []),
        ("5⟦1⟧⟦2⟧ 2013", "5{a}{b} {c}", []),
        ("⟦1⟧ ⟦2⟧ ⟦2⟧ 2013", "{a} {b} {c}", [REMOVED]),
        ("⟦1⟧ 12013", "{a} {b} 12013 {c}", [INSERTED, INSERTED]),
    ],
)
def test_placeholders_are_found_next_to_any_text(target: str, expected: str, actions: list[RepairAction]) -> None:
    text = "{a} {b} {c}"

    assert assembled(text, unit_of(text, ("⟦1⟧", "⟦2⟧")), target, None) == (expected, actions)


def plain(text: str, target: str, links: Sequence[AlignmentLink] | None = None, trained: Sequence[str] = ()) -> str:
    """Restore a translation of a text whose tags and names in braces are protected."""
    unit = plain_unit(text, has_escapes=True, has_accelerators=True)
    spans = [
        ProtectedSpan(
            span=Span(start=match.start(), end=match.end()),
            kind=ProtectedKind.TAG if match[0].startswith("<") else ProtectedKind.BRACES,
        )
        for match in re.finditer(r"<[^<>]*>|\{\w*\}|%(?:\d\$)?[sd]|#", unit.text)
    ]
    unit = with_placeholders(unit, spans, Placeholders(text, trained))
    return assembled(text, unit, target, links)[0]


def aligned(text: str, target: str, pairs: Sequence[tuple[str, str, float]]) -> str:
    """Restore the tags of a text from weighted links between the first occurrences of words."""
    visible = re.sub(r"<[^<>]*>", "", text)
    links = [
        AlignmentLink(
            source=Span(start=visible.index(word), end=visible.index(word) + len(word)),
            target=Span(start=target.index(other), end=target.index(other) + len(other)),
            weight=weight,
        )
        for word, other, weight in pairs
    ]
    return plain(text, target, sorted(links, key=lambda link: link.target.start))


@pytest.mark.parametrize(
    ("text", "target", "pairs", "expected"),
    [
        (  # an ending that comes from another word
            "We sell <b>fresh</b> bread",
            "Wir verkaufen frisches Brot",
            [
                ("We", "Wir", 0.7),
                ("sell", "verkaufen", 0.9),
                ("fresh", "frisc", 0.7),
                ("bread", "hes", 0.9),
                ("bread", "Brot", 0.95),
            ],
            "Wir verkaufen <b>frisches</b> Brot",
        ),
        (  # a word with a weak link at the left edge
            "Press <b>OK</b> now",
            "Drücken Sie OK jetzt",
            [("Press", "Drücken", 0.9), ("OK", "Sie", 0.3), ("OK", "OK", 0.9), ("now", "jetzt", 0.9)],
            "Drücken Sie <b>OK</b> jetzt",
        ),
        (
            "Open the <b>Settings</b> page",
            "Öffnen Sie die Seite Einstellungen",
            [
                ("Open", "Öffnen", 0.9),
                ("the", "Sie", 0.5),
                ("the", "die", 0.7),
                ("Settings", "Seite", 0.6),
                ("Settings", "Einstellungen", 0.9),
            ],
            "Öffnen Sie die Seite <b>Einstellungen</b>",
        ),
        (  # a word of the source without translation
            "Please <b>save</b> it",
            "Bitte speichern es",
            [("save", "Bitte", 0.8), ("save", "speichern", 0.9), ("it", "es", 0.9)],
            "Bitte <b>speichern</b> es",
        ),
        (
            "<b>Save</b> it please",
            "Sichern es bitte",
            [("Save", "Sichern", 0.9), ("it", "es", 0.9), ("please", "bitte", 0.9)],
            "<b>Sichern</b> es bitte",
        ),
        (  # only a function word
            "Home - <a>Contact</a>",
            "Startseite - die Kontakt",
            [("Home", "Startseite", 0.9), ("Contact", "die", 0.4), ("-", "Kontakt", 0.5)],
            "Startseite - die <a>Kontakt</a>",
        ),
        (
            "I like <i>red</i> wine",
            "Ich mag rot Wein",
            [("I", "Ich", 0.9), ("like", "mag", 0.9), ("red", "rot", 0.9), ("wine", "Wein", 0.9)],
            "Ich mag <i>rot</i> Wein",
        ),
        (  # a full stop that was outside
            "This is <b>important</b>.",
            "Das ist wichtig.",
            [("This", "Das", 0.9), ("is", "ist", 0.9), ("important", "wichtig", 0.9), ("important", ".", 0.9)],
            "Das ist <b>wichtig</b>.",
        ),
        (  # a comma that was outside of an element with a symbol
            "Type <b>x + z</b>, then go",
            "Tippen x + z, dann los",
            [("Type", "Tippen", 0.9), ("x", "x", 0.9), ("+", "+", 0.9), ("z", "z", 0.9), ("z", ",", 0.9)],
            "Tippen <b>x + z</b>, dann los",
        ),
        (
            "<b>Really</b>, yes!",
            "Wirklich, ja!",
            [("Really", "Wirklich", 0.9), ("Really", ",", 0.9), ("yes", "ja", 0.9), ("Really", "!", 0.9)],
            "<b>Wirklich</b>, ja!",
        ),
        (  # a full stop that was inside
            "Stop. <b>Now.</b>",
            "Halt. Jetzt!",
            [("Stop", "Halt", 0.9), (".", ".", 0.9), ("Now", "Jetzt", 0.9), ("Now", "!", 0.9)],
            "Halt. <b>Jetzt!</b>",
        ),
        (  # no link
            "un<b>believ</b>able story",
            "unglaubliche Geschichte",
            [("un", "unglaubliche", 0.9), ("story", "Geschichte", 0.9)],
            "<b>unglaubliche</b> Geschichte",
        ),
        (
            "Welcome <b>back</b> home",
            "Willkommen zurück daheim",
            [("Welcome", "Willkommen", 0.9), ("Welcome", "zurück", 0.4), ("home", "daheim", 0.9)],
            "Willkommen <b>zurück</b> daheim",
        ),
        (  # more elements than linked words
            "<b>A</b> <i>b</i> c",
            "Eins zwei drei",
            [("A", "Eins", 0.9), ("A", "zwei", 0.9), ("A", "drei", 0.9)],
            "<b>Eins zwei</b> <i>drei</i>",
        ),
        (
            "<a><b>Click</b> <i>here</i></a> now",
            "Jetzt hier klicken",
            [("now", "Jetzt", 0.9), ("now", "hier", 0.9), ("Click", "klicken", 0.9)],
            "Jetzt <a><i>hier</i> <b>klicken</b></a>",
        ),
        (  # two words of a compound
            "Read the <a>Nutzungsbedingungen</a>",
            "Lies usage conditions",
            [("Read", "Lies", 0.9), ("Nutzungs", "usage", 0.9), ("bedingungen", "conditions", 0.5)],
            "Lies <a>usage conditions</a>",
        ),
        (  # the better of two separate words
            "<i>Gestern</i> las ich",
            "I read it yesterday",
            [("Gestern", "I", 0.5), ("las", "read", 0.9), ("las", "it", 0.5), ("Gestern", "yesterday", 0.9)],
            "I read it <i>yesterday</i>",
        ),
    ],
)
def test_elements_enclose_the_words_that_translate_their_own(
    text: str, target: str, pairs: list[tuple[str, str, float]], expected: str
) -> None:
    assert aligned(text, target, pairs) == expected


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("{n} files were deleted.", "2013-Dateien wurden gelöscht.", "{n} Dateien wurden gelöscht."),
        ("{count} items", "2013-Elemente", "{count} Elemente"),
        ("%d new messages", "2013-neue Nachrichten", "%d neue Nachrichten"),
        ("%1$d files", "2013‑Dateien", "%1$d Dateien"),
        ("# files", "2013-Dateien", "# Dateien"),
        ("%s files", "2013-Dateien", "%s Dateien"),
        ("You have {count} points", "Du hast 2013-Punkte", "Du hast {count} Punkte"),
        ("File {n}", "Datei-2013", "Datei {n}"),
        ("Page {num} of {total}", "Seite-2013 von-1947", "Seite {num} von {total}"),
        ("{n} files in {count} folders", "2013-Dateien in 1947-Ordnern", "{n} Dateien in {count} Ordnern"),
        ("{n}-day trial", "2013-Tage-Test", "{n}-Tage-Test"),
        ("Top-{n} list", "Top-2013-Liste", "Top-{n} Liste"),
        ("{name} account", "2013-Konto", "{name}-Konto"),
        ("{n} files", "2013 - Dateien", "{n} - Dateien"),
        ("{n} files", "Anzahl: -2013", "Anzahl: -{n}"),
        ("{n} to {total}", "2013-1947", "{n}-{total}"),
        ("Galaxy {model}", "Galaxy-2013", "Galaxy {model}"),
        ("Send e-mail to {address}.", "Senden Sie E-Mail-2013.", "Senden Sie E-Mail {address}."),
        ("Module {name}", "Modul-2013", "Modul {name}"),
        ("in room {a} and {b}", "in Raum-2013 und-1947", "in Raum {a} und {b}"),
        ("in module {name}", "im Modul2013", "im Modul {name}"),
        ("in module {name} of {app}", "im Modul2013 von1947", "im Modul {name} von {app}"),
        ("module {name}", "модуль2013", "модуль {name}"),
        ("to {name}", "\u05dc2013", "\u05dc{name}"),  # a Hebrew prefix
        ("by {name}", "由2013", "由{name}"),
        ("pre{name}", "vor2013", "vor{name}"),
        ("sub-{name}", "Unter-2013", "Unter-{name}"),
        ("{name}'s", "2013s", "{name}s"),
        ("%sNote:%s Read", "2013Hinweis: 1947 Lies", "%sHinweis:%s Lies"),
        ("%sStop!%s", "2013Halt! 1947", "%sHalt!%s"),
        ("Really?%s Yes", "Wirklich? 2013 Ja", "Wirklich?%s Ja"),
        ("Note: %s", "Hinweis: 2013", "Hinweis: %s"),
        ("Note:%s", "Hinweis 2013", "Hinweis %s"),
    ],
)
def test_span_is_not_joined_with_a_word(text: str, target: str, expected: str) -> None:
    assert plain(text, target) == expected


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("%1$sfile", "2013 Datei", "%1$sDatei"),
        ("a{x}b", "a 2013 b", "a{x}b"),
        ("{a}{b}x", "2013 1947 x", "{a}{b}x"),
    ],
)
def test_word_that_touches_a_span_stays_joined(text: str, target: str, expected: str) -> None:
    assert plain(text, target) == expected


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("Hello  world", "Hallo Welt", "Hallo  Welt"),
        ("I am  going home  now", "Ich gehe jetzt nach Hause", "Ich gehe  jetzt nach  Hause"),
        ("a  b  c", "A B C", "A  B  C"),
        ("one two  three", "eins zwei drei", "eins zwei  drei"),
        ("one two three  four five", "eins zwei", "eins  zwei"),
        ("Hello  {name}  there", "Hallo 2013 da", "Hallo  {name}  da"),
        ("x{a}  b", "x 2013 b", "x{a}  b"),
        ("Log  in", "Anmelden", "Anmelden"),
        ("Hello  <b>world</b>", "Hallo Welt", "Hallo  <b>Welt</b>"),
        ("&Save  as", "Speichern als", "&Speichern  als"),
        (r"It\'s  me", "Ich bin's", r"Ich  bin\'s"),
        ("a  b", "A B C D", "A  B C D"),
    ],
)
def test_two_spaces_are_kept(text: str, target: str, expected: str) -> None:
    assert plain(text, target) == expected


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        (r"Mike\'s apple", "Mike's Apfel", r"Mike\'s Apfel"),
        (r"Mike\'s apple", "Mikes Apfel", "Mikes Apfel"),
        (r"Don\'t go", "Geh's nicht 'rein", r"Geh\'s nicht \'rein"),
        (r"Close the \"window\".", 'Schließen Sie das "Fenster".', r"Schließen Sie das \"Fenster\"."),
        (r"\"Hello?\" he said", "„Hallo?“ sagte er", "„Hallo?“ sagte er"),
        (r"It\u0027s", "Das ist's", r"Das ist\u0027s"),
        (r"caf\u00e9", "Café é", r"Caf\u00e9 \u00e9"),
        (r"Loading\u2026", "Lädt…", r"Lädt\u2026"),
        (r"\ud83d\ude00 fun", "Spaß 😀", r"Spaß \ud83d\ude00"),
        (r"It's \'x\'", "Es ist's 'x'", r"Es ist's \'x\'"),
        (r"Say \"{name}\"", 'Sag "2013"', r"Sag \"{name}\""),
    ],
)
def test_escaped_characters_are_escaped_again(text: str, target: str, expected: str) -> None:
    assert plain(text, target) == expected


@pytest.mark.parametrize(
    ("text", "target", "expected"),
    [
        ("&File", "Datei", "&Datei"),
        ("St&art", "Anfang", "&Anfang"),
        ("St&art", "Starten", "&Starten"),
        ("E&xit", "Beenden", "&Beenden"),
        ("&Edit", "Bearbeiten", "&Bearbeiten"),
        ("Save &As...", "Speichern als...", "Speichern &als..."),
        ("_Open", "Öffnen", "_Öffnen"),
        ("Save _as", "Speichern unter", "_Speichern unter"),
        ("Find && Replace", "Suchen & Ersetzen", "Suchen && Ersetzen"),
        ("Find && &Replace", "Suchen & Ersetzen", "&Suchen && Ersetzen"),
        ("&Copy", "Copy & Paste", "&Copy && Paste"),
        ("Q&A", "Fragen & Antworten", "Fragen & Antworten"),
        ("&Open {name}", "2013 öffnen", "{name} &öffnen"),
        ("&Open", "", "&"),
        ("&Open", "!!", "&!!"),
        ("Datei(&D)", "File(D)", "File(&D)"),
        ("<b>&Open</b> it", "Es öffnen", "<b>&Es</b> öffnen"),
        ("ave &As...", "ave As...", "ave &As..."),
    ],
)
def test_accelerator_marks_a_letter_of_the_translation(text: str, target: str, expected: str) -> None:
    assert plain(text, target) == expected


@pytest.mark.parametrize("span", [r"`it\'s`", r"`a \"b\"`", "`a  b`", r"`\u00e9`", r"{x\'y}", "`&Open`"])
def test_spans_with_codes_inside_are_copied(span: str) -> None:
    text = f"Use {span} now"
    unit = plain_unit(text, has_escapes=True, has_accelerators=True)
    end = unit.text.index(" now")
    unit = with_placeholders(unit, [ProtectedSpan(span=Span(start=4, end=end), kind=None)], Placeholders(text))

    assert unit.text == "Use 2013 now"
    assert assembled(text, unit, "Jetzt 2013 nutzen", None)[0] == f"Jetzt {span} nutzen"


def test_only_text_of_the_model_is_marked_as_such() -> None:
    text = r"&Don\'t <b>go</b>  {name} {n}"
    unit = plain_unit(text, has_escapes=True, has_accelerators=True)
    spans = [
        ProtectedSpan(span=Span(start=m.start(), end=m.end()), kind=None) for m in re.finditer(r"\{\w+\}", unit.text)
    ]
    unit = with_placeholders(unit, spans, Placeholders(text))

    fragments = restore(unit, "Geh nicht 'rein 1947-Mal", None).fragments

    assert "".join(each.text for each in fragments if each.is_model_text).split() == ["Geh", "nicht", "rein", "-Mal"]
    assert {each.text for each in fragments if not each.is_model_text} <= {"", " ", r"\'"}


def test_fixed_translation_is_no_text_of_the_model() -> None:
    spans = [ProtectedSpan(span=Span(start=5, end=13), kind=None, target="Einstellungen")]
    unit = with_placeholders(plain_unit("Open settings now"), spans, Placeholders(""))

    fragments = restore(unit, "Öffne 2013 jetzt", None).fragments

    assert [each.text for each in fragments if not each.is_model_text] == ["Einstellungen"]


def test_range_with_no_fixed_translation_is_copied_except_for_the_parts_inside() -> None:
    part = Span(start=2, end=3), restore(plain_unit("b"), "X", None).fragments

    whole = Assembler("a b c d", [part], [(Span(start=0, end=5), None), (Span(start=6, end=7), "Y")]).assemble()

    assert whole.text == "a X c Y"
