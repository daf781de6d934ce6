"""Capitals: texts in capitals get sentence case for the model, and their translations get capitals again.

Models see few texts in capitals and copy or misspell them. All functions are pure, and all take linear time.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from dragoman_service.language_tags import primary_language
from dragoman_service.text import casing_words

# Parts whose case has a meaning: addresses, escapes such as `\n`, and character references such as `&amp;`.
_FIXED = (
    r"[A-Za-z]{2,10}+://\S{1,2000}+|\bwww\.\S{1,2000}+|[\w.+-]{1,64}+@[\w.-]{1,255}+"
    r"|\\(?:u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrt])|&(?:#[0-9A-Za-z]{1,8}+|[A-Za-z][A-Za-z0-9]{1,31}+);"
)
_WORD = r"[\w\u0300-\u036f]++(?:['\u2019][\w\u0300-\u036f]++)*+"
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"

_FIXED_PART = re.compile(_FIXED)
# Lower-case letters that a text in capitals may have.
_MAY_BE_IN_CAPITALS = re.compile(r"[\\&@ßªº]|://|www\.")
_TOKEN = re.compile(
    rf"(?P<fixed>{_FIXED})"
    r"|(?P<initials>(?<!\w)[^\W\d_]\.(?:[ \xa0]?[^\W\d_]\.){1,4}+(?!\w))"  # `U.S.`, `z. B.`
    r"|(?P<name>\w{2,63}+(?:\.\w{2,63}+){1,8}+)"  # `EXAMPLE.COM`, `README.TXT`
    rf"|(?P<word>{_WORD})"
    r"|(?P<placeholder>\ufffc++)"
    rf"|(?P<end>[.!?\u2026]++[\"'\u201c\u201d\u2019\u00bb\u00ab)\]]{{0,8}}+(?=\s|\Z|\\)|[\u3002\uff01\uff1f]|;(?=\s)|[{_BREAKS}])"
)
_LINE_ESCAPES = frozenset({"\\n", "\\r"})
_PARTS = re.compile(r"['\u2019]")
_ORDINAL = re.compile(r"\d{1,20}+(?:ST|ND|RD|TH|S)")
_VOWELS = frozenset("AEIOUYÆØŒƏIΑΕΗΙΟΥΩАЕЁИОУЫЭЮЯІЇЄЎЪ")
_FIRST_OTHER_SCRIPT = "\u0530"  # after Latin, Greek and Cyrillic
_ROMAN = re.compile(
    r"X{0,3}(?:IX|IV|V?I{0,3})|(?=[MDCLXVI]{4})M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})"
)

# Languages with words that have no vowel.
_WITHOUT_VOWELS = frozenset({"bs", "cs", "cy", "hr", "mk", "sh", "sk", "sl", "sr"})
_TURKIC = frozenset({"az", "tr"})
_TO_TURKIC_LOWER = str.maketrans({"I": "ı", "İ": "i"})

_IRREGULAR = re.compile(r"[A-Z]{2}[a-z]{2,}|[A-Za-z][a-z]{2,}[A-Z]")  # `HAllo`, `HallO`
_CONSONANTS = re.compile(r"[BCDFGHJKLMNPQRSTVWXZ]{3,8}+")
_INITIAL_CONSONANTS = re.compile(r"CH[LR]|KNR|PF[LR]|PHR|T?SCH[LMNRW]?|SCR|SHR|SKR|SPH|SPL|SPR|STR|THR|WHR|ZWR")

_GERMAN_DETERMINER = re.compile(r"am|beim|das|ein|im|ins|vom|zum|durchs|fürs|(?:[dsmk]ein|unser)[em]?|deinem|ihr")
# Verbs after their subject: `ich liebe`, `du versuchst`.
_GERMAN_VERB_ENDINGS = {"ich": "e", "du": "st", "er": "t", "es": "t", "man": "t", "wir": "n"}
_GERMAN_FORMAL = re.compile(r"\b(?:\w{1,30}+(?<=en)|sind) sie\b|\bbitte sie\b", re.IGNORECASE)
_GERMAN_FORMAL_PRONOUN = re.compile(r"sie|ihnen|ihr(?:e[mnrs]?)?")
# `ss` that is `ß` outside of Switzerland, after a long vowel or a diphthong.
_GERMAN_SHARP_S = re.compile(
    r"(?:(?<!d)ie|(?<!kr)ei|(?:\b|dr)au(?=ss(?:er|en\b|en[^dg]))|äu|eu|(?:bl|gr|kl|st)[oö]|gr?[uü]|[fs]ü|\bf[uü]|bar?fu|büß?"
    r"|sp[aä]|str[aä]|gem[aä]|m[aä](?=ss(?:ig|nahm|stab|stäb|geb|los))|\b(?:a|sa|ass?a|besa|verga|fra))ss(?!ch|p|tadt)",
    re.IGNORECASE,
)

_TITLES = frozenset({"Dr", "Mr", "Mrs", "Ms", "Mt", "Prof", "St"})
_TITLED_NAME = re.compile(r"[OD]['\u2019](?!CLOCK|YE|ER)\w{3,}")


def is_in_capitals(text: str) -> bool:
    """Return whether a text is written in capitals, and is more than acronyms, numerals and identifiers."""
    if not text.isupper() and not _MAY_BE_IN_CAPITALS.search(text):
        return False  # the usual case
    text = _FIXED_PART.sub(" ", text)
    if any(unicodedata.category(char) in {"Ll", "Lt"} for char in text if char != "ß"):
        return False
    num_possible = 0
    for match in _TOKEN.finditer(text):
        word = match[0]
        if match.lastgroup != "word" or not _is_plain(word) or not _has_case(word):
            continue
        if word.lower() in casing_words.SHORT_WORDS:
            return True
        if word in casing_words.SPELLINGS:
            continue
        base = _PARTS.split(word, maxsplit=1)[0] if len(word) > 3 else word
        if len(word) >= 3 and not is_acronym(base, "") and not _is_plural_acronym(base):
            num_possible += 1
            if len(word) >= 4 or num_possible >= 2:
                return True
    return False


def sentence_case(text: str, *, language: str, filler: str = "") -> str:
    """Return a text in capitals as a sentence: the same number of characters, and capitals only where they belong.

    The first word of a sentence, names, acronyms, Roman numerals and words with digits keep their capitals. German
    nouns get one by their endings. Words that have a lower-case letter are not changed.

    Args:
        text: a text with or without U+FFFC, which stands for words that are not visible.
        language: BCP-47 tag of the text. English and German have tables; other languages keep few names.
        filler: a character that the tokenizer of the model drops, such as U+007F. It allows `GROSS` to become `groß`
            without a change of length: `SS` is replaced by `ß` and the filler. Empty: `SS` becomes `ss`.
    """
    result = _SentenceCase(text, language).result()
    if not filler or primary_language(language) != "de" or "SS" not in text:
        return result
    return _GERMAN_SHARP_S.sub(lambda match: f"{match[0][:-2]}ß{filler}", result)


def capitals(text: str, *, language: str) -> str:
    """Return a text in capitals, except for addresses, escapes and character references.

    `ß` becomes `SS`, and a Turkish `i` becomes `İ`. Georgian has no capitals in ordinary text.
    """
    subtag = primary_language(language)
    if subtag == "ka":
        return text
    result, position = [], 0
    for match in _FIXED_PART.finditer(text):
        result += [_upper(text[position : match.start()], subtag), match[0]]
        position = match.end()
    return "".join([*result, _upper(text[position:], subtag)])


def lowered_words(text: str, *, language: str) -> str | None:
    """Return a text of one to three words in lower case, such as a label. It has the same number of characters.

    None if no word begins with a capital or all that do are names, if a word has digits or inner capitals, or if there
    are more words.
    """
    subtag = primary_language(language)
    result, position, num_words, is_changed = [], 0, 0, False
    for match in _TOKEN.finditer(text):
        if match.lastgroup in {"fixed", "initials", "name"}:
            return None
        if match.lastgroup != "word":
            continue
        word = match[0]
        num_words += 1
        if num_words > 3 or not _is_plain(word) or any(unicodedata.category(char) in {"Lu", "Lt"} for char in word[1:]):
            return None
        is_kept = _is_name(word, subtag) or _is_english_i(word, subtag)
        lowered = word if is_kept else _lower(word, subtag)
        is_changed = is_changed or lowered != word
        result += [text[position : match.start()], lowered]
        position = match.end()
    return "".join([*result, text[position:]]) if is_changed else None


def capitalized_like(source: str, target: str, *, language: str = "") -> str:
    """Return the target with an initial capital if the source has one; `language` is that of the target.

    Both must begin with a word, after punctuation only. A word with a capital inside, such as `iPhone`, stays.
    """
    of_source, of_target = _first_letter(source), _first_letter(target)
    if of_source is None or of_target is None or unicodedata.category(source[of_source]) not in {"Lu", "Lt"}:
        return target
    match = _TOKEN.match(target, of_target)
    if match is None or match.lastgroup != "word" or any(char.isupper() for char in match[0]):
        return target
    initial, rest = target[of_target], target[of_target + 1 :]
    subtag = primary_language(language)
    if subtag == "nl" and target.startswith("ij", of_target):
        return f"{target[:of_target]}IJ{rest[1:]}"
    return target[:of_target] + ("İ" if subtag in _TURKIC and initial == "i" else initial.title()) + rest


@dataclass(slots=True)
class _Word:
    start: int
    text: str
    is_first: bool  # of a sentence
    before: str  # the word before it in the sentence, in lower case
    after: str = ""
    is_after_title: bool = False


class _SentenceCase:
    """Sentence case of one text."""

    def __init__(self, text: str, language: str) -> None:
        self._text, self._subtag = text, primary_language(language)
        self._is_formal = self._subtag == "de" and _GERMAN_FORMAL.search(text) is not None
        self._changes: list[tuple[int, str]] = []

    def result(self) -> str:
        characters = list(self._text)
        words = self._words()
        for word, following in zip_longest(words, words[1:]):
            word.after = following.text.lower() if following and not following.is_first else ""
            self._changes.append((word.start, self._cased(word)))
        for start, changed in self._changes:
            characters[start : start + len(changed)] = changed
        return "".join(characters)

    def _words(self) -> list[_Word]:
        words: list[_Word] = []
        is_first, before, is_after_title, number_is_first = True, "", False, False
        for match in _TOKEN.finditer(self._text):
            found = match[0]
            match match.lastgroup:
                case "word":
                    parts = self._parts(found, match.start())
                    for start, part in parts:
                        words.append(
                            _Word(
                                start=start,
                                text=part,
                                is_first=is_first,
                                before=before,
                                is_after_title=is_after_title,
                            )
                        )
                        number_is_first = is_first and part.isdecimal()
                        is_first, before = False, part.lower()
                        is_after_title = casing_words.SPELLINGS.get(part.upper()) in _TITLES
                case "end":
                    is_first = is_first or self._is_end(found, before, number_is_first=number_is_first)
                    if is_first:
                        before, is_after_title = "", False
                case "placeholder":
                    # A tag before a word is joined to it; other placeholders are words.
                    if not self._text[match.end() : match.end() + 1].isalpha():
                        is_first, before = False, ""
                case "initials":
                    spelled = casing_words.DOTTED.get(re.sub(r"\s", "", found))
                    if spelled:
                        letters = iter(spelled.replace(".", ""))
                        changed = "".join(next(letters) if char.isalpha() else char for char in found)
                        self._changes.append((match.start(), found[0] + changed[1:] if is_first else changed))
                    is_first, before = False, ""
                case _:
                    is_first = found in _LINE_ESCAPES or (is_first and found.startswith(("\\", "&")))
                    before = ""
        return words

    def _parts(self, word: str, start: int) -> Sequence[tuple[int, str]]:
        # In English and German, an apostrophe is part of a word; in other languages, it separates words (`l'eau`).
        if self._subtag in {"en", "de"}:
            return [(start, word)]
        return [(start + part.start(), part[0]) for part in re.finditer(r"[^'\u2019]+", word)]

    def _is_end(self, end: str, before: str, *, number_is_first: bool) -> bool:
        if end == ";":
            return self._subtag == "el"  # the Greek question mark
        if not end.startswith(".") or end.startswith(".."):
            return True
        if before.isdecimal():
            return number_is_first or self._subtag != "de"
        return len(before) != 1 and before not in casing_words.ABBREVIATIONS and not self._is_abbreviation(before)

    def _is_abbreviation(self, word: str) -> bool:
        upper = word.upper()
        is_title = casing_words.SPELLINGS.get(upper) in _TITLES
        return is_title or (self._subtag == "de" and upper in casing_words.GERMAN_ABBREVIATIONS)

    def _cased(self, word: _Word) -> str:
        text = word.text
        if any(unicodedata.category(char) in {"Ll", "Lt"} for char in text if char != "ß"):
            return text
        if not _is_plain(text):
            return _lower(text, self._subtag) if self._subtag == "en" and _ORDINAL.fullmatch(text) else text
        if spelled := self._spelled(text):
            return spelled
        base = _PARTS.split(text, maxsplit=1)[0]
        rest = _lower(text[len(base) :], self._subtag)
        if self._subtag == "en" and _TITLED_NAME.fullmatch(text):
            return text[:3] + rest[2:]
        if self._keeps_capitals(base, word, is_alone=not rest):
            is_plural = self._subtag == "en" and _is_plural_acronym(base)
            return (f"{base[:-1]}s" if is_plural else base) + rest
        lowered = _lower(text, self._subtag)
        is_capitalized = word.is_first or word.is_after_title or self._is_capitalized(_lower(base, self._subtag), word)
        return _initial(text[0]) + lowered[1:] if is_capitalized else lowered

    def _spelled(self, text: str) -> str | None:
        if self._subtag == "de" and text in casing_words.GERMAN_ABBREVIATIONS:
            return casing_words.GERMAN_ABBREVIATIONS[text]
        return casing_words.SPELLINGS.get(text)

    def _keeps_capitals(self, base: str, word: _Word, *, is_alone: bool) -> bool:
        if len(base) == 1 and base != "I":
            return is_alone and (self._subtag == "de" or (self._subtag == "en" and base != "A"))
        if self._subtag == "en" and (
            base == "I" or _is_plural_acronym(base) or (base == "US" and word.before == "the")
        ):
            return True
        return is_acronym(base, self._subtag)

    def _is_capitalized(self, base: str, word: _Word) -> bool:
        if self._subtag == "de":
            return self._is_german_noun(base, word)
        if _is_name(base, self._subtag):
            return True
        if self._subtag != "en":
            return False
        if base in casing_words.ENGLISH_MONTHS:
            return word.before in casing_words.ENGLISH_BEFORE_MONTHS or (word.before[:1] + word.after[:1]).isdigit()
        is_in_phrase = base == "united" and word.after in {"arab", "kingdom", "nations", "states"}
        ends_phrase = word.before == "united" and base in {"emirates", "kingdom", "nations", "states"}
        return is_in_phrase or ends_phrase or (base == "new" and _is_name(word.after, "en"))

    def _is_german_noun(self, base: str, word: _Word) -> bool:
        if _GERMAN_FORMAL_PRONOUN.fullmatch(base):
            return self._is_formal
        ending = _GERMAN_VERB_ENDINGS.get(word.before)
        if ending and len(base) > 3 and base.endswith(ending):
            return False
        if not _has_german_lower_case(base):
            return True
        # A verb as a noun: `das Essen`. An adjective has a noun after it.
        is_verb = base.endswith(("en", "eln", "ern")) and not base.endswith("sten")
        return (
            is_verb
            and _GERMAN_DETERMINER.fullmatch(word.before) is not None
            and (not word.after or _has_german_lower_case(word.after))
        )


def _lower(text: str, subtag: str) -> str:
    text = text.translate(_TO_TURKIC_LOWER) if subtag in _TURKIC else text
    return text.replace("İ", "i").lower()  # the only letter whose lower case is longer


def _upper(text: str, subtag: str) -> str:
    return (text.replace("i", "İ") if subtag in _TURKIC else text).upper()


def _initial(char: str) -> str:
    # The title case of `Ǆ` is `ǅ`, and that of a Georgian capital is its small letter.
    title = char.lower().title()
    return title if len(title) == 1 else char


def _first_letter(text: str) -> int | None:
    for index, char in enumerate(text):
        if char.isalpha():
            return index
        if char.isalnum() or char in "\ufffc\\&[{<":
            return None
    return None


def _is_plain(word: str) -> bool:
    return "_" not in word and not any(char.isnumeric() for char in word)


def _has_case(word: str) -> bool:
    return any(char.isupper() for char in word)


def _is_name(word: str, subtag: str) -> bool:
    base = _PARTS.split(word, maxsplit=1)[0].lower()
    return base in casing_words.CITIES_AND_BRANDS or (subtag == "en" and base in casing_words.ENGLISH_NAMES)


def _is_english_i(word: str, subtag: str) -> bool:
    return subtag == "en" and _PARTS.split(word, maxsplit=1)[0] == "I"


def is_irregular(word: str) -> bool:
    """Return whether the capitals of a word are a slip, as in `HAllo` and `HallO`."""
    return _IRREGULAR.fullmatch(word) is not None


def is_acronym(word: str, subtag: str) -> bool:
    """Return whether a word in capitals is an acronym or a Roman numeral; an empty language stands for all."""
    is_english_or_german = subtag in {"", "en", "de"}
    if word in casing_words.ACRONYMS or (is_english_or_german and word in casing_words.ENGLISH_AND_GERMAN_ACRONYMS):
        return True
    if len(word) < 2 or word.lower() in casing_words.ABBREVIATIONS:
        return False
    if _ROMAN.fullmatch(word):
        return True
    if subtag in _WITHOUT_VOWELS:
        return False
    min_consonants = 3 if subtag else 4  # Polish words begin with three
    return _has_no_vowel(word) or (is_english_or_german and _begins_unlike_words(word, min_consonants))


def _has_no_vowel(word: str) -> bool:
    letters = unicodedata.normalize("NFD", word)
    return max(letters) < _FIRST_OTHER_SCRIPT and not any(char in _VOWELS for char in letters)


def _begins_unlike_words(word: str, min_consonants: int) -> bool:
    # Like `DSGVO`, and unlike `SCHLAUCH`.
    cluster = _CONSONANTS.match(word)
    return cluster is not None and len(cluster[0]) >= min_consonants and not _INITIAL_CONSONANTS.fullmatch(cluster[0])


def _is_plural_acronym(word: str) -> bool:
    return word.endswith("S") and word[:-1] in casing_words.COUNTABLE_ACRONYMS


def _has_german_lower_case(word: str) -> bool:
    word = word.replace("ß", "ss")
    if word in casing_words.GERMAN_LOWER_CASE_WORDS:
        return True
    if word in casing_words.GERMAN_CAPITALIZED_WORDS:
        return False
    anchored = f"^{word}"
    for length in range(min(5, len(anchored)), 0, -1):
        ending = anchored[-length:]
        if ending in casing_words.GERMAN_LOWER_CASE_ENDINGS:
            return True
        if ending in casing_words.GERMAN_CAPITAL_ENDINGS:
            return False
    return False
