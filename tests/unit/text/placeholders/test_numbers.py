"""Numbers and identifiers of a text, and the comparison of numbers."""

import sys
from types import FrameType
from typing import Any

import pytest

from dragoman_service.datatypes import Span
from dragoman_service.request import NumberFormat, ProtectedKind
from dragoman_service.text.placeholders.number_values import is_same_number, numbers_in
from dragoman_service.text.placeholders.numbers import NumberFinder
from dragoman_service.text.placeholders.spans import ProtectedSpan

NUMBER, IDENTIFIER = ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER
BOTH = frozenset({NUMBER, IDENTIFIER})
FRAMES = {
    "en": ("{}", "The value is {}.", "Here ({}), then more.", "{}, or not", 'It says "{}" here'),
    "de": ("{}", "Der Wert ist {}.", "Hier ({}), dann mehr.", "{}, oder nicht", "Es steht „{}“ hier"),
    "ja": ("{}", "値は{}です。", "これ({})と", "{}、または", "「{}」"),
}

Found = tuple[str, ProtectedKind | None, str | None]


def found(
    text: str,
    source: str = "en",
    target: str = "de",
    kinds: frozenset[ProtectedKind] = BOTH,
    number_format: NumberFormat = NumberFormat.LOCALIZED,
    spans: tuple[ProtectedSpan, ...] = (),
) -> list[Found]:
    finder = NumberFinder(kinds, source, target, number_format)
    return [
        (text[one.span.start : one.span.end], one.kind, one.target)
        for one in finder.add_to(spans, text)
        if one not in spans
    ]


# Values of each kind in English, with their German form if it differs.
ENGLISH_NUMBERS = {
    # amounts
    "$12.99": "$12,99", "€49.90": "€49,90", "£3.99": "£3,99", "95.00 EUR": "95,00 EUR", "EUR 95": None,
    "EUR 95.50": "EUR 95,50", "US$ 7.25": "US$ 7,25", "A$12.00": "A$12,00", "Rs. 500": None, "₹2,499": "₹2.499",
    "1,250.00 EUR": "1.250,00 EUR", "1,250 EUR": "1.250 EUR", "1.250 EUR": None, "$5": None, "$5M": None,
    "$1,000,000": "$1.000.000", "-$5.20": "-$5,20", "$-5.20": "$-5,20", "30k€": None, "CHF 95.–": None,
    "12.50 USD": "12,50 USD", "0.05 BTC": "0,05 BTC", "$10–$20": None, "$1.50–$2.50": "$1,50–$2,50",
    "10-20 EUR": None, "¥1,200": "¥1.200", "250 kr": None, "99.90 zł": "99,90 zł", "$0.125": "$0,125",
    # decimals, grouped and long numbers
    "2.6": None, ".5": None, "1.048": None, "3.14159": None, "10,000": None, "1,000,000": "1.000.000",
    "1,048.60": "1.048,60", "12345": None, "1000000": None, "20000": None, "10 000": None, "1’000’000.5": "1.000.000,5",
    "-4.2": None, "+5.5": None, "−0.75": None, "±0.1": None, "2.5x": None,
    # percentages and units
    "5%": None, "12.5%": "12,5%", "12.5 %": "12,5 %", "0.8‰": "0,8‰", "10–20 %": None, "1.5–2.5 %": "1,5–2,5 %",
    "25 °C": None, "36.6 °C": "36,6 °C", "98.6°F": "98,6°F", "100 nM": None, "2.5 mM": "2,5 mM", "5 km/h": None,
    "20 m²": None, "20.5 m²": "20,5 m²", "3.5GHz": "3,5GHz", "10GB": None, "1,500 MB": "1.500 MB", "5 min": None,
    "20 mg/dL": None, "5.5-6.5 kg": "5,5-6,5 kg", "1.250 kg": None, "0.125 kg": "0,125 kg", "230 V": None,
    "3 kWh": None, "1.2 mAh": "1,2 mAh", "100 KBps": None, "50 µm": None, "1,013.25 hPa": "1.013,25 hPa",
    # products, ratios and fractions
    "1920x1080": None, "2.5 × 3.5 m": "2,5 × 3,5 m", "10 x 15 cm": None, "4x4": None, "16:9": None, "1:50000": None,
    "1/2": None, "3/4": None, "1 1/2": None, "24/7": None, "120/80 mmHg": None, "110/220 V": None, "2½": None,
    # scientific
    "1e-5": None, "6.02×10^23": None, "6.02 × 10²³": None, "2^10": None, "1.5E+10": None, "10³": None,
    "40°26′46″N": None, "52° 31′ N": None,
    # dates and times
    "2026-11-28": None, "11/28/2026": None, "28.11.2026": None, "11/28/26": None, "2026/11/28": None,
    "2026-11-28T12:30:45Z": None, "2026-11-28 12:30": None, "12:30": None, "12:30:45": None, "3:30 pm": None,
    "3:30 p.m.": None, "5pm": None, "9:00–17:00": None, "00:00:01,000 --> 00:00:02,000": None, "01:02:03.456": None,
}  # fmt: skip

