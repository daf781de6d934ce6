import shutil
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from tests.ctranslate2_models import save_spec
from tests.foreign_checkpoints.eole import EOLE, save_eole
from tests.foreign_checkpoints.fairseq import FAIRSEQ, save_fairseq
from tests.foreign_checkpoints.opennmt import OPENNMT, save_opennmt
from tests.foreign_models import save_bart, save_m2m100, save_marian, save_mbart50, save_nllb

_SAVES: Mapping[str, Callable[[Path], object]] = {
    "marian": save_marian,
    "bart": save_bart,
    "m2m100": save_m2m100,
    "nllb": save_nllb,
    "mbart50": save_mbart50,
    "ctranslate2": partial(save_spec, tied="all", quantization="int8"),
    "eole": partial(save_eole, options=next(iter(EOLE.values()))),
    "fairseq": partial(save_fairseq, options=next(iter(FAIRSEQ.values()))),
    "fairseq pre-norm": partial(save_fairseq, options=FAIRSEQ["pre-norm, two dictionaries"]),
    "opennmt": partial(save_opennmt, options={}),
    "opennmt rotary": partial(save_opennmt, options=OPENNMT["rotary positions in halves"]),
}


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def save(name: str) -> Path:
        directory = tmp_path_factory.mktemp("original") / name
        _SAVES[name](directory)
        return directory

    return save


@pytest.fixture
def saved(original: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A function that returns a fresh copy of a tiny model, named by its kind or system."""
    return lambda name: Path(shutil.copytree(original(name), tmp_path / name, symlinks=True))


def _copy(name: str) -> Any:
    @pytest.fixture
    def copy(saved: Callable[[str], Path]) -> Path:
        return saved(name)

    return copy


marian, bart, ctranslate2, eole, fairseq = map(_copy, ("marian", "bart", "ctranslate2", "eole", "fairseq"))
