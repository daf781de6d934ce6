"""Numbers and identifiers, which a translation must keep.

A number is an amount, a decimal or grouped number, a number with a unit, a date, a time, or has five digits or more.
An identifier is a phone number, a version, an address, a file name, or a word that mixes letters and digits. Small
plain integers and ordinals are left to the model. All expressions are bounded, so the time is linear in the text.
"""

import ipaddress
import re
from collections.abc import Callable, Sequence
from itertools import chain

from dragoman_service.datatypes import Span
from dragoman_service.request import NumberFormat, ProtectedKind
from dragoman_service.text.placeholders.number_values import SPACE, localized_number, number_convention
from dragoman_service.text.placeholders.spans import ProtectedSpan, WindowedExpression
from dragoman_service.text.segmentation import Check, never_ends

# Letters of identifiers: Latin, Greek and Cyrillic. Scripts without spaces between words need no word boundary.
_LETTER = r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u03ff\u0400-\u052f\u1e00-\u1eff"
_WORD = rf"\d_{_LETTER}"
_END = rf"(?![{_WORD}])"
_HEX = r"[0-9A-Fa-f]"
_SIGN = r"[-+\u2212\xb1]"

_CURRENCY_CODE = (
    "EUR|USD|GBP|CHF|JPY|CNY|RMB|INR|AUD|CAD|NZD|SEK|NOK|DKK|ISK|PLN|CZK|HUF|RON|BGN|RSD|TRY|RUB|UAH|ILS|AED|SAR|QAR"
    "|KWD|EGP|MAD|TND|ZAR|NGN|KES|BRL|MXN|ARS|CLP|COP|PEN|SGD|HKD|TWD|KRW|THB|MYR|IDR|PHP|VND|PKR|BDT|LKR|BTC|ETH|DEM"
)
_CURRENCY_SYMBOL = r"(?:(?:US|CA|AU|NZ|HK|NT|MX|[ACRS])?\$|[\xa3\xa5\u20a0-\u20c0\u0e3f\uffe5\uff04\uffe1])"
_CURRENCY_BEFORE = rf"(?:{_CURRENCY_SYMBOL}|{_CURRENCY_CODE}|Rs\.?|SFr\.?|kr\.?|DM|RM)"
_CURRENCY = rf"(?:{_CURRENCY_SYMBOL}|\xa2|(?:{_CURRENCY_CODE}|kr|DM|K\u010d|z\u0142|Ft)(?![{_WORD}]))"
_BASE_UNIT = (
    rf"%|\u2030|\xb0(?:[CFK]{_END})?|[\u2103\u2109\u2032\u2033]|{_CURRENCY}"
    r"|(?:[kcdm\xb5\u03bcn]?m|ft|yd)[\xb2\xb3]?|[km\xb5\u03bcn]?g|t|lbs?|oz|[mcdh\xb5\u03bc]?[lL]|gal"
    r"|[m\xb5\u03bcn]?s\xb2?|min|h|rpm|mph|kph|fps|dpi|ppi|ppm|ppb|px|pt"
    r"|[kMGTm]?Hz|[kMGTm\xb5\u03bcn]?[WVA]|[kMGT]?Wh|kWp|m?Ah|[kM]?VA|[kM\u2126\u03a9]?[\u2126\u03a9]"
    r"|k?cal|[kM]?J|k?N|Nm|[hkMG]?Pa|m?bar|psi|atm|mmHg|K|cd|lm|lx|[km\xb5\u03bcnp]?mol|[m\xb5\u03bcnp]M|k?Da|bp"
    r"|dB[Ami]?|[kKMGTPE]i?[Bb](?:ps)?|B|[kMGT]?bit|[m\xb5\u03bc]?Sv|[kMG]?Bq|m?Gy|IU|IE"
)
UNIT = rf"(?:{_BASE_UNIT})(?:/(?:{_BASE_UNIT}))?(?![{_WORD}'’])"

