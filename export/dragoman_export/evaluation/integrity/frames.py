"""Ordinary sentences, labels and words in English and German, which `cases` completes with values.

`{x}` is the place of a value. All frames of a family fit all values of that family.
"""

from collections.abc import Mapping
from typing import Final

_ByLanguage = Mapping[str, tuple[str, ...]]

COUNTS: Final[_ByLanguage] = {  # {x}: an integer
    "en": (
        "The number is {x}.",
        "The town has {x} inhabitants.",
        "We sold {x} tickets last year.",
        "The library owns {x} books.",
        "There are {x} entries in the list.",
        "The stadium has room for {x} people.",
        "They planted {x} trees in the park.",
        "The old bridge carries {x} cars a day.",
        "More than {x} visitors came to the museum.",
        "He walked {x} steps yesterday.",
        "Only {x} copies were printed.",
        "The factory makes {x} bottles every month.",
        "Is it true that {x} students live here?",
    ),
    "de": (
        "Die Zahl ist {x}.",
        "Die Stadt hat {x} Einwohner.",
        "Wir haben letztes Jahr {x} Karten verkauft.",
        "Die Bibliothek besitzt {x} Bücher.",
        "In der Liste stehen {x} Einträge.",
        "Das Stadion hat Platz für {x} Menschen.",
        "Sie haben im Park {x} Bäume gepflanzt.",
        "Über die alte Brücke fahren {x} Autos am Tag.",
        "Mehr als {x} Besucher kamen ins Museum.",
        "Er ist gestern {x} Schritte gegangen.",
        "Nur {x} Exemplare wurden gedruckt.",
        "Die Fabrik stellt jeden Monat {x} Flaschen her.",
        "Stimmt es, dass hier {x} Studenten wohnen?",
    ),
}

VALUES: Final[_ByLanguage] = {  # {x}: a decimal, a percentage or a quantity with a unit
    "en": (
        "The result is {x}.",
        "The value rose to {x} in May.",
        "We measured {x} in the morning.",
        "The limit of {x} was exceeded.",
        "The difference is only {x}.",
        "My teacher says that {x} is correct.",
        "The machine showed {x} and stopped.",
        "A value of {x} is normal.",
        "The average was {x} last week.",
        "It cannot be more than {x}.",
        "At the end we had {x}.",
        "Please write {x} in the table.",
    ),
    "de": (
        "Das Ergebnis ist {x}.",
        "Der Wert stieg im Mai auf {x}.",
        "Wir haben am Morgen {x} gemessen.",
        "Die Grenze von {x} wurde überschritten.",
        "Der Unterschied beträgt nur {x}.",
        "Mein Lehrer sagt, dass {x} richtig ist.",
        "Die Maschine zeigte {x} an und blieb stehen.",
        "Ein Wert von {x} ist normal.",
        "Der Durchschnitt war letzte Woche {x}.",
        "Es kann nicht mehr als {x} sein.",
        "Am Ende hatten wir {x}.",
        "Bitte schreiben Sie {x} in die Tabelle.",
    ),
}

AMOUNTS: Final[_ByLanguage] = {  # {x}: an amount of money
    "en": (
        "The invoice of {x} was paid on Monday.",
        "The ticket costs {x}.",
        "She paid {x} for the old car.",
        "{x} was transferred to your account.",
        "The rent is {x} per month.",
        "You still owe me {x}.",
        "We received {x} from the customer.",
        "A room costs {x} without breakfast.",
        "The total of {x} includes all taxes.",
        "He found {x} in the street.",
        "Twelve hours at {x} were invoiced.",
        "The repair cost {x}, which was too much.",
    ),
    "de": (
        "Die Rechnung über {x} wurde am Montag bezahlt.",
        "Die Karte kostet {x}.",
        "Sie hat {x} für das alte Auto bezahlt.",
        "{x} wurden auf Ihr Konto überwiesen.",
        "Die Miete beträgt {x} im Monat.",
        "Du schuldest mir noch {x}.",
        "Wir haben {x} vom Kunden erhalten.",
        "Ein Zimmer kostet {x} ohne Frühstück.",
        "Die Summe von {x} enthält alle Steuern.",
        "Er hat {x} auf der Straße gefunden.",
        "Zwölf Stunden zu je {x} wurden berechnet.",
        "Die Reparatur kostete {x}, das war zu viel.",
    ),
}

