"""Which language a text is in: by py3langid, an optional package, among the languages that are served.

Its model knows 140 languages. A confidence is the probability of a language among those served; with them counts any
other that is likelier than all the rest together, so that a text in a language that is not served is not taken for
the closest that is served.
"""

import importlib
import io
import re
import threading
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any, BinaryIO, Final

from service.datatypes import DetectedLanguage
from service.errors import InvalidFieldError

MIN_CONFIDENCE: Final = 0.6
"""A request without a source language is translated from the likeliest if it is at least this likely.

Of English and German sentences (Tatoeba, newstest2013, documentation of software) between 99.3 and 99.9 % reach it with
two languages served, 99.7 to 100 % of them in the right language; with all that the model knows 89 to 97 % do, 99.97 %.
"""

MAX_CANDIDATES: Final = 5
"""Languages that are told of a text."""

_MAX_CHARACTERS: Final = 2000
"""Of a text that are looked at, tags and addresses apart: more make it hardly surer."""

_MAX_CHARACTERS_WITH_TAGS: Final = 5 * _MAX_CHARACTERS

_LIKELIER_THAN_ALL: Final = 0.5
_EVIDENCE: Final = 2.0
"""How much likelier than by chance a language is at least of a text with anything to go by."""

_NO_LANGUAGE: Final = re.compile(r"<[^<>]{1,200}>|https?://\S{1,200}")
"""Tags and addresses."""

_LABELS: Final = {"nb": "no", "gn": "gug", "ki": "kik", "iw": "he", "cmn": "zh", "fil": "tl", "sh": "sr"}
"""Language subtags that the model calls otherwise."""

_MODULE: Final = "py3langid.langid"
_READER: Final = "py3langid.modelio"

Rank = Callable[[str], Sequence[tuple[str, float]]]
"""Returns the probability of each language of a text, the likeliest first."""


class LanguageDetector:
    """Loads its model, 100 MB of memory within a second, when it is first asked; any number of threads may ask."""

    def __init__(self, load: Callable[[], Rank] | None = None) -> None:
        self.is_available = load is not None or find_spec("py3langid") is not None
        """Whether the package is installed."""
        self._load = load or _load_model
        self._loading = threading.Lock()
        self._rank: Rank | None = None

    def detect(self, text: str, served: Collection[str]) -> tuple[DetectedLanguage, ...]:
        """Return what a text may be in, the likeliest first; empty if there is nothing to go by.

        Args:
            text: of which the beginning is looked at.
            served: BCP-47 tags that compete. Of those with the same language subtag the shortest does.
        """
        with self._loading:
            rank = self._rank = self._rank or self._load()
        tags: dict[str, str] = {}
        for tag in sorted(served, key=lambda tag: (len(tag), tag)):
            subtag = tag.partition("-")[0].lower()
            tags.setdefault(_LABELS.get(subtag, subtag), tag)
        ranked = rank(_NO_LANGUAGE.sub(" ", text[:_MAX_CHARACTERS_WITH_TAGS])[:_MAX_CHARACTERS])
        rivals = [(label, each) for label, each in ranked if label in tags or each >= _LIKELIER_THAN_ALL]
        total = sum(each for _, each in rivals)
        if not total or max(each for _, each in ranked) * len(ranked) < _EVIDENCE:
            return ()
        return tuple(
            DetectedLanguage(language=tags.get(label, label), confidence=each / total, is_served=label in tags)
            for label, each in rivals[:MAX_CANDIDATES]
        )


def chosen_language(candidates: Sequence[DetectedLanguage]) -> DetectedLanguage:
    """Return the likeliest language; InvalidFieldError, which tells the candidates, if it is not to be relied on."""
    if candidates and candidates[0].is_served and candidates[0].confidence >= MIN_CONFIDENCE:
        return candidates[0]
    told = ", ".join(
        f"{each.language} ({each.confidence:.2f}{'' if each.is_served else ', not served'})" for each in candidates
    )
    raise InvalidFieldError(
        "source_language",
        f"absent, and the text seems to be in {told or 'no language'}",
        f"given unless one that is served reaches {MIN_CONFIDENCE}",
    )


class _NoFiles:
    """Stands for the module `tempfile` where nothing is to be written."""

    @staticmethod
    def TemporaryFile(**_: object) -> BinaryIO:  # noqa: N802 - the name there
        """Return a file in memory."""
        return io.BytesIO()


@cache
def _load_model() -> Rank:
    """Return that of the only model of this process."""
    module: Any = importlib.import_module(_MODULE)
    reader: Any = importlib.import_module(_READER)
    reader.tempfile = _NoFiles  # it would unpack the model into a file, and a container may have no place for one
    rank: Rank = module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True).rank
    return rank
