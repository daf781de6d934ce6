"""Updates the stored results of libraries; see the package."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.foreign_checkpoints.systems import EXPECTED, SYSTEMS


def main(names: Sequence[str]) -> int:
    """Store the results of these libraries."""
    stored: dict[str, dict[str, list[dict[str, Any]]]] = json.loads(EXPECTED.read_text(encoding="utf-8"))
    for name in names:
        system = SYSTEMS[name]
        stored[name] = {}
        for case, options in system.cases.items():
            with TemporaryDirectory() as directory:
                system.save(Path(directory) / "theirs", options)
                results = system.run(Path(directory) / "theirs")
            stored[name][case] = [dataclasses.asdict(result) for result in results]
    EXPECTED.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