MOMENTS: Final[_ByLanguage] = {  # {x}: a numeric date, a time, or both
    "en": (
        "The date is {x}.",
        "The last change was made on {x}.",
        "Deadline: {x}",
        "The report of {x} is missing.",
        "The entry {x} is wrong.",
        "{x} is the new date.",
        "The file shows {x} as the date.",
        "Please confirm {x} by mail.",
        "The system wrote {x} into the log.",
        "Start: {x}",
        "The clock showed {x} when we arrived.",
        "The letter says {x}, not tomorrow.",
    ),
    "de": (
        "Das Datum ist {x}.",
        "Die letzte Änderung wurde am {x} gemacht.",
        "Frist: {x}",
        "Der Bericht vom {x} fehlt.",
        "Der Eintrag {x} ist falsch.",
        "{x} ist das neue Datum.",
        "Die Datei zeigt {x} als Datum.",
        "Bitte bestätigen Sie {x} per Brief.",
        "Das System hat {x} in das Protokoll geschrieben.",
        "Beginn: {x}",
        "Die Uhr zeigte {x}, als wir ankamen.",
        "In dem Brief steht {x}, nicht morgen.",
    ),
}

THINGS: Final[_ByLanguage] = {  # {x}: an identifier, an address or a placeholder
    "en": (
        "The value {x} is missing.",
        "Please check {x} again.",
        "I cannot find {x}.",
        "{x} does not answer.",
        "We have sent you {x} today.",
        "The entry {x} was deleted.",
        "Open {x} and read the text.",
        "The teacher wrote {x} on the board.",
        "Where can I find {x}?",
        "With {x} everything works again.",
        "Do not change {x}, please.",
        "The answer is in {x}.",
        "Your message to {x} was not delivered.",
        "See {x}",
    ),
    "de": (
        "Der Wert {x} fehlt.",
        "Bitte prüfen Sie {x} noch einmal.",
        "Ich kann {x} nicht finden.",
        "{x} antwortet nicht.",
        "Wir haben Ihnen heute {x} geschickt.",
        "Der Eintrag {x} wurde gelöscht.",
        "Öffnen Sie {x} und lesen Sie den Text.",
        "Der Lehrer schrieb {x} an die Tafel.",
        "Wo finde ich {x}?",
        "Mit {x} funktioniert alles wieder.",
        "Bitte ändern Sie {x} nicht.",
        "Die Antwort steht in {x}.",
        "Ihre Nachricht an {x} wurde nicht zugestellt.",
        "Siehe {x}",
    ),
}

PEOPLE: Final[_ByLanguage] = {  # {x}: the name of a person
    "en": (
        "{x} called me yesterday.",
        "I met {x} in the city.",
        "The letter from {x} was very long.",
        "Have you seen {x} today?",
        "{x} and my brother went to the same school.",
        "The book was written by {x}.",
        "We are waiting for {x}.",
        "Yesterday {x} lost the key.",
        "My neighbour {x} has two dogs.",
        "The doctor spoke with {x} about the disease.",
        "Without {x} we would have lost.",
        "She thinks that {x} is right.",
    ),
    "de": (
        "{x} hat mich gestern angerufen.",
        "Ich habe {x} in der Stadt getroffen.",
        "Der Brief von {x} war sehr lang.",
        "Hast du heute {x} gesehen?",
        "{x} und mein Bruder gingen in dieselbe Schule.",
        "Das Buch wurde von {x} geschrieben.",
        "Wir warten auf {x}.",
        "Gestern hat {x} den Schlüssel verloren.",
        "Mein Nachbar {x} hat zwei Hunde.",
        "Der Arzt sprach mit {x} über die Krankheit.",
        "Ohne {x} hätten wir verloren.",
        "Sie glaubt, dass {x} recht hat.",
    ),
}

SYMBOLS: Final[_ByLanguage] = {  # {x}: a symbol or a short run of them between words
    "en": (
        "About us {x} Contact",
        "Yes {x} No",
        "File {x} Open",
        "Home {x} Products {x} Prices",
        "Morning {x} evening",
        "{x} New message",
        "{x} The door is open.",
        "The way home {x} the way to school",
        "Small {x} large",
        "Good work {x} thank you!",
        "Today we learn the sign {x} at school.",
        "We like {x} the new house very much.",
        "The weather is fine {x}",
    ),
    "de": (
        "Über uns {x} Kontakt",
        "Ja {x} Nein",
        "Datei {x} Öffnen",
        "Startseite {x} Produkte {x} Preise",
        "Morgen {x} Abend",
        "{x} Neue Nachricht",
        "{x} Die Tür ist offen.",
        "Der Weg nach Hause {x} der Weg zur Schule",
        "Klein {x} groß",
        "Gute Arbeit {x} danke!",
        "Heute lernen wir in der Schule das Zeichen {x}.",
        "Wir mögen {x} das neue Haus sehr.",
        "Das Wetter ist schön {x}",
    ),
}

