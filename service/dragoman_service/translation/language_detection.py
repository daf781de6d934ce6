"""Language detection with py3langid, the scripts of the letters, and the served languages.

py3langid ranks 140 languages. Languages that are written in another script than the text are excluded. The confidence
of a language is its probability among all remaining languages, served or not. The prior probabilities differ, because
most texts are in a language that the server serves, and few are in a language such as Extremaduran.
"""

import importlib
import io
import re
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, BinaryIO, Final

from dragoman_service.datatypes import DetectedLanguage
from dragoman_service.errors import InvalidFieldError
from dragoman_service.language_tags import is_same_language, parse_language_tag
from dragoman_service.translation.unicode_scripts import language_scripts, script_of, tag_scripts

# All languages that a text may be in, the likeliest first; empty if the text has no letters.
Candidates = tuple[DetectedLanguage, ...]

# A text whose likeliest language reaches this confidence is in that language, regardless of the other texts.
#
# With two served languages, 97.1 to 99.8 % of English and German sentences (Tatoeba, software documentation,
# newstest2013) reach it, at least 99.4 % of them in the right language. With all languages served, 91.0 to 98.9 % reach
# it, at least 99.5 % of them in the right language.
MIN_CONFIDENCE: Final = 0.3

MAX_CANDIDATES: Final = 5  # languages in a response for one text
UNKNOWN_LANGUAGE: Final = "und"  # BCP-47 tag of a text with letters that are not of a known language

# Prior probabilities relative to a common language that is not served.
_SERVED_WEIGHT: Final = 3.0
_RARE_WEIGHT: Final = 0.1

# Languages that are common in software and on the Web.
_COMMON_LABELS: Final = (
    "af ar az bg bn bs ca cs cy da de el en es et eu fa fi fr ga gl he hi hr hu hy id is it ja ka kk ko lt lv mk ms nl "
    "no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur vi zh"
)
_COMMON: Final = frozenset(_COMMON_LABELS.split())

# Confidence that an unserved language needs. Single words such as "Yes" are similar to twenty languages.
_MIN_UNSERVED: Final = 0.15

# In a list whose majority is in a served language, an unserved language needs this confidence, and this multiple of the
# confidence of the likeliest served language.
#
# One wrong rejection fails a request of up to 128 texts. The stricter limits reject 1 of 60 lists of 128 English
# sentences (Tatoeba, software documentation, newstest2013) instead of 5, and 96 to 99 % of short phrases in other
# languages instead of 99 to 100 %.
_MIN_UNSERVED_IN_LIST: Final = 0.2
_LIST_WEIGHT: Final = 2.0

# Confidence that a language needs to be translated. Below it, a text of one word is returned unchanged, like text in
# the target language, and a longer text is rejected. "La" has 0.085, "Save" 0.09. Of 100 English and 100 German words
# of user interfaces, 67 and 86 reach it, and 9 and 4 are taken for the other language; without it, 75, 94, 26 and 6.
_MIN_SERVED: Final = 0.088

# Confidence that an unserved language needs in a text of one word: loan words such as "Pizza" have up to 0.23 in the
# language that they are from.
_MIN_UNSERVED_WORD: Final = 0.25

_MAX_CHARACTERS: Final = 2000  # of a text that are ranked, without tags and addresses
_MAX_CHARACTERS_WITH_TAGS: Final = 5 * _MAX_CHARACTERS
_MAX_LISTED: Final = 20  # served languages in an error

# Minimum share of letters in a script of the language. All texts contain names and code in Latin letters, so languages
# in other scripts need a smaller share.
_MIN_LATIN: Final = 0.5
_MIN_OTHER: Final = 0.1

_TAG_OR_ADDRESS: Final = re.compile(r"<[^<>]{1,200}>|https?://\S{1,200}")
_TAG_OR_ENTITY: Final = re.compile(r"<[^<>]*+>|&#?\w{1,32};")
_WORD_CHARACTER: Final = re.compile(r"[^\W\d_]")

# Labels of the model that differ from the language subtag.
_LABELS: Final = {"gn": "gug", "ki": "kik", "fil": "tl"}
_NOT_LANGUAGES: Final = {"zxx"}  # label of the model for texts without words