IDENTIFIERS = [
    # phone numbers
    "+49 30 1234567", "(555) 123-4567", "030/123456", "0800 123 4567", "555-1234", "06 12 34 56 78", "1-800-555-0199",
    "+1 (555) 123-4567", "+49 (0)30 1234567", "0171-1234567", "(030) 123456", "555.123.4567", "+44 20 7946 0958",
    "+49.171.1234567", "+1-202-555-0143",
    # accounts, cards and books
    "DE89 3704 0044 0532 0130 00", "DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19", "4111 1111 1111 1111",
    "3782 822463 10005", "4111111111111111", "978-3-16-148410-0", "3-16-148410-X", "0317-8471", "123-45-6789",
    # versions
    "v2.3.1", "1.2.3", "1.2.3-rc1", "10.0.19045.3803", "2.0.0-beta.4", "1.0.0-SNAPSHOT", "v1.0", "3.2.1", "2.6-rc2",
    "v11.2.1+build5",
    "1.2.x", "v2",
    "5.15.0-91-generic", "10.1000/182", "10.1093/ajae/aaq063",
    # hexadecimal numbers, hashes and addresses
    "0x80070057", "0xDEADBEEF", "#ff0000", "#fff", "#1a2b3c4d", "550e8400-e29b-41d4-a716-446655440000", "U+1F600",
    "d41d8cd98f00b204e9800998ecf8427e", "da39a3e", "192.168.178.1", "10.0.0.1:8080", "10.0.0.0/8", "2001:db8::1",
    "fe80::1%eth0", "::1", "2001:0db8:85a3:0000:0000:8a2e:0370:7334", "00:1A:2B:3C:4D:5E", "00-1A-2B-3C-4D-5E",
    "001a.2b3c.4d5e", "192.168.178.100",
    # numbers of orders, articles and tickets
    "INV-2026-0042", "A-1234/B", "ORD#4471", "12345-AB-99", "#1234", "ABC-123", "RE-2026/117", "SKU-88-X1", "KB5005565",
    "CVE-2026-12345", "ISO-8859-1", "SHA-256", "ticket-123456", "2025/26", "2025/2026", "PO-77", "D-10115", "01067",
    "12345-6789", "90-60-90",
    # file names
    "report_final_v2.docx", "0001193125-15-051471.txt", "a.tar.gz", "readme.txt", "config.yaml", "IMG_2041.JPG",
    "2026-11-28-notes.txt", "2026-11-28.pdf", "1.2.3.zip", "data-2026.csv", "app.min.js", "backup_2.sql",
    # words with letters and digits
    "802.11ax", "802.11g", "Ca2+", "Fe3+", "SO42-", "H2O", "C6H12O6", "x86_64", "Win11", "24H2", "3D", "5G", "MP3",
    "i18n", "B2B", "C++17", "F-16", "UTF-8", "GPT-4", "gpt-4o-mini", "claude-sonnet-4-20250929", "HTTP/1.1", "PS4/PS5",
    "EB-5", "Q3FY26", "iPhone15", "A380", "M3",
    # code
    "user_id", "MAX_LEN", "@user_1", "get_value2", "first_name", "foo_bar.baz_1", "utf8mb4", "getItem2",
    "std::vector2", "user_1@host2",
]  # fmt: skip

