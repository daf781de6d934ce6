import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import ProtectedKind
from dragoman_service.text.abbreviations import AbbreviationFinder
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.segmentation import iterate_sentences

EN_DE = AbbreviationFinder("en", "de")
DE_EN = AbbreviationFinder("de-AT", "en-GB")


def _marked(finder: AbbreviationFinder, text: str, spans: tuple[ProtectedSpan, ...] = ()) -> str:
    """Return the text with the translation of each span in brackets, or `[]` for a span without translation."""
    parts = []
    position = 0
    for protected in finder.add_to(spans, text):
        assert position <= protected.span.start < protected.span.end
        parts += [text[position : protected.span.start], f"[{protected.target or ''}]"]
        position = protected.span.end
    return "".join(parts) + text[position:]


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("We sell fruit, e.g. apples.", "We sell fruit, [z. B.] apples."),
        ("We sell fruit (e. g. Apples).", "We sell fruit ([z. B.] Apples)."),
        ("Fruit, e.g., apples, is cheap.", "Fruit, [z. B.] apples, is cheap."),
        ("E.g. apples are cheap.", "[Z. B.] apples are cheap."),
        ("It is late, i.e., after ten.", "It is late, [d. h.] after ten."),
        ("I.e. Peter came.", "[D. h.] Peter came."),
        ("See No. 5 for details.", "See [Nr. 5] for details."),
        ("Example Inc. All rights reserved.", "Example [Inc]. All rights reserved."),
        ("On Nov. 20th we met.", "On Nov. 20th we met."),
        ("On Oct. 20, 2026, we met.", "On [Okt. 20], 2026, we met."),
        ("In Dec. 2019", "In [Dez. 2019]"),
        ("Sept. 3", "[Sept. 3]"),
        ("Dec. was cold.", "Dec. was cold."),
        ("See no.5 for details.", "See [Nr.5] for details."),
        ("Order nos. 5 and 6.", "Order [Nr. 5] and 6."),
        ("No. 12/2023 is open.", "[Nr. 12/2023] is open."),
        ("England vs. France", "England [vs.] France"),
        ("It costs approx. 5 euros.", "It costs [ca.] 5 euros."),
        ("Approx. 5 people came.", "[Ca.] 5 people came."),
        ("See Fig. 3a and figs. 4-6.", "See [Abb. 3a] and [Abb. 4-6]."),
        ("See p. 12 and pp. 14–16.", "See [S. 12] and [S. 14–16]."),
        ("See pp. 14 ff. of the book.", "See [S. 14 ff.] of the book."),
        ("See Art. 5 para. 3 GDPR.", "See [Art. 5 Abs. 3 DSGVO]."),
        ("The GDPR applies.", "The [DSGVO] applies."),
        ("See para. 3, Sec. 4.2 and ch. 5.", "See [Abs. 3, Abschn. 4.2] and [Kap. 5]."),
        ("Vol. 3 is out.", "[Bd. 3] is out."),
        ("Solve eq. 4.", "Solve [Gl. 4]."),
        ("Smith et al. found this.", "Smith [et al.] found this."),
        ("Cf. Smith and cf. Jones.", "[Vgl.] Smith and [vgl.] Jones."),
        ("incl. VAT, excl. shipping", "[inkl.] VAT, [exkl.] shipping"),
        ("In 44 B.C. the king died.", "In 44 [v. Chr.] the king died."),
        ("Bob, a.k.a. Robert", "Bob, [alias] Robert"),
        ("She has a Ph.D. in physics.", "She has a [Ph.D.] in physics."),
        ("apples, pears, etc., are fruit", "apples, pears, [usw.], are fruit"),
        ("fruit (apples, etc.) is cheap", "fruit (apples, [usw.]) is cheap"),
    ],
)
def test_english_abbreviations_have_german_translations(text: str, marked: str) -> None:
    assert _marked(EN_DE, text) == marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("Es gibt Obst, z. B. Äpfel.", "Es gibt Obst, [e.g.] Äpfel."),
        ("Es gibt Obst, z.B. Äpfel.", "Es gibt Obst, [e.g.] Äpfel."),
        ("Obst, z.\xa0B. Äpfel.", "Obst, [e.g.] Äpfel."),
        ("12 Mrd. Euro fehlen.", "12 [billion] Euro fehlen."),
        ("Es fehlen 3,5 Mio.", "Es fehlen 3,5 [million]."),
        ("Rund 20 Tsd. Menschen", "Rund 20 [thousand] Menschen"),
        ("Alle 10 Min. fährt ein Bus.", "Alle 10 [min] fährt ein Bus."),
        ("2 Std. und 30 Min.", "2 [h] und 30 [min]."),
        ("500 Stk. pro Monat", "500 [pcs.] pro Monat"),
        ("Mrd. von Menschen", "Mrd. von Menschen"),  # no number
        ("Bitte Hausnr. angeben", "Bitte [house number] angeben"),
        ("Z. B. Äpfel sind Obst.", "[E.g.] Äpfel sind Obst."),
        ("Viel, d. h. zu viel.", "Viel, [i.e.] zu viel."),
        ("Er mag u. a. Äpfel.", "Er mag [among other things] Äpfel."),
        ("Äpfel bzw. Birnen", "Äpfel [or] Birnen"),
        ("Das kostet ca. 5 Euro.", "Das kostet [approx.] 5 Euro."),
        ("Ca. 5 Leute kamen.", "[Approx.] 5 Leute kamen."),
        ("Siehe Abs. 3 Nr. 4 BGB.", "Siehe [para. 3 No. 4 BGB]."),
        ("Nach § 5 Abs. 2 S. 1 Nr. 4 lit GG gilt es.", "Nach [§ 5 para. 2 sentence 1 No. 4] lit GG gilt es."),
        ("Art. 3 Abs. 1 Satz 2 GG gilt.", "[Art. 3 para. 1 sentence 2 GG] gilt."),
        ("Nach Art. 6 DSGVO gilt das.", "Nach [Art. 6 GDPR] gilt das."),
        ("Das sind §§ 3 ff. BGB.", "Das sind [§§ 3 ff. BGB]."),
        ("Das gilt gem. § 3 nicht.", "Das gilt [pursuant to] [§ 3] nicht."),
        ("Siehe S. 12 und S. 14-16.", "Siehe [p. 12] und [pp. 14-16]."),
        ("S. 12 fehlt.", "[P. 12] fehlt."),
        ("Siehe Abb. 3, Tab. 4 und Kap. 5.", "Siehe [Fig. 3, Table 4] und [ch. 5]."),
        ("Siehe Kap. 3, S. 12.", "Siehe [ch. 3, p. 12]."),
        ("Siehe Bd. 3 S. 12.", "Siehe [vol. 3 p. 12]."),
        ("Kap. 3 ist lang.", "[Ch. 3] ist lang."),
        ("Siehe Bd. 2 und Anm. 7.", "Siehe [vol. 2] und [note 7]."),
        ("In der Bahnhofstr. 5 in Ulm.", "In der [Bahnhofstr. 5] in Ulm."),
        ("In der Berliner Str. 12a in Ulm.", "In der Berliner [Str. 12a] in Ulm."),
        ("In der Graf-Adolf-Str. 7.", "In der [Graf-Adolf-Str. 7]."),
        ("Das ist i. d. R. Arbeit.", "Das ist [usually] Arbeit."),
        ("Ggf. kommt er.", "[If necessary] kommt er."),
        ("inkl. MwSt. und zzgl. Versand", "[incl.] [VAT] und [plus] Versand"),
        ("Das sind evtl. Fehler.", "Das sind [possibly] Fehler."),
        ("Die o. g. Punkte", "Die [above-mentioned] Punkte"),
        ("Er hat v. a. Hunger.", "Er hat [especially] Hunger."),
        ("Siehe s. o. und s. u. im Text", "Siehe [see above] und [see below] im Text"),
        ("Um 44 v. Chr. starb er.", "Um 44 [BC] starb er."),
        ("Die Müller GmbH & Co. KG haftet.", "Die Müller [GmbH & Co. KG] haftet."),
        ("Das BGB gilt.", "Das [BGB] gilt."),
        ("Äpfel, Birnen usw. sind Obst.", "Äpfel, Birnen [etc.] sind Obst."),
    ],
)
def test_german_abbreviations_have_english_translations(text: str, marked: str) -> None:
    assert _marked(DE_EN, text) == marked


