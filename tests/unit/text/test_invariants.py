from itertools import product

import pytest

from dragoman_service.datatypes import WarningKind
from dragoman_service.text.invariants.checks import find_violations
from dragoman_service.text.invariants.untranslated import is_short_copy
from dragoman_service.text.invariants.violations import HARD_KINDS, MASK, MAX_VIOLATIONS, Texts, Violation


def _violations(source: str, target: str, languages: str = "en-de", *, unknown: str = "") -> list[Violation]:
    source_language, target_language = languages.split("-")
    texts = Texts(
        source=source,
        target=target,
        source_language=source_language,
        target_language=target_language,
        spells=lambda character: character not in unknown,
        is_word=lambda word: word in {"not", "never"},
    )
    return find_violations(texts)


def _kinds(source: str, target: str, languages: str = "en-de", *, unknown: str = "") -> set[str]:
    return {violation.kind.value for violation in _violations(source, target, languages, unknown=unknown)}


def _languages(case: tuple[str, ...]) -> str:
    return case[2] if len(case) > 2 else "en-de"


VIOLATED: dict[str, list[tuple[str, ...]]] = {
    "empty_translation": [
        ("left", ""),
        ("done", " "),
        ("on", "."),
        ("Danke", "...", "de-en"),
        ("aus", "", "de-en"),
        ("7", "-"),
        ("Yes!", "!"),
        ("off", MASK),
        (f"Open {MASK}", MASK),
        ("да", "", "ru-en"),
        ("保存", "", "zh-en"),
        ("Save", "„“"),
    ],
    "invalid_output": [
        ("Thanks.", "Danke\ufffd."),
        ("Thanks.", "Danke ⟦0⟧."),
        ("Thanks.", "Danke ⟦12⟧."),
        ("Thanks.", "⟪3⟫Danke."),
        ("Thanks.", "Danke⟪/4⟫."),
        ("Thanks.", "<0xE4>Danke."),
        ("Thanks.", "Danke <unk>."),
        ("Thanks.", "<s>Danke."),
        ("Thanks.", "Danke.</s>"),
        ("Thanks.", "Danke.<pad>"),
        ("Die Zahl ⟦1⟧", "The number ⟦2⟧", "de-en"),
        ("x ≤ y", "x ≤ y \ufffd\ufffd"),
    ],
    "number_changed": [
        ("Microsoft bought it in 2018.", "Microsoft kaufte es in 18."),
        ("The number is 1000000.", "Die Zahl ist 100000."),
        ("95.00 EUR was paid.", "95.000 EUR wurde bezahlt."),
        ("95,00 EUR wurden bezahlt.", "95,000 EUR were paid.", "de-en"),
        ("The bill is 12.99.", "Die Rechnung ist 12,9."),
        ("Dial 1234567.", "Wählen Sie 1245667."),
        ("It was on 2026-11-28.", "Es war am 2026-1-28."),
        ("10115 Berlin", "1015 Berlin"),
        ("4111 1111 1111 1111", "4111 1111 1111 1111 1111"),
        ("IP 192.168.178.1 does not answer.", "IP 1.192,168,18.1 antwortet nicht."),
        ("Room 20 is closed.", "Der Raum ist geschlossen."),
        ("The room is closed.", "Der Raum 20 ist geschlossen."),
        ("802.11 is fast.", "LÄCH ist schnell."),
        ("It takes 7 minutes.", "Es dauert Minuten."),
        ("PO 8313-39 ist da.", "PO 8313 39 is here.", "de-en"),
        ("It takes seven minutes.", "Es dauert 8 Minuten."),
        ("Um 12:30 Uhr", "At 12:50", "de-en"),
        ("at 7 pm", "um 20 Uhr"),
        ("in the 1990s", "in den 1980ern"),
        ("Page 45 of 300", "Page 54 de 300", "en-fr"),
        (f"{MASK} has 15 files", f"{MASK} hat 51 Dateien"),
    ],
    "identifier_changed": [
        ("The file report_final_v2.docx is missing.", "Die Datei Bericht_final_v2.docx fehlt."),
        ("Order 12345-AB-99 has shipped.", "Bestellung 12345-AB-98 wurde versandt."),
        ("See invoice INV-2026-00123.", "Siehe Rechnung INV-2026-0123."),
        ("Install KB5034441 now.", "Installieren Sie KB503441 jetzt."),
        ("Windows 24H2 is out.", "Windows 24H ist da."),
        ("Error 0x80070057", "Fehler 0x8007057"),
        ("MAC 00:1A:2B:3C:4D:5E", "MAC 00:1A:2B:3C:4D:5F"),
        ("UUID 550e8400-e29b-41d4-a716-446655440000", "UUID 550e8400-e29b-41d4-a716-44665544000"),
        ("Use claude-sonnet-4-25029 here.", "Verwenden Sie Klude-sonnet-4-25029 hier."),
        ("Set max_size first.", "Setzen Sie zuerst Maximalgröße."),
        ("Call std::vector now.", "Rufen Sie jetzt den Vektor auf."),
        ("Open config.yaml now.", "Öffnen Sie die Konfiguration."),
        ("Das Modell X500b ist neu.", "The model is new.", "de-en"),
        ("The MP3-player is new.", "Das MP-Abspielgerät ist neu."),
    ],
    "symbol_changed": [
        ("Yes | No", "Ja Nein"),
        ("[ERROR] Could not open it.", "ERROR Konnte nicht öffnen."),
        ("File > Open", "Datei Öffnen"),
        ("Footnote[^1] here.", "Fußnote[1] hier."),
        ("© Example Ltd.", "® Example Ltd."),
        ("It costs £3.", "Es kostet ©3."),
        ("x ≤ y", "x y"),
        ("Great job 👏👏👏 team", "Gute Arbeit 👏👏 Team"),
        ("About us → Contact", "Über uns Kontakt"),
        ("The **bold** word", "Das *fette* Wort"),
        ("Copy it", "Kopiere ~ es"),
        ("Find && replace", "Suchen && & ersetzen"),
        ("5 % discount", "5 Rabatt"),
        ("• First item", "Erster Punkt"),
        ("Kosten: 5 €", "Costs: 5", "de-en"),
        ("a = b", "a b", "en-fr"),
        ("{name} is here", "name ist hier"),
        ("We saw ” in", "Wir haben gesehen"),
        ("We saw “ in", "Wir haben „ein“ gesehen"),
        ('Use the " key.', "Verwenden Sie die Taste."),
        ("The „ sign", "Das Zeichen"),
        ("Das Zeichen » ist neu.", "The sign is new.", "de-en"),
        ("Das Zeichen « ist neu.", "The sign is new.", "de-en"),
        ("“Hello, my friend.", "Hallo, mein Freund."),
        ("Der Hund ist hier.“", "The dog is here.", "de-en"),
        ("He wrote ”love on the wall.", "Er schrieb Liebe an die Wand."),
        ('He said "hello" and "bye.', 'Er sagte "hallo" und "tschüss".'),
    ],
    "name_changed": [
        ("Microsoft bought GitHub.", "Microsoft kaufte Git Hub."),
        ("Ask McDonald.", "Frag MacDonald."),
        ("My iPhone is new.", "Mein Telefon ist neu."),
        ("We use PowerPoint.", "Wir benutzen Energiepunkt."),
        ("YouTube is down.", "Youtub ist nicht erreichbar."),
        ("J. R. R. Tolkien wrote books.", "L. R."),
        ("J.K. Rowling wrote books.", "K. Rowling schrieb Bücher."),
        ("Das GitHub-Konto ist neu.", "The Github account is new.", "de-en"),
        ("LaTeX is old.", "Latex ist alt."),
        ("I like WordPress.", "Ich mag Wortpresse."),
        ("DeepMind is in London.", "Der tiefe Geist ist in London."),
        ("Wir nutzen OpenOffice.", "We use the open office.", "de-en"),
        ("He drives an Audi A6.", "Er fährt einen A6."),
        (f"Audi {MASK}", MASK),
        ("Ein Boeing 747 landet.", "A 747 lands.", "de-en"),
        ("Der DAX fiel.", "The ice fell.", "de-en"),
        ("Der DAX stieg um 2 Punkte.", "The BEX got at 2 points.", "de-en"),
        ("Der TÜV prüft das Auto.", "The TAB checks the car.", "de-en"),
        ("Die EZB senkt den Zins.", "The EVEN stuck the tins.", "de-en"),
        ("We have sent you ISO 3435 today.", "Wir haben dir heute 3435 geschickt."),
        ("The ZEW index rose.", "Der Index stieg."),
        ("OPEC cut production.", "Ausschnitt der Produktion."),
        ("Use PDFs only.", "Verwenden Sie nur Dateien."),
        ("Die FDP verlor.", "The party lost.", "de-en"),
        ("My GPS is broken.", "Mein Gerät ist kaputt."),
        ("Das BAFÖG ist knapp.", "The BAG is short.", "de-en"),
    ],
    "address_changed": [
        ("See https://example.com/a now.", "Siehe https://example.com/b jetzt."),
        ("See www.example.org.", "Siehe www.beispiel.org."),
        ("Mail to max@example.com.", "Mail an max@beispiel.com."),
        ("Look in /usr/local/bin first.", "Suchen Sie zuerst in /usr/lokal/bin."),
        ("Open C:\\Temp\\new first.", "Öffnen Sie zuerst C:\\Temp\\neu."),
        ("Ask @octocat about it.", "Frag @oktokatze."),
        ("Edit src/main.py now.", "Bearbeiten Sie src/haupt.py."),
        ("Edit ~/notes/todo now.", "Bearbeiten Sie ~/notizen/todo."),
        ("ftp://example.com/x is down.", "ftp://example.com/ ist nicht erreichbar."),
        ("Siehe http://example.com/seite.", "See http://example.com/page.", "de-en"),
        ("See ../docs/index for more.", "Siehe ../doku/index."),
        ("Use \\\\server\\share now.", "Nutzen Sie \\\\server\\freigabe."),
    ],
    "markup_changed": [
        ("<b>Save</b> it", "Speichern Sie <b>es"),
        ("<b>Save</b> it", "Speichern Sie es"),
        ("Save it", "<b>Speichern</b> Sie es"),
        ("<b>Save</b> it", "<i>Speichern</i> Sie es"),
        ("<b>Save</b> it", "</b>Speichern<b> Sie es"),
        ("One<br/>two", "Eins zwei"),
        ('<a href="x">Contact</a>', '<a href="y">Kontakt</a>'),
        ("<0>click here</0>", "hier klicken"),
        ("<1>you</1> and <2>me</2>", "<1>du und <2>ich</1></2>"),
        ('Press <x id="6"/> now', "Drücken Sie jetzt"),
        ("<b><i>Hello</i></b>", "<b><i>Hallo</b></i>"),
        ("<em>Hallo</em>", "<em>Hello</em></em>", "de-en"),
    ],
    "ending_changed": [
        ("Search...", "Suchen."),
        ("Loading…", "Laden"),
        ("Really?!", "Wirklich?"),
        ("Stop!!!", "Stopp!"),
        ("Bye ;)", "Tschüss;"),
        ("Note:", "Hinweis."),
        ("Who is it?", "Wer ist es."),
        ("Help!", "Hilfe?"),
        ("Note -", "Hinweis:"),
        ("Dear Sir or Madam,", "Sehr geehrte Damen und Herren"),
        ("Save the file", "Speichern Sie die Datei."),
        ("The world is small.", "Die Welt ist klein!"),
        ("He is here.", "Er ist hier"),
        ("保存。", "Save", "zh-en"),
        ("Кто это?", "Who is it.", "ru-en"),
        ("Ποιος είναι;", "Who is it.", "el-en"),
    ],
    "white_space_changed": [
        ("Name\tAge", "Name Alter"),
        ("Copy\tCtrl+C", "Kopieren Ctrl+C"),
        ("Line one\nLine two", "Zeile eins Zeile zwei"),
        ("One\r\ntwo", "Eins zwei"),
        ("One two", "Eins\tzwei"),
        ("One two", "Eins\nzwei"),
        ("a\n\nb", "a\nb"),
        ("\tOne", "Eins"),
        ("One\u2028two", "Eins zwei"),
        ("One\rtwo", "Eins zwei"),
        ("a\tb\tc", "a\tb c"),
        ("Eins\nzwei", "One two", "de-en"),
    ],
    "capitals_changed": [
        ("COUNTRY", "Land"),
        ("DID YOU KNOW?", "Haben Sie gewusst?"),
        ("PHOTO OF THE WEEK", "Foto der Woche"),
        ("ERBSENSUPPE", "Pea soup", "de-en"),
        ("GREEN TEA", "GRÜNER Tee"),
        ("GO HOME", "Geh nach Hause"),
        ("NEWS", "Nachrichten"),
        ("ENTSCHULDIGUNG", "Excuse me", "de-en"),
        ("ЗДРАВСТВУЙТЕ", "hello", "ru-en"),
        ("DO NOT TOUCH!", "Nicht BERÜHREN!"),
        (f"OPEN {MASK} NOW", f"Öffnen Sie {MASK} jetzt"),
        ("STRASSE UND PLATZ", "Street and SQUARE", "de-en"),
    ],
    "untranslated": [
        ("It rains, said the man in the house.", "It rains, said the man in the house."),
        ("he wrote three books last year", "he wrote three books last year"),
        ("Please read this carefully before you start.", "Please read this carefully before you start."),
        ("She likes green apples very much.", "She likes green apples very much!"),
        ("The cat is on the table.", "Tom, the cat is on the table."),
        ("Er hat den Brief gestern nicht gelesen.", "Er hat den Brief gestern nicht gelesen.", "de-en"),
        ("Wir gehen heute nicht mehr aus.", "Wir gehen heute nicht mehr aus.", "de-en"),
        ("Microsoft bought the small company last year.", "Microsoft bought the small company last Jahr."),
        (f"Open {MASK} and then close the window.", f"Open {MASK} and then close the window."),
        ("il ne veut pas venir", "il ne veut pas venir", "fr-en"),
        ("the old man and the sea", "der the old man and the sea"),
        ("you must supply a valid date", "you must supply a valid date"),
    ],
}