SENTENCES: Final[_ByLanguage] = {  # without a value, without a final full stop
    "en": (
        "The children play in the garden",
        "We bought fresh bread this morning",
        "Please save your work before you leave",
        "The train arrives at the station in the evening",
        "My sister has the answer to this question",
        "My sister works in a large hospital",
        "You can change the language at any time",
        "The old man lives alone in the forest",
        "I forgot my umbrella at school",
        "The meeting starts early tomorrow",
        "She opened the window because it was hot",
        "They want to visit us in the summer",
        "Read the letter and write an answer",
        "He drinks a glass of water every morning",
        "The dog sleeps under the table",
        "We need more time for this work",
    ),
    "de": (
        "Die Kinder spielen im Garten",
        "Wir haben heute Morgen frisches Brot gekauft",
        "Bitte speichern Sie Ihre Arbeit, bevor Sie gehen",
        "Der Zug kommt am Abend am Bahnhof an",
        "Niemand kennt die Antwort auf diese Frage",
        "Meine Schwester arbeitet in einem großen Krankenhaus",
        "Sie können die Sprache jederzeit ändern",
        "Der alte Mann wohnt allein im Wald",
        "Ich habe meinen Regenschirm in der Schule vergessen",
        "Die Besprechung beginnt morgen früh",
        "Sie öffnete das Fenster, weil es heiß war",
        "Sie wollen uns im Sommer besuchen",
        "Lies den Brief und schreib eine Antwort",
        "Er trinkt jeden Morgen ein Glas Wasser",
        "Der Hund schläft unter dem Tisch",
        "Wir brauchen mehr Zeit für diese Arbeit",
    ),
}

LABELS: Final[_ByLanguage] = {  # of buttons and menus
    "en": (
        "Search", "Please wait", "Save as", "Open file", "Delete message", "New window", "Close all", "Send letter",
        "Change password", "Print page", "Show more", "Next page", "Loading", "Select language", "Add picture",
        "Remove user", "Choose a colour", "Continue", "Cancel", "Insert table", "Edit text", "Help", "Settings",
    ),
    "de": (
        "Suchen", "Bitte warten", "Speichern unter", "Datei öffnen", "Nachricht löschen", "Neues Fenster",
        "Alle schließen", "Brief senden", "Kennwort ändern", "Seite drucken", "Mehr anzeigen", "Nächste Seite",
        "Wird geladen", "Sprache auswählen", "Bild hinzufügen", "Benutzer entfernen", "Farbe wählen", "Weiter",
        "Abbrechen", "Tabelle einfügen", "Text bearbeiten", "Hilfe", "Einstellungen",
    ),
}  # fmt: skip

_ENGLISH_WORDS = """
left right like done on off up down open close save delete cancel back next again always never today tomorrow
yesterday morning evening night day week year time house door window table chair bread water milk apple tree
flower bird dog horse child mother father brother sister friend teacher doctor school street city country river
mountain sea sky sun moon star rain snow wind fire earth book letter word sentence question answer language song
picture colour red green black white yellow big small long short old young hot cold good bad fast slow easy
difficult beautiful ugly happy sad hungry thirsty tired sick healthy strong weak rich poor go come run sleep eat
drink read write speak hear see think believe hope love hate buy sell give take find lose win begin end help
thanks please sorry yes maybe undo paste copy cut print search settings account password
"""
_GERMAN_WORDS = """
links rechts fertig aus ein auf zu öffnen schließen speichern löschen abbrechen zurück weiter wieder immer nie
heute morgen gestern abend nacht tag woche jahr zeit haus tür fenster tisch stuhl brot wasser milch apfel baum
blume vogel hund pferd kind mutter vater bruder schwester freund lehrer arzt schule straße stadt land fluss berg
meer himmel sonne mond stern regen schnee feuer erde buch brief wort satz frage antwort sprache lied bild farbe
rot grün schwarz weiß gelb groß klein lang kurz alt jung heiß kalt gut schlecht schnell langsam leicht schwierig
schön hässlich glücklich traurig hungrig durstig müde krank gesund stark schwach reich arm gehen kommen laufen
schlafen essen trinken lesen schreiben sprechen hören sehen denken glauben hoffen lieben hassen kaufen verkaufen
geben nehmen finden verlieren gewinnen beginnen helfen danke bitte entschuldigung ja vielleicht einfügen
kopieren ausschneiden drucken suchen einstellungen konto kennwort
"""
# Lower-case words whose translations are spelled differently.
WORDS: Final[_ByLanguage] = {
    "en": tuple(_ENGLISH_WORDS.split()),
    "de": tuple(_GERMAN_WORDS.split()),
}