@pytest.mark.parametrize("words", ["{} of the set", "see {}, please", "({})", "Use {}.", "{}"])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("No.", "Nr."),
        ("no.", "Nr."),
        ("Fig.", "Abb."),
        ("Vol.", "Bd."),
        ("Art.", "Art."),
        ("p.", "S."),
        ("Ch.", "Kap."),
    ],
)
@pytest.mark.parametrize("number", ["1", "42", "2023", "5.1", "7b"])
def test_label_and_number_are_one_span(words: str, source: str, target: str, number: str) -> None:
    assert _marked(EN_DE, words.format(f"{source} {number}")) == words.format(f"[{target} {number}]")


@pytest.mark.parametrize(
    ("finder", "text", "marked"),
    [
        (EN_DE, "We sell apples etc.", "We sell apples [usw]."),
        (EN_DE, "We sell apples etc. The rest is new.", "We sell apples [usw]. The rest is new."),
        (EN_DE, "We sell apples etc.\nNext", "We sell apples [usw].\nNext"),
        (EN_DE, "We sell apples etc. \t", "We sell apples [usw]. \t"),
        (EN_DE, "“We sell apples etc.” He left.", "“We sell apples [usw].” He left."),
        (EN_DE, "Apples etc... are cheap", "Apples [usw]... are cheap"),
        (EN_DE, "Do you sell apples etc.?", "Do you sell apples [usw.]?"),
        (EN_DE, "It is by Smith et al.", "It is by Smith [et al]."),
        (EN_DE, "She has a Ph.D. She works.", "She has a [Ph.D]. She works."),
        (EN_DE, "It costs 5, approx.", "It costs 5, [ca]."),
        (DE_EN, "Äpfel, Birnen usw.", "Äpfel, Birnen [etc]."),
        (DE_EN, "Äpfel, Birnen usw. Der Rest fehlt.", "Äpfel, Birnen [etc]. Der Rest fehlt."),
        (DE_EN, "5 Euro inkl. MwSt.", "5 Euro [incl.] [VAT]."),
        (DE_EN, "5 Euro inkl. MwSt. Der Versand ist frei.", "5 Euro [incl.] [VAT]. Der Versand ist frei."),
        (DE_EN, "Das gilt i. d. R.", "Das gilt [usually]."),
        (DE_EN, "Das gilt, s. o. Der Rest nicht.", "Das gilt, [see above]. Der Rest nicht."),
        (DE_EN, "Siehe S. 12 ff. Dort steht es.", "Siehe [p. 12] ff. Dort steht es."),
    ],
)
def test_full_stop_at_the_end_of_a_sentence_is_outside(finder: AbbreviationFinder, text: str, marked: str) -> None:
    assert _marked(finder, text) == marked


