"""Systems whose checkpoints are imported. The program updates the stored results of their libraries."""

import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.foreign_checkpoints.eole import EOLE, save_eole
from tests.foreign_checkpoints.fairseq import FAIRSEQ, save_fairseq
from tests.foreign_checkpoints.libraries import LibraryResult, Pairs, run_eole, run_fairseq, run_opennmt
from tests.foreign_checkpoints.opennmt import OPENNMT, save_opennmt

EXPECTED = Path(__file__).parents[1] / "parity" / "originals.json"
# token ids of sources and targets without EOS
_PAIRS = (((5, 17, 4, 40, 33), (9, 31, 6, 28)), ((60, 8), (12, 55, 7, 7, 90, 41)))


@dataclass(frozen=True)
class System:
    """A library whose checkpoints are imported."""

    module: str  # import name of the library
    save: Callable[..., None]
    # results of the library for a saved checkpoint; ImportError if it is missing
    run: Callable[[Path, Pairs], list[LibraryResult]]
    cases: Mapping[str, Mapping[str, Any]]
    eos_id: int
    ends_sources: bool = True
    file: str = "."  # imported file in the directory

    @property
    def pairs(self) -> Pairs:
        """Token ids of sources and targets, EOS last."""
        suffix = [self.eos_id] if self.ends_sources else []
        return [([*source, *suffix], [*target, self.eos_id]) for source, target in _PAIRS]


SYSTEMS: Mapping[str, System] = {
    "fairseq": System("fairseq", save_fairseq, run_fairseq, FAIRSEQ, eos_id=2),
    "opennmt": System("onmt", save_opennmt, run_opennmt, OPENNMT, eos_id=3, ends_sources=False, file="model.pt"),
    "eole": System("eole", save_eole, run_eole, EOLE, eos_id=3, ends_sources=False),
}


def main(names: Sequence[str]) -> int:
    """Store the results of these libraries."""
    stored: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name in names:
        system = SYSTEMS[name]
        stored[name] = {}
        for case, options in system.cases.items():
            with TemporaryDirectory() as directory:
                system.save(Path(directory) / "original", options)
                results = system.run(Path(directory) / "original", system.pairs)
            stored[name][case] = [dataclasses.asdict(result) for result in results]
    EXPECTED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