PLAIN = [
    "In 2026 there were 5 men and 300 people on page 12.", "He was born in 1985 and died in 2020.", "1 2 3 4 5 6 7",
    "The 1st, 2nd, 3rd and 20th time", "the 90s and the 1990s", "12 1990s songs and 10s of them", "a 5-year plan",
    "a 20-year-old man", "A 20-YEAR-OLD MAN", "5x faster, 10x better", "a 2-in-1 device", "in mid-2026",
    "the top-10 list",
    "See verses 23-25.", "pages 12–15", "from 2020-2025", "2019 2020 2021 2022", "a 4-4-2 formation",
    "Mr. 5 and Dr. No",
    "No. 5, Art. 3, p. 12", "100 %d", "user_ and _user and _Open", "Save _As, E_xit, Fi_le", "_italic_ and __bold__",
    "a ____ b", "well-known, up-to-date", "end.The next", "and/or, he/she, km/h, w/o", "Hello: world; (really)!",
    "e.g. this, i.e. that", "GitHub, YouTube, iPhone, eBay", "a+b, a-b, a=b", "one_", "3 apples, 4 pears",
    "at 7 o'clock",
    "$ and € and %", "#hashtag and @home", "1st-class and 3rd-party", "Covid-19-like", "A4-sized", "5", "2026", "0042",
    "-5", "(5)", "[5]", "5.", "5, 6", "5: yes", "no 5!", "2,000th visitor", "the 1,000s",
]  # fmt: skip
GERMAN_PLAIN = [
    "Am 3. Mai 2026 kamen 5 Leute.", "die 90er und die 1990er", "eine 12-jährige und ein 12jähriger",
    "5-mal, 5mal, 3fach",
    "das 2. und das 3. Mal", "A4-Format, CO2-Ausstoß, 3D-Drucker", "COVID-19-Pandemie", "Formel-1-Fahrer", "100%ig",
    "im Jahr 2026", "Seite 12 f.", "S. 12, Nr. 5, Abs. 3", "Abb.3, S.12, Nr.5", "zwischen 2020 und 2025",
    "20-Euro-Schein",
    "die 80ern", "um 7 Uhr", "ca. 5 Leute", "2-Zimmer-Wohnung", "ein 3-stündiger Film",
]  # fmt: skip
GERMAN_NUMBERS = {
    # like an address
    "219.137.105.100,5": "219,137,105,100.5", "219.137.105.100,50 EUR": "219,137,105,100.50 EUR",
    "€ 1.219.137.105,25": "€ 1,219,137,105.25", "1.219.137,5 kg": "1,219,137.5 kg",
    "95,00 EUR": "95.00 EUR", "1.250,00 €": "1,250.00 €", "1.250 EUR": "1,250 EUR",
    "1.000.000,00 USD": "1,000,000.00 USD",
    "1.048,60": "1,048.60", "2,6": None, "1.250.000": "1,250,000", "10,5 %": "10.5 %", "1,5 kg": "1.5 kg",
    "1,250 kg": None, "10–20,5 %": "10–20.5 %", "95,-": None, "95,- €": None, "49,90 €": "49.90 €",
    "12.500 km": "12,500 km",
    "0,125 l": "0.125 l", "36,6 °C": "36.6 °C", "1.234.567,89": "1,234,567.89", "95.00 EUR": None, "1.25 €": None,
    "28.11.2026": None, "9:30": None, "1’250,50 €": "1,250.50 €", "1 250,50 €": "1,250.50 €", "-4,2 °C": "-4.2 °C",
    "1,0 %": "1.0 %", "€ 9,99": "€ 9.99", "12.34.56 EUR": None, "1.25.000 EUR": None, "0.500 EUR": None,
}  # fmt: skip
OTHER_NUMBERS: list[tuple[str, str, dict[str, str | None]]] = [
    ("en", "fr", {"1,250.00 EUR": "1\u202f250,00 EUR", "$12.99": "$12,99", "1,000,000": "1\u202f000\u202f000",
                  "10.5 %": "10,5 %", "2.6": None, "10,000": None, "1,250 kg": "1\u202f250 kg"}),
    ("fr", "en", {"1 250,00 €": "1,250.00 €", "1\u202f250,50 €": "1,250.50 €", "10,5 %": "10.5 %", "1.250,00 €": None,
                  "95,00 EUR": "95.00 EUR", "1 000 000": "1,000,000"}),
    ("en", "de-CH", {"1,250.00 EUR": "1’250.00 EUR", "1,000,000": "1’000’000", "$12.99": None, "10.5 %": None}),
    ("de-CH", "de", {"1'250.50 CHF": "1.250,50 CHF", "1’250.50 CHF": "1.250,50 CHF", "95.50 CHF": "95,50 CHF",
                     "1.250,00 CHF": None, "95,50 CHF": None}),
    ("de-AT", "en", {"1.250,00 €": "1,250.00 €", "1 250,00 €": "1,250.00 €", "95,00 EUR": "95.00 EUR"}),
    ("en", "ja", {"1,250.00 EUR": None, "$12.99": None, "1,000,000": None}),
    ("en-IN", "de", {"₹1,00,000.50": "₹100.000,50", "₹1,00,000": "₹100.000", "₹999.50": "₹999,50"}),
    ("eng_Latn", "deu_Latn", {"1,250.00 EUR": "1.250,00 EUR", "$12.99": "$12,99"}),
    ("en_US", "de_DE", {"1,250.00 EUR": "1.250,00 EUR"}),
    ("en", "xx", {"1,250.00 EUR": None, "$12.99": None}),
    ("xx", "en", {"1.250,00 EUR": None}),
    ("en", "", {"1,250.00 EUR": None}),
    ("en", "fa", {"1,250.00 EUR": None, "$12.99": None}),
    ("bn", "de", {"1,250.00 EUR": None}),
    ("en", "not a tag", {"1,250.00 EUR": None}),
    ("hi", "de", {"१,२५०.०० EUR": None}),
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES["en"])
@pytest.mark.parametrize("value", ENGLISH_NUMBERS)
def test_numbers_are_found_and_localized(value: str, frame: str) -> None:
    assert found(frame.format(value)) == [(value, NUMBER, ENGLISH_NUMBERS[value])]