PRESERVED: dict[str, list[tuple[str, ...]]] = {
    "acronyms": [
        ("He drives an Audi A6.", "Er fährt einen Audi A6."),
        ("Room A6 is free.", "Raum A6 ist frei."),
        ("The NASA launched it.", "Die NASA startete es."),
        ("Use PDFs only.", "Verwenden Sie nur PDF-Dateien."),
        ("Der GDB-Server", "the gdb server", "de-en"),
        ("Er fährt einen LKW.", "He drives a truck.", "de-en"),
        ("Die EZB senkt den Zins.", "The ECB lowers the rate.", "de-en"),
        ("The USA won.", "Die Vereinigten Staaten gewannen."),
        ("It costs USD 5.", "Es kostet 5 US-Dollar."),
        ("PRESS THE RED BUTTON", "ROTE TASTE"),
        ("This is NOT good.", "Das ist nicht gut."),
        ("You must NEVER do this.", "Du darfst das NIEMALS tun."),
    ],
    "unpaired quotation marks": [
        ("We saw ” in", "Wir sahen ” in"),
        ("“Hello, my friend.", "„Hallo, mein Freund."),
        ('A 15" screen', "Ein 15-Zoll-Bildschirm"),
        ("He didn“t come.", "Er kam nicht."),
    ],
    "content": [
        ("...", "..."),
        ("", ""),
        (MASK, MASK),
        (f"Open {MASK}", f"Öffne {MASK}"),
        ("<s>Sold</s>", "<s>Verkauft</s>"),
        ("\ufffd", "\ufffd"),
        ("The piece ⟦1⟧", "Das Stück ⟦1⟧"),
    ],
    "numbers": [
        ("95.00 EUR was paid.", "95,00 EUR wurden bezahlt."),
        ("1,250.00 dollars", "1.250,00 Dollar"),
        ("1000000 people", "1.000.000 Menschen"),
        ("1.5 kg", "1,5 kg"),
        ("5 apples", "fünf Äpfel"),
        ("zwölf Eier", "12 eggs", "de-en"),
        ("a dozen eggs", "12 Eier"),
        ("a 5-year plan", "ein fünfjähriger Plan"),
        ("on the 1st of May", "am 1. Mai"),
        ("the 3rd place", "der dritte Platz"),
        ("at 12 pm", "um 12 Uhr"),
        ("at 7:30 pm", "um 19:30 Uhr"),
        ("at 6:00", "um 6 Uhr", "en-de"),
        ("twenty people", "20 Menschen"),
        ("twenty-one people", "21 Menschen"),
        ("zweihundert Menschen", "200 people", "de-en"),
        ("in the 1990s", "in den 1990er Jahren"),
        ("in the nineties", "in den 90er Jahren"),
        ("the 1990s", "die 90er"),
        ("1.5 million people", "1.500.000 Menschen"),
        ("12,000 to 16,000 rubles", "12 bis 16 Tausend Rubel"),
        ("100-300 dollars", "100 bis 300 Dollar"),
        ("on 5/17/2016", "am 17.5.2016"),
        ("on 2026-11-28", "am 28. November 2026"),
        ("World War II", "der 2. Weltkrieg"),
        ("3 files", "trois fichiers", "en-fr"),
        ("5 GB", "5 GB"),
        ("1,234", "1,234"),
    ],
    "tokens": [
        ("Microsoft bought GitHub.", "Microsoft kaufte GitHub."),
        ("The GitHub account", "Das GitHub-Konto"),
        ("the history of GitHub", "GitHubs Geschichte"),
        ("McDonald's is open.", "McDonald's hat geöffnet."),
        ("J. R. R. Tolkien wrote books.", "J. R. R. Tolkien schrieb Bücher."),
        ("J. R. R. Tolkien wrote books.", "J.R.R. Tolkien schrieb Bücher."),
        ("the U.S. Army", "die US-Armee"),
        ("Z. B. Äpfel", "E.g. apples", "de-en"),
        ("alle MitarbeiterInnen", "all employees", "de-en"),
        ("inkl. MwSt.", "incl. VAT.", "de-en"),
        ("Example GmbH", "Example Ltd", "de-en"),
        ("the file Report_v2.docx", "report_v2.docx ist die Datei"),
        ("the Win32 interface", "die Win32-Schnittstelle"),
        ("a 64-bit version", "eine 64-Bit-Version"),
        ("a 5-year-old", "ein 5-jähriges Kind"),
        ("the 20th century", "das 20. Jahrhundert"),
        ("the safe_cast operation", "der safe_cast-Vorgang"),
        ("der safe_cast-Vorgang", "the safe_cast operation", "de-en"),
        ("Covid-19 is over.", "COVID-19 ist vorbei."),
        ("Abs. 3 Nr.4", "para. 3 no. 4", "de-en"),
        ("5kg of rice", "5 kg Reis"),
        ("e.g. apples", "z.B. Äpfel"),
        ("and/or", "und/oder"),
        ("See https://example.com/a.", "Siehe https://example.com/a."),
        ("See (www.example.org).", "Siehe www.example.org."),
        ("Mail max@example.com now", "Jetzt max@example.com schreiben"),
        ("1/2 cup", "1/2 Tasse"),
        ("24/7 help", "24/7 Hilfe"),
    ],
    "symbols": [
        ("5% off", "5 % Rabatt"),
        ("5% off", "5 Prozent Rabatt"),
        ("5 percent", "5 %"),
        ("Terms & conditions", "Begriffe und Bedingungen"),
        ("Sales and marketing", "Vertrieb & Marketing"),
        ("$5", "5 Dollar"),
        ("5 €", "5 euros", "de-en"),
        ("£5", "5 Pfund"),
        ("20 °C", "20 Grad C"),
        ("#5", "Nr. 5"),
        ("2 + 2", "2 plus 2"),
        ('He said "hello".', "Er sagte »hallo«."),
        ("one – two", "eins - zwei"),
        ("-5 degrees", "−5 Grad"),
        ("the users", "die Nutzer*innen"),
        ("it`s mine", "es ist meins"),
        ("he/she", "er/sie"),
        ("km/h", "mph", "de-en"),
        ("Yes | No", "Ja | Nein"),
        (f"{MASK}{MASK} files", f"{MASK} Dateien"),
    ],
    "markup": [
        ("<b>Save</b> it", "Speichern Sie <b>es</b>"),
        ("One<br>two", "Eins<br>zwei"),
        ("a < b and c > d", "a < b und c > d"),
        ("</b>Save<b>", "<b>Speichern</b>"),
        ("<1>you</1> and <2>me</2>", "<2>ich</2> und <1>du</1>"),
    ],
    "ending": [
        ("Loading…", "Laden..."),
        ("Hit the brakes.", "Tritt auf die Bremse!"),
        ("Komm her!", "Come here.", "de-en"),
        ('He said "hello."', "Er sagte „hallo“."),
        ("Really?!", "Wirklich!?"),
        ("He came at 5 p.m.", "Er kam um 17 Uhr"),
        ("Apples, pears, etc.", "Äpfel, Birnen usw."),
        ("Save.", "保存。", "en-zh"),
        ("Who is it?", "Ποιος είναι;", "en-el"),
        ("Hello.", "สวัสดี", "en-th"),
        (f"Open {MASK}", f"Öffnen Sie {MASK}."),
        ("“Stop!”", "„Stopp!“."),
        ("Note —", "Hinweis –"),
        ("Bye :)", "Tschüss :)"),
    ],
    "form": [
        ("Name\tAge", "Name\tAlter"),
        ("One\r\ntwo", "Eins\nzwei"),
        ("DID YOU KNOW?", "WUSSTEN SIE DAS?"),
        ("THE STREET", "DIE STRAßE"),
        ("USA", "Vereinigte Staaten"),
        ("OK", "In Ordnung"),
        ("X500B", "X500B"),
        ("NATO", "NATO"),
        ("Hello", "Hallo"),
        ("A", "Ein"),
    ],
    "copies": [
        ("Computer", "Computer"),
        ("Hotel", "Hotel"),
        ("Name", "Name"),
        ("Baby", "Baby"),
        ("Ludwig van Beethoven, Johann Sebastian Bach", "Ludwig van Beethoven, Johann Sebastian Bach"),
        ("Kubernetes, Docker, Helm, Envoy", "Kubernetes, Docker, Helm, Envoy"),
        ("Version 10.0.19045.3803", "Version 10.0.19045.3803"),
        ("/usr/local/share/doc", "/usr/local/share/doc"),
        ("Ich habe keine Ahnung, wovon du redest.", "Ich habe keine Ahnung, wovon du redest."),
        ("The cat is on the table.", "The cat is on the table.", "de-en"),
        ("`git commit and then git push`", "`git commit and then git push`"),
        ("the color is red", "the colour is red", "en-en"),
        ("москва", "москва", "ru-en"),
        ("Er war in Wien.", "He was in Vienna.", "de-en"),
    ],
}