@pytest.mark.parametrize("abbreviation", ["etc.", "et al.", "Ph.D."])
@pytest.mark.parametrize("start", ["He", "The rest", "“Next”", "Many"])
def test_sentence_after_a_protected_abbreviation_is_separate(abbreviation: str, start: str) -> None:
    text = f"This is by Smith, {abbreviation} {start} came."
    (protected,) = EN_DE.add_to((), text)
    unit = f"{text[: protected.span.start]}⟦1⟧{text[protected.span.end :]}"

    spans = list(iterate_sentences(unit, language="en"))

    assert [unit[span.start : span.end] for span in spans] == ["This is by Smith, ⟦1⟧.", f"{start} came."]


@pytest.mark.parametrize(
    "text",
    [
        "No. I do not know.",
        "Is it? No. 5 were left.",
        "The answer is no. 5 people came.",
        "No. 5 million people came.",
        "No. 5,000 people came.",
        "No. 5% is enough.",
        "The no. is wrong.",
        "He likes figs. And pears.",
        "It is modern art. 5 people came.",
        "The section (p.) is new.",
        "Visit etc.example.org now.",
        "Write to e.g.smith now.",
        "The abetc. word",
        "At 5 p.m. he left.",
        "The U.S. Army arrived.",
        "The U.K. Parliament met.",
        "P.O. Box 5",
        "P.S. Peter left.",
        "He said B.C. is nice.",
        "I saw J. Then I left.",
        "We met J. K. Then we left.",
    ],
)
def test_english_text_without_unmistakable_abbreviation_is_not_protected(text: str) -> None:
    assert EN_DE.add_to((), text) == []


