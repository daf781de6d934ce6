"""Invariants of tokens that a translation copies: identifiers, names and addresses."""

import re
from collections.abc import Iterator
from itertools import islice

from dragoman_service.datatypes import Span, WarningKind
from dragoman_service.language_tags import primary_language
from dragoman_service.text.casing import is_acronym, is_irregular
from dragoman_service.text.casing_words import BRANDS
from dragoman_service.text.invariants.violations import MASK, MAX_VIOLATIONS, Texts, Violation, quoted

# Identifiers have one of: a digit next to a letter, an inner underscore, inner punctuation.
_MAY_HAVE_IDENTIFIER = re.compile(r"\d[.:-]?[^\W\d]|[^\W\d][.:-]?\d|[^\W_]_\w|\w::\w|[A-Za-z]\.[A-Za-z]{2}")
_TOKEN = re.compile(r"(?:[0-9A-Fa-f]{1,4}:){2,7}[0-9A-Fa-f]{1,4}\b|\w++(?:(?:::|[.-])\w++)*+")
_PART = re.compile(r"[^-]++")
_LETTER, _DIGIT = re.compile(r"[^\W\d_]"), re.compile(r"\d")
_JOINED = re.compile(r"[^\W_]_+[^\W_]|::")
# `20th`, `90s`, `5kg`, `1980er-Jahre`, `5-year-old`, `3.Platz`
_QUANTITY = re.compile(r"\d++(?:[.,]\d++)*+[.-]?[^\W\d_]++(?:-[^\W\d_]++)*+")
_NUMBERED_WORD = re.compile(r"[^\W\d_]++[.-]\d{1,3}|[^\W\d_]{2,}+\.\d++")  # `Typ-2`, `Nr.5`
_RANGE_PART = re.compile(r"\d++(?:s|er|st|nd|rd|th|[.,]\d++)?")
_PLAIN_WORD = re.compile(r"[^\W\d_]{3,}+")
_SLUG = re.compile(r"[a-z]++(?:[.-][a-z0-9]++){2,}+")
# fmt: off
_FILE_NAME = re.compile(
    r"[A-Za-z0-9_][\w.-]*\.(?:txt|md|csv|tsv|pdf|docx?|xlsx?|pptx?|zip|gz|tar|exe|dll|msi|py|js|jsx|ts|tsx|css|html?|xml"
    r"|json|ya?ml|toml|ini|cfg|conf|log|sh|bat|cmd|cs|cpp|hpp|java|rb|go|rs|php|sql|db|png|jpe?g|gif|svg|bmp|ico|mp3|mp4"
    r"|wav|avi|mkv|po|pot|xliff|srt|vtt|com|org|net|io|dev|edu|gov)"
)
# fmt: on
_DOTTED = re.compile(r"[A-Za-z_]\w++(?:\.[A-Za-z_]\w++){2,}+")  # `System.Web.Mvc`, but not `z.B.` or `p.m.`
_MAX_SEARCHES = 64  # of tokens that are not a word of the target

# `GitHub`, `McDonald`, `iPhone`
_INNER_CAPITAL = re.compile(r"[a-zß-öø-ÿ][A-ZÀ-ÖØ-Þ]")
_WORD = re.compile(r"\w++")
# fmt: off
# Words with an inner capital that are translated, and units.
_TRANSLATED_NAMES = frozenset((
    "GmbH", "GbR", "PhD", "eMail", "eBook", "eBooks", "eMails", "WiFi", "ToDo", "kHz", "MHz", "GHz", "kWh", "MWh",
    "GWh", "kPa", "hPa", "MPa", "mAh", "kVA", "kByte", "MByte", "GByte", "kBit", "MBit", "GBit", "vCPU",
))
# fmt: on
# German `MitarbeiterInnen`, and abbreviations such as `MwSt`
_GERMAN_WORD = re.compile(r"[^\W\d_]{2,}(?<=[a-zäöüß])In(?:nen)?|[A-ZÄÖÜ][a-zäöüß]{1,2}[A-ZÄÖÜ]{1,3}[a-z]?")
_INITIALS = re.compile(r"\b[A-Z]\.(?: ?[A-Z]\.){1,7} ?(?=[A-Z][a-z])")
_SPACE_AFTER_INITIAL = re.compile(r"(?<=\b[A-Z]\.) (?=[A-Z])")
# fmt: off
# Not names, although they are written as initials.
_ABBREVIATIONS = frozenset((
    "US", "USA", "UK", "UN", "EU", "EC", "DC", "AD", "BC", "PS", "VIP", "RIP", "ID", "AM", "PM", "ZB", "DH", "UA", "OÄ",
    "SO", "EG", "IE", "NB", "IDR", "UAE", "USS", "ZT", "IV", "VA", "UU", "GMT", "LA", "NY",
))
# fmt: on