def _cases(table: dict[str, list[tuple[str, ...]]]) -> list[tuple[str, tuple[str, ...]]]:
    return [(name, case) for name, cases in table.items() for case in cases]


@pytest.mark.parametrize(("kind", "case"), _cases(VIOLATED))
def test_violation_is_reported(kind: str, case: tuple[str, ...]) -> None:
    assert kind in _kinds(case[0], case[1], _languages(case))


@pytest.mark.parametrize(("name", "case"), _cases(PRESERVED))
def test_faithful_translation_has_no_violation(name: str, case: tuple[str, ...]) -> None:
    assert _kinds(case[0], case[1], _languages(case)) == set()


FRAMES = [
    ("The value of {x} was shown on Monday.", "Der Wert von {x} wurde am Montag angezeigt."),
    ("Please send {x} to the office.", "Bitte senden Sie {x} an das Büro."),
    ("We need {x} again", "Wir brauchen {x} noch einmal"),
]
TOKENS = {
    "number_changed": (
        ["15", "2018", "100000", "10115", "3.14", "48.85", "123456789", "77", "1024", "62", "19.5", "404"],
        ["1", "20018", "10000", "1011", "31.4", "4885", "12345789", "7", "1034", "26", "195", "4004"],
    ),
    "identifier_changed": (
        [
            "AB12C",
            "v2.4.1b",
            "x86_64",
            "log_file",
            "A4F9",
            "node18",
            "X-500-B",
            "RFC2119x",
            "my_var",
            "data.json",
            "0xFF0A",
            "10.0.1-rc1b2",
        ],
        ["AB1C", "v2.4b", "x86", "Protokoll", "A4F", "Knoten", "X-50-B", "RFC211x", "mein", "Daten", "0xFFA", "10.0.1"],
    ),
    "symbol_changed": (
        list("|^~[]{}<>=→•⇒😊★€"),
        ["", "~", "^", "(", ")", "(", ")", "", "", "", "", "", "", "", "*", "$"],
    ),
    "name_changed": (
        [
            "GitHub",
            "YouTube",
            "McCartney",
            "LinkedIn",
            "PayPal",
            "eBay",
            "WordPress",
            "JavaScript",
            "LibreOffice",
            "iTunes",
            "DuckDuckGo",
            "MacBook",
        ],
        ["Git", "Rohr", "Cartney", "Link", "Pal", "Bucht", "Presse", "Skript", "Büro", "Tunes", "Duck", "Mac"],
    ),
    "address_changed": (
        [
            "https://a.example/x1",
            "http://b.example",
            "www.c.example",
            "a.b@c.example",
            "/etc/hosts/old",
            "C:\\a\\b",
            "~/x/y",
            "./run/it",
            "src/a.txt",
            "docs/b.md",
            "@someone",
            "ftp://d.example/e",
        ],
        [
            "https://a.example/x",
            "http://example",
            "c.example",
            "a@c.example",
            "/etc/alt",
            "C:\\a",
            "~/x",
            "run",
            "a.txt",
            "b.md",
            "someone",
            "d.example/e",
        ],
    ),
}