ABBREVIATED: Final[_ByLanguage] = {  # {n}: a small number; {x}: a name
    "en": (
        "We sell fruit, e.g. apples and pears.",
        "Many animals, e.g. dogs and cats, live in the house.",
        "The shop closes early, i.e. in the afternoon.",
        "See No. {n} on the list.",
        "The answer is in No. {n}.",
        "The picture is shown in Fig. {n}.",
        "Read vol. {n} first.",
        "The text is on p. {n} of the book.",
        "Dr. {x} works in the hospital.",
        "Mr. and Mrs. {x} are not at home.",
        "Prof. {x} explains the question.",
        "J. K. {x} wrote many books.",
        "J. R. R. {x} wrote books.",
        "The road is approx. {n} km long.",
        "We need paper, pencils, etc. for the school.",
        "Bring water, bread, etc.",
    ),
    "de": (
        "Wir verkaufen Obst, z. B. Äpfel und Birnen.",
        "Viele Tiere, z. B. Hunde und Katzen, leben im Haus.",
        "Der Laden schließt früh, d. h. am Nachmittag.",
        "Wir haben u. a. Brot und Milch gekauft.",
        "Siehe Nr. {n} auf der Liste.",
        "Das steht in Abs. {n} des Vertrags.",
        "Die Antwort steht in Nr. {n}.",
        "Das Bild ist in Abb. {n} zu sehen.",
        "Der Text steht auf S. {n} des Buches.",
        "Dr. {x} arbeitet im Krankenhaus.",
        "Prof. {x} erklärt die Frage.",
        "J. K. {x} hat viele Bücher geschrieben.",
        "Die Straße ist ca. {n} km lang.",
        "Wir brauchen Papier, Stifte usw. für die Schule.",
        "Das Haus steht in der Bahnhofstr. {n}.",
        "Er kommt bzw. sie kommt am Abend.",
    ),
}

TOGETHER: Final[_ByLanguage] = {  # {x}: names of companies or products
    "en": (
        "{x}",
        "The list contains {x}.",
        "We use {x} every day.",
        "{x} are well known.",
        "I like {x} very much.",
        "Today we talk about {x}.",
        "There are many programs, for example {x}.",
        "The company works with {x}.",
        "Who has heard of {x}?",
        "My brother bought {x} last year.",
        "Everybody knows {x}.",
        "Our customers are {x}.",
    ),
    "de": (
        "{x}",
        "Die Liste enthält {x}.",
        "Wir benutzen {x} jeden Tag.",
        "{x} sind bekannt.",
        "Ich mag {x} sehr.",
        "Heute sprechen wir über {x}.",
        "Es gibt viele Programme, zum Beispiel {x}.",
        "Die Firma arbeitet mit {x}.",
        "Wer hat von {x} gehört?",
        "Mein Bruder hat letztes Jahr {x} gekauft.",
        "Jeder kennt {x}.",
        "Unsere Kunden sind {x}.",
    ),
}

COUNTED: Final[_ByLanguage] = {  # {x}: a placeholder of a count
    "en": (
        "{x} files were deleted.", "{x} items", "{x} new messages", "You have {x} letters.", "{x} days left",
        "{x} users are online.", "Delete {x} pictures?", "{x} pages were printed.", "We found {x} errors.",
        "{x} seconds", "{x} results", "Please wait {x} minutes.",
    ),
    "de": (
        "{x} Dateien wurden gelöscht.", "{x} Elemente", "{x} neue Nachrichten", "Sie haben {x} Briefe.",
        "Noch {x} Tage", "{x} Benutzer sind online.", "{x} Bilder löschen?", "{x} Seiten wurden gedruckt.",
        "Wir haben {x} Fehler gefunden.", "{x} Sekunden", "{x} Ergebnisse", "Bitte warten Sie {x} Minuten.",
    ),
}  # fmt: skip