_BRAND = re.compile(rf"\b[A-Z][a-z]{{3,12}}\b(?= [\w-]{{0,8}}[\d{MASK}])")
_CAPITALS = re.compile(r"[A-ZÄÖÜ]{3}")
# With a plural `s`, and with the number after it: `PDFs`, `ISO 9001`
_ACRONYM = re.compile(r"(?<![\w-])(?P<word>[A-ZÄÖÜ]{3,8})(?: \d[\d./-]{0,20}(?<=\d)(?!\w)|s?(?!\w))")
# fmt: off
# Acronyms, keys and constants that are translated.
_TRANSLATED_ACRONYMS = frozenset((
    "USA", "UNO", "EZB", "ECB", "IWF", "IMF", "BIP", "GDP", "DDR", "GDR", "BRD", "FRG", "USSR", "UDSSR", "DSGVO",
    "GDPR", "EUGH", "ECJ", "IGH", "ICJ", "EULA", "AIDS", "COVID", "HIV", "AKW", "EDV", "KFZ", "LKW", "PKW", "MWST",
    "VAT", "ATM", "BMI", "EKG", "ECG", "PTSD", "ADHS", "ADHD", "DNA", "DNS", "UKW", "MEZ", "MESZ", "CET", "CEST",
    "WLAN", "WIFI", "SMS", "FAQ", "ASAP", "AFK", "DIY", "RIP", "VIP", "CEO", "CFO", "CTO", "PIN", "RSVP", "OPNV",
    "STRG", "CTRL", "UMSCHALT", "SHIFT", "ENTER", "EINGABETASTE", "ALT", "ENTF", "DEL", "ESC", "TAB", "EINFG",
    "NULL", "TRUE", "FALSE", "JJJJ", "YYYY",
    "EUR", "USD", "GBP", "CHF", "JPY", "CNY", "CZK", "PLN", "SEK", "NOK", "DKK", "CAD", "AUD", "RUB", "TRY", "INR",
))
# fmt: on

# Lists of at least three capitalized words: `Siemens, Nokia and Redis`
_LISTED = re.compile(r"[^\W\d_a-zäöüß][^\W\d_]{2,40}+")
_SEPARATED = rf"(?:, (?:(?:and|und|or|oder) )?| (?:and|und|or|oder) ){_LISTED.pattern}"
_LIST = re.compile(rf"(?<![\w'’-]){_LISTED.pattern}{_SEPARATED}(?:{_SEPARATED}){{1,30}}(?![\w'’-])")
# Nouns by their ending, and countries, which are translated.
_TRANSLATED_ENDING = re.compile(
    r".*(?:ung|heit|keit|schaft|ion|tät|ismus|ität|ment|nis|land|stan|ia|ien|ish|isch|ese|ity|ness|ing)(?:en|e|s)?",
    re.I,
)

_JOINED_BEFORE, _JOINED_AFTER = re.compile(r"\w[.:]\Z|[/\\@]\Z"), re.compile(r"[.:]\w|[/\\@]")

_MAY_HAVE_ADDRESS = re.compile(r"://|www\.|@|[/\\]")
_ADDRESS = re.compile(
    r"(?<!\w)(?:(?:https?|ftps?|sftp|ssh|file|git|wss?)://|www\.(?=\w)|mailto:(?=\w))[^\s<>\"`\\^|\ufffc]{1,2000}+"
    r"|(?<![\w.%+-])[A-Za-z0-9._%+-]{1,64}+@[A-Za-z0-9][A-Za-z0-9-]{0,62}+(?:\.[A-Za-z0-9-]{1,63}+){1,8}+"
    r"|(?<![\w.~:/\\-])(?:[A-Za-z]:\\|\\\\(?=\w))[^\s\"<>|:*?`\ufffc]{1,1000}+"
    r"|(?<![\w./~:\\@<-])(?:~|\.{1,2})?(?:/[\w.@+%-]{1,255}+){2,32}+/?"
    r"|(?<![\w./~:\\@-])\w[\w.@+%-]{0,254}+(?:/[\w.@+%-]{1,255}+){1,32}+"
    r"|(?<![\w@.])@[A-Za-z_]\w{1,63}+"
)
_TRAILING = ".,;:!?'\"*_~…)]}"
_FILE_AT_END = re.compile(r"[\w@+%-]++\.[A-Za-z][A-Za-z0-9]{0,4}\Z")