_MODULE: Final = "py3langid.langid"
_READER: Final = "py3langid.modelio"

# Returns the probability of each language of a text, the likeliest first.
Rank = Callable[[str], Sequence[tuple[str, float]]]


class LanguageDetector:
    """Ranks the languages of texts. Thread-safe. The first call loads the model: 100 MB of memory, one second."""

    def __init__(self, load: Callable[[], Rank] | None = None) -> None:
        self._load = load or _load_model
        self._loading = threading.Lock()
        self._rank: Rank | None = None

    def detect(self, text: str, served: Collection[str], *, is_markup: bool = False) -> Candidates:
        """Return all languages that a text may be in, the likeliest first; empty if the text has no letters.

        Only the beginning of the text is ranked. Of the served BCP-47 tags of a language, the shortest that fits the
        script is used. Letters in tags and entities of markup do not count.
        """
        if not has_letters(text, is_markup=is_markup):
            return ()
        with self._loading:
            rank = self._rank = self._rank or self._load()
        text = text[:_MAX_CHARACTERS_WITH_TAGS]
        cleaned = _TAG_OR_ADDRESS.sub(" ", text)
        if not has_letters(cleaned):
            cleaned = text
        cleaned = cleaned[:_MAX_CHARACTERS]
        shares = _script_shares(cleaned)
        tags = _served_tags(served, shares)
        weights = {
            label: probability * (_SERVED_WEIGHT if label in tags else 1.0 if label in _COMMON else _RARE_WEIGHT)
            for label, probability in rank(cleaned)
            if label not in _NOT_LANGUAGES and _fits(language_scripts(label), shares)
        }
        total = sum(weights.values())
        if not total:
            return (DetectedLanguage(language=UNKNOWN_LANGUAGE, confidence=0.0, is_served=False),)
        candidates = (
            DetectedLanguage(language=tags.get(label, label), confidence=weight / total, is_served=label in tags)
            for label, weight in weights.items()
        )
        return tuple(sorted(candidates, key=lambda candidate: -candidate.confidence))


def has_letters(text: str, *, is_markup: bool = False) -> bool:
    """Return whether a text has letters; emoji, digits and the letters of mathematical notation do not count."""
    if is_markup:
        text = _TAG_OR_ENTITY.sub(" ", text)
    return any(script_of(match[0]) is not None for match in _WORD_CHARACTER.finditer(text))


def listed_candidates(candidates: Candidates) -> Candidates:
    """Return the candidates for a response, without unlikely unserved languages if a served language is possible."""
    likely = [candidate for candidate in candidates if candidate.is_served or candidate.confidence >= _MIN_UNSERVED]
    has_served = any(candidate.is_served and candidate.confidence > 0 for candidate in likely)
    return tuple((likely if has_served else candidates)[:MAX_CANDIDATES])


def is_word(text: str) -> bool:
    """Return whether a text has no white space inside."""
    return len(text[:_MAX_CHARACTERS_WITH_TAGS].split()) == 1


def source_languages(
    texts: Sequence[Candidates],
    served: Collection[str],
    *,
    target_language: str = "",
    words: Collection[int] = (),
) -> list[DetectedLanguage | None]:
    """Return the language of each text of a request; None for a text without letters.

    Texts below `MIN_CONFIDENCE` are assigned to the language of the majority, if that is plausible. Texts may also be
    in the target language, if one is given. `words` has the indices of texts of one word.

    Raises:
        InvalidFieldError: for the first text whose language is not served or is ambiguous.
    """
    certain = (text[0] for text in map(listed_candidates, texts) if text and text[0].confidence >= MIN_CONFIDENCE)
    votes = Counter((candidate.language, candidate.is_served) for candidate in certain)
    majority = votes.most_common(1)[0][0] if votes else ("", False)
    return [
        _source_language(candidates, majority, served, index, target_language, is_word=index in words)
        if candidates
        else None
        for index, candidates in enumerate(texts)
    ]