@pytest.mark.parametrize("frame", FRAMES["de"])
@pytest.mark.parametrize("value", GERMAN_NUMBERS)
def test_german_numbers_are_localized(value: str, frame: str) -> None:
    assert found(frame.format(value), "de", "en") == [(value, NUMBER, GERMAN_NUMBERS[value])]


@pytest.mark.parametrize(
    ("source", "target", "value", "expected"),
    [(source, target, *pair) for source, target, values in OTHER_NUMBERS for pair in values.items()],
)
def test_separators_follow_both_languages_and_regions(
    source: str, target: str, value: str, expected: str | None
) -> None:
    assert found(f"X: {value}.", source, target) == [(value, NUMBER, expected)]


@pytest.mark.parametrize("frame", [*FRAMES["en"], "Der Wert ist {}."])
@pytest.mark.parametrize("value", IDENTIFIERS)
def test_identifiers_are_found_and_unchanged(value: str, frame: str) -> None:
    text = frame.format(value)

    assert found(text) == [(value, IDENTIFIER, None)]
    assert found(text, "de", "en") == [(value, IDENTIFIER, None)]


@pytest.mark.parametrize("text", PLAIN)
def test_small_integers_and_ordinary_words_are_left_to_the_model(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("text", GERMAN_PLAIN)
def test_german_ordinals_and_compounds_are_left_to_the_model(text: str) -> None:
    assert found(text, "de", "en") == []


@pytest.mark.parametrize("frame", FRAMES["ja"])
@pytest.mark.parametrize("value", ["$12.99", "12345", "2026-11-28", "25 °C", "12.5%", "A380", "v2.3.1", "user_id"])
def test_scripts_without_spaces_end_a_number(value: str, frame: str) -> None:
    assert [one[0] for one in found(frame.format(value), "ja", "en")] == [value]


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("95 euros, 5 dollars", "en", [("95", None), ("5", None)]),
        ("Er kostet 95 Euro.", "de", [("95", None)]),
        ("500円です", "ja", [("500", None)]),
        ("1,250.50 dollars", "en", [("1,250.50", "1.250,50")]),
        ("2.50 euros", "en", [("2.50", "2,50")]),
        ("1.5 million people", "en", [("1.5", "1,5")]),
        ("3.5 percent, 2.5 hours, 2.5-inch", "en", [("3.5", "3,5"), ("2.5", "2,5"), ("2.5", "2,5")]),
        ("version 2.5 MB, USB 3.0 A", "en", [("2.5 MB", None), ("3.0 A", None)]),
        ("2.6 people", "en", [("2.6", None)]),
        ("1.250 dollars", "en", [("1.250", None)]),
        ("5 s přáteli", "cs", []),
        ("5.5 s přáteli", "cs", [("5.5", None)]),
        ("Les 2 l'ont vu", "fr", []),
        ("9.30Uhr, 12:30Uhr", "en", [("9.30", None), ("12:30", None)]),
    ],
)
def test_words_beside_a_number_count_and_stay_outside(
    text: str, source: str, expected: list[tuple[str, str | None]]
) -> None:
    assert [(one[0], one[2]) for one in found(text, source)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("KB5005565-Update und 802.11ax-Router", ["KB5005565", "802.11ax"]),
        ("CO2- und SO2-Werte", ["CO2"]),
        ("IBAN DE89 3704 0044 0532 0130 00 BANK", ["DE89 3704 0044 0532 0130 00"]),
        ("Windows 11 24H2 KB5034441", ["24H2", "KB5034441"]),
        ("Press Ctrl+F5 now", ["F5"]),
        ("10115 Berlin, 80331 München", ["10115", "80331"]),
        ("from 12:30 to 13:45 on 2026-11-28", ["12:30", "13:45", "2026-11-28"]),
        ("10,5%,3 others", ["10,5%"]),
        ("192.168.100.101,192.168.100.102", ["192.168.100.101"]),
        ("（１２３４５）と２．５km", ["１２３４５"]),
    ],
)
def test_spans_end_where_the_value_ends(text: str, expected: list[str]) -> None:
    assert [one[0] for one in found(text, "de", "en")][: len(expected)] == expected