def find_changed_identifiers(texts: Texts) -> Iterator[Violation]:
    """Yield identifiers, such as `report_final_v2.docx` and `KB5034441`, that are not copied."""
    source = texts.source
    # Most sentences have none of these. The search is slower.
    may_have = "." in source[:-1] or "_" in source or "::" in source or _DIGIT.search(source) is not None
    if may_have and _MAY_HAVE_IDENTIFIER.search(source):
        yield from _not_copied(texts, _identifiers(texts.source), WarningKind.IDENTIFIER_CHANGED)


def find_changed_names(texts: Texts) -> Iterator[Violation]:
    """Yield acronyms and names that are not copied.

    A name has inner capitals, initials, or letters that the model cannot spell.
    """
    unknown = frozenset[str]()
    if not texts.source.isascii():
        letters = (char for char in set(texts.source) if char > "\x7f" and char.isalpha())
        unknown = frozenset(char for char in letters if not texts.spells(char))
    if unknown or _INNER_CAPITAL.search(texts.source):
        yield from _not_copied(texts, _names(texts, unknown), WarningKind.NAME_CHANGED)
    if "." in texts.source[:-1]:
        yield from _changed_initials(texts)
    if _CAPITALS.search(texts.source) and not texts.source.isupper():
        yield from _missing_acronyms(texts)
    if MASK in texts.source or _DIGIT.search(texts.source):
        yield from _missing_brands(texts)


def find_changed_names_of_lists(texts: Texts) -> Iterator[Violation]:
    """Yield words of a list of names that are not copied, although at least half of the list is.

    Words that the vocabulary does not have as one token are taken to be names, such as `Siemens` in
    `Siemens, Nokia and Redis`.
    """
    if ", " not in texts.source:
        return
    for match in islice(_LIST.finditer(texts.source), MAX_VIOLATIONS):
        spans = [Span(start=word.start(), end=word.end()) for word in _LISTED.finditer(texts.source, *match.span())]
        words = [texts.source[span.start : span.end] for span in spans]
        target_words = set(_WORD.findall(texts.target))
        copied = {word for word in words if word in target_words or f"{word}s" in target_words}
        if 2 * len(copied) < len(words) or not any(
            texts.is_rare(word) or _INNER_CAPITAL.search(word) for word in copied
        ):
            continue
        for span, word in zip(spans, words, strict=True):
            if word not in copied and texts.is_rare(word) and not _TRANSLATED_ENDING.fullmatch(word):
                detail = f"{quoted(word)} is missing"
                yield Violation(kind=WarningKind.NAME_CHANGED, detail=detail, source=span, target=None)


def find_changed_addresses(texts: Texts) -> Iterator[Violation]:
    """Yield URLs, email addresses, paths and mentions that are not copied."""
    if _MAY_HAVE_ADDRESS.search(texts.source):
        yield from _not_copied(texts, _addresses(texts.source), WarningKind.ADDRESS_CHANGED)


def _not_copied(texts: Texts, spans: Iterator[Span], kind: WarningKind) -> Iterator[Violation]:
    # Each text that occurs in the source but not in the target.
    seen: set[str] = set()
    target_words: set[str] | None = None
    num_searches = num_violations = 0
    for span in spans:
        token = texts.source[span.start : span.end]
        if token in seen:
            continue
        seen.add(token)
        if target_words is None:
            target_words = set(_WORD.findall(texts.target))
        if token in target_words:
            continue
        num_searches += 1
        if num_searches > _MAX_SEARCHES or num_violations == MAX_VIOLATIONS:
            return
        is_address = kind is WarningKind.ADDRESS_CHANGED
        # The first word of a sentence may begin with a capital.
        variants = (token,) if is_address else (token, token[0].swapcase() + token[1:])
        if not any(_contains(texts.target, variant, is_address=is_address) for variant in variants):
            num_violations += 1
            detail = f"{quoted(token)} is missing"
            yield Violation(kind=kind, detail=detail, source=span, target=None)


def _contains(text: str, token: str, *, is_address: bool) -> bool:
    # Whether a text contains a token that is not a part of a longer one. German inflects and compounds names.
    position = -1
    for _ in range(_MAX_SEARCHES):
        position = text.find(token, position + 1)
        if position < 0:
            return False
        before, after = text[position - 1 : position], text[position + len(token) : position + len(token) + 1]
        if not before.isalnum() and (not after.isalnum() or (not is_address and after.islower())):
            return True
    return True


def _identifiers(text: str) -> Iterator[Span]:
    for match in _TOKEN.finditer(text):
        start, token = match.start(), match[0].rstrip(".:-")
        begin = len(token) - len(token.lstrip("_"))
        token = token.strip("_")
        start += begin
        if _is_identifier(token):
            yield Span(start=start, end=start + len(token))
        elif "-" in token:
            for part in _PART.finditer(token):
                if _is_identifier(part[0]):
                    yield Span(start=start + part.start(), end=start + part.end())