@pytest.mark.parametrize(
    ("kind", "index", "frame"),
    [
        (kind, index, frame)
        for kind, (tokens, _) in TOKENS.items()
        for index, frame in product(range(len(tokens)), FRAMES)
    ],
)
def test_tokens_are_copied_in_any_sentence(kind: str, index: int, frame: tuple[str, str]) -> None:
    token, damaged = TOKENS[kind][0][index], TOKENS[kind][1][index]
    source, target = frame[0].format(x=token), frame[1].format(x=token)

    assert _kinds(source, target) == set()
    assert kind in _kinds(source, frame[1].format(x=damaged))
    assert kind in _kinds(source, frame[1].format(x=""))


ENDINGS = [".", "...", "…", "?", "!", "?!", "!!!", ":", ",", ";", " –", ""]


@pytest.mark.parametrize(("old", "new"), list(product(ENDINGS, ENDINGS)))
def test_endings_are_compared_by_meaning(old: str, new: str) -> None:
    is_same = old.replace("…", "...") == new.replace("…", "...")

    assert ("ending_changed" in _kinds(f"The file is here{old}", f"Die Datei ist hier{new}")) is not is_same


WORDS = [
    ("WEATHER", "WETTER", "Wetter"),
    ("YESTERDAY", "GESTERN", "Gestern"),
    ("SETTINGS", "EINSTELLUNGEN", "einstellungen"),
    ("OPEN FILE", "DATEI ÖFFNEN", "Datei öffnen"),
    ("FREE", "KOSTENLOS", "Kostenlos"),
    ("SIGN OUT", "ABMELDEN", "Abmelden"),
    ("GOOD MORNING!", "GUTEN MORGEN!", "Guten Morgen!"),
    ("NO WAY OUT", "KEIN AUSWEG", "KEIN Ausweg"),
    ("HELP", "HILFE", "Hilfe"),
    ("PAGE NOT FOUND", "SEITE NICHT GEFUNDEN", "SEITE NICHT gefunden"),
    ("WARNING: HOT", "WARNUNG: HEIẞ", "Warnung: heiß"),
]