@pytest.mark.parametrize("value", [value for value, target in ENGLISH_NUMBERS.items() if target])
def test_numbers_stay_as_written_on_request(value: str) -> None:
    assert found(value, number_format=NumberFormat.AS_WRITTEN) == [(value, NUMBER, None)]


def test_request_selects_the_kinds() -> None:
    text = "95.00 EUR, INV-2026-0042, 10GB"

    assert [one[0] for one in found(text, kinds=frozenset({NUMBER}))] == ["95.00 EUR", "10GB"]
    assert [one[0] for one in found(text, kinds=frozenset({IDENTIFIER}))] == ["INV-2026-0042"]
    assert found(text, kinds=frozenset({ProtectedKind.URL})) == []


def test_spans_of_other_finders_are_kept() -> None:
    text = "a 95.00 EUR b 12.50 EUR c H2O d"
    spans = tuple(
        ProtectedSpan(span=Span(start=text.index(part), end=text.index(part) + len(part)), kind=None)
        for part in ("95.00 EUR", "EUR c H2")
    )

    merged = NumberFinder(BOTH, "en", "de", NumberFormat.LOCALIZED).add_to(spans, text)

    assert [text[one.span.start : one.span.end] for one in merged] == ["95.00 EUR", "12.50", "EUR c H2"]
    assert [one for one in merged if one in spans] == list(spans)


@pytest.mark.parametrize("separator", [" ", "x", "|", "12"])
def test_result_does_not_depend_on_the_window(separator: str) -> None:
    text = (separator * 16_384)[:16_380] + " 1,250.00 EUR and report_final_v2.docx"

    assert [one[0] for one in found(text)][-2:] == ["1,250.00 EUR", "report_final_v2.docx"]