# Digits with separators between them. In groups of a space or an apostrophe, each group has three digits.
_CORE = (
    rf"(?:\d{{1,3}}(?:{SPACE}\d{{3}}){{1,8}}(?!\d)(?:[.,]\d{{1,20}}+)?"
    r"|\d{1,200}+(?:(?=[.,\xb7\u066b\u066c]\d|['’]\d{3}(?!\d)).\d{1,64}+){0,12}+|\.\d{1,20}+)"
)
_DASH = rf"(?:[-\u2013\u2014]|{SPACE}[\u2013\u2014]{SPACE})"
_SUFFIX = (
    rf"(?:[.,][-\u2013\u2014]{{1,2}}(?:{SPACE}?{_CURRENCY}|(?!\w))|(?:[kKMBT]|bn)?{SPACE}?{UNIT}"
    rf"|(?:[kKMBT]|bn|x){_END})"
)
_NUMBER = re.compile(
    rf"{_SIGN}?(?P<before>{_CURRENCY_BEFORE}{SPACE}?)?{_SIGN}?(?P<core>{_CORE})"
    rf"(?:{_DASH}(?:{_CURRENCY_BEFORE}{SPACE}?)?(?P<last>{_CORE})(?![-.]\d))?(?P<after>{_SUFFIX}|{_END}|(?=Uhr{_END}))"
)
_AMOUNT = re.compile(rf"(?={_SIGN}?{_CURRENCY_BEFORE}){_NUMBER.pattern}")
_IS_PRICE = re.compile(rf",[-\u2013\u2014]|.*{_CURRENCY}")  # `95,-` and `95 EUR`

# Words next to a number that mark it as an amount or a quantity. The model translates them.
_CURRENCY_WORD = re.compile(
    rf"{SPACE}?(?:US[- ])?(?:euros?|dollars?|pounds?|pfund|francs?|franken|yen|yuan|rupees?|rupien|cents?"
    rf"|centimes|kronen|kron[eo]r|z\u0142otych|рубл[а-я]{{1,3}}|евро|доллар[а-я]{{0,3}}|гривен|pesos?|reais|lire|lira|rand"
    rf"|rappen){_END}|{SPACE}?[円元원]|유로|달러|ユーロ|ドル|欧元|美元|人民币|日元",
    re.IGNORECASE,
)
_QUANTITY_WORD = re.compile(
    rf"(?:{SPACE}|-)(?:percent|per cent|prozent|pour cent|por ciento|por cento|per cento|procent|thousand|tausend"
    rf"|millions?|millionen|millones|billions?|trillions?|milliards?|milliarden?|billionen|mio|mrd|mln|bn"
    rf"|seconds?|minutes?|hours?|days?|weeks?|months?|years?|sekunden?|minuten?|stunden?|tagen?|wochen?|monaten?"
    rf"|jahren?|heures?|jours?|semaines?|mois|ans|secondes?"
    rf"|(?:kilo|centi|milli)?met(?:er|re)s?n?|zentimetern?|millimetern?|kilometern?|metern?|miles?|meilen|inch(?:es)?"
    rf"|zoll|feet|foot|(?:kilo|milli)?gramm?e?s?n?|kilos?|tonnes?|tons?|tonnen|(?:milli)?lit(?:er|re)s?n?|gallons?"
    rf"|ounces?|degrees?|grad|degr[\u00e9]s?|(?:mega|giga|kilo|tera)?bytes?|watts?|volts?){_END}",
    re.IGNORECASE,
)
# Subunits of currencies, which models confuse with other words. A second name is the plural.
_SUBUNIT = re.compile(rf"({SPACE})([A-Za-z]{{4,8}})(?![{_WORD}-])")
_SUBUNITS: dict[tuple[str, str], dict[str, tuple[str, ...]]] = {
    ("en", "de"): {
        "cent": ("Cent",), "cents": ("Cent",), "penny": ("Penny",), "pence": ("Pence",), "rappen": ("Rappen",),
        "centime": ("Centime",), "centimes": ("Centime", "Centimes"), "groschen": ("Groschen",),
        "pfennig": ("Pfennig",), "pfennigs": ("Pfennig",), "kopecks": ("Kopeken",), "kopeks": ("Kopeken",),
    },
    ("de", "en"): {
        "Cent": ("cent", "cents"), "Cents": ("cent", "cents"), "Penny": ("penny", "pennies"), "Pence": ("pence",),
        "Rappen": ("rappen",), "Centime": ("centime",), "Centimes": ("centimes",), "Groschen": ("groschen",),
        "Pfennig": ("pfennig", "pfennigs"), "Pfennige": ("pfennigs",), "Kopeken": ("kopecks",),
    },
}  # fmt: skip
# Words before a number that is a name: `version 2.5 M` is not a quantity.
_NAMED = re.compile(
    r"(?:\b(?:version|release|build|revision|section|abschnitt|chapter|kapitel|chapitre|python|android|ios|java|usb|hdmi"
    r"|bluetooth|windows|wi-fi|tls|http)|\b[vV]\.|§)\s?\Z",
    re.IGNORECASE,
)
_NAME_CHARACTERS = 16  # before a number, for `_NAMED`
_QUOTE = re.compile(r'(?<!\d)"')
_QUOTE_CHARACTERS = 256  # before a number, in which a quotation may begin
_S_IS_WORD = frozenset({"cs", "sk", "sl"})  # languages in which `s` is a preposition: `5 s přáteli`