@pytest.mark.parametrize(("source", "capitals", "other"), WORDS)
def test_capitals_are_preserved(source: str, capitals: str, other: str) -> None:
    assert _kinds(source, capitals) == set()
    assert _kinds(source, other) == {"capitals_changed"}


UNKNOWN_NAMES = [
    "Łukasz",
    "Nguyễn",
    "Čačak",
    "Ciarán",
    "Dvořák",
    "Şahin",
    "Björk",
    "Håkan",
    "Žižek",
    "São",
    "İzmir",
    "Ľubomír",
]


@pytest.mark.parametrize("name", UNKNOWN_NAMES)
def test_word_that_the_model_cannot_spell_is_copied(name: str) -> None:
    unknown = "".join(char for char in name if not char.isascii())

    assert _kinds(f"We met {name} today.", f"Wir trafen {name} heute.", unknown=unknown) == set()
    assert _kinds(f"We met {name} today.", "Wir trafen ihn heute.", unknown=unknown) == {"name_changed"}
    assert _kinds(f"We met {name} today.", "Wir trafen ihn heute.") == set()


def test_violation_has_the_spans_of_both_sides() -> None:
    (violation,) = _violations("It was 95.00 EUR.", "Es waren 95.000 EUR.")

    assert violation.kind is WarningKind.NUMBER_CHANGED
    assert violation.source is not None
    assert violation.target is not None
    assert "It was 95.00 EUR."[violation.source.start : violation.source.end] == "95.00"
    assert "Es waren 95.000 EUR."[violation.target.start : violation.target.end] == "95.000"