@pytest.mark.parametrize(
    "text",
    [
        "Die Nr. ist falsch.",
        "Fehler dieser Art. 5 davon sind neu.",
        "Das ist Satz 3.",
        "Am 3. Mai kam er.",
        "Friedrich II. war König.",
        "Das kostet 1.000 Euro.",
        "Er wohnt in dieser Str.",
        "Siehe S. Müller.",
        "Das Wort usw ist kurz.",
        "Nr. 1.000 Euro",
    ],
)
def test_german_text_without_unmistakable_abbreviation_is_not_protected(text: str) -> None:
    assert DE_EN.add_to((), text) == []


@pytest.mark.parametrize("initials", ["J. R. R.", "J.R.R.", "J.K.", "C. S.", "Ä. Ö.", "Ф. М."])
@pytest.mark.parametrize("surname", ["Tolkien", "O'Neill", "von Braun", "TOLKIEN", "Достоевский"])
@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en"), ("fr", "es"), ("en", "zh-Hans")])
def test_initials_and_surname_are_unchanged(initials: str, surname: str, languages: tuple[str, str]) -> None:
    marked = _marked(AbbreviationFinder(*languages), f"George {initials} {surname} wrote it.")

    assert marked == f"George [{initials} {surname}] wrote it."


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en"), ("en", "fr")])
def test_name_with_an_apostrophe_is_unchanged(languages: tuple[str, str]) -> None:
    text = "O'Brien's and D’Angelo met O'Neill: I'Ll go at five O'Clock, IT'S Y'All and l'Or."

    marked = _marked(AbbreviationFinder(*languages), text)

    assert marked == "[O'Brien]'s and [D’Angelo] met [O'Neill]: I'Ll go at five O'Clock, IT'S Y'All and l'Or."
    assert AbbreviationFinder("fr", "en").add_to((), "L'Europe et D'Artagnan") == []


@pytest.mark.parametrize("languages", [("fr", "de"), ("en", "fr"), ("de", "de"), ("", "")])
def test_other_pairs_have_no_abbreviations(languages: tuple[str, str]) -> None:
    text = "See No. 5, e.g. apples, z. B. Äpfel, usw., § 5 BGB, Bahnhofstr. 5"

    assert AbbreviationFinder(*languages).add_to((), text) == []


def test_given_spans_are_kept_and_not_overlapped() -> None:
    text = "See No. 5, e.g. No. 6."
    given = ProtectedSpan(span=Span(start=4, end=9), kind=ProtectedKind.CODE)

    spans = EN_DE.add_to((given,), text)

    assert spans[0] is given
    assert [protected.target for protected in spans[1:]] == ["z. B.", "Nr. 6"]


@pytest.mark.parametrize("kind", [ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER])
def test_label_of_a_protected_number_is_a_span_of_its_own(kind: ProtectedKind) -> None:
    text = "e.g. see No. A-12-34 here"
    given = ProtectedSpan(span=Span(start=13, end=20), kind=kind)

    assert _marked(EN_DE, text, (given,)) == "[z. B.] see [Nr.] [] here"


def test_label_before_other_spans_is_text() -> None:
    given = ProtectedSpan(span=Span(start=4, end=8), kind=ProtectedKind.BRACES)

    assert EN_DE.add_to((given,), "No. {no}") == [given]


@pytest.mark.parametrize(
    "part",
    ["e.g. ", "No. 1 ", "J. ", "A.", "Str.", "S. 1 Abs. 2 ", "u. v. ", "etc. ", "§", "§ 1 ff. ", "a-", "|a", " ."],
)
@pytest.mark.parametrize("finder", [EN_DE, DE_EN])
def test_spans_of_repetitive_text_are_ordered_and_disjoint(part: str, finder: AbbreviationFinder) -> None:
    _marked(finder, part * 5_000)


def test_matches_are_the_same_in_long_texts() -> None:
    sentence = "Siehe § 5 Abs. 2 S. 1 Nr. 4 BGB, z. B. in der Bahnhofstr. 5 bei J. R. R. Müller usw. "

    targets = [protected.target for protected in DE_EN.add_to((), sentence * 500)]

    assert len(targets) == 2_500
    assert set(targets) == {"§ 5 para. 2 sentence 1 No. 4 BGB", "e.g.", "Bahnhofstr. 5", "J. R. R. Müller", "etc"}


def test_long_search_is_interrupted() -> None:
    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        EN_DE.add_to((), "e.g. " * 10, check)