_EXTENSIONS = (
    "7z|aac|apk|avi|bak|bat|bin|bmp|bz2|cfg|conf|cpp|cs|css|csv|dat|db|deb|dll|dmg|doc|docm|docx|epub|exe|flac|gif|go|gz"
    "|h|htm|html|ico|ics|img|ini|iso|jar|java|jpeg|jpg|js|json|jsx|key|kt|log|lua|m4a|md|mkv|mov|mp3|mp4|mpeg|msi|odp|ods"
    "|odt|ogg|otf|pdf|pem|php|png|po|ppt|pptx|properties|ps1|psd|py|rar|rb|rpm|rs|rst|rtf|sh|sql|srt|svg|tar|tex|tgz|tif"
    "|tiff|toml|ts|tsv|tsx|ttf|txt|vtt|wav|webm|webp|woff2?|xls|xlsm|xlsx|xml|xlf|xliff|xz|yaml|yml|zip|zst"
)
_EXTENSIONS_IN_CAPITALS = "CSV|DOCX?|EXE|GIF|HTML?|JPE?G|JSON|MP[34]|PDF|PNG|PPTX?|RTF|TXT|XLSX?|XML|ZIP"
# The start of a file name, such as `2026-11-28-notes.txt`, is not a date, a number or a version.
_NO_FILE = rf"(?!(?:[{_WORD}@-]{{0,64}}+\.){{1,4}}(?:{_EXTENSIONS}){_END})"

_DATE = re.compile(
    r"(?:\d{4}([-/.])\d{1,2}\1\d{1,2}|\d{1,2}([-/.])\d{1,2}\2\d{4}|\d\d([-/.])\d\d\3\d\d)"
    r"(?:(?:T|,? )\d{1,2}:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[-+]\d\d:?\d\d)?)?"
    rf"(?![{_WORD}]|[-/.]\d){_NO_FILE}"
)
_CLOCK = r"\d{1,6}(?::\d{1,6}){1,4}(?:[.,]\d{1,6})?"
_TIME = re.compile(
    rf"{_CLOCK}(?:(?:{SPACE}?[-\u2013\u2014]{SPACE}?| --> ){_CLOCK})?"
    rf"(?:{SPACE}?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]{_END})|{_END}|(?=Uhr{_END}))(?!:\d)"
    rf"|\d{{1,2}}{SPACE}?(?:[AaPp]\.[Mm]\.|[AaPp][Mm]{_END})"
)
_SCIENTIFIC = re.compile(
    rf"{_SIGN}?(?:\d{{1,20}}(?:[.,]\d{{1,20}})?[eE][-+\u2212]?\d{{1,4}}{_END}"
    rf"|(?:\d{{1,20}}(?:[.,]\d{{1,20}})?{SPACE}?[x\xd7*\xb7]{SPACE}?)?\d{{1,4}}"
    rf"(?:\^(?:[-+\u2212]?\d{{1,4}}|\([-+\u2212]?\d{{1,4}}\))|[\u207b]?[\xb9\xb2\xb3\u2070\u2074-\u2079]{{1,4}}){_END}(?:{SPACE}?{UNIT})?)"
)
_FRACTION = re.compile(
    rf"(?:\d{{1,3}} (?=\d/))?(?!0\d\d)\d{{1,5}}[/\u2044]\d{{1,5}}(?:{SPACE}?{UNIT}|{_END}(?![/.]\d))"
    rf"|\d{{0,6}}[\xbc-\xbe\u2150-\u215e](?:{SPACE}?{UNIT}|{_END})"
)
_FEET = re.compile(r"""\d{1,2}['\u2032\u2019][ \xa0]?\d{1,2}(?:[.,]\d)?["\u2033\u201d]""")  # 5' 11"
_ANGLE = re.compile(  # 40°26′46″N
    rf"\d{{1,3}}°{SPACE}?\d{{1,2}}(?:[.,]\d{{1,6}})?[′']"
    rf"(?:{SPACE}?\d{{1,2}}(?:[.,]\d{{1,6}})?(?:[″\"]|''))?(?:{SPACE}?[NSEWO]{_END})?"
)
_PRODUCT_CORE = r"\d{1,9}(?:[.,]\d{1,9})?"
_PRODUCT = re.compile(
    rf"{_PRODUCT_CORE}(?:(?:{SPACE}?{UNIT})?({SPACE}?)[x\xd7]\1{_PRODUCT_CORE}){{1,3}}"
    rf"(?P<after>{SPACE}?{UNIT}|{_END})"
)