def test_missing_text_has_no_target_span() -> None:
    (violation,) = _violations("Yes | No", "Ja Nein")

    assert violation.source is not None
    assert violation.source.start == 4
    assert violation.target is None


def test_masks_are_neither_numbers_nor_symbols() -> None:
    assert _kinds(f"{MASK} of {MASK * 3} files", f"{MASK * 3} von {MASK} Dateien") == set()


def test_number_of_violations_is_limited() -> None:
    source = " ".join(f"AB{number}C {number}" for number in range(100, 200))

    assert len(_violations(source, "nichts")) <= 12 * MAX_VIOLATIONS


def test_damage_is_of_a_hard_kind_and_style_is_not() -> None:
    assert WarningKind.NUMBER_CHANGED in HARD_KINDS
    assert WarningKind.ENDING_CHANGED not in HARD_KINDS


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("Computer", "Computer", True),
        ("Undo", "undo", True),
        ("Save as", "Save as", True),
        ("Save the file", "Save the file", True),
        ("Save", "Speichern", False),
        ("Save the whole file", "Save the whole file", False),
        ("...", "...", False),
        ("5", "5", False),
        ("", "", False),
        ("A", "A", False),
        ("Cash ", "Cash", True),
        ("Left", "Linke", False),
    ],
)
def test_short_copy_is_detected(source: str, target: str, expected: bool) -> None:
    assert is_short_copy(source, target) is expected