@pytest.mark.parametrize(
    "unit",
    ["1 ", "1", "12 ", "12 345 ", "_", "a-", "a-1-", "A1-", "#", "1.", "1,", "$1,", "1:", "+1(", "(", "-", "a.", "|a",
     "0 ", "1x", "AA11 ", "::", "a:", "@", "1/", "1-", "12.5 % ", "€", "a_", "[", "0x", "1e"],
)  # fmt: skip
def test_work_is_linear_in_the_length(unit: str) -> None:
    once, twice = num_lines(unit * (1_000 // len(unit))), num_lines(unit * (2_000 // len(unit)))

    assert twice < 2.5 * once + 500


def num_lines(text: str) -> int:
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    traced = sys.gettrace()
    sys.settrace(trace)
    try:
        found(text)
    finally:
        sys.settrace(traced)
    return lines


def test_search_can_be_cancelled() -> None:
    def check() -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        NumberFinder(BOTH, "en", "de", NumberFormat.LOCALIZED).add_to([], "1 2 3", check)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It costs 1,250.00 EUR or $5.", ["1,250.00", "5"]),
        ("1 2 3 and 10 000", ["1", "2", "3", "10 000"]),
        ("12:30, 3/4, 10-20", ["12:30", "3/4", "10", "20"]),
        ("2026-11-28 and 28.11.2026.", ["2026-11-28", "28.11.2026"]),
        ("H2O, KB5005565, v2.3.1", ["2", "5005565", "2.3.1"]),
        ("1'000 1’000 1\u202f000", ["1'000", "1’000", "1\u202f000"]),
        ("١٢٣٫٥ and ２.５", ["١٢٣٫٥", "２.５"]),
        ("20 m²", ["20"]),
        ("none", []),
        ("", []),
    ],
)
def test_numbers_of_a_text(text: str, expected: list[str]) -> None:
    tokens = list(numbers_in(text))

    assert [token.text for token in tokens] == expected
    assert [text[token.span.start : token.span.end] for token in tokens] == expected


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("95.00", "95.00", "en de"), ("95.00", "95,00", "en de"), ("1,250.00", "1.250,00", "en de"),
        ("1,250.00", "1250,00", "en de"), ("1000000", "1.000.000", "en de"), ("10,000", "10 000", "en de"),
        ("10,000", "10.000", "en de"), ("10,000", "10000", "en de"), ("1.5", "1,5", "en de"), ("12:30", "12.30",
        "en de"),
        ("3/4", "3/4", "en de"), ("3/4", "3⁄4", "en de"), ("11/28/2026", "11.28.2026", "en de"),
        ("1,000,000.5", "1.000.000,5", "en de"), ("1.250", "1,250", "en de"), ("1.000.000", "1,000,000", "de en"),
        ("95,00", "95.00", "de en"), ("1.250", "1250", "de en"), ("9.30", "9:30", "de en"), ("١٢٣", "123", "ar en"),
        ("٣٫٥", "3.5", "ar en"), ("１２３", "123", "ja en"), ("10,000", "10\u202f000", "en fr"),
        ("1,250.5", "1’250.5", "en de-CH"), ("1,00,000", "100000", "en-IN de"), ("10'000", "10.000", "de-CH de"),
        ("12:30:45", "12.30.45", "en de"), ("10,000", "10.000", "xx yy"), ("0.125", "0,125", "en de"),
        ("12,345,678.9", "12 345 678,9", "en fr"),
    ],
)  # fmt: skip
def test_notations_of_the_same_number(source: str, target: str, languages: str) -> None:
    source_language, target_language = languages.split()

    assert is_same_number(source, target, source_language=source_language, target_language=target_language)