_COLOR = rf"#(?:{_HEX}{{8}}|{_HEX}{{6}}|([A-Fa-f])\1\1){_END}"
_FIXED = re.compile(
    rf"(?:{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}"  # UUID
    rf"|{_HEX}{{2}}(?:([:-]){_HEX}{{2}})(?:\1{_HEX}{{2}}){{4}}(?:(?:\1{_HEX}{{2}}){{2}})?|(?:{_HEX}{{4}}\.){{2}}{_HEX}{{4}}"
    # IBAN: a digit in each group after the first one, so that words in capitals after it are left out
    rf"|[A-Z]{{2}}\d\d{SPACE}?[A-Z0-9]{{4}}(?:{SPACE}?(?=[A-Z]{{0,3}}\d)[A-Z0-9]{{4}}){{1,7}}"
    rf"(?:{SPACE}?(?=[A-Z]{{0,2}}\d)[A-Z0-9]{{1,3}})?"
    r"|97[89][- ]?\d{1,5}[- ]\d{1,7}[- ]\d{1,7}[- ][\dX]|\d{1,5}-\d{1,7}-\d{1,7}-[\dX]"  # ISBN
    rf"|0[xX]{_HEX}{{1,64}}|0b[01]{{1,64}}|U\+[0-9A-F]{{4,6}}"
    rf"|10\.\d{{4,9}}/(?:[{_WORD}]|[-._;()/:](?=[{_WORD}])){{1,100}}"  # DOI
    r"|802\.\d{1,2}[a-z]{0,3}"  # IEEE 802.11ax; `g` is not a unit here
    rf"|(?:19|20)\d\d/(?:(?:19|20)\d\d|\d\d)(?![/.]\d)){_END}"
)
_IPV6 = re.compile(
    rf"(?=[0-9A-Fa-f:]{{2,39}})(?:{_HEX}{{0,4}}:){{2,7}}{_HEX}{{0,4}}(?:%\w{{1,16}}|/\d{{1,3}})?(?![{_WORD}:])"
)
_NO_UNIT = rf"(?![.,]\d|{SPACE}?{UNIT}){_NO_FILE}"
_PHONE = re.compile(
    rf"(?:\+\d{{1,4}}(?: ?(?:[-./]? ?(?:\(\d{{1,5}}\)|\d{{1,14}}+))){{1,8}}+"
    r"|\((?!(?:19|20)\d\d\))\d{2,5}\)[ -]?\d{2,8}(?:[-/ ]\d{2,8}){0,4}"
    r"|0\d{0,5}(?: ?[-/ ] ?)\d{2,12}(?:[-/. ]\d{1,8}){0,6}"
    r"|(?:1[-. ])?\d{3}([-. ])\d{3}\1\d{4})"
    rf"(?: ?(?:x|ext\.?) ?\d{{1,6}})?{_END}{_NO_UNIT}"
)
_HYPHENATED = re.compile(rf"\d{{1,32}}(?:-\d{{1,32}}){{1,8}}{_END}{_NO_UNIT}")
_SPACED = re.compile(rf"\d{{2,6}}({SPACE})\d{{2,6}}(?:\1\d{{2,6}}){{1,8}}{_END}{_NO_UNIT}")
_VERSION_ENDING = (
    r"(?:[-+._]?(?:alpha|beta|rc|dev|preview|pre|post|snapshot|final|release|lts|stable|hotfix|patch|build|SNAPSHOT"
    r"|RELEASE|FINAL|LTS|RC|GA)(?:[-.]?\d{1,10})?|[-.]?(?:a|b|p|M|SP)\d{1,4})(?:[-+.]\w{1,40}){0,6}"
)
_IPV4 = re.compile(
    r"(?!\d{1,3}(?:\.\d{3}){3},\d{1,20}(?!\.?\d))"  # `219.137.105.100,50` is a number
    rf"\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?:[:/]\d{{1,5}})?(?![{_WORD}]|\.\d|{_VERSION_ENDING}){_NO_FILE}"
)
_VERSION = re.compile(
    rf"\d{{1,10}}+(?:\.\d{{1,10}}+(?:\.\d{{1,10}}+){{0,7}}{_VERSION_ENDING}{_END}"
    rf"|(?:(?:\.\d{{1,10}}+){{1,8}}\.[x*]|(?:\.\d{{1,10}}+){{2,8}}(?:-\d{{1,6}}(?:[-.]\w{{1,32}}){{0,4}})?)(?![{_WORD}]|,\d)(?!{SPACE}?{UNIT})){_NO_FILE}"
)