def common_language(languages: Iterable[DetectedLanguage | None]) -> DetectedLanguage | None:
    """Return the language of all texts with letters, with the mean confidence; None without such texts.

    Raises:
        InvalidFieldError: if two texts are in different languages.
    """
    detected = [(index, language) for index, language in enumerate(languages) if language is not None]
    if not detected:
        return None
    start, first = detected[0]
    for index, other in detected:
        if other.language != first.language:
            value = f"absent, and text {start} seems to be in {first.language}, text {index} in {other.language}"
            raise InvalidFieldError("source_language", value, "given, or all texts in one language")
    return replace(first, confidence=sum(language.confidence for _, language in detected) / len(detected))


def _source_language(
    candidates: Candidates,
    majority: tuple[str, bool],
    served: Collection[str],
    index: int,
    target_language: str,
    *,
    is_word: bool,
) -> DetectedLanguage:
    first = listed_candidates(candidates)[0]
    best = next((candidate for candidate in candidates if candidate.is_served and candidate.confidence > 0), None)
    weight, least = (_LIST_WEIGHT, _MIN_UNSERVED_IN_LIST) if majority[1] else (1.0, _MIN_UNSERVED)
    if is_word:
        least = _MIN_UNSERVED_WORD
    if best and first.confidence < max(least, weight * best.confidence):
        first = best
    if first.confidence < MIN_CONFIDENCE:
        same = next((other for other in candidates if (other.language, other.is_served) == majority), None)
        if same and same.confidence * _SERVED_WEIGHT >= first.confidence:
            first = same
        elif target_language and first.is_served and first.confidence < _MIN_SERVED:
            if is_word:
                return DetectedLanguage(language=target_language, confidence=first.confidence, is_served=False)
            raise _rejection(index, candidates, f"given: no served language has a confidence of {_MIN_SERVED}")
        elif first.is_served and 2 * first.confidence < sum(
            other.confidence for other in candidates if other.is_served
        ):
            raise _rejection(index, candidates, "given: no served language is likelier than the others together")
    if first.is_served or (target_language and is_same_language(first.language, target_language)):
        return first
    tags = sorted(served)
    more = f", ... ({len(tags)} in all)" if len(tags) > _MAX_LISTED else ""
    raise _rejection(index, candidates, f"given, with texts in one of: {', '.join(tags[:_MAX_LISTED]) or 'none'}{more}")


def _rejection(index: int, candidates: Candidates, limit: str) -> InvalidFieldError:
    shown = ", ".join(
        f"{candidate.language} ({candidate.confidence:.2f}{'' if candidate.is_served else ', not served'})"
        for candidate in listed_candidates(candidates)
    )
    return InvalidFieldError("source_language", f"absent, and the language of text {index} seems to be {shown}", limit)


def _script_shares(text: str) -> Mapping[str, float]:
    # Share of each script among the letters of a text.
    counts = Counter(script for character in text if (script := script_of(character)) is not None)
    total = counts.total()
    return {script: count / total for script, count in counts.items()}


def _served_tags(served: Collection[str], shares: Mapping[str, float]) -> dict[str, str]:
    # The served tags that fit the scripts of a text, by the label of the model.
    tags: dict[str, str] = {}
    for tag in sorted(served, key=lambda tag: (len(tag), tag)):
        subtag = parse_language_tag(tag).language
        label = _LABELS.get(subtag, subtag)
        if _fits(tag_scripts(tag, label), shares):
            tags.setdefault(label, tag)
    return tags


def _fits(scripts: Collection[str], shares: Mapping[str, float]) -> bool:
    if not shares:
        return True
    least = _MIN_LATIN if "LATIN" in scripts else _MIN_OTHER
    return sum(shares.get(script, 0.0) for script in scripts) >= least


class _NoFiles:
    # Replaces the module `tempfile`, because the file system may be read-only.
    @staticmethod
    def TemporaryFile(**_: object) -> BinaryIO:  # noqa: N802 - name in `tempfile`
        return io.BytesIO()


@cache
def _load_model() -> Rank:
    module: Any = importlib.import_module(_MODULE)
    reader: Any = importlib.import_module(_READER)
    reader.tempfile = _NoFiles  # py3langid would unpack the model into a file
    rank: Rank = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True).rank
    return rank