@pytest.mark.parametrize(
    ("source", "target", "languages"),
    [
        ("95.00", "95.000", "en de"), ("9500", "95.00", "en de"), ("9500", "95,00", "en de"), ("95.00", "9500",
        "en de"),
        ("1,250.00", "125.000", "en de"), ("1.250", "1250", "en de"), ("1.250", "1.250,0", "en de"), ("1.5", "15",
        "en de"),
        ("1000000", "100000", "en de"), ("20000", "2000", "en de"), ("3/4", "3,4", "en de"), ("3/4", "34", "en de"),
        ("16:9", "16.9", "en de"), ("16:9", "169", "en de"), ("1.2.3", "1.23", "en de"), ("12.99", "12,9", "en de"),
        ("2026-11-28", "2026-1-28", "en de"), ("95,000", "95,00", "en de"), ("1,250", "1,25", "de en"),
        ("10.5", "1.05", "en de"), ("10.5", "1,05", "en de"), ("1.250", "1,250", "de de"), ("12:30", "1230", "en de"),
        ("007", "7", "en de"), ("1.000", "1", "en de"),
    ],
)  # fmt: skip
def test_different_numbers(source: str, target: str, languages: str) -> None:
    source_language, target_language = languages.split()

    assert not is_same_number(source, target, source_language=source_language, target_language=target_language)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Konto-Nr.: 123 456 789", ("123 456 789", None)),
        ("BLZ 370 400 440", ("370 400 440", None)),
        ("Es sind 1 234 567 Euro", ("1 234 567", "1,234,567")),
        ("Es sind 1 234 567,50", ("1 234 567,50", "1,234,567.50")),
        ("Es sind 1.234.567", ("1.234.567", "1,234,567")),
    ],
)
def test_groups_with_spaces_are_localized_only_in_quantities(text: str, expected: tuple[str, str | None]) -> None:
    finder = NumberFinder(BOTH, "de", "en", NumberFormat.LOCALIZED)

    (each,) = finder.add_to((), text)

    assert (text[each.span.start : each.span.end], each.target) == expected


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ('a 12" monitor', ['12"']),
        ('Size: 12", 3.5" and 7"', ['12"', '3.5"', '7"']),
        ("5' 11\" tall, 6'2\"", ["5' 11\"", "6'2\""]),
        ("5\u2032 11\u2033 tall", ["5\u2032 11\u2033"]),
        ('He said "I have 12" and left.', []),
        ('"Room 12"', []),
        ("rock 'n' roll in '95", []),
    ],
)
def test_inches_and_feet_are_units_outside_of_quotations(text: str, spans: list[str]) -> None:
    finder = NumberFinder(BOTH, "en", "de", NumberFormat.LOCALIZED)

    assert [text[each.span.start : each.span.end] for each in finder.add_to((), text)] == spans


@pytest.mark.parametrize(
    ("text", "languages", "expected"),
    [
        ("It costs 30 cents.", "en-de", ("30 cents", "30 Cent")),
        ("I paid 50 pence.", "en-de", ("50 pence", "50 Pence")),
        ("only 1 cent", "en-GB-de-AT", ("1 cent", "1 Cent")),
        ("20 rappen", "en-de", ("20 rappen", "20 Rappen")),
        ("1.5 cents", "en-de", ("1.5 cents", "1,5 Cent")),
        ("30 CENTS", "en-de", ("30 CENTS", "30 CENT")),
        ("Das kostet 30 Cent.", "de-en", ("30 Cent", "30 cents")),
        ("nur 1 Cent", "de-en", ("1 Cent", "1 cent")),
        ("10 Groschen", "de-en", ("10 Groschen", "10 groschen")),
        ("80 Pfennig", "de-en", ("80 Pfennig", "80 pfennigs")),
        ("50 Rappen", "de-CH-en-US", ("50 Rappen", "50 rappen")),
    ],
)
def test_subunits_of_currencies_are_translated_with_their_number(
    text: str, languages: str, expected: tuple[str, str]
) -> None:
    parts = languages.split("-")
    source, target = "-".join(parts[: len(parts) // 2]), "-".join(parts[len(parts) // 2 :])
    assert found(text, source, target) == [(expected[0], NUMBER, expected[1])]


@pytest.mark.parametrize("text", ["a 30-cent stamp", "50 Cent is a singer", "30 scents", "9 centuries", "30 cents-off"])
def test_other_words_are_not_subunits(text: str) -> None:
    assert all(target is None for _, _, target in found(text))