# A word of letters, digits and underscores, with the words that follow a joining character.
_JOINER = r"(?:[-./#@]|\+\+|\+(?=[a-z]{2,20}[.-]?\d)|::)"
_MAX_WORDS = 32
_TOKEN = re.compile(
    rf"[#@]?[{_WORD}]{{1,160}}+(?:(?={_JOINER}[{_WORD}]){_JOINER}[{_WORD}]{{1,160}}+){{0,{_MAX_WORDS}}}+{_END}"
)
_FILE_NAME = re.compile(rf"[{_WORD}][{_WORD}.@-]*\.(?:{_EXTENSIONS})", re.IGNORECASE)
_OTHER_FILE_NAME = re.compile(
    rf"(?=.*[{_LETTER}_-].*\.)[{_WORD}][{_WORD}.-]*\d[{_WORD}.-]*\.(?:[a-z]{{2,4}}|[A-Z]{{2,4}})"
)
_SPLIT = re.compile(_JOINER)
_MIXED = re.compile(rf"(?=.*\d)(?=.*[{_LETTER}])[{_WORD}]+")
# Words with digits that depend on the language: ordinals, decades, multiples and derivations, quantities.
_PROSE_WORD = re.compile(
    r"\d+(?:st|nd|rd|th|ST|ND|RD|TH|'?s|er|ers|ern|re|res|ère|e|es|ème|èmes|eme|nde?|de|ste|te|ten|tes|ter|tel|teln|ro"
    r"|ra|do|da|to|ta|mo|ma|x|a?er|fach\w*|mal\w*|jährig\w*|prozentig\w*|stündig\w*|tägig\w*|wöchig\w*|monatig\w*"
    r"|stellig\w*|teilig\w*|seitig\w*|zeilig\w*|köpfig\w*|stöckig\w*|türig\w*|malig\w*|minütig\w*|fold|ish|plus"
    rf"|[\u0400-\u052f]+|Uhr|[kKMBT]|bn|{UNIT})"
)
_LOWER_MODEL = re.compile(r"[a-z]+(?:-[a-z]+)*(?:-\d+){2,}")  # `claude-sonnet-4-5`
_CAPITALS_AND_DIGITS = re.compile(
    r"(?:^|[-/#.:])[A-Z]{1,8}[-/#](?=\d)|(?:\d\d\d[-/#][A-Z]{1,8}|\d[-/#][A-Z]{1,3})(?:$|[-/#])|\b[A-Z]{2,8}\.\d{3}"
)
_SIGNED_DIGITS = re.compile(rf"[{_LETTER}\d][#@]\d|\d[#@][{_LETTER}]|[A-Z]\+\+\d")
_UNDERSCORE = re.compile(rf"[{_LETTER}\d]_+[{_LETTER}\d]")
_ACCELERATOR = re.compile(r"[A-Z][a-z]?_[a-z]{1,16}")  # `E_xit`, `Fi_le`
_WORD_TAIL = re.compile(rf"-(?![A-Z]+$)([{_LETTER}]{{3,}})$")
_CHARGE = re.compile(rf"[+\u207a\u207b\u2212](?![{_WORD}+])|-(?![{_WORD}-])(?!\s(?:und|oder|bzw|sowie|and|or|&))")
_FORMULA = re.compile(r"(?:[A-Z][a-z]?\d{0,3}){1,12}(?<=\d)")
_FORMULA_OF_TWO = re.compile(r"[A-Z][a-z]?\d{0,3}[A-Z][a-z]?\d{1,3}(?:[A-Z][a-z]?\d{0,3})*")

