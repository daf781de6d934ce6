"""What is asked of both servers: one sentence a call, with the defaults of the service."""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtests.peers.cases import SPECIAL_IDS
from loadtests.peers.sentences import sentence_sets, whole_sentences
from loadtests.peers.workspace import BASE_VOCABULARY_SIZE, made_up_word
from loadtests.texts import Profile
from loadtests.workload import Workload

_NUM_SENTENCES: Final = 300
"""Of each test set."""
_SEED: Final = 1
_WORD: Final = re.compile(r"\w+|[^\w\s]")
"""Or a mark of punctuation: about a token of a usual vocabulary."""
_OPTIONS: Final = {"earlyStopping": True}
"""The rivals stop with the K-th finished hypothesis, too; ours would otherwise search further than they do."""
_MADE_UP_OPTIONS: Final = {**_OPTIONS, "repetitionGuard": False}
"""A network that says nothing says it again and again, and only ours would look for that."""


def real_sentences(data: Path | None) -> list[str]:
    """Return sentences of all test sets, or of the repository's documents, that are translated as they are."""
    texts = (text for sentences in sentence_sets(data, size=_NUM_SENTENCES) for text in sentences.texts)
    return whole_sentences([" ".join(text.split()) for text in texts])


def workload(model: str, sentences: Sequence[str], *, directory: Path, deadline_s: float) -> Workload:
    """Return the calls for a model.

    Args:
        model: one of `loadtests.peers.workspace.MODELS`.
        sentences: real ones.
        directory: where the texts go.
        deadline_s: of each call.
    """
    texts = made_up_sentences(sentences) if model == "base" else sentences
    lines = directory / f"{model}.txt"
    lines.parent.mkdir(parents=True, exist_ok=True)
    lines.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    options = json.dumps(_MADE_UP_OPTIONS if model == "base" else _OPTIONS)
    return Workload(profile=Profile.LINES, lines=lines, deadline_s=deadline_s, options=options)


def made_up_sentences(sentences: Sequence[str]) -> list[str]:
    """Return sentences of made-up words, the same in every run: one for each word of real sentences."""
    generator = random.Random(_SEED)
    ordinary = range(len(SPECIAL_IDS) + 1, BASE_VOCABULARY_SIZE)  # EOS is special, too
    return [
        " ".join(map(made_up_word, generator.choices(ordinary, k=len(_WORD.findall(sentence)))))
        for sentence in sentences
    ]