@pytest.mark.parametrize(
    ("source", "target", "missing"),
    [
        ("Wir nutzen Redis, Nokia und Siemens.", "We use Redis, Nokia and youmen.", ["Siemens"]),
        ("Nokia, Siemens, Redis", "Nokia, youmen, Redis", ["Siemens"]),
        ("Wir nutzen Redis, Nokia und Siemens.", "We use Redis, Nokia and Siemens.", []),
        ("Wir nutzen Redis, Nokia und Siemens.", "We use words.", []),
        ("Wir kennen Tom, Maria und Siemens.", "We know Tom, Maria and youmen.", []),  # known words only are copied
        ("Wir nutzen Redis, Nokia und Tom.", "We use Redis, Nokia and him.", []),
        ("Wir nutzen Redis, Nokia und Tabellen.", "We use Redis, Nokia and tables.", []),
        ("Wir prüfen Redis, Nokia und Anwendungen.", "We check Redis, Nokia and applications.", []),
        ("Redis und Siemens", "Redis and youmen", []),  # too short for a list of names
    ],
)
def test_names_of_a_list_are_copied(source: str, target: str, missing: list[str]) -> None:
    known = {"tom", "maria", "tabellen"}
    texts = Texts(
        source=source,
        target=target,
        source_language="de",
        target_language="en",
        is_word=lambda word: word.lower() in known,
    )

    found = [each for each in find_violations(texts) if each.kind is WarningKind.NAME_CHANGED]

    assert [source[each.source.start : each.source.end] for each in found if each.source] == missing