# Where a number or an identifier may start.
_CANDIDATE = WindowedExpression(
    expression=re.compile(
        rf"(?<![{_WORD}])(?!(?<=\d[.,:/'’])\d)(?=[-+\u2212\xb1.#@(:]{{0,2}}"
        rf"(?:(?:[{_LETTER}]{{1,64}}+(?:[-./#@]|::)){{0,8}}(?:[{_LETTER}]{{0,64}}+[\d_]|(?<=\.)(?:{_EXTENSIONS}|{_EXTENSIONS_IN_CAPITALS}){_END})"
        rf"|{_CURRENCY_BEFORE}{SPACE}?{_SIGN}?\.?\d)|[a-fA-F]{{1,4}}:[0-9A-Fa-f:]{{2}}"
        rf"|U\+[0-9A-F]{{4}}|[A-Z]\+\+\d|[\xbc-\xbe\u2150-\u215e]|{_COLOR})"
    ),
    reach=1_024,
    window=2_048,  # one call takes at most 5 ms (a text of `a.`)
)
# Every candidate contains one of these.
_TRIGGER = re.compile(r"[\d_#\xbc-\xbe\u2150-\u215e]|\.[A-Za-z]|U\+|[a-fA-F]:[0-9A-Fa-f:]")
_IS_DECADE = re.compile(r"\d?\d?\d0|\d{1,3}(?:,\d{3})*,\d\d0")  # before `s`; also `1,000s`
_IS_COLOR = re.compile(_COLOR)
_SEPARATOR = re.compile(r"\D")
_MIN_DIGITS = 5  # of a plain integer that is protected
_MIN_IDENTIFIER_DIGITS = 12  # of a plain integer that is not a quantity, such as the number of a card


