"""The systems whose checkpoints are imported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.foreign_checkpoints.eole import EOLE, run_eole, save_eole
from tests.foreign_checkpoints.fairseq import FAIRSEQ, run_fairseq, save_fairseq
from tests.foreign_checkpoints.library_results import LibraryResult, Pairs
from tests.foreign_checkpoints.opennmt import OPENNMT, run_opennmt, save_opennmt

EXPECTED = Path(__file__).parents[1] / "parity" / "originals.json"
# Token ids of sources and targets without EOS.
_PAIRS = (((5, 17, 4, 40, 33), (9, 31, 6, 28)), ((60, 8), (12, 55, 7, 7, 90, 41)))


@dataclass(frozen=True)
class System:
    """A library whose checkpoints are imported."""

    module: str  # import name of the library
    save: Callable[..., None]
    # results of the library for a saved checkpoint; ImportError if it is missing
    ask: Callable[[Path, Pairs], list[LibraryResult]]
    cases: Mapping[str, Mapping[str, Any]]
    eos_id: int
    ends_sources: bool = True
    file: str = "."  # imported file in the directory

    @property
    def pairs(self) -> Pairs:
        """Token ids of sources and targets, EOS last."""
        suffix = [self.eos_id] if self.ends_sources else []
        return [([*source, *suffix], [*target, self.eos_id]) for source, target in _PAIRS]

    def run(self, directory: Path) -> list[LibraryResult]:
        """Return the results of the library for a saved checkpoint; ImportError if it is missing."""
        return self.ask(directory, self.pairs)


SYSTEMS: Mapping[str, System] = {
    "fairseq": System("fairseq", save_fairseq, run_fairseq, FAIRSEQ, eos_id=2),
    "opennmt": System("onmt", save_opennmt, run_opennmt, OPENNMT, eos_id=3, ends_sources=False, file="model.pt"),
    "eole": System("eole", save_eole, run_eole, EOLE, eos_id=3, ends_sources=False),
}
