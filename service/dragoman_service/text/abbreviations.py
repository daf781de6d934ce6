"""Abbreviations with fixed translations, and names with initials or an apostrophe.

Models read `e.g.` as two letters and `No. 5` as the word no. The translation of such an abbreviation is the same in
every sentence, so it is protected like a term. The tables contain only forms without gender, case and number. An
abbreviation that is also a word, such as `No.`, counts only before a number.

A full stop that may end the sentence is outside of the span, because the sentence splitter and the model need it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from dragoman_service.datatypes import Span
from dragoman_service.language_tags import primary_language
from dragoman_service.request import ProtectedKind
from dragoman_service.text.placeholders.spans import ProtectedSpan
from dragoman_service.text.segmentation import Check, never_ends

_WINDOW_CHARACTERS = 4_096  # start positions of one call of `re`, which holds the global interpreter lock (GIL)
_REACH_CHARACTERS = 512  # more than the longest match and its lookahead
_MAX_STREET_CHARACTERS = 40
_MAX_LABEL_CHARACTERS = 8
_CONTEXT_CHARACTERS = 16  # that decide whether a sentence ends

_SPACE = r"[ \xa0\u202f]"
_UPPER = "A-Z\xc0-\xd6\xd8-\xde\u0391-\u03a9\u0410-\u042f"

# fmt: off
# Translations by abbreviation. Spaces may follow the full stops inside a key, and its first letter may be a capital.
_EN_DE_WORDS = {
    "a.k.a.": "alias", "approx.": "ca.", "ca.": "ca.", "cf.": "vgl.", "e.g.": "z. B.", "excl.": "exkl.",
    "i.e.": "d. h.", "ibid.": "ebd.", "incl.": "inkl.", "viz.": "nämlich", "vs.": "vs.",
}
_DE_EN_WORDS = {
    "abzgl.": "minus", "betr.": "regarding", "bspw.": "for example", "bzgl.": "regarding", "bzw.": "or",
    "ca.": "approx.", "d.h.": "i.e.", "ebd.": "ibid.", "ehem.": "former", "einschl.": "including", "evtl.": "possibly",
    "exkl.": "excl.", "ggf.": "if necessary", "Hausnr.": "house number", "i.d.R.": "usually",
    "i.V.m.": "in conjunction with", "inkl.": "incl.",
    "insb.": "in particular", "insbes.": "in particular", "lt.": "according to", "m.E.": "in my opinion",
    "mind.": "at least", "o.g.": "above-mentioned", "sog.": "so-called", "u.a.": "among other things",
    "u.U.": "possibly", "v.a.": "especially", "vgl.": "cf.", "wg.": "because of", "z.B.": "e.g.", "z.T.": "partly",
    "z.Z.": "currently", "z.Zt.": "currently", "zzgl.": "plus", "zzt.": "currently",
}
# These often end a sentence: before a capital letter, their full stop counts as the end.
_EN_DE_LAST = {
    "et al.": "et al.", "etc.": "usw.", "Inc.": "Inc.", "Ph.D.": "Ph.D.",
}
_DE_EN_LAST = {
    "et al.": "et al.", "etc.": "etc.", "MwSt.": "VAT", "o.Ä.": "or similar", "s.o.": "see above", "s.u.": "see below",
    "u.Ä.": "and the like", "u.a.m.": "and others", "u.v.a.m.": "and many more", "u.v.m.": "and much more",
    "usf.": "and so on", "usw.": "etc.",
}
# These as well, after a number.
_EN_DE_ERAS = {"A.D.": "n. Chr.", "B.C.": "v. Chr.", "B.C.E.": "v. Chr."}
_DE_EN_ERAS = {"n.Chr.": "AD", "v.Chr.": "BC"}
# Units after a number.
_DE_EN_UNITS = {
    "Min.": "min", "Mio.": "million", "Mrd.": "billion", "Sek.": "s", "Std.": "h", "Stk.": "pcs.", "Tsd.": "thousand",
}
# These before the name of a law.
_DE_EN_REFERENCES = {"gem.": "pursuant to", "i.S.d.": "within the meaning of", "i.S.v.": "within the meaning of"}
# The comma after these has no counterpart in German.
_BEFORE_COMMA = frozenset(("e.g.", "i.e."))

# Labels before a number.
_EN_DE_MONTHS = {
    "Jan.": "Jan.", "Feb.": "Feb.", "Apr.": "Apr.", "Aug.": "Aug.", "Sep.": "Sept.", "Sept.": "Sept.", "Oct.": "Okt.",
    "Nov.": "Nov.", "Dec.": "Dez.",
}
_EN_DE_LABELS = {
    "Art.": "Art.", "Arts.": "Art.", "Ch.": "Kap.", "ch.": "Kap.", "Chap.": "Kap.", "chap.": "Kap.", "Eq.": "Gl.",
    "eq.": "Gl.", "Fig.": "Abb.", "fig.": "Abb.", "Figs.": "Abb.", "figs.": "Abb.", "No.": "Nr.", "no.": "Nr.",
    "Nos.": "Nr.", "nos.": "Nr.", "p.": "S.", "pp.": "S.", "Para.": "Abs.", "para.": "Abs.", "paras.": "Abs.",
    "Sec.": "Abschn.", "Vol.": "Bd.", "vol.": "Bd.", "§": "§", "§§": "§§",
    **_EN_DE_MONTHS,
}
_DE_EN_LABELS = {
    "Abb.": "Fig.", "Abs.": "para.", "Anh.": "App.", "Anl.": "Annex", "Anm.": "note", "Art.": "Art.", "Bd.": "vol.",
    "Gl.": "Eq.", "Kap.": "ch.", "Nr.": "No.", "Nrn.": "Nos.", "Pos.": "item", "Rdnr.": "para.", "Rn.": "para.",
    "Rz.": "para.", "S.": "p.", "Tab.": "Table", "Ziff.": "No.", "§": "§", "§§": "§§",
}
# Labels after another label and its number, such as `§ 5 Abs. 2 S. 1`.
_DE_EN_SUBLABELS = {"Hs.": "half-sentence", "S.": "sentence", "Satz": "sentence"}

_LAW_LABELS = frozenset(("§", "§§", "Abs.", "Art."))

# Names without a full stop, and laws after a label and its number.
_EN_DE_NAMES = {"GDPR": "DSGVO"}
_DE_EN_NAMES = {"BGB": "BGB", "DSGVO": "GDPR", "GmbH & Co. KG": "GmbH & Co. KG", "HGB": "HGB", "StGB": "StGB"}
_GERMAN_LAWS = (
    "AGG", "AktG", "AO", "ArbZG", "AufenthG", "BauGB", "BDSG", "BetrVG", "BGB", "BImSchG", "BtMG", "BUrlG", "DSGVO",
    "EGBGB", "EStG", "FamFG", "GewO", "GewStG", "GG", "GmbHG", "GVG", "HGB", "InsO", "JGG", "KSchG", "KStG", "MarkenG",
    "OWiG", "PatG", "StGB", "StPO", "StVG", "StVO", "TKG", "TMG", "TzBfG", "UrhG", "UStG", "UWG", "VwGO", "VwVfG",
    "WEG", "ZPO",
)

# Capitals with full stops that are not initials, because they have other translations.
_NOT_INITIALS = frozenset((
    "AD", "AKA", "AM", "BC", "BCE", "DC", "DH", "EG", "EU", "GB", "IDR", "IE", "NB", "PM", "PO", "PS", "RIP", "UA",
    "UAE", "UK", "UN", "US", "USA", "USSR", "UU", "VA", "ZB", "ZT",
))
# Words that begin a sentence and are not surnames.
_NOT_SURNAMES = frozenset((
    "A", "After", "All", "Also", "And", "As", "At", "Because", "Before", "But", "By", "For", "From", "He", "Her",
    "Here", "His", "How", "However", "I", "If", "In", "It", "Its", "My", "No", "Not", "Now", "On", "One", "Or", "Our",
    "She", "So", "Some", "That", "The", "Their", "Then", "There", "These", "They", "This", "Those", "To", "We", "What",
    "When", "Where", "Which", "While", "Who", "Why", "Yes", "You", "Your",
    "Aber", "Als", "Am", "Auch", "Auf", "Aus", "Bei", "Da", "Dann", "Das", "Dem", "Den", "Der", "Des", "Die", "Dies",
    "Diese", "Dort", "Ein", "Eine", "Er", "Es", "Für", "Hier", "Ich", "Ihr", "Ihre", "Im", "Ja", "Jetzt", "Man", "Mit",
    "Nach", "Nein", "Nun", "Oder", "Sein", "Seine", "Sie", "Sind", "Und", "Unser", "Von", "Vor", "Was", "Wenn", "Wer",
    "Wie", "Wir", "Wo", "Zu", "Zum",
))
# fmt: on

_INITIALS = (
    rf"(?P<initials>(?:[{_UPPER}]\.{_SPACE}?){{1,4}}[{_UPPER}]\.)"
    rf"{_SPACE}?(?:(?:van|von|de|der|den|di|du|la|le|ten|ter|zu){_SPACE}){{0,3}}"
    rf"(?P<surname>[{_UPPER}]['’]?[^\W\d_]{{1,40}})"
)
_TITLED = (
    rf"(?P<title>(?:(?:Prof|Dr)\.{_SPACE}){{1,3}}(?:[{_UPPER}]\.{_SPACE}?){{0,3}}[{_UPPER}][^\W\d_]{{1,40}}(?!\w))"
)
# In English and German; in French and Italian, `L'Europe` is an article and a noun.
_APOSTROPHE_NAME = r"(?<![\w.])(?P<apostrophe>(?!I)[A-Z]['’](?!(?:All|Clock)\b)[A-Z][a-zß-öø-ÿ]{2,40}(?!\w))"
_GERMAN_DAY = "(?:Mo|Di|Mi|Do|Fr|Sa|So)"
_GERMAN_DAYS = rf"(?P<days>{_GERMAN_DAY}(?:[.,/]?{_SPACE}?{_GERMAN_DAY}){{3,6}}(?!\w))"  # a row of a calendar
# Neither an amount with a thousands separator nor a quantity: `No. 5 million people`.
_NUMBER = (
    r"\d{1,6}(?:[/–-]\d{1,6}|\.(?!\d{3}(?!\d))\d{1,6}){0,3}[a-z]?(?![\w%]|[.,]\d)"
    r"(?!\s(?:%|percent|per cent|hundred|thousand|million|billion|people|persons|men|women|children|years|months|weeks"
    r"|days|hours|minutes|times|of (?:them|us|you)|Prozent|Millionen|Milliarden)\b)"
)
_STREET = rf"(?P<street>[Ss]tr\.{_SPACE}?\d{{1,4}}[a-z]?(?!\w))"
_STREET_NAME_REVERSED = re.compile(r"[\w-]*+")
_RANGE = re.compile(r"\d[–-]\d")

_SIMPLE = re.compile(r"[^\W\d]{1,16}\.")

# Ends of sentences before a number: `Was it? No. 5 were left.`
_SENTENCE_BEFORE = {
    "no.": re.compile(r"(?:\?|\b(?:is|was|be|says?|said|answers?|answered))[\"'”’»)]{0,2}\s\Z", re.IGNORECASE),
    "art.": re.compile(r"\b(?:aller|anderer|dieser|einer|jeder|solcher|of|this|fine|modern)\s\Z", re.IGNORECASE),
}
_SENTENCE_AFTER = re.compile(rf"[\"'”’»“]?(?:\Z|[\n\r\t]|\s{{1,8}}+[\"'“„«»‘(¿¡]?[{_UPPER}])")
_END_AFTER = re.compile(r"[\"'”’»“]?\s{0,8}+(?:\Z|[\n\r\t])|[\"”»“]\s{1,8}+[\"“„«»(]?[" + _UPPER + "]|[.…]")

_NUMBER_KINDS = frozenset((ProtectedKind.IDENTIFIER, ProtectedKind.NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Abbreviations:
    # Of one pair of languages.
    words: Mapping[str, tuple[str, str]]  # key and translation by folded key
    last: frozenset[str]  # folded keys of words that often end a sentence
    labels: Mapping[str, str]
    sublabels: Mapping[str, str]  # and names
    names: Mapping[str, str]
    expression: re.Pattern[str]
    label: re.Pattern[str]
    last_label: re.Pattern[str]


class AbbreviationFinder:
    """Finds abbreviations and names with an apostrophe of English and German, and initials in every language."""

    def __init__(self, source_language: str, target_language: str) -> None:
        """Take two BCP-47 tags; only their primary subtags matter."""
        source, target = primary_language(source_language), primary_language(target_language)
        self._abbreviations = _abbreviations(source, target)
        self.expression = self._abbreviations.expression  # a text without a match has no abbreviation

    def add_to(self, spans: Sequence[ProtectedSpan], text: str, check: Check = never_ends) -> list[ProtectedSpan]:
        """Return the spans and the abbreviations between them, in order."""
        merged: list[ProtectedSpan] = []
        begin = 0
        for protected in chain(spans, (None,)):
            check()
            end = protected.span.start if protected else len(text)
            merged += self._between(text, begin, end, check)
            if protected:
                if protected.kind in _NUMBER_KINDS:
                    merged += self._label_before(text, merged[-1].span.end if merged else 0, end)
                merged.append(protected)
                begin = protected.span.end
        return merged

    def _between(self, text: str, begin: int, end: int, check: Check) -> Iterator[ProtectedSpan]:
        for match in _matches(self._abbreviations.expression, text, begin, end, check):
            if (protected := self._protected(text, match, begin)) is not None:
                yield protected
                begin = protected.span.end

    def _label_before(self, text: str, begin: int, end: int) -> Iterator[ProtectedSpan]:
        # The label of a number that is protected itself.
        match = self._abbreviations.last_label.search(text, max(begin, end - _MAX_LABEL_CHARACTERS), end)
        if match and _is_label(text, match.start(), match["label"]):
            target = self._abbreviations.labels[match["label"]]
            yield ProtectedSpan(span=Span(start=match.start(), end=match.end("label")), kind=None, target=target)

    def _protected(self, text: str, match: re.Match[str], begin: int) -> ProtectedSpan | None:
        start, end = match.span()
        target: str | None
        if match.lastgroup == "surname":
            target = match[0] if _are_initials(match["initials"], match["surname"]) else None
        elif match.lastgroup == "street":
            name = _STREET_NAME_REVERSED.match(text[max(begin, start - _MAX_STREET_CHARACTERS) : start][::-1])
            start -= name.end() if name else 0
            target = text[start:end]
        elif match.lastgroup in {"title", "days", "apostrophe"}:
            target = match[0]
        elif match.lastgroup == "name":
            target = self._abbreviations.names[match["name"]]
        elif match.lastgroup == "citation":
            target = self._citation(text, match)
        else:
            end, target = self._word(text, match)
        return ProtectedSpan(span=Span(start=start, end=end), kind=None, target=target) if target else None

    def _word(self, text: str, match: re.Match[str]) -> tuple[int, str]:
        # The end of an abbreviation, and its translation.
        source, end = match[0], match.end()
        folded = _folded(source)
        key, target = self._abbreviations.words[folded]
        if source[0] != key[0]:
            target = _capitalized(target)
        following = text[end : end + _CONTEXT_CHARACTERS]
        if following.startswith(",") and key in _BEFORE_COMMA and self._abbreviations.labels is _EN_DE_LABELS:
            return end + 1, target
        is_end = _END_AFTER.match(following) or (
            folded in self._abbreviations.last and _SENTENCE_AFTER.match(following)
        )
        return (end - 1, target.removesuffix(".")) if is_end else (end, target)

    def _citation(self, text: str, match: re.Match[str]) -> str | None:
        # Numbers with labels, and the name of a law.
        source = match["citation"]
        first = self._abbreviations.label.match(source)
        if first is None or not _is_label(text, match.start(), first[0]):
            return None
        target = self._abbreviations.labels[first[0]]
        if target == "p." and _RANGE.search(source):
            target = "pp."
        if _begins_sentence(text, match.start()):
            target = _capitalized(target)
        is_law = first[0] in _LAW_LABELS

        def translated(label: re.Match[str]) -> str:
            # `S.` is a sentence in `§ 5 Abs. 2 S. 1`, and a page in `Kap. 2, S. 12`.
            is_page = label[0] == "S." and (not is_law or label.string[: label.start()].endswith((", ", ",\xa0")))
            return (self._abbreviations.labels if is_page else self._abbreviations.sublabels)[label[0]]

        return target + self._abbreviations.label.sub(translated, source[first.end() :])


def _matches(expression: re.Pattern[str], text: str, begin: int, end: int, check: Check) -> Iterator[re.Match[str]]:
    # In windows: a call of `re` cannot be interrupted.
    position = begin
    while position < end:
        check()
        stop = min(position + _WINDOW_CHARACTERS, end)
        reached = stop
        for match in expression.finditer(text, position, min(stop + _REACH_CHARACTERS, end)):
            if match.start() >= stop:
                break
            yield match
            reached = max(reached, match.end())
        position = reached


def _folded(abbreviation: str) -> str:
    return "".join(abbreviation.split()).casefold()


def _capitalized(target: str) -> str:
    return target[0].upper() + target[1:]


def _begins_sentence(text: str, start: int) -> bool:
    before = text[max(0, start - 2) : start]
    return before in {"", " "} or before[-1] in "\n\r\t" or (before[0] in ".!?" and before[-1] == " ")


def _is_label(text: str, start: int, label: str) -> bool:
    sentence_before = _SENTENCE_BEFORE.get(label.lower())
    return sentence_before is None or not sentence_before.search(text[max(0, start - _CONTEXT_CHARACTERS) : start])


def _are_initials(initials: str, surname: str) -> bool:
    return "".join(filter(str.isalpha, initials)) not in _NOT_INITIALS and surname not in _NOT_SURNAMES


@lru_cache(maxsize=64)
def _abbreviations(source: str, target: str) -> _Abbreviations:
    match source, target:
        case "en", "de":
            last, eras, units = _EN_DE_LAST, _EN_DE_ERAS, {}
            words, labels, sublabels, names = _EN_DE_WORDS, _EN_DE_LABELS, {}, _EN_DE_NAMES
            laws: Iterable[str] = _EN_DE_NAMES
            references: Mapping[str, str] = {}
            others = rf"{_INITIALS})|(?:{_TITLED}"
        case "de", "en":
            last, eras, units = _DE_EN_LAST, _DE_EN_ERAS, _DE_EN_UNITS
            words, labels, sublabels, names = _DE_EN_WORDS, _DE_EN_LABELS, _DE_EN_SUBLABELS, _DE_EN_NAMES
            laws = _GERMAN_LAWS
            references = _DE_EN_REFERENCES
            others = rf"{_INITIALS})|(?:{_TITLED})|(?:{_GERMAN_DAYS})|(?:{_STREET}"
        case _:
            apostrophe = rf"|{_APOSTROPHE_NAME}" if source in {"en", "de"} else ""
            initials, nothing = re.compile(rf"(?<![\w.]){_INITIALS}{apostrophe}"), re.compile(r"(?!)(?P<label>)")
            return _Abbreviations(
                words={},
                last=frozenset(),
                labels={},
                sublabels={},
                names={},
                expression=initials,
                label=nothing,
                last_label=nothing,
            )
    first_labels, later_labels = _any(labels), _any({**labels, **sublabels})
    following = rf"(?:,?{_SPACE}ff?\.(?={_SPACE}(?:[a-z(]|{later_labels}|(?:{_any(laws)})\b)|[,;:)]))?"
    citation = (
        rf"(?:{first_labels}){_SPACE}?{_NUMBER}{following}"
        rf"(?:,?{_SPACE}(?:{later_labels}){_SPACE}?{_NUMBER}{following}){{0,6}}(?:{_SPACE}(?:{_any(laws)})\b)?"
    )
    word = (
        rf"(?:{_any_word({**words, **last})}|(?<=\d{_SPACE})(?:{_any_word({**eras, **units})}))(?![^\W\d])"
        rf"|(?:{_any_word(references)})(?={_SPACE}?(?:§|Art\.))"
    )
    # Most words are neither one of these nor letters before a full stop.
    keys = (*words, *last, *eras, *units, *references, *labels, *names)
    openers = {key.split()[0] for key in keys}
    begins = rf"(?=[^\W\d]{{1,16}}+\.|{_any(opener for opener in openers if not _SIMPLE.match(opener))})"
    abbreviation = rf"(?P<word>{word})|(?P<citation>{citation})|(?P<name>(?:{_any(names)})\b)"
    expression = rf"(?<![\w.]){begins}(?:{abbreviation}|{others})|(?:{_APOSTROPHE_NAME})"
    return _Abbreviations(
        words={
            _folded(key): (key, translation)
            for key, translation in {**words, **last, **eras, **units, **references}.items()
        },
        last=frozenset(map(_folded, {**last, **eras})),
        labels=labels,
        sublabels={**labels, **{law: law for law in laws}, **sublabels, **names},
        names=names,
        expression=re.compile(expression),
        label=re.compile(rf"(?<!\w)(?:{later_labels}|(?:{_any(laws)})\b)"),
        last_label=re.compile(rf"(?<![\w.])(?P<label>{first_labels}){_SPACE}?\Z"),
    )


def _any(words: Iterable[str]) -> str:
    return "|".join(map(re.escape, sorted(words, key=len, reverse=True)))


def _any_word(abbreviations: Iterable[str]) -> str:
    return "|".join(map(_word_expression, sorted(abbreviations, key=len, reverse=True))) or r"(?!)"


def _word_expression(abbreviation: str) -> str:
    first = abbreviation[0]
    rest = re.escape(abbreviation[1:].removesuffix(".")).replace(r"\.", rf"\.{_SPACE}?").replace(r"\ ", _SPACE)
    return rf"[{first.lower()}{first.upper()}]{rest}\."


@lru_cache(maxsize=256)
def abbreviation_finder(source_language: str, target_language: str) -> AbbreviationFinder:
    """Return the finder of a language pair."""
    return AbbreviationFinder(source_language, target_language)