class NumberFinder:
    """Finds numbers and identifiers outside of other spans."""

    def __init__(
        self,
        kinds: frozenset[ProtectedKind],
        source_language: str,
        target_language: str,
        number_format: NumberFormat,
    ) -> None:
        """Take the protected kinds, and the language tags with their regions, such as `de-CH`."""
        self._kinds = kinds & {ProtectedKind.NUMBER, ProtectedKind.IDENTIFIER}
        self._source_language = source_language
        self._target_language = target_language
        self._is_localized = number_format is NumberFormat.LOCALIZED
        self._has_preposition_s = re.split(r"[-_]", source_language.lower())[0] in _S_IS_WORD

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the numbers and identifiers between them, in order."""
        if not self._kinds or not _TRIGGER.search(text):  # as for most sentences
            return list(spans)
        merged: list[ProtectedSpan] = []
        begin = rejected_to = 0
        candidate = _CANDIDATE.search(text, 0, check)
        for protected in chain(spans, (None,)):
            check()
            stop = protected.span.start if protected else len(text)
            while candidate is not None and candidate.start() < stop:
                position = max(begin, candidate.start())
                if candidate.start() >= begin:
                    check()
                    found, rejected_to = self._match_at(text, position, stop, rejected_to)
                    if found is not None and found.kind in self._kinds:
                        merged.append(found)
                    position = found.span.end if found else position + 1
                candidate = _CANDIDATE.search(text, position, check)
            if protected:
                merged.append(protected)
                begin = protected.span.end
        return merged

    def _match_at(self, text: str, start: int, stop: int, rejected_to: int) -> tuple[ProtectedSpan | None, int]:
        # The span at a position, and the end of the words that are known not to be an identifier.
        rules = _WORD_RULES if text[start].isalpha() or text[start] in "_#@:" else _NUMBER_RULES
        for kind, expression, accepts in rules:
            match = expression.match(text, start, stop)
            if match is not None and (accepts is None or accepts(match[0])):
                target = self._localized_product(match) if expression is _PRODUCT else None
                return ProtectedSpan(span=Span(start=start, end=match.end()), kind=kind, target=target), rejected_to
        if (match := _AMOUNT.match(text, start, stop)) is not None:
            return self._number(match, text, stop), rejected_to
        if start >= rejected_to and (match := _TOKEN.match(text, start, stop)) is not None:
            if (length := _identifier_length(match[0])) > 0:
                end = _with_charge(text, start, start + length, stop)
                return ProtectedSpan(span=Span(start=start, end=end), kind=ProtectedKind.IDENTIFIER), rejected_to
            rejected_to = match.end()
        match = _NUMBER.match(text, start, stop)
        return (self._number(match, text, stop) if match else None), rejected_to

    def _number(self, match: re.Match[str], text: str, stop: int) -> ProtectedSpan | None:
        core, last, after = match["core"], match["last"], match["after"]
        end = match.end()
        if self._has_preposition_s and after.strip() == "s" and after != "s":
            end, after = match.start("after"), ""
        if (
            not after
            and text.startswith('"', end, stop)
            and not _QUOTE.search(text, max(0, end - _QUOTE_CHARACTERS), end)
        ):
            end, after = end + 1, '"'  # inches, as no quotation begins before
        is_currency = match["before"] is not None or _IS_PRICE.match(after) is not None
        has_separator = any(map(_SEPARATOR.search, filter(None, (core, last))))
        if (after == "x" and not has_separator) or (after == "s" and _IS_DECADE.fullmatch(core)):
            return None  # `5x faster`, `the 90s`
        has_unit = after.strip() not in {"", "x", "k", "K", "M", "B", "T", "bn"} and after[0] not in ".,"
        is_currency_word = not after and _CURRENCY_WORD.match(text, end, stop) is not None
        is_long = max(len(core), len(last or "")) >= _MIN_DIGITS
        subunit = self._subunit(text, end, stop, is_one=core == "1" and not last) if not after else None
        if not (is_currency or is_currency_word or has_separator or after or is_long or subunit):
            return None
        kind = ProtectedKind.NUMBER
        if core.isdigit() and not (after or is_currency or last or is_currency_word) and is_long:
            is_code = core[0] == "0" or len(core) >= _MIN_IDENTIFIER_DIGITS
            kind = ProtectedKind.IDENTIFIER if is_code else kind
        span = Span(start=match.start(), end=end)
        is_marked = is_currency or is_currency_word or has_unit
        is_marked = is_marked or (not after and _QUANTITY_WORD.match(text, end) is not None)
        target = None
        if has_separator and self._is_localized:
            is_name = _NAMED.search(text[max(0, span.start - _NAME_CHARACTERS) : span.start]) is not None
            cores = [match.span("core"), *([match.span("last")] if last else [])]
            if not is_name:
                target = self._localized(match.string, span, cores, is_marked, is_currency or is_currency_word)
        if subunit:
            target = (target or text[span.start : end]) + subunit[1]
            span = Span(start=span.start, end=subunit[0])
        return ProtectedSpan(span=span, kind=kind, target=target)

    def _subunit(self, text: str, start: int, stop: int, *, is_one: bool) -> tuple[int, str] | None:
        # The end of a subunit of a currency after a whole number, and its translation with the space before it.
        match = _SUBUNIT.match(text, start, stop)
        table = _SUBUNITS.get((self._source_language[:2].lower(), self._target_language[:2].lower()), {})
        if match is None:
            return None
        word = match[2]
        variants = (word, word.lower(), word.capitalize()) if word.isupper() else (word,)
        names = next((table[variant] for variant in variants if variant in table), None)
        if names is None:
            return None
        name = names[0 if is_one else -1]
        return match.end(), match[1] + (name.upper() if word.isupper() else name)

    def _localized_product(self, match: re.Match[str]) -> str | None:
        if not match["after"] or not self._is_localized:
            return None
        cores = [core.span() for core in re.compile(_PRODUCT_CORE).finditer(match.string, *match.span())]
        span = Span(start=match.start(), end=match.end())
        return self._localized(match.string, span, cores, is_marked=True, is_currency=False)

    def _localized(
        self, text: str, span: Span, cores: Sequence[tuple[int, int]], is_marked: bool, is_currency: bool
    ) -> str | None:
        # The span with the separators of the target language; None if they are the same or the number is ambiguous.
        source = number_convention(self._source_language, is_currency)
        target = number_convention(self._target_language, is_currency)
        if source is None or target is None:
            return None
        parts = []
        position = span.start
        for start, end in cores:
            localized = localized_number(text[start:end], source, target, is_marked)
            if localized is None:
                return None
            parts += [text[position:start], localized]
            position = end
        changed = "".join((*parts, text[position : span.end]))
        return changed if changed != text[span.start : span.end] else None


def _is_ipv4(text: str) -> bool:
    octets = re.split(r"[:/]", text)[0].split(".")
    return all(int(octet) <= 255 and (len(octet) == 1 or octet[0] != "0") for octet in octets)


def _is_ipv6(text: str) -> bool:
    if not any(char.isdigit() for char in text):
        return False
    try:
        ipaddress.ip_interface(text)
    except ValueError:
        return False
    return True


def _is_date_of_calendar(text: str) -> bool:
    parts = [int(part) for part in re.split(r"\D", text)[:3]]
    if parts[0] > 31:
        return 1 <= parts[1] <= 12 and 1 <= parts[2] <= 31
    return 1 <= parts[0] <= 31 and 1 <= parts[1] <= 31 and min(parts[:2]) <= 12


def _is_phone(text: str) -> bool:
    digits = sum(map(str.isdigit, text))
    if text[0] == "+":
        return digits >= 7
    return digits >= (9 if text[0] == "(" else 7 if text[:2] == "0 " else 6)


def _is_year(text: str) -> bool:
    return len(text) == 4 and text[:2] in {"19", "20"}


def _is_hyphenated(text: str) -> bool:
    sizes = [len(part) for part in text.split("-")]
    if all(map(_is_year, text.split("-"))):
        return False
    if max(sizes) >= _MIN_DIGITS or sizes in ([3, 4], [4, 4]):
        return True
    return len(sizes) >= 3 and (sum(sizes) >= 7 or set(sizes) == {2})


def _is_spaced(text: str) -> bool:
    parts = re.split(r"\D", text)
    is_number = len(parts[0]) <= 3 and all(len(part) == 3 for part in parts[1:])
    return sum(map(len, parts)) >= 9 and not is_number and not all(map(_is_year, parts))


def _is_version(text: str) -> bool:
    # `1.250.000` is a number.
    return re.fullmatch(r"(?!0)\d{1,3}(?:\.\d{3}){2,}", text) is None


_Rule = tuple[ProtectedKind, re.Pattern[str], Callable[[str], bool] | None]
_WORD_RULES: tuple[_Rule, ...] = (
    (ProtectedKind.IDENTIFIER, _FIXED, None),
    (ProtectedKind.IDENTIFIER, _IS_COLOR, None),
    (ProtectedKind.IDENTIFIER, _IPV6, _is_ipv6),
)
_NUMBER_RULES: tuple[_Rule, ...] = (
    (ProtectedKind.IDENTIFIER, _FIXED, None),
    (ProtectedKind.IDENTIFIER, _IPV6, _is_ipv6),
    (ProtectedKind.NUMBER, _DATE, _is_date_of_calendar),
    (ProtectedKind.NUMBER, _TIME, None),
    (ProtectedKind.IDENTIFIER, _IPV4, _is_ipv4),
    (ProtectedKind.NUMBER, _SCIENTIFIC, None),
    (ProtectedKind.NUMBER, _FRACTION, None),
    (ProtectedKind.NUMBER, _ANGLE, None),
    (ProtectedKind.NUMBER, _FEET, None),
    (ProtectedKind.NUMBER, _PRODUCT, None),
    (ProtectedKind.IDENTIFIER, _PHONE, _is_phone),
    (ProtectedKind.IDENTIFIER, _HYPHENATED, _is_hyphenated),
    (ProtectedKind.IDENTIFIER, _SPACED, _is_spaced),
    (ProtectedKind.IDENTIFIER, _VERSION, _is_version),
)


def _identifier_length(token: str) -> int:
    # Length of the identifier at the start of joined words; 0 if they are prose.
    if token[0] in "#@":
        return len(token)
    if _FILE_NAME.fullmatch(token) or _OTHER_FILE_NAME.fullmatch(token):
        return len(token)
    # A word after a hyphen belongs to the sentence: `802.11ax-Router`, `KB5005565-related`.
    length = len(token)
    while (tail := _WORD_TAIL.search(token, 0, length)) is not None:
        head = token[: tail.start()]
        if not (tail[1].istitle() or any(map(str.isupper, head))):
            break
        length = tail.start()
    head = token[:length]
    if not _is_identifier(head):
        return 0
    if length < len(token) and sum(map(str.isdigit, head)) < 3:
        return 0  # models translate `CO2-Ausstoß` and `A4-Format`
    return length


def _is_identifier(token: str) -> bool:
    if _UNDERSCORE.search(token):
        return _ACCELERATOR.fullmatch(token) is None
    if not any(map(str.isdigit, token)):
        return False
    words = _SPLIT.split(token)
    if any(_MIXED.fullmatch(word) and not _PROSE_WORD.fullmatch(word) for word in words):
        return True
    if _CAPITALS_AND_DIGITS.search(token) or _SIGNED_DIGITS.search(token) or _LOWER_MODEL.fullmatch(token):
        return True
    has_letters = any(word.isalpha() for word in words)
    return has_letters and any(word.isdigit() and len(word) >= _MIN_DIGITS for word in words)


def _with_charge(text: str, start: int, end: int, stop: int) -> int:
    # The end of an identifier with the charge of an ion: `Ca2+`, `SO42-`.
    match = _CHARGE.match(text, end, stop)
    if match is None or not _FORMULA.fullmatch(text, start, end):
        return end
    return match.end() if match[0] != "-" or _FORMULA_OF_TWO.fullmatch(text, start, end) else end