def _is_identifier(token: str) -> bool:
    if not _LETTER.search(token):
        return False
    if _FILE_NAME.fullmatch(token):
        return True
    has_digit = _DIGIT.search(token) is not None
    if "-" in token:
        parts = token.split("-")
        if has_digit and _SLUG.fullmatch(token):
            return True
        if any(map(_is_plain_word, parts)) or all(map(_RANGE_PART.fullmatch, parts)):
            return False
    if not has_digit:
        return _JOINED.search(token) is not None or _DOTTED.fullmatch(token) is not None
    return not _QUANTITY.fullmatch(token) and not _NUMBERED_WORD.fullmatch(token)


def _is_plain_word(part: str) -> bool:
    return not part.isupper() and _PLAIN_WORD.fullmatch(part) is not None


def _names(texts: Texts, unknown: frozenset[str]) -> Iterator[Span]:
    is_german = primary_language(texts.source_language) == "de"
    for match in _WORD.finditer(texts.source):
        word = match[0]
        if not unknown.isdisjoint(word) or (
            len(word) > 2
            and _INNER_CAPITAL.search(word)
            and word.isalpha()
            and word not in _TRANSLATED_NAMES
            and not is_irregular(word)
            and not (is_german and _GERMAN_WORD.fullmatch(word))
            and not _is_in_identifier(texts.source, match)
        ):
            yield Span(start=match.start(), end=match.end())


def _is_in_identifier(text: str, word: re.Match[str]) -> bool:
    # Whether a word is a part of a dotted identifier or of an address.
    before, after = text[max(word.start() - 2, 0) : word.start()], text[word.end() : word.end() + 2]
    return bool(_JOINED_BEFORE.search(before) or _JOINED_AFTER.match(after))


def _changed_initials(texts: Texts) -> Iterator[Violation]:
    squeezed: str | None = None
    num_violations = 0
    for match in islice(_INITIALS.finditer(texts.source), _MAX_SEARCHES):
        letters = match[0].replace(" ", "")
        if letters.replace(".", "") in _ABBREVIATIONS:
            continue
        if squeezed is None:
            squeezed = _SPACE_AFTER_INITIAL.sub("", texts.target)
        if letters not in squeezed and num_violations < MAX_VIOLATIONS:
            num_violations += 1
            initials = match[0].rstrip()
            yield Violation(
                kind=WarningKind.NAME_CHANGED,
                detail=f"{initials} is missing",
                source=Span(start=match.start(), end=match.start() + len(initials)),
                target=None,
            )


def _missing_acronyms(texts: Texts) -> Iterator[Violation]:
    # Acronyms that the target has in no case. An ordinary word in capitals is translated.
    folded: str | None = None
    for match in islice(_ACRONYM.finditer(texts.source), MAX_VIOLATIONS):
        word = match["word"]
        folded = folded or texts.target.casefold()
        if word.casefold() not in folded and not _may_be_translated(word, texts):
            span = Span(start=match.start(), end=match.end())
            detail = f"{quoted(match[0])} is missing"
            yield Violation(kind=WarningKind.NAME_CHANGED, detail=detail, source=span, target=None)


def _missing_brands(texts: Texts) -> Iterator[Violation]:
    # Names of manufacturers before the name of a product: `Audi A6`.
    for match in islice(_BRAND.finditer(texts.source), MAX_VIOLATIONS):
        if match[0].lower() in BRANDS and match[0].casefold() not in texts.target.casefold():
            span = Span(start=match.start(), end=match.end())
            yield Violation(kind=WarningKind.NAME_CHANGED, detail=f"{match[0]} is missing", source=span, target=None)


def _may_be_translated(word: str, texts: Texts) -> bool:
    source_language, target_language = map(primary_language, (texts.source_language, texts.target_language))
    if word in _TRANSLATED_ACRONYMS:
        added = {match["word"] for match in _ACRONYM.finditer(texts.target)}.difference(_WORD.findall(texts.source))
        return all(each in _TRANSLATED_ACRONYMS or is_acronym(each, target_language) for each in added)
    return not is_acronym(word, source_language) and any(map(texts.is_word, (word.lower(), word.capitalize())))


def _addresses(text: str) -> Iterator[Span]:
    for match in _ADDRESS.finditer(text):
        address = match[0].rstrip(_TRAILING)
        if _is_address(address):
            yield Span(start=match.start(), end=match.start() + len(address))


def _is_address(text: str) -> bool:
    if len(text) < 3:
        return False
    if "://" in text or "@" in text or "\\" in text or text.startswith(("www.", "mailto:", "~", "./", "../")):
        return True
    # `and/or` and `1/2` are not paths.
    is_absolute = text.startswith("/") and _LETTER.search(text) is not None
    return is_absolute or _FILE_AT_END.search(text) is not None
